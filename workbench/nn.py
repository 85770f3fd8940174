"""The names of ``mindspore.nn`` that this package translates; everything is defined elsewhere."""

from workbench.loss_scale import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
)
from workbench.mindspore.model import Model
from workbench.mindspore.thor_model import ConvertModelUtils
from workbench.mindspore.train_step_cells import TrainOneStepCell, TrainOneStepWithLossScaleCell, WithLossCell
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.optim.thor.optimizer import thor

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
