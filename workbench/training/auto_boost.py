"""AutoBoost: turn a level and a configuration into a processed network and optimizer.

Named and shaped after ``mindspore.boost.AutoBoost`` (MindSpore 2.7). Differences: every instance stands alone (the
reference keeps one for the whole process), its configuration is validated, and an unknown level is an error.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed, nn
from torch.optim import SGD, Optimizer

from workbench.config import BoostConfig, NetworkFacts, Plan
from workbench.core import distributed as ranks
from workbench.methods.grad_centralization.optimizer_process import OptimizerProcess
from workbench.methods.grad_freeze.method import GradientFreeze
from workbench.methods.less_bn.full_normalization import NEEDS_CRITERION, HeadRule
from workbench.methods.less_bn.method import REPORT_ATTRIBUTE, LessBNReport, reduce_batch_norms_
from workbench.methods.parameter_groups import named_trainable_parameters, split_into_chunks
from workbench.methods.parameter_process import ParameterProcess
from workbench.methods.parameter_succession import follow_parameters

__all__ = ["AutoBoost", "boost_plan_of", "boosted_module_of", "read_config"]

_MARK = "boost_plan"
_log = logging.getLogger("workbench")
_TOLD: set[str] = set()


def read_config(config: BoostConfig | Mapping[str, Any] | str | Path | None) -> BoostConfig:
    """Return a validated configuration from whatever names one.

    Args:
        config: A configuration, a dictionary in the reference's form, the path of a JSON file, or None or an empty
            string for the defaults.

    Raises:
        ConfigError: When it cannot be read or is not valid; the message names the key.
        TypeError: When it is of another kind.
    """
    if config is None or (isinstance(config, str) and config == ""):
        return BoostConfig()
    if isinstance(config, BoostConfig):
        return config
    if isinstance(config, Mapping):
        return BoostConfig.from_dict(dict(config))
    if isinstance(config, (str, Path)):
        return BoostConfig.from_json(config)
    raise TypeError(f"`config` must be a BoostConfig, a dict or the path of a JSON file, got {type(config).__name__}")


def boost_plan_of(module: nn.Module) -> Plan | None:
    """Return the plan that AutoBoost left on a module or on one it wraps; None when it was never processed."""
    plan: Plan | None = getattr(boosted_module_of(module), _MARK, None)
    return plan


def boosted_module_of(module: nn.Module) -> nn.Module | None:
    """Return the module that AutoBoost processed: this one, or one inside (a backbone under its criterion)."""
    return next((child for child in module.modules() if isinstance(getattr(child, _MARK, None), Plan)), None)


class AutoBoost:
    """Apply the algorithms of a boost level to a network and its optimizer.

    Args:
        level: ``"O0"``, ``"O1"`` or ``"O2"``.
        boost_config_dict: Configuration: a dictionary, a ``BoostConfig``, a path, or ``""`` for the defaults.
        world_size: Ranks that train together; None asks torch.distributed.
        seed: Seed of the freezing schedule; None draws from numpy's global generator, as the reference does (over
            several ranks from that of the first one).

    Raises:
        ConfigError: On an unknown level, key, mode or a value out of range.

    Example:
        >>> from torch import nn
        >>> from torch.optim import SGD
        >>> network = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        >>> only_freezing = {"boost": {"mode": "manual", "less_bn": False}, "grad_freeze": {"param_groups": 2}}
        >>> boost = AutoBoost("O1", only_freezing, seed=0)
        >>> network, optimizer = boost.network_auto_process_train(network, SGD(network.parameters(), lr=0.1))
        >>> type(optimizer).__name__
        'FreezeOpt'
    """

    def __init__(
        self,
        level: str = "O0",
        boost_config_dict: BoostConfig | Mapping[str, Any] | str | Path | None = "",
        *,
        world_size: int | None = None,
        seed: int | None = None,
    ) -> None:
        self.config = read_config(boost_config_dict)
        self.plan = self.config.resolve(level, world_size=ranks.world_size() if world_size is None else world_size)
        self.level = level
        self.seed = seed
        self.less_bn_report: LessBNReport | None = None
        for dropped in self.plan.dropped:
            warnings.warn(dropped.reason, UserWarning, stacklevel=2)
        _note_level_defaults(self.plan)

    def network_auto_process_train(
        self, network: nn.Module, optimizer: Optimizer, *, criterion: Any = None, example_inputs: Any = None
    ) -> tuple[nn.Module, Optimizer]:
        """Process a network and its optimizer for training, in the order of ``order.PROCESSING_ORDER``.

        Args:
            network: Changed in place and returned.
            optimizer: Rebuilt when parameters or groups change, wrapped in a ``FreezeOpt`` when freezing is in effect,
                replaced by plain subtraction (SGD with a rate of 1) when DimReduce is. Learning-rate schedulers belong
                on the returned optimizer; DimReduce bears none.
            criterion: What judges the network's output; a head is normalised only where this is known to be a
                classification. A network that ends in torch's criterion says so itself.
            example_inputs: What LessBN may call the network with, see
                :func:`workbench.methods.less_bn.method.reduce_batch_norms_`.

        Returns:
            The network, marked with the plan, and the optimizer to train with. From now on ``plan`` says what acts on
            this network: a method that finds nothing to do is not in effect.
        """
        config = self.config
        if self.plan.less_bn:
            network, optimizer = self._less_bn(network, optimizer, criterion, example_inputs)
        plan = self.plan = self._acting_plan(network, optimizer)
        split = plan.less_bn or plan.grad_freeze or plan.world_size > 1
        if config.common.gradient_split_groups is not None and split:
            trained = [p for group in optimizer.param_groups for p in group["params"]]
            ParameterProcess().assign_parameter_group(trained, list(config.common.gradient_split_groups))
        if plan.grad_freeze:
            freeze = config.grad_freeze
            seed = self._common_seed()
            rng = None if seed is None else np.random.RandomState(seed)
            method = GradientFreeze(
                freeze.param_groups,
                freeze.freeze_type,
                freeze.freeze_p,
                freeze.total_steps,
                state=config.compatibility.freeze_state,
                rng=rng,
            )
            network, optimizer = method.freeze_generate(network, optimizer)
        if plan.dim_reduce:
            held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            optimizer = SGD([parameter for parameter in held if parameter.requires_grad], lr=1.0)
        setattr(network, _MARK, plan)
        return network, optimizer

    def network_auto_process_eval(self, network: nn.Module, *, example_inputs: Any = None) -> nn.Module:
        """Process a network for evaluation: BatchNorms are reduced as in training, the head stays as it is.

        Args:
            network: Changed in place and returned.
            example_inputs: As for training.
        """
        if self.plan.less_bn and getattr(network, "less_bn_report", None) is None:  # not processed for training
            self.less_bn_report = reduce_batch_norms_(
                network, match=self.config.compatibility.less_bn_match, example_inputs=example_inputs
            )
        setattr(network, _MARK, self.plan)
        return network

    def _less_bn(
        self, network: nn.Module, optimizer: Optimizer, criterion: Any, example_inputs: Any
    ) -> tuple[nn.Module, Optimizer]:
        config, rules = self.config, self.config.compatibility
        before = dict(network.named_parameters())
        head = HeadRule(rules.fn_scope, rules.fn_bias, criterion) if config.less_bn.fn_flag else None
        report = reduce_batch_norms_(network, match=rules.less_bn_match, example_inputs=example_inputs, head=head)
        self.less_bn_report = report
        if report.head_reason and rules.fn_scope != "classifier":  # somebody asked for it by name
            warnings.warn(report.head_note, UserWarning, stacklevel=3)
        elif report.head_note:
            _log.log(logging.WARNING if report.head_reason == NEEDS_CRITERION else logging.INFO, report.head_note)
        if not _facts_of(network, optimizer).less_bn_acts(config):
            return network, optimizer
        optimizer = follow_parameters(optimizer, before, dict(network.named_parameters()))
        if config.less_bn.gc_flag:
            process = OptimizerProcess(optimizer)
            process.add_grad_centralization(network, rule=rules.grad_centralization)
            optimizer = process.generate_new_optimizer()
        return network, optimizer

    @property
    def notes(self) -> tuple[str, ...]:
        """What became of the network, one line each; empty before it was processed."""
        report = self.less_bn_report
        return (report.head_note,) if report is not None and report.head_note else ()

    def _acting_plan(self, network: nn.Module, optimizer: Optimizer) -> Plan:
        """Return the plan with what this network offers, and warn of what it leaves without work."""
        facts = _facts_of(network, optimizer)
        if not facts.layers:  # an optimizer of another network, which freezing refuses in its own words
            return self.plan
        before = {dropped.name for dropped in self.plan.dropped}
        plan = self.config.resolve(self.level, self.plan.world_size, facts)
        for dropped in plan.dropped:
            if dropped.name not in before and dropped.name != "less_bn":  # of which LessBN has warned itself
                warnings.warn(dropped.reason, UserWarning, stacklevel=3)
        return plan

    def _common_seed(self) -> int | None:
        """Return the seed of the freezing schedule: without one of our own, several ranks must still agree."""
        if self.seed is not None or ranks.world_size() == 1:
            return self.seed
        drawn = [int(np.random.randint(2**31))]  # noqa: NPY002  # the reference's generator, on the first rank
        distributed.broadcast_object_list(drawn)
        return drawn[0]

    def __repr__(self) -> str:
        """Say what is in effect."""
        return f"AutoBoost({self.level!r}: {self.plan.summary()})"


def _facts_of(network: nn.Module, optimizer: Optimizer) -> NetworkFacts:
    """Return what a network offers as it stands, reduced already where LessBN is in effect."""
    report: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
    removed, kept = (0, 0) if report is None else (len(report.removed), len(report.kept))
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, parameter in named_trainable_parameters(network) if parameter in held]
    layers = len(split_into_chunks(names))
    return NetworkFacts(removed + kept, removed, layers, layers, removed, layers)


def _note_level_defaults(plan: Plan) -> None:
    """Say once per process what the level switches on beside the switches that are set by hand."""
    told = plan.level_default_sentence() if any(plan.level_defaults().values()) else ""
    if told and told not in _TOLD and ranks.rank() == 0:
        _TOLD.add(told)
        _log.warning("%s", told)
