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
    has_trained: bool = False  # so that all data have been read, those of an evaluation, too
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

    def go_on(self) -> None:
        """Count from now: the process has sent something, and waited for as long as dealing with that took."""
        self._since = time.monotonic()

    def end(self, *, trained: bool) -> None:
        """Take the end of the job, which was a training or not."""
        self.longest = max(self.longest, self._of_job, self.seconds)
        self.has_trained = self.has_trained or trained

    @property
    def seconds(self) -> float:
        """How long it has lasted."""
        return time.monotonic() - self._since

    def is_too_long(self, *, stopping: bool) -> bool:
        """Return whether it is a minute at least and much longer than any before.

        A process that has trained nothing yet may have data to read first: unless it is ``stopping``, it has five
        minutes, and any time in its first job.
        """
        if not (stopping or self.longest):
            return False
        least = LEAST_SECONDS if stopping or self.has_trained else 5.0 * LEAST_SECONDS
        return self.seconds > max(least, _TIMES_THE_LONGEST * self.longest)

    def sentence(self) -> str:
        """Say so, for who wrote the network."""
        return (
            f"no step ended within {self.seconds:.0f} s, where none took longer than {self.longest:.1f} s before, so "
            "its process was ended: a loop of the network that waits until something converges may never end with "
            "these numbers"
        )
