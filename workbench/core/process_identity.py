"""Which process something belongs to, and whether it is still there, told by its number and when it began.

The start is counted in clock ticks since the machine started, where the system says it (Linux): numbers of processes
are used again, and setting the clock moves the time of day of every start.
"""

from __future__ import annotations

import functools
import socket
from pathlib import Path

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
    """Return when a process began, in clock ticks since the machine did; None where the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return int(stat.rpartition(")")[2].split()[19])  # proc(5): field 22; the name, in brackets, may hold blanks
    except (OSError, ValueError, IndexError):  # not Linux, or no such process
        return None


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
