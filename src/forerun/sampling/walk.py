"""The walk that draws a step's tokens, in numpy: the oracle of `native/draw.cpp` and the draw of slow backends.

Place in the step: after the forward pass, before verification. For every DrawRequest: draw at the root row, follow the
child that holds the drawn token, draw there, until no child matches. Each visited row sees exactly what plain decoding
would see at that position (same history, noise and bans), so its token is the one that plain decoding draws.
"""

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from forerun.batch import NOT_DRAWN, NOT_FINITE, Batch, Drawn, DrawRequest
from forerun.sampling.noise import gumbel
from forerun.sampling.processors import History, process

Top = tuple[tuple[int, float], ...]


def draw_batch(logits_of: Callable[[int], npt.NDArray[np.float32]], batch: Batch) -> Drawn:
    """Draw the tokens of every sequence in `batch.draws`.

    logits_of  maps an index into Batch.output_rows to that row's logits [V]; called for visited rows only
    """
    num_outputs = len(batch.output_rows)
    tokens = np.full(num_outputs, NOT_DRAWN, np.int32)
    logprobs = np.full(num_outputs, np.nan)
    top: list[Top] = [()] * num_outputs
    hashes = [b""] * num_outputs
    for request in batch.draws:
        history = History(request)
        node: int | None = 0
        position = request.position
        while node is not None:
            output = request.first_output + node
            row = logits_of(output)
            token = draw_row(row, request, position, history)
            tokens[output] = token
            if token == NOT_FINITE:
                break
            if request.logprobs is not None:
                logprobs[output], top[output] = log_softmax_at(row, token, request.logprobs)
            if request.logits_hash:
                hashes[output] = hash_row(row)
            history.add(token)
            position += 1
            node = request.tree.child(node, token)
    return Drawn(tokens, logprobs, tuple(top), tuple(hashes))


def draw_row(row: npt.NDArray[np.float32], request: DrawRequest, position: int, history: History) -> int:
    """The token drawn from one row [V] for `position`: lowest id among equal scores; NOT_FINITE when there is none."""
    survivors = process(row, request, position, history)
    if survivors is None:
        return NOT_FINITE
    if len(survivors.ids) == 1:
        return int(survivors.ids[0])
    scores = survivors.log_weights + gumbel(request.key, position, survivors.ids)
    return int(survivors.ids[scores.argmax()])


def log_softmax_at(row: npt.NDArray[np.float32], token: int, num_top: int) -> tuple[float, Top]:
    """Log-probability of `token` under the unprocessed row [V], and the `num_top` most likely (id, log-probability).

    Equal values are in id order; tokens of probability zero are left out.
    """
    z = row.astype(np.float64)
    largest = z.max()
    log_total = largest + np.log(np.exp(z - largest).sum())
    order = np.argsort(-z, kind="stable")[:num_top]
    top = tuple((int(i), float(z[i] - log_total)) for i in order if z[i] > -np.inf)
    return float(z[token] - log_total), top


def hash_row(row: npt.NDArray[Any]) -> bytes:
    """8-byte digest of a logits row's bits."""
    return hashlib.blake2b(row.tobytes(), digest_size=8).digest()
