"""A set-up in Accelerate's loop: what its arguments carry, an Accelerator of ours for a loop as it is, or one call.

`carried`, `accelerator_arguments` and `prepare` are light; what needs accelerate is loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names
from workbench.integrations.accelerate.loop import accelerator_arguments, carried, prepare

if TYPE_CHECKING:
    from workbench.integrations.accelerate.accelerator import BoostedAccelerator

__all__ = ["BoostedAccelerator", "accelerator_arguments", "carried", "prepare"]

__getattr__ = lazy_names(__name__, {"BoostedAccelerator": f"{__name__}.accelerator"}, "accelerate")
