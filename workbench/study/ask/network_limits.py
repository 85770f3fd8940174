"""What a known network makes pointless to search: values, levels and methods that could change nothing there.

What each method needs is declared beside its switch (`workbench.config.conditions`); what it lacks only once the
network is known is due to the network.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from workbench.config import SWITCHES, describe_parameters, requested_switches
from workbench.study.ask.search_space import Dimension, SearchedSpace, plans_by_level


def may_ask_for(space: SearchedSpace, switch: str) -> bool:
    """Return whether some candidate may have a switch on."""
    choices = {one.path: one.choices for one in space.dimensions}
    modes = choices.get("boost.mode", ())
    if True in choices.get(f"boost.{switch}", ()) or "enable_all" in modes:
        return True
    if f"boost.{switch}" in choices and "auto" not in modes:
        return False
    base = space.base.with_values({"boost.mode": "manual"} if any(p.startswith("boost.") for p in choices) else {})
    return any(requested_switches(base, level)[switch] for level in choices.get("level", ("O1",)))


def within_network(space: SearchedSpace) -> tuple[SearchedSpace, list[str]]:
    """Leave out the numbers with which a method would find too little to do, and batches that cannot be regrouped.

    Returns:
        The space, and a sentence about the values that are not drawn, without its full stop.
    """
    kept: list[Dimension] = []
    sentences = []
    network = space.plans.network
    for one in space.dimensions:
        if one.path == "batch.factor" and network is not None and network.no_merging:
            sentences.append(f"`{one.path}` is not searched, because {network.no_merging}")
            continue
        switch = _sized_by(one, space)
        left = [] if switch is None else _too_much(one, switch, space)
        if switch is None or not left:
            kept.append(one)
            continue
        able = tuple(value for value in _values(one) if value not in left)
        shown = f"{left[0]} to {one.high:.0f}" if len(left) > 1 and not one.choices else ", ".join(map(str, left))
        reason = _why_not(switch, {one.path: left[0]}, space).partition(",")[0]  # behind it stands what else would do
        off = "" if able else f", so {describe_parameters()[f'boost.{switch}'].title.lower()} stays off"
        sentences.append(f"`{one.path}` = {shown} is not tried: {reason}{off}")
        if len(able) > 1 and not one.choices:
            kept.append(replace(one, high=float(able[-1])))
        elif able:  # one value is a setting, and one is always taken
            kept.append(Dimension(one.path, "choice", able))
    return replace(space, dimensions=tuple(kept)), sentences


def without_equal_levels(space: SearchedSpace) -> tuple[SearchedSpace, list[str]]:
    """Leave out levels whose only plan is that of a level before them; return the space, and a sentence for each."""
    levels = next((one for one in space.dimensions if one.path == "level"), None)
    if levels is None:
        return space, []
    by_level = plans_by_level(space)
    first: dict[str | None, str] = {}
    sentences = []
    for level, plan in sorted(by_level.items()):
        if plan is not None and first.setdefault(plan, level) != level:
            sentences.append(f"Level {level} is not tried: on this network it is equal to {first[plan]}")
    left = tuple(level for level, plan in by_level.items() if plan is None or first[plan] == level)
    dimensions = tuple(replace(one, choices=left) if one is levels else one for one in space.dimensions)
    return replace(space, dimensions=dimensions), sentences


def why_off(space: SearchedSpace) -> Iterator[str]:
    """Yield why methods that candidates may switch on never act, except for those that `within_network` reports."""
    sized = {_sized_by(one, space) for one in space.dimensions}
    for name in SWITCHES:
        if name not in sized and may_ask_for(space, name) and (reason := _why_not(name, {}, space)):
            yield f"{name} is not in effect because {reason}"


def _sized_by(one: Dimension, space: SearchedSpace) -> str | None:
    """Return the method that needs more of the network the larger a dimension's numbers are; None if there is none."""
    if not all(type(value) is int for value in one.extremes):
        return None
    for name in SWITCHES:
        if one.path in describe_parameters()[f"boost.{name}"].needs.reads and not _why_not(name, {one.path: 1}, space):
            return name
    return None


def _too_much(one: Dimension, switch: str, space: SearchedSpace) -> list[int]:
    """Return the values of a dimension with which a method cannot act on the network."""
    values = _values(one)
    if one.choices:
        return [value for value in values if _why_not(switch, {one.path: value}, space)]
    return values[bisect.bisect_left(values, True, key=lambda n: bool(_why_not(switch, {one.path: n}, space))) :]


def _values(one: Dimension) -> list[int]:
    return list(one.choices or range(int(one.low), int(one.high) + 1, int(one.step or 1)))


def _why_not(switch: str, values: Mapping[str, Any], space: SearchedSpace) -> str:
    """Return why a method cannot act on the network beside some choice of the others; empty where it always can."""
    plans, needs = space.plans, describe_parameters()[f"boost.{switch}"].needs
    facts = plans.facts("O1")
    states = {
        f"boost.{name}": (True, False) if may_ask_for(space, name) else (False,)
        for name in SWITCHES
        if f"boost.{name}" in needs.reads
    }
    for turned in itertools.product(*states.values()):
        beside = dict(zip(states, turned, strict=True))
        config = plans.with_subspace(space.base.with_values({"boost.mode": "manual", **beside, **values}))
        if not needs.why_not(config, replace(facts, network=None)) and (reason := needs.why_not(config, facts)):
            return reason
    return ""
