"""The names of ``mindspore.boost``; everything is defined elsewhere."""

from workbench.algorithms.adasum import AdaSum
from workbench.algorithms.dim_reduce import DimReduce
from workbench.algorithms.freeze_cell import freeze_cell
from workbench.algorithms.grad_accumulation import GradientAccumulation
from workbench.algorithms.grad_freeze import FreezeOpt, GradientFreeze
from workbench.algorithms.less_bn import LessBN
from workbench.algorithms.optimizer_process import OptimizerProcess
from workbench.algorithms.parameter_process import ParameterProcess
from workbench.scaling import GroupLossScaleManager
from workbench.training import AutoBoost, BoostTrainOneStepCell, BoostTrainOneStepWithLossScaleCell

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
