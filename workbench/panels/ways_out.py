"""A way out of a switch that cannot be used: the one other change after which it can."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from workbench.config import (
    SWITCHES,
    BoostConfig,
    ConfigError,
    Facts,
    describe_parameters,
    requested_switches,
    why_no_method,
    with_switch,
)
from workbench.panels.controls import number_text


class WayOut(NamedTuple):
    """A button's label, and the configuration that a click on it makes."""

    text: str
    config: BoostConfig


def way_out(name: str, config: BoostConfig, facts: Facts) -> WayOut | None:
    """Return the one change that, with a switch on, brings it into effect; None if one is not enough."""
    for text, changed in _changes(name, config, facts.level):
        switched = with_switch(changed, facts.level, name, on=True)
        if not why_no_method(name, switched, facts) and _resolves(switched, facts):
            return WayOut(text, switched)
    return None


def _changes(name: str, config: BoostConfig, level: str) -> Iterator[tuple[str, BoostConfig]]:
    """Yield deciding parameters at their least useful value or another choice, then other switches turned off."""
    infos, leaves = describe_parameters(), config.leaves()
    needed = infos[f"boost.{name}"].needs.reads
    for path, info in infos.items():
        if path.startswith("boost.") or not (path.startswith(f"{name}.") or path in needed):
            continue
        values = info.choices if info.kind == "choice" else () if info.low is None else (info.low,)
        for value in values:
            if value != leaves[path]:
                title = info.title.lower() if path.startswith(f"{name}.") else path
                text = f"Set {title} to {number_text(value)} and switch it on"
                yield text, config.with_values({path: value})
    asked = requested_switches(config, level)
    for other in SWITCHES:
        if other != name and asked[other]:
            text = f"Switch {infos[f'boost.{other}'].title} off and this on"
            yield text, with_switch(config, level, other, on=False)


def _resolves(config: BoostConfig, facts: Facts) -> bool:
    try:
        config.resolve(facts.level, facts.world_size, facts.network)
    except ConfigError:
        return False
    return True
