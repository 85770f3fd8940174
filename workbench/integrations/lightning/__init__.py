"""A set-up in Lightning's `Trainer`: what its arguments carry, and a callback for the rest.

`carried` and `trainer_arguments` answer without Lightning.
"""

from __future__ import annotations

from workbench.integrations.lightning.arguments import carried, trainer_arguments

__all__ = ["carried", "trainer_arguments"]
