"""Hugging Face's Trainer: its own arguments for what they carry, a Trainer of ours for the rest, a Task.

`carried` and `training_arguments` are light; what needs transformers is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workbench.integrations.transformers.arguments import carried, training_arguments

if TYPE_CHECKING:
    from workbench.integrations.transformers.task import task_from_trainer
    from workbench.integrations.transformers.trainer import BoostedTrainer

__all__ = ["BoostedTrainer", "carried", "task_from_trainer", "training_arguments"]

_HOME = {"BoostedTrainer": "trainer", "task_from_trainer": "task"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value
