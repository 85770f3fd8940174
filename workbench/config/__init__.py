"""Configuration: what may be set, what it means at a level, and how it is read and written.

Start at ``BoostConfig``; ``BoostConfig.resolve`` gives the ``Plan`` that training follows.
"""

from __future__ import annotations

from workbench.config.amp import AmpConfig
from workbench.config.boost import (
    LEVELS,
    SWITCHES,
    BoostSwitches,
    CommonConfig,
    DimReduceConfig,
    GradAccumulationConfig,
    GradFreezeConfig,
    LessBNConfig,
    line_search_trials,
    requested_switches,
    with_switch,
)
from workbench.config.boost_config import BOOST_SECTIONS, BoostConfig, ConfigLike, read_config
from workbench.config.compatibility import CompatibilityConfig
from workbench.config.conditions import Condition, acts
from workbench.config.errors import ConfigError
from workbench.config.facts import Facts, NetworkFacts
from workbench.config.loss_scale import LossScaleConfig
from workbench.config.optimizer import HYPER_PARAMETERS, TASKS_OWN, OptimizerConfig
from workbench.config.parameters import ParameterInfo, describe_parameters, parameter_at, parents_of
from workbench.config.resolve import Dropped, Plan, resolve, why_no_method
from workbench.config.section import Section
from workbench.config.snapshots import SnapshotConfig

__all__ = [
    "BOOST_SECTIONS",
    "HYPER_PARAMETERS",
    "LEVELS",
    "SWITCHES",
    "TASKS_OWN",
    "AmpConfig",
    "BoostConfig",
    "BoostSwitches",
    "CommonConfig",
    "CompatibilityConfig",
    "Condition",
    "ConfigError",
    "ConfigLike",
    "DimReduceConfig",
    "Dropped",
    "Facts",
    "GradAccumulationConfig",
    "GradFreezeConfig",
    "LessBNConfig",
    "LossScaleConfig",
    "NetworkFacts",
    "OptimizerConfig",
    "ParameterInfo",
    "Plan",
    "Section",
    "SnapshotConfig",
    "acts",
    "describe_parameters",
    "line_search_trials",
    "parameter_at",
    "parents_of",
    "read_config",
    "requested_switches",
    "resolve",
    "why_no_method",
    "with_switch",
]
