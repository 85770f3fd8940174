"""Hugging Face's Trainer: its own arguments for what they carry, a Trainer of ours for the rest.

`carried` and `training_arguments` need no transformers installed until a `TrainingArguments` is made of them.
"""

from __future__ import annotations

from workbench.integrations.transformers.arguments import carried, training_arguments

__all__ = ["carried", "training_arguments"]
