"""What a study may vary, and how one trial draws from it.

A *dimension* is a config path (or ``level``) with the values it may take. Only dimensions that can be in effect are
drawn, by the conditions that are declared beside each parameter (`workbench.config.conditions`), and what a condition
reads is drawn first. Where two decide about each other, values still to be drawn count, too. A path may belong to one
optimizer, ``optimizer.lr[Muon]``: it is drawn where that one is chosen, in place of the bare ``optimizer.lr``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from workbench.config import (
    SWITCHES,
    TASKS_OWN,
    BoostConfig,
    ConfigError,
    acts,
    describe_parameters,
    parents_of,
    requested_switches,
)
from workbench.study.ask.plans import StudyPlans
from workbench.study.errors import StudyError

_USUAL_LEVEL = "O1"
_SWITCHES = tuple(f"boost.{name}" for name in SWITCHES)


Draws = optuna.trial.BaseTrial | Callable[[str, Any], Any]  # an Optuna trial, or a function of name and distribution


@dataclass(frozen=True, slots=True)
class Dimension:
    """One thing that is searched: listed choices, or a range of numbers."""

    path: str  # config path, ``"level"``, or the path of an optimizer's own range, ``"optimizer.lr[Muon]"``
    kind: Literal["choice", "float", "int"]
    choices: tuple[Any, ...] = ()
    low: float = math.nan
    high: float = math.nan
    log: bool = False  # whether it is walked in logarithmic steps
    step: float | None = None  # grid of the numbers
    but_for: tuple[str, ...] = ()  # of a bare path: optimizers that have their own range in the study
    usual: Any = None  # the value of a plan that states none, as the baseline has it; None where that is unknown

    @property
    def parameter(self) -> str:
        """The config path that a drawn value is set at."""
        return self.path.partition("[")[0]

    @property
    def of_optimizer(self) -> str:
        """The optimizer that the dimension belongs to; empty for all."""
        return self.path.partition("[")[2].removesuffix("]")

    @property
    def extremes(self) -> tuple[Any, ...]:
        """The values that show whether the dimension matters: all choices, or both ends."""
        if self.kind == "choice":
            return self.choices
        return (int(self.low), int(self.high)) if self.kind == "int" else (self.low, self.high)

    @property
    def is_setting(self) -> bool:
        """Whether every trial has the same value; one of a single optimizer comes and goes."""
        return len(self.extremes) == 1 and not self.of_optimizer and not self.but_for

    def belongs_to(self, config: BoostConfig) -> bool:
        """Return whether the dimension is for the optimizer that a configuration names."""
        name = "" if config.optimizer is None else config.optimizer.name or ""
        return name == self.of_optimizer if self.of_optimizer else name not in self.but_for

    def describe(self) -> Any:
        """Return the dimension as plain TOML values, every rule spelled out."""
        if self.kind == "choice":
            return list(self.choices)
        low, high = self.extremes
        return {"low": low, "high": high, "log": self.log, "step": self.step}

    @property
    def is_plain(self) -> bool:
        """Whether Optuna can store the choices; a list (betas, split points) travels as its position."""
        return all(isinstance(choice, (bool, int, float, str, type(None))) for choice in self.choices)

    @property
    def distribution(self) -> BaseDistribution:
        """What a trial draws from."""
        if self.kind == "choice":
            return CategoricalDistribution(self.choices if self.is_plain else range(len(self.choices)))
        low, high = self.extremes
        if self.kind == "int":
            return IntDistribution(low, high, step=int(self.step or 1), log=self.log)
        return FloatDistribution(low, high, step=self.step, log=self.log)

    def draw(self, draws: Draws) -> Any:
        """Draw a value for one trial."""
        asked: Any = self.distribution
        if callable(draws):
            value = draws(self.path, asked)
        elif self.kind == "choice":
            value = draws.suggest_categorical(self.path, asked.choices)
        else:
            suggest_number: Any = draws.suggest_int if self.kind == "int" else draws.suggest_float
            value = suggest_number(self.path, asked.low, asked.high, step=asked.step, log=asked.log)
        if self.kind == "choice":
            return value if self.is_plain else self.choices[value]
        return int(value) if self.kind == "int" else float(value)

    def check(self, base: BoostConfig) -> None:
        """Check every choice, or both ends, against the configuration's own rules."""
        for value in self.extremes:
            try:
                if self.path == "level":
                    requested_switches(base, value)
                else:
                    base.with_values({self.parameter: value})
            except ConfigError as error:
                raise StudyError(f"[space] {error}") from None


