"""The names of ``mindspore.nn`` that this package translates; everything is defined elsewhere."""

from workbench.optimizers.adam_offload import AdamOffload
from workbench.optimizers.thor import thor
from workbench.scaling import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
)
from workbench.training import TrainOneStepCell, TrainOneStepWithLossScaleCell, WithLossCell
from workbench.training.model import Model
from workbench.training.thor_model import ConvertModelUtils

__all__ = [
    "AdamOffload",
    "ConvertModelUtils",
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "Model",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
    "thor",
]
