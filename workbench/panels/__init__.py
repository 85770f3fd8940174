"""Panels: the workbench in a notebook. Widgets belong here, and nothing is computed here.

A callback reads controls, calls one function of the layers below, and shows the result. Long work runs in a thread
beside the kernel (``worker``) and is shown at a few updates per second. Importing this package loads neither torch nor
optuna; a panel is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
import re
from typing import TYPE_CHECKING, Any

from workbench.panels.shared_config import SharedConfig

if TYPE_CHECKING:
    from workbench.panels.compare_panel import ComparePanel
    from workbench.panels.config_panel import ConfigPanel
    from workbench.panels.export_panel import ExportPanel
    from workbench.panels.loss_scale_panel import LossScalePanel
    from workbench.panels.panel import Panel
    from workbench.panels.study_panel import StudyPanel
    from workbench.panels.train_panel import TrainPanel
    from workbench.panels.workbench import Workbench

__all__ = [
    "ComparePanel",
    "ConfigPanel",
    "ExportPanel",
    "LossScalePanel",
    "Panel",
    "SharedConfig",
    "StudyPanel",
    "TrainPanel",
    "Workbench",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'workbench.panels' has no attribute {name!r}")
    home = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # LossScalePanel stands in loss_scale_panel
    value = globals()[name] = getattr(importlib.import_module(f"workbench.panels.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
