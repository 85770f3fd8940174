"""What a container may take of its machine, by its control group: torch and psutil see the whole machine.

Files and units are those of the kernel's documentation of control groups, version 2 and version 1.
"""

from __future__ import annotations

import math
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")  # a container's own group, as a rule
_UNLIMITED = ("max", "-1")


def cpu_quota() -> float:
    """Return how many cores' time the container may use; infinity where it is not limited."""
    quota, *period = _words("cpu.max") or [*_words("cpu/cpu.cfs_quota_us"), *_words("cpu/cpu.cfs_period_us")] or ["max"]
    return math.inf if quota in _UNLIMITED or not period else int(quota) / int(period[0])


def memory_left() -> float:
    """Return how many bytes the container may still take; infinity where it is not limited.

    What it has read of files can be given back, so it does not count.
    """
    for limit, used, cached in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        most, now, numbers = _words(limit), _words(used), _words(cached)
        if most and now and most[0] not in _UNLIMITED:
            files = dict(zip(numbers[::2], map(int, numbers[1::2]), strict=False)).get("inactive_file", 0)
            return max(int(most[0]) - int(now[0]) + files, 0)
    return math.inf


def _words(name: str) -> list[str]:
    try:
        return (CONTROL_GROUP / name).read_text(encoding="utf-8").split()
    except OSError:
        return []
