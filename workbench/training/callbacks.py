"""Names of version 0.6; everything is defined in :mod:`workbench.mindspore.callbacks`."""

from workbench.mindspore.callbacks import Callback, LossMonitor, TimeMonitor

__all__ = ["Callback", "LossMonitor", "TimeMonitor"]
