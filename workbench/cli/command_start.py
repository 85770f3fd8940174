"""When this command was started, and how it ends: a time limit covers all in between, loading included."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import sys
import time
from importlib.abc import MetaPathFinder
from pathlib import Path

_VARIABLE = "WORKBENCH_COMMAND_BEGAN"
_LONGEST_START_SECONDS = 60.0
_LEAST_MIB = 1024  # of addresses: torch, pandas and the threads of one process


def began() -> float:
    """Return ``time.monotonic()`` at which the command began: now, where another program calls it.

    How long Python took to start is taken from the processor time: the process's own start is wrong where a shell
    becomes its last command. Over ranks it is when the command that started them began, unless the clock was set since.
    """
    elapsed = time.process_time() if _is_this_program() else 0.0
    started = os.environ.get(_VARIABLE)
    if started is not None:
        elapsed = max(elapsed, min(time.time() - float(started), elapsed + _LONGEST_START_SECONDS))
    return time.monotonic() - elapsed


def for_ranks() -> dict[str, str]:
    """Return the environment variables that tell ranks when their command began."""
    return {_VARIABLE: repr(time.time() - (time.monotonic() - began()))}


class _NoRoomForTorch(MetaPathFinder):
    """Raises MemoryError where torch is imported."""

    def __init__(self, mib: int) -> None:
        self._mib = mib

    def find_spec(self, name: str, *_: object) -> None:
        if name == "torch":
            may_use = f"this process may use {self._mib} MiB of addresses"
            raise MemoryError(f"{may_use}, and loading torch takes {_LEAST_MIB}")


def require_memory() -> None:
    """Refuse to load torch under a limit that leaves no room for it: its libraries may hang then, not only fail."""
    try:
        import resource
    except ImportError:  # not on Windows, which has no such limit either
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit >> 20 < _LEAST_MIB:
        sys.meta_path.insert(0, _NoRoomForTorch(limit >> 20))


def end_quickly() -> None:
    """Let Python end without a last garbage collection over all that was loaded: it takes a second."""
    if _is_this_program():
        atexit.register(gc.freeze)


def end_undisturbed() -> None:
    """Ignore any further Ctrl-C: the command has said how it ends, and Python would print a traceback on its way out.

    Workers that have not ended by then are killed, since Python would wait for them; their trials are put back by the
    next command.
    """
    if not _is_this_program():
        return
    with contextlib.suppress(ValueError):  # not the main thread, which alone gets signals
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if sys.platform != "win32":
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch reports a loader's worker that is killed
    processes = sys.modules.get("multiprocessing")
    for worker in processes.active_children() if processes is not None else ():
        worker.kill()


def _is_this_program() -> bool:
    program = sys.modules["__main__"]
    spec = getattr(program, "__spec__", None)
    as_module = spec is not None and spec.name == "workbench.__main__"
    return as_module or Path(getattr(program, "__file__", None) or "").stem == "workbench"
