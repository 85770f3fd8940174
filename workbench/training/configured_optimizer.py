"""The optimizer that a configuration makes of the one that was given."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.methods.parameter_groups import rebuild_optimizer
from workbench.optim import build_optimizer, change_optimizer_

__all__ = ["configured_optimizer"]


def configured_optimizer(config: BoostConfig, model: nn.Module, given: Optimizer) -> Optimizer:
    """Return the optimizer that section ``optimizer`` asks for.

    One that is named takes over what the given one trains: a parameter that the given one does not hold stays
    untrained, a group with a rate of its own keeps its ratio to the others, and one without weight decay stays without.
    Without a name the hyper-parameters that the section sets are changed in the given one.

    Raises:
        ValueError: When the given optimizer lacks a hyper-parameter that is set.
    """
    section = config.optimizer
    if section is None:
        return given
    if section.name is None:
        change_optimizer_(given, section)
        return given
    built = build_optimizer(section, model, config.compatibility)
    group_of = {parameter: index for index, group in enumerate(given.param_groups) for parameter in group["params"]}
    held = [parameter for group in built.param_groups for parameter in group["params"]]
    if len(given.param_groups) == 1 and group_of.keys() == set(held):
        return built
    groups = [
        part
        for group in built.param_groups
        for index, theirs in enumerate(given.param_groups)
        if (part := _part(group, {p for p in group["params"] if group_of.get(p) == index}, theirs, given))["params"]
    ]
    others = [parameter for parameter in group_of if parameter not in set(held)]  # of a criterion, for example
    return rebuild_optimizer(built, [*groups, {"params": others}] if others else groups)


def _part(group: dict[str, Any], members: set[Tensor], theirs: dict[str, Any], given: Optimizer) -> dict[str, Any]:
    """Return the part of a group that belongs to one of the given optimizer's, with what is particular to that."""
    part = {**group, "params": [parameter for parameter in group["params"] if parameter in members]}
    if "param_names" in group:
        named = zip(group["param_names"], group["params"], strict=True)
        part["param_names"] = [name for name, parameter in named if parameter in members]
    usual = given.defaults.get("lr")
    if usual and "lr" in theirs:
        part["lr"] = group["lr"] * (float(theirs["lr"]) / float(usual))
    decays = [other.get("weight_decay", 0) for other in given.param_groups]
    if any(decays) and not theirs.get("weight_decay", 0) and "weight_decay" in part:
        part["weight_decay"] = 0.0
    return part
