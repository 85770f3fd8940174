"""Panels: the workbench in a notebook. Widgets belong here, and nothing is computed here.

A callback reads controls, calls one function of the layers below, and shows the result. Long work runs in a thread
beside the kernel (``worker``) and is shown at a few updates per second. Importing this package loads neither torch nor
optuna; a panel is imported when it is first asked for.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names
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


# LossScalePanel stands in loss_scale_panel.
_HOME = {name: f"workbench.panels.{re.sub('(?<=[a-z])(?=[A-Z])', '_', name).lower()}" for name in __all__}

__getattr__ = lazy_names(__name__, _HOME)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
