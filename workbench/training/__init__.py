"""One step, one loop: the algorithms put together.

Read ``step.py`` first; it is the step that everything here shares.
"""

from workbench.training.apply import AutoBoost, apply
from workbench.training.boosted import Boosted
from workbench.training.checkpoint import load_checkpoint, save_checkpoint
from workbench.training.loop import training_loop
from workbench.training.outcome import BoostStep, StepOutcome
from workbench.training.trace_buffer import TraceBuffer

__all__ = [
    "AutoBoost",
    "BoostStep",
    "Boosted",
    "StepOutcome",
    "TraceBuffer",
    "apply",
    "load_checkpoint",
    "save_checkpoint",
    "training_loop",
]
