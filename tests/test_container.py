"""A container's limits are read from its control group, in both versions; its neighbours' work is not its own."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

from workbench.core import container, processor

GIB = 2**30
UNLIMITED = {"memory/memory.limit_in_bytes": str(2**63 - 4096), "memory/memory.usage_in_bytes": str(GIB)}


@pytest.mark.parametrize(
    ("files", "cores", "memory"),
    [
        ({}, math.inf, math.inf),
        ({"cpu.max": "max 100000", "memory.max": "max", "memory.current": "5"}, math.inf, math.inf),
        (
            {
                "cpu.max": "150000 100000",
                "memory.max": str(4 * GIB),
                "memory.current": str(3 * GIB),
                "memory.stat": f"anon {GIB}\ninactive_file {GIB}\nactive_file 7",
            },
            1.5,
            2 * GIB,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, math.inf, math.inf),
        (
            {
                "cpu/cpu.cfs_quota_us": "200000",
                "cpu/cpu.cfs_period_us": "100000",
                "memory/memory.limit_in_bytes": str(GIB),
                "memory/memory.usage_in_bytes": str(2 * GIB),
            },
            2.0,
            0,
        ),
        (UNLIMITED, math.inf, 2**63 - 4096 - GIB),
    ],
    ids=["no groups", "2, unlimited", "2", "1, unlimited", "1, full", "1, memory unlimited"],
)
def test_limits(
    files: dict[str, str], cores: float, memory: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    monkeypatch.setattr(container, "CONTROL_GROUP", tmp_path)
    assert (container.cpu_quota(), container.memory_left()) == (cores, memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(64)}, raising=False)
    usable = {1.5: 1, 2.0: 2, math.inf: 64}[cores]
    assert processor.usable_cores() == usable
    assert processor.too_many_threads(usable) == ""
    assert f"OMP_NUM_THREADS={usable} before" in processor.too_many_threads(usable + 1)
