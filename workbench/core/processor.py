"""What is known of this machine's processor without torch."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
from pathlib import Path

from workbench.core.container import cpu_quota


@functools.cache
def cpu_model() -> str:
    """Return the processor's model, on Linux by proc(5)."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model", "Hardware") and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()


def allowed_cores() -> set[int]:
    """Return the numbers of the cores that this process may run on, among them those of a container's neighbours."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def usable_cores() -> int:
    """Return how many cores this process may use, which in a container is often fewer than the machine has."""
    return max(1, int(min(len(allowed_cores()), cpu_quota())))


def too_many_threads(threads: int) -> str:
    """Return a sentence if CPU operations have more threads than this process has cores for; empty if not."""
    cores = usable_cores()
    if threads <= cores:
        return ""
    return (
        f"Torch uses {threads} threads where {cores} core{'s' * (cores > 1)} may be used, so a step on the CPU may "
        f"take many times as long as it has to: set OMP_NUM_THREADS={cores} before Python starts"
    )
