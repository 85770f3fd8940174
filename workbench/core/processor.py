"""What is known of this machine's processor without torch."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path


@functools.cache
def cpu_model() -> str:
    """Return the processor's model, on Linux by proc(5)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Return how many cores this process may use, which in a container is often fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
