"""What can go wrong with run directories: a bad one to read, and no way to write one."""

from __future__ import annotations


class RunError(ValueError):
    """A folder, or a file in it, is not what a run directory holds; the message says which and what to do."""


class TelemetryError(RuntimeError):
    """A run cannot be written: no space, no permission, already finished or written by somebody else.

    What was recorded before is intact, and the call that failed may be made again once the cause is gone.
    """
