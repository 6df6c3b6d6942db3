"""CalibrationFiles: how often the drafts of each drafter were right, kept from one process to the next.

A new engine begins with what earlier ones learned, as a guess of small weight: its own requests soon outvote it. There
is one file for each target, numerics, drafter with its options, and rule of verification. It holds counts, no text.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from forerun.speculation.allocation.calibration import Calibration
from forerun.speculation.allocation.learned_file import LearnedFile

MAX_FILES = 64  # in the folder: other models and options have files of their own
WEIGHT = 16.0  # observations that what is read counts for at most; a running engine's own reach 100

Identity = Mapping[str, object]


class CalibrationFiles:
    """Files of an engine's drafters. identities  drafter's name -> everything that its acceptance depends on"""

    def __init__(self, folder: Path, identities: Mapping[str, Identity]) -> None:
        self._files = {
            name: LearnedFile(folder, "calibration", 1, [json.dumps(identity, sort_keys=True)], MAX_FILES)
            for name, identity in identities.items()
        }

    def load(self) -> dict[str, Calibration]:
        """By drafter, those of which something is known."""
        found = {}
        for name, file in self._files.items():
            try:
                found[name] = Calibration.from_json(file.load(), WEIGHT)
            except (ValueError, TypeError, OverflowError):
                continue  # nothing is kept, or nothing that makes sense
        return found

    def keep(self, calibrations: Mapping[str, Calibration]) -> None:
        """Write those that have learned anything."""
        for name, file in self._files.items():
            calibration = calibrations.get(name)
            if calibration is not None and calibration.num_tested:
                file.keep(calibration.to_json())
