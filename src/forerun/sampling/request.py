"""Builds the DrawRequest of a sequence, without work proportional to the context.

What a step needs beside the numbers of SamplingParams (bias, banned ids, token counts) is derived from the sequence
once and then extended by its new tokens. The cache holds nothing that cannot be derived again, and a sequence's tokens
are append-only, so preemption, which only lowers num_computed, leaves it valid.
"""

from array import array
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from weakref import WeakKeyDictionary

import numpy as np

from forerun.batch import DrawRequest, Int32
from forerun.sequence import Sequence
from forerun.speculation.tree import DraftTree

_EMPTY = np.empty(0, np.int32)


class _Derived:
    """Arrays derived from one sequence: bias, banned ids, and the counts of tokens[:num_seen]."""

    def __init__(self, bias: Mapping[int, float], banned: Seq[int]) -> None:
        self.bias_ids = np.fromiter(bias.keys(), np.int32, len(bias))
        self.bias_values = np.fromiter(bias.values(), np.float64, len(bias))
        self.banned = np.array(banned, np.int32)
        self.num_seen = 0
        self._place: dict[int, int] = {}  # token -> index into the two arrays
        self._ids = array("i")
        self._counts = array("i")

    def history(self, sequence: Sequence) -> tuple[Int32, Int32]:
        """Distinct tokens of the sequence and how often its output holds each, as new arrays."""
        for i in range(self.num_seen, len(sequence.tokens)):
            token = sequence.tokens[i]
            place = self._place.setdefault(token, len(self._ids))
            if place == len(self._ids):
                self._ids.append(token)
                self._counts.append(0)
            if i >= sequence.num_prompt:
                self._counts[place] += 1
        self.num_seen = len(sequence.tokens)
        return np.array(self._ids, np.int32), np.array(self._counts, np.int32)


_DERIVED: WeakKeyDictionary[Sequence, _Derived] = WeakKeyDictionary()
_NOTHING = _Derived({}, ())  # of all sequences without such options


def _derived(sequence: Sequence) -> _Derived:
    params = sequence.params
    if not (params.logit_bias or params.min_tokens or params.has_penalties):
        return _NOTHING
    derived = _DERIVED.get(sequence)
    if derived is None:
        stops = {*sequence.request.eos_ids, *params.stop_token_ids} if params.min_tokens else ()
        derived = _DERIVED[sequence] = _Derived(params.logit_bias, sorted(stops))
    return derived


def make_draw(sequence: Sequence, tree: DraftTree, first_output: int) -> DrawRequest:
    """The draw of a sequence whose pending tokens are all in this step.

    tree          its draft tree; the root is the last token of the sequence
    first_output  index into Batch.output_rows of the root's row
    min_tokens forbids the request's end-of-sequence ids (with ignore_eos too) and stop_token_ids.
    """
    params = sequence.params
    derived = _derived(sequence)
    history_ids, history_counts = derived.history(sequence) if params.has_penalties else (_EMPTY, _EMPTY)
    return DrawRequest(
        first_output=first_output,
        tree=tree,
        position=len(sequence.tokens),
        key=sequence.key,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        bias_ids=derived.bias_ids,
        bias_values=derived.bias_values,
        history_ids=history_ids,
        history_counts=history_counts,
        banned=derived.banned,
        banned_until=sequence.num_prompt + params.min_tokens,
        logprobs=params.logprobs,
        logits_hash=params.logits_hash,
    )
