"""Boost Workbench: find the fastest training set-up that keeps the accuracy you ask for.

The names below are loaded on first use, so that ``import workbench`` and ``workbench --help`` stay light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names

__version__ = "0.7.0.dev0"

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


__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
