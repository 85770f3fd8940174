"""Whether a process still gets anywhere: before each of its steps it asks whether to stop.

A network may have a loop of its own that ends when something has converged. In another number format, or with weights
that another learning rate has spoilt, it may never: no error, no next step, and no look at the time limit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

LEAST_SECONDS = 60.0
_TIMES_THE_LONGEST = 20.0


@dataclass(slots=True)
class Silence:
    """How long a process has not asked, in its job, and how long at most in jobs that have ended."""

    longest: float = 0.0  # of jobs that have ended, seconds; 0 before the first
    _asked: int = -1
    _since: float = field(default_factory=time.monotonic)
    _of_job: float = 0.0

    def begin(self) -> None:
        """Begin to wait for a job."""
        self._asked, self._since, self._of_job = -1, time.monotonic(), 0.0

    def hear(self, asked: int) -> None:
        """Take how often the process has asked."""
        if asked != self._asked:
            now = time.monotonic()
            self._of_job = max(self._of_job, now - self._since)
            self._asked, self._since = asked, now

    def end(self) -> None:
        """Take the end of the job."""
        self.longest = max(self.longest, self._of_job, time.monotonic() - self._since)

    def is_too_long(self) -> bool:
        """Return whether it now is a minute at least, and much longer than any before."""
        return time.monotonic() - self._since > max(LEAST_SECONDS, _TIMES_THE_LONGEST * self.longest)

    def sentence(self) -> str:
        """Say so, for who wrote the network."""
        return (
            f"no step ended within {time.monotonic() - self._since:.0f} s, where none took longer than "
            f"{self.longest:.1f} s before, so its process was ended: a loop of the network that waits until something "
            "converges may never end with these numbers"
        )
