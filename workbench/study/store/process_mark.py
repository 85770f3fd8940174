"""Which process runs a trial, and whether it is still there.

A mark is a small JSON object stored with the trial. On one machine a look at the process table tells at once whether
the process lives; its start time tells it from a later one of the same number. Of a process elsewhere only heartbeats
tell (``stale_trials.py``). Two processes are on one machine when boot and process-number namespace are the same: host
names repeat among clones, and process numbers among containers.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Mapping
from typing import Any

import psutil

from workbench.core.process_identity import is_running, machine, start_ticks

__all__ = ["is_gone", "is_this_process", "may_have_ended", "new_mark"]


def new_mark(role: str, grace_seconds: float) -> dict[str, Any]:
    """Return the mark of a trial that this process begins now.

    Args:
        role: ``"worker"`` or ``"driver"``.
        grace_seconds: How long the process may be silent before others take the trial for abandoned.
    """
    ticks = start_ticks(os.getpid())
    started = float(psutil.Process().create_time() if ticks is None else ticks)
    here = {"host": socket.gethostname(), "machine": machine(), "pid": os.getpid(), "started": started}
    return {**here, "role": role, "grace_seconds": grace_seconds, "claim": secrets.token_hex(8)}


def is_this_process(mark: Mapping[str, Any]) -> bool:
    """Return whether a mark was made by this process."""
    return _same_machine(mark) and mark.get("pid") == os.getpid() and not is_gone(mark)


def is_gone(mark: Mapping[str, Any]) -> bool:
    """Return whether the process is known to have ended; False where it cannot be known."""
    if not _same_machine(mark):
        return False
    started = float(mark["started"])
    # Before marks told machines apart, the start was in seconds since 1970.
    return not is_running(int(mark["pid"]), ticks=started if "machine" in mark else None, began=started)


def may_have_ended(mark: Mapping[str, Any]) -> bool:
    """Return whether the process ran on a machine of this name that has been started again since, as it seems."""
    return mark.get("host") == socket.gethostname() and not _same_machine(mark)


def _same_machine(mark: Mapping[str, Any]) -> bool:
    if "machine" not in mark:  # from before marks told machines apart
        return bool(mark.get("host") == socket.gethostname())
    return bool(mark["machine"] == machine())
