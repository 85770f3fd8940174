"""One thing at a time is written to the disk while training goes on."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

__all__ = ["BackgroundWriter"]


class BackgroundWriter:
    """Runs one piece of work in a thread; the next waits for it.

    Training is worth more than one of its files, so an error is a warning, and the next write may find room again.

    Args:
        what: What is written, for the warning: ``"a checkpoint"``.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Run some work in the background, after what is being written.

        Args:
            work: What to do.

        Warns:
            RuntimeWarning: When the work before failed.
        """
        self.finish()
        # No daemon: a program that ends while a file is written waits for it.
        self._thread = threading.Thread(target=self._run, args=(work,), name="workbench-writer")
        self._thread.start()

    def finish(self) -> bool:
        """Wait for what is being written.

        Returns:
            Whether it was written.

        Warns:
            RuntimeWarning: When it was not.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is None:
            return True
        warnings.warn(f"{self._what} could not be written: {error}", RuntimeWarning, stacklevel=3)
        return False

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error
