"""Which process runs a trial, and whether it is still there.

A mark is a small JSON object stored with the trial. On one machine a look at the process table tells at once whether
the process lives; its start time tells it from a later one of the same number. Of a process elsewhere only heartbeats
tell (``stale_trials.py``). Two processes are on one machine when boot and process-number namespace are the same: host
names repeat among clones, and process numbers among containers.
"""

from __future__ import annotations

import functools
import os
import secrets
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

__all__ = ["is_gone", "is_this_process", "may_have_ended", "new_mark"]


def new_mark(role: str, grace_seconds: float) -> dict[str, Any]:
    """Return the mark of a trial that this process begins now.

    Args:
        role: ``"worker"`` or ``"driver"``.
        grace_seconds: How long the process may be silent before others take the trial for abandoned.
    """
    here = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "started": _started(os.getpid())}
    return {**here, "role": role, "grace_seconds": grace_seconds, "claim": secrets.token_hex(8)}


def is_this_process(mark: Mapping[str, Any]) -> bool:
    """Return whether a mark was made by this process."""
    return _same_machine(mark) and mark.get("pid") == os.getpid() and not is_gone(mark)


def is_gone(mark: Mapping[str, Any]) -> bool:
    """Return whether the process is known to have ended; False where it cannot be known."""
    if not _same_machine(mark):
        return False
    try:
        pid = int(mark["pid"])
        # Before marks told machines apart, the start was in seconds since 1970.
        started = _started(pid) if "machine" in mark else psutil.Process(pid).create_time()
        same = abs(started - float(mark["started"])) < 1.0
        return not same or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def may_have_ended(mark: Mapping[str, Any]) -> bool:
    """Return whether the process ran on a machine of this name that has been started again since, as it seems."""
    return mark.get("host") == socket.gethostname() and not _same_machine(mark)


def _same_machine(mark: Mapping[str, Any]) -> bool:
    if "machine" not in mark:  # from before marks told machines apart
        return bool(mark.get("host") == socket.gethostname())
    return bool(mark["machine"] == _machine())


@functools.cache
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"
    return f"{boot} {namespace}"


def _started(pid: int) -> float:
    """Return when a process began, in clock ticks since the machine did: setting the clock does not change it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or no such process, which psutil says, too
        return float(psutil.Process(pid).create_time())
    return float(stat.rpartition(")")[2].split()[19])  # proc(5): starttime, field 22; the name may hold blanks