GIVEN = "given"  # attribute of a trial that was not drawn: its parameters by path, on top of the baseline's


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One trial's configuration at its boost level, and what was drawn: path (``level`` included) -> value."""

    level: str
    config: BoostConfig
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class SearchedSpace:
    """What a study searches: dimensions, O0's configuration, and how the study resolves configurations."""

    dimensions: tuple[Dimension, ...]
    base: BoostConfig
    plans: StudyPlans
    #: What `_may_be_in_effect` has answered, by the dimension and the values that it is asked beside.
    _may_be: dict[str, bool] = field(default_factory=dict, init=False, repr=False, compare=False)

    def with_usual(self) -> SearchedSpace:
        """Return the space whose dimensions know what a plan has that does not state their value."""
        paths = {one.parameter for one in self.dimensions}
        leaves = {path: value for path, value in self.base.leaves().items() if value is not None}
        unset = {"optimizer.name": TASKS_OWN, "optimizer.lr_factor": 1.0, **dict.fromkeys(_SWITCHES, False)}

        def usual(one: Dimension) -> Any:
            value = leaves.get(one.parameter, unset.get(one.path))
            if one.kind == "choice":
                return value if value in one.choices else None
            is_free = paths.isdisjoint(parents_of(one.parameter))  # else those without one may not be in effect
            return value if is_free and value is not None and one.low <= value <= one.high else None

        return replace(self, dimensions=tuple(replace(one, usual=usual(one)) for one in self.dimensions))

    @functools.cached_property
    def distributions(self) -> dict[str, BaseDistribution]:
        """Path -> distribution as a trial draws it; what has only one value is left out."""
        found = {one.path: one.distribution for one in self.dimensions}
        return {path: one for path, one in found.items() if not one.single()}

    @property
    def numbers(self) -> dict[str, BaseDistribution]:
        """The ranges among `distributions`."""
        return {path: one for path, one in self.distributions.items() if not isinstance(one, CategoricalDistribution)}

    @property
    def start(self) -> BoostConfig:
        """What a trial starts from, but at level O0: in mode manual where switches are searched and the mode is not."""
        paths = {one.path for one in self.dimensions}
        is_manual = not paths.isdisjoint(_SWITCHES) and "boost.mode" not in paths
        return self.base.with_values({"boost.mode": "manual"}) if is_manual else self.base

    def suggest(self, draws: Draws) -> Suggestion:
        """Draw one trial's configuration: only what is in effect, given what was drawn before it.

        Switches set in the study count only in mode manual, which is therefore taken when the study searches a switch
        but not the mode itself. At level O0 everything is off, whatever the switches would say. Values that
        contradict each other (``init`` below ``minimum``) raise a ConfigError.
        """
        values: dict[str, Any] = {one.path: one.draw(draws) for one in self.dimensions if one.path == "level"}
        level = values.get("level", _USUAL_LEVEL)
        config, drawn = _beginning(level, self)
        read: dict[str, Any] = {}  # drawn and set, for conditions to read
        unset: dict[str, Any] = {}  # drawn, and not read by any condition yet: a search makes thousands of these
        for place, one in enumerate(drawn):
            if not unset.keys().isdisjoint(_deciding(one.parameter)):
                config, read, unset = config.with_values(unset), read | unset, {}
            sections = _sections_deciding(one.parameter)
            state = repr((level, one.path, [item for item in read.items() if item[0].partition(".")[0] in sections]))
            if state not in self._may_be:
                self._may_be[state] = _may_be_in_effect(one, config, level, self.plans, drawn[place:])
            if self._may_be[state]:
                values[one.path] = unset[one.parameter] = one.draw(draws)
        return Suggestion(level, config.with_values(unset), values)


def stated(given: Mapping[str, Any], ground: BoostConfig) -> Suggestion:
    """Return a trial's configuration with given values, by path, on top of a ground; at level O1 if none is given."""
    values = {path: value for path, value in given.items() if path != "level"}
    return Suggestion(str(given.get("level", "O1")), ground.with_values({"boost.mode": "manual"} | values), given)


def suggest(trial: Draws, dimensions: Sequence[Dimension], base: BoostConfig, plans: StudyPlans) -> Suggestion:
    """Draw one trial's configuration, see `SearchedSpace.suggest`."""
    return SearchedSpace(tuple(dimensions), base, plans).suggest(trial)


