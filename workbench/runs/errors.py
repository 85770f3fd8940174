"""What can go wrong with run directories: one that cannot be read, and one that cannot be written."""

from __future__ import annotations


class RunError(ValueError):
    """A folder, or a file in it, is not what a run directory holds; the message names it and says what to do."""


class TelemetryError(RuntimeError):
    """A run cannot be written: no space, no permission, already finished or written by somebody else.

    What was recorded before is intact, and the call that failed may be made again once the cause is gone.
    """
