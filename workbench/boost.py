"""The names of ``mindspore.boost``; everything is defined elsewhere."""

from workbench.methods.adasum.method import AdaSum
from workbench.methods.dim_reduce.method import DimReduce
from workbench.methods.grad_accumulation.method import GradientAccumulation
from workbench.methods.grad_centralization.method import OptimizerProcess
from workbench.methods.grad_freeze.method import FreezeOpt, GradientFreeze
from workbench.methods.less_bn.method import LessBN
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.parameter_process import ParameterProcess
from workbench.mindspore.freeze_cell import freeze_cell
from workbench.mindspore.train_step_cells import BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell
from workbench.training import AutoBoost

__all__ = [
    "AdaSum",
    "AutoBoost",
    "BoostTrainOneStepCell",
    "BoostTrainOneStepWithLossScaleCell",
    "DimReduce",
    "FreezeOpt",
    "GradientAccumulation",
    "GradientFreeze",
    "GroupLossScaleManager",
    "LessBN",
    "OptimizerProcess",
    "ParameterProcess",
    "freeze_cell",
]
