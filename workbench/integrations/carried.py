"""Which choices of a configuration a framework's own arguments carry, and which need this package.

Each framework has a function that walks through a configuration once and says of every choice where it goes; arguments,
scripts, documentation and the decision whether a class of ours is needed all read its answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.config import BoostConfig, Plan, describe_parameters
from workbench.methods.batch.section import BatchSection


@dataclass(frozen=True)
class Carried:
    """A configuration as a framework takes it."""

    framework: str  # its name, for sentences
    arguments: Mapping[str, Any]  # the framework's own, by name
    carriers: Mapping[str, tuple[str, ...]]  # config path of a choice -> the arguments that carry it
    left: Mapping[str, str]  # config path of a choice -> why the framework's arguments cannot carry it

    @property
    def is_whole(self) -> bool:
        """Whether the framework's own arguments carry everything, so that this package is not needed."""
        return not self.left


class Sorting:
    """The choices of a plan while a framework takes one after the other."""

    def __init__(self, framework: str, plan: Plan) -> None:
        self._framework, self._plan = framework, plan
        self._effective = plan.parameters_in_effect()
        self._open = choices(plan)
        self._arguments: dict[str, Any] = {}
        self._carriers: dict[str, tuple[str, ...]] = {}
        self._left: dict[str, str] = {}

    def value(self, path: str) -> Any:
        """Return what is in effect at a config path, else its default."""
        return self._effective.get(path, describe_parameters()[path].default)

    def is_chosen(self, path: str) -> bool:
        """Return whether a path holds a choice that nothing has taken yet."""
        return path in self._open

    def carry(self, *paths: str, **arguments: Any) -> None:
        """Give the framework these arguments; they carry these paths, chosen or not."""
        self._arguments.update(arguments)
        for path in paths:
            if path in self._open:
                del self._open[path]
                self._carriers[path] = tuple(arguments)

    def leave(self, why: str, *paths: str) -> None:
        """Say why the arguments cannot carry those of these paths that are chosen; a section's name is all in it."""
        for path in [one for one in self._open if one in paths or one.partition(".")[0] in paths]:
            del self._open[path]
            self._left[path] = why

    def done(self) -> Carried:
        """Return the answer; what nothing took has no counterpart in the framework."""
        rest = dict.fromkeys(self._open, f"{self._framework} has no argument for it")
        return Carried(self._framework, self._arguments, self._carriers, self._left | rest)


def choices(plan: Plan) -> dict[str, Any]:
    """Return config path -> value of what a plan does otherwise than a configuration without any choice."""
    nothing = BoostConfig().resolve("O0").parameters_in_effect()
    infos = describe_parameters()
    return {
        path: value
        for path, value in plan.parameters_in_effect().items()
        if value != nothing.get(path, infos[path].default)
    }


def learning_rate(config: BoostConfig, own: float | None) -> float | None:
    """Return the rate of the first update at full height: the section's, else ``own``, as ``batch.lr_rule`` has it."""
    section = config.optimizer
    rate = own if section is None or section.lr is None else section.lr
    return None if rate is None else rate * config.part(BatchSection).rate_factor()
