"""DraftFailures: a drafter that keeps failing is switched off, so that it costs neither time nor log lines any more."""

import logging

from forerun.errors import one_line

log = logging.getLogger(__name__)

MAX_STREAK = 5  # failures of one kind of call in a row


class DraftFailures:
    """Counts failures in a row, by drafter and kind of call.

    off  drafters switched off, with the error that was one too many
    """

    def __init__(self) -> None:
        self.off: dict[str, str] = {}
        self._streaks: dict[tuple[str, str], int] = {}

    def failed(self, name: str, call: str, error: Exception) -> bool:
        """Log the exception that is being handled; True when it switches `name` off."""
        streak = self._streaks[name, call] = self._streaks.get((name, call), 0) + 1
        if name in self.off:
            return False
        log.warning("%s failed in %s; what it did not propose is decoded plainly", name, call, exc_info=True)
        if streak < MAX_STREAK:
            return False
        self.off[name] = one_line(error)
        log.error("%s is switched off: it failed %d times in a row in %s: %s", name, streak, call, one_line(error))
        return True

    def succeeded(self, name: str, call: str) -> None:
        """That kind of call works."""
        if self._streaks:
            self._streaks.pop((name, call), None)
