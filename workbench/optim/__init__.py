"""Optimizers by name, for configurations and tasks."""

from workbench.optim.factory import build_optimizer, change_optimizer_

__all__ = ["build_optimizer", "change_optimizer_"]
