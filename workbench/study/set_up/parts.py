"""The parts of a set-up: what it does otherwise than the task as given, in pieces that can be taken out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.config import BoostConfig, Plan, describe_parameters
from workbench.methods.registry import METHODS
from workbench.methods.runtime.section import RuntimeSection

_GOES_WITH = {
    "regularization.decay": "regularization.weight_average",
    "runtime.convolution": "runtime.memory_format",  # without which it is not in effect
}


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a set-up: what it is in a few words, and the config paths that make it up."""

    name: str
    paths: tuple[str, ...]
    kind: str  # "time" (of a step alone), "schedule" (length and course of the rate) or "learning"

    def taken_out(self, values: Mapping[str, Any], base: BoostConfig) -> dict[str, Any]:
        """Return a set-up's values, by config path, without this part: there as in the task as given."""
        given = base.leaves()
        return {**values, **{path: given[path] for path in self.paths}}


def parts_of(plan: Plan, base: Plan) -> list[Part]:
    """Return the parts in which a set-up differs, as far as it is in effect, from the task as given; schedule last."""
    acting = plan.parameters_in_effect().keys() | base.parameters_in_effect().keys()
    here, there = plan.config.leaves(), base.config.leaves()
    groups: dict[str, list[str]] = {}
    for path in describe_parameters():
        if here[path] != there[path]:
            groups.setdefault(_group(path), []).append(path)
    # What is set but not in effect goes with its part: another part's removal could bring it into effect.
    groups = {group: paths for group, paths in groups.items() if not acting.isdisjoint(paths)}
    kinds = {"schedule": "schedule", "runtime": "time", "amp": "time"}
    parts = [
        Part(_name(group, plan.config), tuple(paths), kinds.get(group.partition(".")[0], "learning"))
        for group, paths in groups.items()
    ]
    return sorted(parts, key=lambda part: part.kind == "schedule")


def _group(path: str) -> str:
    """Return what a path belongs to: its method's switch or section; choices of the runtime stand by themselves."""
    section, _, name = path.partition(".")
    if section == "boost":
        return name
    return _GOES_WITH.get(path, path) if section in ("runtime", "regularization") else section


def _name(group: str, config: BoostConfig) -> str:
    section, _, name = group.partition(".")
    if name:
        value = config.leaves()[group]
        value = f"{value:.3g}" if isinstance(value, float) else value
        if group == "runtime.memory_format" and config.part(RuntimeSection).convolution == "by_shape":
            value = f"{value}, convolutions by shape"
        return f"{describe_parameters()[group].title.lower()} {value}".replace(" True", "").replace("_", " ")
    if section == "optimizer" and config.optimizer is not None:
        return config.optimizer.name or "the task's optimizer at another rate"
    if section == "amp":
        return f"amp {config.amp.level} {config.amp.dtype}"
    said = getattr(getattr(config, section, None), "summary", str)()
    titles = {method.name: method.title for method in METHODS}
    return said or titles.get(section, section)
