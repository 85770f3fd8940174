"""Describe where and with what a run was made, so that its figures can be judged later."""

from __future__ import annotations

import contextlib
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

import psutil

from workbench.core.processor import cpu_model, usable_cores
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
    """Return the content of a run's ``environment.json``, without importing torch or touching a device.

    No host or user name is in it, and ``device`` is kept as it is given.
    """
    versions = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "schema_version": SCHEMA_VERSION,
        "task": task,
        "level": level,
        "seed": seed,
        "data_hash": data_hash,
        "device": dict(device or {}),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_bytes": psutil.virtual_memory().total,
        "versions": versions,
    }
