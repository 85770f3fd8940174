"""What the other tabs need is loaded while the reader looks at the first one.

Plotly, pandas and what they bring along take seconds to import in a fresh kernel. A click on a tab that waited for that
would hold the kernel; a thread that begins when the workbench is made has usually ended before the first click.
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Final

__all__ = ["Preload"]

_MODULES: Final = tuple(
    f"workbench.panels.{name}"
    for name in ("train_panel", "loss_scale_panel", "study_panel", "compare_panel", "export_panel")
)


class Preload:
    """Imports the modules of all panels in a thread; ``wait`` before importing one, so that no two threads meet.

    No daemon: an interpreter that ends halfway through the import of a library written in C would crash.

    Args:
        afterwards: Called in the thread when everything is loaded; must raise nothing.
    """

    def __init__(self, afterwards: Callable[[], None]) -> None:
        self._afterwards = afterwards
        self._thread = threading.Thread(target=self._run, name="workbench preload")
        self._thread.start()

    def wait(self) -> None:
        """Wait until everything is loaded, and what comes afterwards done; at once when it is."""
        self._thread.join()

    def _run(self) -> None:
        _load()
        self._afterwards()


@functools.cache  # modules stay, so once is enough; who asks meanwhile waits in the import system
def _load() -> None:
    for name in _MODULES:
        # What is broken is told by the panel that needs it, when it is opened.
        try:
            importlib.import_module(name)
        except Exception:
            return
