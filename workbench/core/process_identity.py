"""Which process something belongs to, and whether it still runs: known by its number and its start.

The start is counted in clock ticks since the machine started, where the system reports it (Linux): process numbers
are reused, and setting the clock moves the time of day of every start.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_START_TOLERANCE_SECONDS = 2.0  # psutil derives the start from the boot time, which clock corrections shift a little


@functools.cache
def machine() -> str:
    """Return what processes that see the same process numbers share: this boot of the machine, and the namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:  # not Linux
        return f"{socket.gethostname()} {psutil.boot_time():.0f}"
    return f"{boot} {namespace}"


def start_ticks(pid: int) -> int | None:
    """Return when a process began, in clock ticks since the machine did; None if the system does not report it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])  # proc(5): field 22; the name, in brackets, may hold blanks
    except (OSError, ValueError, IndexError):  # not Linux, or no such process
        return None


def identity(pid: int) -> dict[str, Any]:
    """Return what tells a process of this machine from all others, later ones of the same number included: plain JSON.

    Stored together with ``machine``, it is what `has_ended` takes.
    """
    started: float | None = start_ticks(pid)
    if started is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            started = psutil.Process(pid).create_time()
    return {"pid": pid, "started": float(started or 0.0)}


def is_here(process: Mapping[str, Any]) -> bool:
    """Return whether a process belongs to this machine."""
    return process.get("machine") == machine()


def has_ended(process: Mapping[str, Any]) -> bool:
    """Return whether a process is known to have ended; False for one elsewhere, which cannot be seen from here."""
    started = float(process["started"])
    return is_here(process) and not is_running(int(process["pid"]), ticks=started, began=started)


def is_running(pid: int, *, ticks: float | None, began: float) -> bool:
    """Return whether the process that had this number on this machine is still there.

    ``ticks`` are its ``start_ticks``; where they are unknown, ``began`` counts, in seconds since the epoch.
    """
    if not 0 < pid < 2**31:  # no number of a process
        return False
    try:
        process = psutil.Process(pid)
        # A killed child that its parent has not waited for keeps its number, but does no more.
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        running = start_ticks(pid)
        if ticks is not None and running is not None:
            return running == ticks
        return bool(abs(process.create_time() - began) < _START_TOLERANCE_SECONDS)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
