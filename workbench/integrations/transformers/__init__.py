"""Hugging Face's Trainer: its own arguments for what they carry, a Trainer of ours for the rest, a Task.

`carried` and `training_arguments` are light; what needs transformers is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names
from workbench.integrations.transformers.arguments import carried, training_arguments

if TYPE_CHECKING:
    from workbench.integrations.transformers.task import task_from_trainer
    from workbench.integrations.transformers.trainer import BoostedTrainer

__all__ = ["BoostedTrainer", "carried", "task_from_trainer", "training_arguments"]

__getattr__ = lazy_names(
    __name__, {"BoostedTrainer": f"{__name__}.trainer", "task_from_trainer": f"{__name__}.task"}, "transformers"
)
