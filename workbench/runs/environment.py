"""Describe where and with what a run was made, so that its figures can be judged later."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from workbench.runs.schema import SCHEMA_VERSION

# Packages whose version can change a result or a picture.
_PACKAGES = (
    "boost-workbench",
    "torch",
    "torch_npu",
    "torchvision",
    "torchmetrics",
    "numpy",
    "scikit-learn",
    "pandas",
    "pyarrow",
    "pydantic",
    "optuna",
    "plotly",
    "ipywidgets",
)


def collect_environment(
    *,
    device: Mapping[str, Any] | None = None,
    seed: int | None = None,
    data_hash: str = "",
    task: str = "",
    level: str = "",
) -> dict[str, Any]:
    """Return what ``environment.json`` says about a run, without importing torch or touching a device.

    No host or user name is in it, and ``device`` is kept as it is given.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task,
        "level": level,
        "seed": seed,
        "data_hash": data_hash,
        "device": dict(device or {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": _cpu_model(),
        # Those this process may use, which in a container is often fewer than the machine has.
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
        "versions": _installed_versions(),
    }


def _installed_versions() -> dict[str, str]:
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine()
