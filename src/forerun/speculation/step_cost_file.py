"""StepCostFile: the learned costs of a model's steps on one machine, kept from one process to the next.

What it holds only ever changes speed, so it is read without trust and written without haste: a file that is damaged, or
about something else, is ignored; a folder that cannot be written to is, too, after one line in the log.
"""

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Sequence as Seq
from pathlib import Path

from forerun.speculation.step_cost import StepCost

log = logging.getLogger(__name__)
FORMAT = "forerun-step-cost-1"


class StepCostFile:
    """One file for one identity: everything that a step's time depends on, as texts."""

    def __init__(self, folder: Path, identity: Seq[str]) -> None:
        self._identity = list(identity)
        digest = hashlib.blake2b(json.dumps(self._identity).encode(), digest_size=10).hexdigest()
        self.path = folder / f"step-cost-{digest}.json"
        self._may_write = True

    def load(self) -> StepCost | None:
        """What was kept, None when there is nothing of use."""
        try:
            document = json.loads(self.path.read_text(encoding="utf-8"))
            if document["format"] != FORMAT or document["identity"] != self._identity:
                return None
            return StepCost.from_json(document["cost"])
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def keep(self, cost: StepCost) -> None:
        """Write, as a whole or not at all."""
        if not self._may_write:
            return
        document = {"format": FORMAT, "identity": self._identity, "cost": cost.to_json()}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=".step-cost-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    json.dump(document, file)
                os.replace(name, self.path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._may_write = False
            log.info("step costs are not kept: %s", error)
