"""Hugging Face's Trainer: its own arguments for what they carry, a Trainer of ours for the rest, a Task.

`carried` and `training_arguments` are light; what needs transformers is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.integrations.on_first_use import on_first_use
from workbench.integrations.transformers.arguments import carried, training_arguments

if TYPE_CHECKING:
    from workbench.integrations.transformers.task import task_from_trainer
    from workbench.integrations.transformers.trainer import BoostedTrainer

__all__ = ["BoostedTrainer", "carried", "task_from_trainer", "training_arguments"]

__getattr__ = on_first_use(__name__, {"BoostedTrainer": "trainer", "task_from_trainer": "task"}, "transformers")
