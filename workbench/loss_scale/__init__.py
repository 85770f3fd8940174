"""Loss scaling: the rule, its forms on device and host, overflow handling, and replay of other policies.

Pure PyTorch and numpy; knows neither configuration nor training loop.
"""

from workbench.loss_scale.cells import (
    DynamicLossScaleManager,
    DynamicLossScaleUpdateCell,
    FixedLossScaleManager,
    FixedLossScaleUpdateCell,
)
from workbench.loss_scale.overflow import (
    NonFusedOptimizerWarning,
    ScaleCollapseError,
    collapsed_at,
    decides_on_device,
    has_overflow,
    step_if_finite,
    unscale_and_check_,
)
from workbench.loss_scale.replay import ScalePolicy, ScaleTrace, SimulationResult, simulate
from workbench.loss_scale.rule import LossScaleRule, ScaleState, next_scale
from workbench.loss_scale.underflow import ExponentTable, exponent_table, underflow_share

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "ExponentTable",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "LossScaleRule",
    "NonFusedOptimizerWarning",
    "ScaleCollapseError",
    "ScalePolicy",
    "ScaleState",
    "ScaleTrace",
    "SimulationResult",
    "collapsed_at",
    "decides_on_device",
    "exponent_table",
    "has_overflow",
    "next_scale",
    "simulate",
    "step_if_finite",
    "underflow_share",
    "unscale_and_check_",
]
