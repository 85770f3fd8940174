"""AutoBoost: turn a level and a configuration into a processed network and optimizer.

Named and shaped after ``mindspore.boost.AutoBoost`` (MindSpore 2.7). Differences: every instance stands alone (the
reference keeps one for the whole process), its configuration is validated, and an unknown level is an error.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import distributed, nn
from torch.optim import Optimizer

from workbench.config import BoostConfig, Plan
from workbench.core import distributed as ranks
from workbench.methods.facts import facts_of, learning_reasons
from workbench.methods.in_effect import MethodsInEffect, prepare_
from workbench.methods.plan_mark import mark_
from workbench.methods.protocol import Preparation

__all__ = ["AutoBoost", "read_config"]

_log = logging.getLogger("workbench")
_TOLD: set[str] = set()


def read_config(config: BoostConfig | Mapping[str, Any] | str | Path | None) -> BoostConfig:
    """Return a validated configuration from whatever names one; None or an empty string stand for the defaults.

    Raises:
        ConfigError: When it cannot be read or is not valid; the message names the key.
        TypeError: When it is of another kind.
    """
    if config is None or config == "":
        return BoostConfig()
    if isinstance(config, BoostConfig):
        return config
    if isinstance(config, Mapping):
        return BoostConfig.from_dict(dict(config))
    if isinstance(config, (str, Path)):
        return BoostConfig.from_json(config)
    raise TypeError(f"`config` must be a BoostConfig, a dict or the path of a JSON file, got {type(config).__name__}")


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
        #: What became of the network, one line each; empty before it was processed.
        self.notes: tuple[str, ...] = ()
        for dropped in self.plan.dropped:
            warnings.warn(dropped.reason, UserWarning, stacklevel=2)
        _note_level_defaults(self.plan)

    def network_auto_process_train(
        self, network: nn.Module, optimizer: Optimizer, *, criterion: Any = None, example_inputs: Any = None
    ) -> tuple[nn.Module, Optimizer]:
        """Process a network and its optimizer for training, in the order of :mod:`workbench.methods.registry`.

        Args:
            network: Changed in place and returned.
            optimizer: Rebuilt when parameters or groups change; a method may wrap or replace it. Learning-rate
                schedulers belong on the returned optimizer.
            criterion: What judges the network's output; a head is normalised only where this is known to be a
                classification. A network that ends in torch's criterion says so itself.
            example_inputs: What methods may call the network with, see :func:`workbench.apply`.

        Returns:
            The network, marked with the plan, and the optimizer to train with. From now on ``plan`` says what acts on
            this network: a method that finds nothing to do is not in effect.
        """
        preparation = Preparation(
            network,
            optimizer,
            self.plan,
            criterion=criterion,
            example_inputs=example_inputs,
            draw_seed=self._common_seed,
            look_again=self._acting_plan,
        )
        prepare_(preparation)
        self.notes = tuple(preparation.notes)
        mark_(network, preparation.plan)
        return network, preparation.optimizer

    def network_auto_process_eval(self, network: nn.Module, *, example_inputs: Any = None) -> nn.Module:
        """Process a network for evaluation: BatchNorms are reduced as in training, the head stays as it is.

        Args:
            network: Changed in place and returned.
            example_inputs: As for training.
        """
        MethodsInEffect(self.plan).prepare_evaluation(network, example_inputs)
        mark_(network, self.plan)
        return network

    def _acting_plan(self, preparation: Preparation) -> Plan:
        """Return the plan with what this network offers, and warn of what it leaves without work."""
        model = preparation.model
        facts = facts_of(model, preparation.optimizer)
        if facts.layers:  # else an optimizer of another network, which freezing refuses in its own words
            reasons = learning_reasons(model, preparation.criterion, preparation.example_inputs, self.config)
            known = {dropped.name for dropped in self.plan.dropped} | {"less_bn"}  # which has warned by itself
            self.plan = self.config.resolve(self.level, self.plan.world_size, replace(facts, **reasons))
            for dropped in self.plan.dropped:
                if dropped.name not in known:
                    warnings.warn(dropped.reason, UserWarning, stacklevel=3)
        return self.plan

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


def _note_level_defaults(plan: Plan) -> None:
    """Say once per process what the level switches on beside the switches that are set by hand."""
    told = plan.level_default_sentence() if any(plan.level_defaults().values()) else ""
    if told and told not in _TOLD and ranks.rank() == 0:
        _TOLD.add(told)
        _log.warning("%s", told)
