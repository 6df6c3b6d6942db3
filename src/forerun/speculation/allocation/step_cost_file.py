"""StepCostFile: the learned costs of a model's steps on one machine, kept from one process to the next."""

from collections.abc import Sequence as Seq
from pathlib import Path

from forerun.speculation.allocation.learned_file import LearnedFile
from forerun.speculation.allocation.step_cost import StepCost


class StepCostFile:
    """One file for one identity: everything that a step's time depends on, as texts."""

    def __init__(self, folder: Path, identity: Seq[str]) -> None:
        self._file = LearnedFile(folder, "step-cost", 2, identity)
        self.path = self._file.path

    def load(self) -> StepCost | None:
        """What was kept, None when there is nothing of use."""
        content = self._file.load()
        try:
            return None if content is None else StepCost.from_json(content)  # type: ignore[arg-type]  # it is checked
        except (ValueError, TypeError, KeyError):
            return None

    def keep(self, cost: StepCost) -> None:
        """Write, as a whole or not at all."""
        self._file.keep(cost.to_json())
