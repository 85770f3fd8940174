"""Loss scaling: the rule, its forms on device and host, overflow handling, and replay of other policies.

Pure PyTorch and numpy; knows neither configuration nor training loop.
"""

from workbench.scaling.dynamic_scale import DynamicLossScaleManager, DynamicLossScaleUpdateCell
from workbench.scaling.fixed_scale import FixedLossScaleManager, FixedLossScaleUpdateCell
from workbench.scaling.group_scale import (
    GroupLossScaleManager,
    GroupMember,
    ParameterGroup,
    arising_overflow,
    next_group_scales,
    resolve_groups,
    scale_gradient,
)
from workbench.scaling.overflow import (
    NonFusedOptimizerWarning,
    ScaleCollapseError,
    collapsed_at,
    decides_on_device,
    has_overflow,
    step_if_finite,
    unscale_and_check_,
)
from workbench.scaling.replay import ScalePolicy, ScaleTrace, SimulationResult, simulate
from workbench.scaling.scale_groups import ScaleGroup, find_scale_groups, significand_loss
from workbench.scaling.scale_rule import LossScaleRule, ScaleState, next_scale
from workbench.scaling.underflow import ExponentTable, UnderflowShare, exponent_table, underflow_share

__all__ = [
    "DynamicLossScaleManager",
    "DynamicLossScaleUpdateCell",
    "ExponentTable",
    "FixedLossScaleManager",
    "FixedLossScaleUpdateCell",
    "GroupLossScaleManager",
    "GroupMember",
    "LossScaleRule",
    "NonFusedOptimizerWarning",
    "ParameterGroup",
    "ScaleCollapseError",
    "ScaleGroup",
    "ScalePolicy",
    "ScaleState",
    "ScaleTrace",
    "SimulationResult",
    "UnderflowShare",
    "arising_overflow",
    "collapsed_at",
    "decides_on_device",
    "exponent_table",
    "find_scale_groups",
    "has_overflow",
    "next_group_scales",
    "next_scale",
    "resolve_groups",
    "scale_gradient",
    "significand_loss",
    "simulate",
    "step_if_finite",
    "underflow_share",
    "unscale_and_check_",
]
