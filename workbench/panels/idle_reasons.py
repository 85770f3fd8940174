"""Why a switch cannot be used, and why a parameter has no say, in a sentence beside the control.

The rules are those of ``workbench.config.resolve``: a switch is tried on, and what the plan then says of it is its
reason. A parameter that such a reason names stays usable although its method is off: setting it is how one gets on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from workbench.config import (
    HYPER_PARAMETERS,
    SWITCHES,
    BoostConfig,
    ConfigError,
    NetworkFacts,
    Plan,
    describe_parameters,
    requested_switches,
)

__all__ = ["idle_reason", "owner_note", "switch_refusals", "with_switch"]


def with_switch(config: BoostConfig, level: str, name: str, *, on: bool) -> BoostConfig:
    """Return the configuration with one switch set by hand and the others as the level asks for them.

    Args:
        config: The configuration.
        level: Boost level.
        name: The switch.
        on: Its new position.

    Raises:
        ConfigError: When the level is unknown.
    """
    asked = requested_switches(config, level) | {name: on}
    return config.with_values({"boost.mode": "manual", **{f"boost.{switch}": asked[switch] for switch in SWITCHES}})


def switch_refusals(
    config: BoostConfig, level: str, world_size: int = 1, network: NetworkFacts | None = None
) -> dict[str, str]:
    """Say of every switch why it would not be in effect if it were on.

    Args:
        config: The configuration.
        level: Boost level.
        world_size: Number of ranks.
        network: What the network offers; None where it is not known.

    Returns:
        Switch -> sentence; empty where it would be in effect.
    """
    return {name: _refusal(config, level, name, world_size, network) for name in SWITCHES}


def idle_reason(plan: Plan, path: str, refusals: Mapping[str, str]) -> str:
    """Say why a parameter has no say under a plan.

    Args:
        plan: What is in effect.
        path: The parameter.
        refusals: What ``switch_refusals`` says of the same configuration.

    Returns:
        A sentence, or nothing when the parameter has a say, or when setting it would let a switch have one.
    """
    if plan.matters(path) or any(path in re.findall(r"`([\w.]+)`", reason) for reason in refusals.values()):
        return ""
    section, _, name = path.partition(".")
    titles = {switch: describe_parameters()[f"boost.{switch}"].title for switch in SWITCHES}
    match section:
        case "boost":
            return f"switches count in mode manual, and the mode is {plan.mode}"
        case "less_bn" | "grad_freeze" | "grad_accumulation" | "dim_reduce":
            return f"{titles[section]} is off"
        case "common":
            return f"{titles['adasum']} is off" if name == "device_number" else "a single rank reduces nothing"
        case "loss_scale" if name == "groups":
            return f"{titles['loss_scale_group']} is off"
        case "loss_scale":
            return _idle_scale(plan, name)
        case "amp":
            return "mixed precision is off (amp.level O0)"
        case "optimizer":
            optimizer = plan.config.optimizer
            if plan.dim_reduce or optimizer is None:
                return "DimReduce makes its own steps"
            return f"{optimizer.name} has no such parameter; {_listed(_owners(name))}"
        case "snapshots":
            return "no snapshots are kept (snapshots.count is 0)"
    return "what it changes is not in effect"


def owner_note(plan: Plan, path: str) -> str:
    """Say of a parameter that a single optimizer has which one that is, while the optimizer is the task's own.

    It may have a say all the same, where the task's own optimizer is of that kind, so it is not disabled.

    Args:
        plan: What is in effect.
        path: The parameter.

    Returns:
        A sentence, or nothing when an optimizer is named, when several have the parameter, or when none has a say.
    """
    section, _, name = path.partition(".")
    optimizer, owners = plan.config.optimizer, _owners(name)
    if section != "optimizer" or len(owners) != 1 or plan.dim_reduce or (optimizer and optimizer.name):
        return ""
    return f"{_listed(owners)}: choose it as optimizer, unless the task has it by itself"


def _owners(hyper_parameter: str) -> list[str]:
    return [name for name, own in HYPER_PARAMETERS.items() if hyper_parameter in own]


def _listed(owners: list[str]) -> str:
    return f"only {owners[0]} has it" if len(owners) == 1 else f"{', '.join(owners[:-1])} and {owners[-1]} have it"


def _refusal(config: BoostConfig, level: str, name: str, world_size: int, network: NetworkFacts | None) -> str:
    try:
        plan = with_switch(config, level, name, on=True).resolve(level, world_size, network)
    except ConfigError as error:
        # Another switch may be what cannot be resolved; then it is that one's sentence.
        return str(error) if name == "dim_reduce" else ""
    return next((entry.reason for entry in plan.dropped if entry.name == name), "")


def _idle_scale(plan: Plan, name: str) -> str:
    kind = plan.parameters_in_effect()["loss_scale.kind"]
    if kind == "none":
        return "there is no loss scale (loss_scale.kind)"
    if name == "drop_overflow_update":
        return "a dynamic loss scale always skips them"
    if name == "collapse_after":
        return "overflows are not looked for"
    return f"the loss scale is {kind}"
