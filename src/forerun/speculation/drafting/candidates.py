"""Candidates: which tokens a drafter's row of logits proposes, and how likely the target takes them.

Place: Chooser, which every drafter that draws from logits has one of for each sequence. Three rules:

    greedy request           the largest logits; scores are the draft model's probabilities
    sampled, coupled         the largest of log q + noise, with the very noise that the target draws with: a draft model
                             that equals the target drafts exactly what the target draws. Scores: softmax of those sums
    sampled, by rejection    one token drawn from q with noise of another domain, and q itself. Its score is the largest
                             of q, which does not depend on what was drawn

q is the row processed as the target processes it (sampling/processors: penalties, bias, bans, the grammar's mask behind
the path, temperature, filters), over the MOST largest logits: what lies behind them is drawn hardly ever, and noise for
a whole vocabulary takes longer than a small draft model. q is what was drawn from in any case, so rejection stays
exact.

Source: Gumbel-top-k of the coupled noise, cf. Daliri et al., arXiv:2408.07978; Kool et al., arXiv:1903.06059.
"""

import hashlib
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from forerun.batch import DrawRequest
from forerun.sampling.grammar import Mask, allowed_of
from forerun.sampling.noise import gumbel
from forerun.sampling.processors import History, adjust, is_finite, process
from forerun.sampling.top import top_ids

MOST = 1024  # largest logits of a row that are looked at

Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Candidates:
    """Children of one node, best first. tokens  target ids   scores  estimated acceptance   probs  see DraftTree"""

    tokens: tuple[int, ...]
    scores: tuple[float, ...]
    probs: Float64 | None = None


NONE = Candidates((), ())


def choose(
    row: Float32, columns: Int32, draw: DrawRequest, path: Seq[int], width: int, mask: Mask | None = None
) -> Candidates:
    """The `width` most likely successors of a path, for coupled verification and for greedy requests.

    row      [C] logits
    columns  [C] target id of each column, -1 where there is none
    draw     the sequence's draw; its position is that of the path's first token
    path     tokens from the root's child down to the row's own; empty for the root
    mask     what a grammar allows behind the path; None without one
    """
    row = _masked(row, columns, mask)
    if draw.temperature == 0.0 and not (len(draw.bias_ids) or len(draw.history_ids) or len(draw.banned)):
        return _largest(row, columns, width)
    part = _part(row, columns, draw, path)
    if part is None:
        return NONE
    if draw.temperature == 0.0:
        with np.errstate(over="ignore", invalid="ignore"):
            z = adjust(part.row, part.draw, part.position, part.history)
        if not is_finite(z):
            return NONE
        weights = np.exp(z - z.max())
        order = np.argsort(-z, kind="stable")[:width]
        return _candidates(part.ids[order], weights[order] / weights.sum())
    survivors = process(part.row, part.draw, part.position, part.history)
    if survivors is None:
        return NONE
    ids = part.ids[survivors.ids]
    perturbed = survivors.log_weights + gumbel(draw.key, part.position, ids)
    weights = np.exp(perturbed - perturbed.max())
    order = np.argsort(-perturbed, kind="stable")[:width]
    return _candidates(ids[order], weights[order] / weights.sum())


def draw_one(
    row: Float32, columns: Int32, draw: DrawRequest, path: Seq[int], vocab_size: int, mask: Mask | None = None
) -> Candidates:
    """One token drawn from the row's processed distribution, for verification by rejection. Arguments as for `choose`.

    vocab_size  V, the target's
    """
    part = _part(_masked(row, columns, mask), columns, draw, path)
    survivors = None if part is None else process(part.row, part.draw, part.position, part.history)
    if part is None or survivors is None:
        return NONE
    ids = part.ids[survivors.ids]
    weights = np.exp(survivors.log_weights)
    probs = np.zeros(vocab_size)
    probs[ids] = weights / weights.sum()
    drawn = int((survivors.log_weights + gumbel(draft_key(draw.key), part.position, ids)).argmax())
    return Candidates((int(ids[drawn]),), (float(probs.max()),), probs)


def draft_key(key: tuple[int, int]) -> tuple[int, int]:
    """Noise key of a draft that must be independent of the target's draws."""
    words = key[0].to_bytes(4, "little") + key[1].to_bytes(4, "little")
    digest = hashlib.blake2b(words, digest_size=8, person=b"forerun.draft").digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


@dataclass(frozen=True)
class _Part:
    """The part of a row that is looked at, as a small vocabulary of its own: ids ascend, `draw` speaks of places."""

    ids: npt.NDArray[np.int64]
    row: Float32
    draw: DrawRequest
    history: History
    position: int


def _masked(row: Float32, columns: Int32, mask: Mask | None) -> Float32:
    """The row with -inf in the columns that are never proposed."""
    if mask is not None:
        return np.where(allowed_of(mask, columns), row, np.float32(-np.inf))
    return row if columns.min() >= 0 else np.where(columns >= 0, row, np.float32(-np.inf))


def _part(row: Float32, columns: Int32, draw: DrawRequest, path: Seq[int]) -> _Part | None:
    keep = np.arange(len(row)) if len(row) <= MOST else np.argpartition(row, len(row) - MOST)[len(row) - MOST :]
    if len(row) > MOST and len(draw.bias_ids):  # a bias can lift a token from anywhere
        keep = np.union1d(keep, np.flatnonzero(np.isin(columns, draw.bias_ids)))
    if not is_finite(row):
        return None
    keep = keep[columns[keep] >= 0]
    ids, first = np.unique(columns[keep].astype(np.int64), return_index=True)

    def places(tokens: npt.ArrayLike) -> Int32:
        wanted = np.asarray(tokens, np.int64)
        at = np.minimum(np.searchsorted(ids, wanted), len(ids) - 1)
        return np.where(ids[at] == wanted, at, -1).astype(np.int32)

    local = replace(
        draw, bias_ids=places(draw.bias_ids), history_ids=places(draw.history_ids), banned=places(draw.banned)
    )
    history = History(local)
    if len(draw.history_ids):
        for token in places(path).tolist():
            history.add(token)
    return _Part(ids, row[keep[first]], local, history, draw.position + len(path))


def _largest(row: Float32, columns: Int32, width: int) -> Candidates:
    """What `choose` does for a greedy request without penalties, bias and bans."""
    if not is_finite(row):
        return NONE
    best = top_ids(row[None], (0,), min(width, len(row)))[0] if width > 1 else np.array([row.argmax()], np.int32)
    total = float(np.exp(row - row[best[0]]).sum())
    return _candidates(columns[best], np.exp(row[best] - row[best[0]]) / total)


def _candidates(ids: npt.NDArray[np.integer], scores: npt.NDArray[np.floating]) -> Candidates:
    likely = scores > 0.0
    return Candidates(tuple(ids[likely].tolist()), tuple(scores[likely].tolist()))