def plans_by_level(space: SearchedSpace) -> dict[str, str | None]:
    """Return for each level the one plan that a trial can have there, by its key; None where several are drawn."""
    found: dict[str, str | None] = {}
    for level in next((one.choices for one in space.dimensions if one.path == "level"), (_USUAL_LEVEL,)):
        config, waiting = _beginning(level, space)
        found[level] = None
        try:  # what has a single value never makes a second plan
            config = config.with_values({one.path: one.extremes[0] for one in waiting if one.is_setting})
        except ConfigError:  # each trial will say so
            continue
        waiting = [one for one in waiting if not one.is_setting]
        if not any(_may_be_in_effect(one, config, level, space.plans, waiting) for one in waiting):
            found[level] = space.plans.resolve(config, level).key()
    return found


def all_off(base: BoostConfig) -> BoostConfig:
    """Return O0: everything switched off, precision, loss scale and optimizer as in the study's baseline."""
    return base.with_values({"boost.mode": "disable_all"})


def _beginning(level: str, space: SearchedSpace) -> tuple[BoostConfig, Sequence[Dimension]]:
    """Return where a suggestion begins: its configuration, and what may be drawn, in the order of drawing."""
    is_off = level == "O0"
    config = all_off(space.base) if is_off else space.start
    drawn = [one for one in space.dimensions if one.path != "level" and not (is_off and one.path.startswith("boost."))]
    # Choices before ranges, most of which belong to one; studies of earlier versions were drawn so, too.
    drawn.sort(key=lambda one: one.kind != "choice")
    return config, [drawn[place] for place in _parents_first(tuple(one.parameter for one in drawn))]


def _may_be_in_effect(
    one: Dimension, config: BoostConfig, level: str, plans: StudyPlans, waiting: Sequence[Dimension]
) -> bool:
    """Return whether a dimension is in effect at some values of what is still to be drawn; a single choice always is.

    A switch is in effect if turning it changes which methods act: its own, or one that it shuts out.
    """
    facts, when = plans.facts(level), describe_parameters()[one.parameter].when
    if one.is_setting:
        return True
    is_switch = one.path in _SWITCHES
    if is_switch and when.why_not(config, facts):
        return False
    deciding = _deciding(one.parameter)
    others = [other for other in waiting if other.path in deciding and not (is_switch and other is one)]
    paths = [other.path for other in others]
    for values in itertools.product(*(other.extremes for other in others)):
        tried = plans.with_subspace(config.with_values(dict(zip(paths, values, strict=True))))
        if is_switch:
            turned = [tried.with_values({one.path: value}) for value in one.extremes]
            if len({tuple(acts(name, each, facts) for name in SWITCHES) for each in turned}) > 1:
                return True
        elif one.belongs_to(tried) and not when.why_not(tried, facts):
            return True
    return False


@functools.cache
def _deciding(path: str) -> frozenset[str]:
    """Return the paths that decide whether a dimension is in effect; a switch's include those of what it shuts out."""
    infos = describe_parameters()
    shut_out = [other for other in _SWITCHES if path in _SWITCHES and path in infos[other].needs.reads]
    return parents_of(path).union(shut_out, *(parents_of(other) for other in shut_out))


@functools.cache
def _sections_deciding(path: str) -> frozenset[str]:
    """Return the sections whose values decide whether a dimension is in effect: rules of a section join its values."""
    return frozenset(one.partition(".")[0] for one in (*_deciding(path), "optimizer.name"))


@functools.cache
def _parents_first(parameters: tuple[str, ...]) -> tuple[int, ...]:
    """Return the positions of parameters in the given order, except that what decides about one comes before it."""
    placed: list[int] = []

    def put(place: int) -> None:
        if place not in placed:
            for other, parameter in enumerate(parameters):
                if _comes_before(parameter, parameters[place]):
                    put(other)
            placed.append(place)

    for place in range(len(parameters)):
        put(place)
    return tuple(placed)


def _comes_before(one: str, other: str) -> bool:
    """Return whether a path must be drawn before another one.

    If two decide about each other, as a switch and its parameter, the configuration's order counts.
    """
    if one == other or one not in parents_of(other):
        return False
    named = list(describe_parameters())
    return other not in parents_of(one) or named.index(one) < named.index(other)
