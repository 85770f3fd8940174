"""Write files that are due now and then while training goes on, one at a time, in a separate thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from workbench.core.arguments import checked_count, checked_number
from workbench.core.warning import warn


class BackgroundWriter:
    """Decides when the next file is due and writes it while training goes on; one that is due meanwhile waits.

    Training is worth more than one of its files, so an error becomes a warning about ``what`` (``"a checkpoint"``), and
    the next file is tried again. Files are due after ``every_steps`` steps, ``every_seconds`` seconds, or both.
    """

    def __init__(self, what: str, every_steps: int | None, every_seconds: float | None) -> None:
        if every_steps is None and every_seconds is None:
            raise ValueError(f"`every_steps` and `every_seconds` are both None; say when {what} is due")
        if every_steps is not None:
            checked_count("every_steps", every_steps)
        if every_seconds is not None:
            checked_number("every_seconds", every_seconds, above=0.0)
        self._what, self._every_steps, self._every_seconds = what, every_steps, every_seconds
        self._writing: Future[None] | None = None
        self._began = time.monotonic()
        self._is_late = False

    def is_due(self, n_steps: int) -> bool:
        """Return whether to write after ``n_steps`` steps; while a file is being written, the next one waits."""
        by_step = self._every_steps is not None and n_steps % self._every_steps == 0
        by_time = self._every_seconds is not None and time.monotonic() - self._began >= self._every_seconds
        self._is_late = self._is_late or by_step or by_time
        return self._is_late and (self._writing is None or self._writing.done())

    def start(self, work: Callable[[], None], *, wait: bool = False) -> None:
        """Call ``work`` once the file before is written: in the background, or here, with its errors, if ``wait``."""
        self.finish()
        self._is_late, self._began = False, time.monotonic()
        if wait:
            work()
            return
        executor = ThreadPoolExecutor(1, "workbench-writer")  # a program that ends while a file is written waits for it
        self._writing = executor.submit(work)
        executor.shutdown(wait=False)

    def finish(self) -> bool:
        """Wait for the file being written, warn if that failed, and return whether it succeeded."""
        writing, self._writing = self._writing, None
        error = None if writing is None else writing.exception()
        if error is None:
            return True
        warn(f"{self._what} could not be written: {error}", RuntimeWarning)
        return False
