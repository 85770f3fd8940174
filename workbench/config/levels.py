"""What a level and a mode ask for, before anything is known of what can act."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.config.errors import ConfigError, shown

if TYPE_CHECKING:
    from workbench.config.boost_config import BoostConfig

__all__ = ["LEVELS", "SWITCHES", "asked_for", "requested_switches", "with_switch"]

SWITCHES = ("less_bn", "grad_freeze", "adasum", "grad_accumulation", "dim_reduce", "loss_scale_group")
"""The six switches, in the order the original lists them."""

LEVELS: dict[str, tuple[str, ...]] = {
    "O0": (),
    "O1": ("less_bn", "grad_freeze"),
    "O2": ("less_bn", "grad_freeze", "adasum"),
}
"""Boost level -> algorithms it asks for."""


def asked_for(name: str, config: BoostConfig, level: str) -> bool:
    """Return whether a configuration asks for an algorithm at a level, as the original resolves it.

    Auto takes the level's table, manual lets switches that are set override it, enable_all and disable_all set all.
    """
    mode = config.boost.mode
    if mode in {"enable_all", "disable_all"}:
        return mode == "enable_all"
    given: bool | None = getattr(config.boost, name) if mode == "manual" else None
    return name in LEVELS[level] if given is None else given


def requested_switches(config: BoostConfig, level: str) -> dict[str, bool]:
    """Return the six switches a configuration asks for at a level, as the original resolves them.

    Raises:
        ConfigError: When the level is unknown (the original takes O0 without a word).
    """
    if not isinstance(level, str) or level not in LEVELS:
        raise ConfigError(f"`level` must be one of {', '.join(map(shown, LEVELS))}, got {shown(level)}")
    return {name: asked_for(name, config, level) for name in SWITCHES}


def with_switch(config: BoostConfig, level: str, name: str, *, on: bool) -> BoostConfig:
    """Return the configuration with one switch set by hand and the others as the level asks for them."""
    asked = requested_switches(config, level) | {name: on}
    return config.with_values({"boost.mode": "manual", **{f"boost.{switch}": asked[switch] for switch in SWITCHES}})
