"""Boost Workbench: find the fastest training configuration that keeps the accuracy you ask for.

The names below are loaded on first use, so that ``import workbench`` and ``workbench --help`` stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.6.0"

__all__ = ["BoostConfig", "Task", "Workbench", "apply", "compare", "export", "replay", "train", "tune"]

_HOME = {
    "BoostConfig": "workbench.config",
    "Task": "workbench.tasks",
    "Workbench": "workbench.panels.workbench",
    "apply": "workbench.training",
    **dict.fromkeys(("compare", "export", "replay", "train", "tune"), "workbench.api"),
}

if TYPE_CHECKING:
    from workbench.api import compare, export, replay, train, tune
    from workbench.config import BoostConfig
    from workbench.panels.workbench import Workbench
    from workbench.tasks import Task
    from workbench.training.apply import apply


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'workbench' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
