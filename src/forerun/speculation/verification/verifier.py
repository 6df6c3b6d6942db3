"""Verifier: how a step's draws and draft trees become outcomes.

coupled    the target draws with noise keyed by position, the drafts are looked up in its draws (verify.py): outputs are
           the same token for token with any draft or none
rejection  rejection.py: the same distribution; a seed repeats nothing, since the tokens depend on the drafts
block      block.py: the same, and longer accepted chains
typical    typical.py: neither; needs SpeculationConfig.lossy

All but `coupled` differ from it only where they must: requests that draw at random and have a tree with drawn nodes
(with any nodes, under typical). Everything else goes through the same draw: greedy requests, steps without a draft, and
trees of chosen nodes, for which looking up a draw of p is the rejection rule.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from forerun.backends.base import Backend, ForwardResult
from forerun.batch import NOT_DRAWN, NOT_FINITE, Batch, Drawn, DrawRequest, Outcome
from forerun.sampling.chance import NoiseChance
from forerun.sampling.path import PathProbs
from forerun.sampling.walk import Top, hash_row, log_softmax_at
from forerun.speculation.verification.block import verify_block
from forerun.speculation.verification.rejection import reject
from forerun.speculation.verification.rule import Rule
from forerun.speculation.verification.typical import accept_typical
from forerun.speculation.verify import verify


class Verifier(Protocol):
    """Decides what a step yields.

    is_seeded  a seed repeats a sampled request whatever is drafted
    is_lossy   what is said may differ from what the model would say
    """

    name: str
    is_seeded: bool
    is_lossy: bool

    def verify(self, backend: Backend, result: ForwardResult, batch: Batch) -> tuple[Drawn, tuple[Outcome, ...]]:
        """What was drawn, and one outcome per Batch.draws entry."""
        ...


class CoupledVerifier:
    """Draw and look up."""

    name = "coupled"
    is_seeded = True
    is_lossy = False

    def verify(self, backend: Backend, result: ForwardResult, batch: Batch) -> tuple[Drawn, tuple[Outcome, ...]]:
        drawn = backend.draw(result, batch)
        return drawn, verify(batch, drawn)


class RuleVerifier:
    """Verification by a rule where it is needed, draw and look up elsewhere."""

    is_seeded = False

    def __init__(self, name: str, rule: Rule, is_lossy: bool = False) -> None:
        self.name = name
        self.is_lossy = is_lossy
        self._rule = rule

    def verify(self, backend: Backend, result: ForwardResult, batch: Batch) -> tuple[Drawn, tuple[Outcome, ...]]:
        looked_up = tuple(draw for draw in batch.draws if not self._is_ruled(draw))
        if len(looked_up) == len(batch.draws):
            drawn = backend.draw(result, batch)
            return drawn, verify(batch, drawn)
        some = replace(batch, draws=looked_up)
        drawn = backend.draw(result, some) if looked_up else _nothing_drawn(len(batch.output_rows))
        outcomes = iter(verify(some, drawn))
        record = _Record(drawn)
        every = [self._judge(one, result, record) if self._is_ruled(one) else next(outcomes) for one in batch.draws]
        return record.drawn(), tuple(every)

    def _is_ruled(self, draw: DrawRequest) -> bool:
        """A lossy rule judges chosen nodes too; the others leave those to the draw, which is the same law."""
        has_nodes = draw.tree.num_nodes > 0 and (self.is_lossy or bool(draw.tree.draft_probs))
        return has_nodes and draw.temperature > 0.0

    def _judge(self, draw: DrawRequest, result: ForwardResult, record: "_Record") -> Outcome:
        tree = draw.tree
        probs = PathProbs(draw, lambda output: result.logits([output])[0])
        accepted, last = self._rule(tree, probs, NoiseChance(draw.key, draw.position))
        tokens = [tree.tokens[row] for row in accepted]
        rows = (0, *accepted)  # the row behind each token
        if last is not None:
            tokens.append(last)
        for row, token in zip(rows, tokens, strict=False):
            record.add(draw, row, token, probs.logits(row))
        if last is None:
            record.tokens[draw.first_output + rows[-1]] = NOT_FINITE
        outputs = tuple(draw.first_output + row for row in rows[: len(tokens)])
        return Outcome(tree, accepted, tuple(tokens), outputs, is_finite=last is not None)


class _Record:
    """A step's Drawn, open for further tokens."""

    def __init__(self, drawn: Drawn) -> None:
        self.tokens = drawn.tokens.copy()
        self._logprobs = drawn.logprobs.copy()
        self._top: list[Top] = list(drawn.top)
        self._hashes = list(drawn.hashes)

    def add(self, draw: DrawRequest, row: int, token: int, logits: npt.NDArray[np.float32]) -> None:
        """What a draw reports of a row of its tree and the token behind it."""
        output = draw.first_output + row
        self.tokens[output] = token
        if draw.logprobs is not None:
            self._logprobs[output], self._top[output] = log_softmax_at(logits, token, draw.logprobs)
        if draw.logits_hash:
            self._hashes[output] = hash_row(logits)

    def drawn(self) -> Drawn:
        return Drawn(self.tokens, self._logprobs, tuple(self._top), tuple(self._hashes))


def _nothing_drawn(num_outputs: int) -> Drawn:
    tokens = np.full(num_outputs, NOT_DRAWN, np.int32)
    return Drawn(tokens, np.full(num_outputs, np.nan), ((),) * num_outputs, (b"",) * num_outputs)


def make_verifier(name: str) -> Verifier:
    """The verifier of a name in config.VERIFICATIONS."""
    if name == "coupled":
        return CoupledVerifier()
    rules: dict[str, Rule] = {"rejection": reject, "block": verify_block, "typical": accept_typical}
    return RuleVerifier(name, rules[name], is_lossy=name == "typical")
