"""The names of ``mindspore.nn`` that this package translates; everything is defined elsewhere."""

from workbench.scaling import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
)
from workbench.training import TrainOneStepCell, TrainOneStepWithLossScaleCell, WithLossCell
from workbench.training.model import Model

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "Model",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
]
