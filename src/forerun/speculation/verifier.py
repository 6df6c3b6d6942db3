"""Verifier: how a step's draws and draft trees become outcomes. Three rules, one outcome type.

coupled    the target draws with noise keyed by position, the drafts are looked up in its draws (verify.py): outputs are
           the same token for token with any draft or none
rejection, block, typical
           see speculation/rejection.py; they promise the distribution, typical not even that
"""

from typing import Protocol

from forerun.backends.base import Backend, ForwardResult
from forerun.batch import Batch, Drawn, Outcome
from forerun.errors import UsageError
from forerun.speculation.verify import verify


class Verifier(Protocol):
    """Decides what a step yields. `is_seeded`: a seed repeats a sampled request whatever is drafted."""

    name: str
    is_seeded: bool

    def verify(self, backend: Backend, result: ForwardResult, batch: Batch) -> tuple[Drawn, tuple[Outcome, ...]]:
        """What was drawn, and one outcome per Batch.draws entry."""
        ...


class CoupledVerifier:
    """Draw and look up."""

    name = "coupled"
    is_seeded = True

    def verify(self, backend: Backend, result: ForwardResult, batch: Batch) -> tuple[Drawn, tuple[Outcome, ...]]:
        drawn = backend.draw(result, batch)
        return drawn, verify(batch, drawn)


def make_verifier(name: str) -> Verifier:
    """The verifier of a name in config.VERIFICATIONS. Raises UsageError for one that is not built."""
    if name == "coupled":
        return CoupledVerifier()
    raise UsageError(f"verification {name!r} is not built yet")
