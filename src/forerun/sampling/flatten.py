"""Packs a step's DrawRequests into flat arrays for one native call, and unpacks what it drew.

Used by a backend whose draw is native:

    flat = pack_draws(batch.draws, len(batch.output_rows))
    drawers.draw(logits, *flat.arguments)                       # logits [O, V] float32, rows contiguous
    return unpack_drawn(flat, hash_of=lambda output: hash_row(logits[output]))

Layout, D requests one behind the other:
    whole  D * 12 int64     first_output, position, key[0], key[1], top_k, banned_until, alternatives (-1: no logprobs),
                            then the lengths of tree, bias, history and banned, and the words of a mask (0: no masks)
    real   D * 6 float64    temperature, top_p, min_p, repetition, frequency and presence penalty
    items  int32            per request: tree tokens, tree parents, bias ids, history ids, history counts, banned ids
    bias_values  float64    per request
    masks  uint32           per request, a mask for each row of its tree
"""

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.batch import Drawn, DrawRequest


@dataclass(frozen=True)
class FlatDraws:
    """Arguments of the native draw behind the logits. `ids` and `logprobs` are written by it: [O, 1 + N], the drawn
    token and then the N most likely ones; what it does not reach stays NOT_DRAWN and NaN."""

    draws: tuple[DrawRequest, ...]
    whole: "array[int]"
    real: "array[float]"
    items: "array[int]"
    bias_values: "array[float]"
    masks: "array[int]"
    ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float64]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """In the order that the native draw takes them."""
        return self.whole, self.real, self.items, self.bias_values, self.masks, self.ids, self.logprobs


def pack_draws(draws: tuple[DrawRequest, ...], num_outputs: int) -> FlatDraws:
    """Flat arrays of `draws` in a step with `num_outputs` output rows."""
    whole, real, items, bias_values = array("q"), array("d"), array("i"), array("d")
    masks = array("I")
    num_top = 0
    for r in draws:
        num_alternatives = -1 if r.logprobs is None else r.logprobs
        num_top = max(num_top, num_alternatives)
        tree, lengths = r.tree, (len(r.tree), len(r.bias_ids), len(r.history_ids), len(r.banned))
        whole.extend((r.first_output, r.position, *r.key, r.top_k, r.banned_until, num_alternatives, *lengths))
        whole.append(0 if r.masks is None else r.masks.shape[1])
        if r.masks is not None:
            masks.frombytes(np.ascontiguousarray(r.masks, np.uint32).tobytes())
        real.extend((r.temperature, r.top_p, r.min_p, r.repetition_penalty, r.frequency_penalty, r.presence_penalty))
        items.extend(tree.tokens + tree.parents)
        if any(lengths[1:]):
            for ids in (r.bias_ids, r.history_ids, r.history_counts, r.banned):
                items.frombytes(np.asarray(ids, np.int32).tobytes())
            bias_values.frombytes(r.bias_values.tobytes())
    shape = (num_outputs, 1 + num_top)
    return FlatDraws(draws, whole, real, items, bias_values, masks, np.empty(shape, np.int32), np.empty(shape))


def unpack_drawn(flat: FlatDraws, hash_of: Callable[[int], bytes]) -> Drawn:
    """What the native draw wrote. `hash_of` maps an output row to its hash; called for rows whose request asked."""
    num_outputs = len(flat.ids)
    tokens = flat.ids[:, 0]
    top: list[tuple[tuple[int, float], ...]] = [()] * num_outputs
    hashes = [b""] * num_outputs
    for request in flat.draws:
        if not (request.logprobs or request.logits_hash):
            continue
        for output in range(request.first_output, request.first_output + len(request.tree)):
            if tokens[output] < 0:
                continue
            if request.logits_hash:
                hashes[output] = hash_of(output)
            if request.logprobs:
                ids, values = flat.ids[output, 1:].tolist(), flat.logprobs[output, 1:].tolist()
                top[output] = tuple(pair for pair in zip(ids, values, strict=True) if pair[0] >= 0)
    return Drawn(tokens, flat.logprobs[:, 0], tuple(top), tuple(hashes))
