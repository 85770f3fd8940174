"""Panels: the workbench in a notebook. Widgets are at home here, and nothing is computed here.

A callback reads controls, calls one function of the layers below, and shows the result. Long work runs in a thread
beside the kernel (``worker``) and is told at a few updates per second. Importing this package loads no torch.
"""

from __future__ import annotations

from workbench.panels.config_panel import ConfigPanel
from workbench.panels.loss_scale_panel import LossScalePanel
from workbench.panels.panel import Panel
from workbench.panels.shared_config import SharedConfig

__all__ = ["ConfigPanel", "LossScalePanel", "Panel", "SharedConfig"]
