"""What a study may vary, and how one trial draws from it.

A *dimension* is a config path (or ``level``) with the values it may take. Only dimensions that can be in effect are
drawn, by the conditions that are declared beside each parameter (`workbench.config.conditions`), and what a condition
reads is drawn first: ``grad_freeze.freeze_p`` only after freezing turned out to be on, whatever the reason it is on
for. Where two decide about each other, values still to be drawn count, too: accumulation over one micro-batch, the
default, is none, but its switch is drawn where the study searches their number.

A path may belong to one optimizer, ``optimizer.lr[Muon]``: it is drawn where that one is chosen, in place of the bare
``optimizer.lr`` where both are searched, and sets the same value.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from workbench.config import (
    LEVELS,
    SWITCHES,
    BoostConfig,
    ConfigError,
    acts,
    describe_parameters,
    parameter_at,
    parents_of,
)
from workbench.config.errors import did_you_mean, shown
from workbench.config.facts import cut_into
from workbench.study.ask.plans import StudyPlans
from workbench.study.errors import StudyError

__all__ = ["Dimension", "Draws", "Suggestion", "all_off", "plans_by_level", "read_space", "suggest", "within_layers"]

_USUAL_LEVEL = "O1"
_SWITCHES = tuple(f"boost.{name}" for name in SWITCHES)
_GROUPS = "grad_freeze.param_groups"
_RANGE_KEYS = frozenset({"low", "high", "log", "step"})


class Draws(Protocol):
    """The part of an Optuna trial that a suggestion needs."""

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        """Draw one of the choices."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Draw a number."""

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Draw a whole number."""


@dataclass(frozen=True, slots=True)
class Dimension:
    """One thing that is searched.

    Args:
        path: Config path, ``"level"``, or the path of an optimizer's own range, ``"optimizer.lr[Muon]"``.
        kind: ``"choice"`` for listed values, else the kind of number.
        choices: Listed values; empty for numbers.
        low: Smallest number; NaN for choices.
        high: Largest number; NaN for choices.
        log: Whether it is walked in logarithmic steps.
        step: Grid of the numbers; None for none.
        but_for: Of a bare path: optimizers for which the study has a range of their own.
    """

    path: str
    kind: Literal["choice", "float", "int"]
    choices: tuple[Any, ...] = ()
    low: float = math.nan
    high: float = math.nan
    log: bool = False
    step: float | None = None
    but_for: tuple[str, ...] = ()

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

    def belongs_to(self, config: BoostConfig) -> bool:
        """Return whether the dimension is for the optimizer that a configuration names."""
        name = "" if config.optimizer is None else config.optimizer.name or ""
        return name == self.of_optimizer if self.of_optimizer else name not in self.but_for

    def up_to(self, most: int) -> Dimension | None:
        """Return a dimension of whole numbers without those above a limit; None when nothing is left."""
        if self.kind == "choice":
            choices = tuple(choice for choice in self.choices if choice <= most)
            return replace(self, choices=choices) if choices else None
        low, step = int(self.low), int(self.step or 1)
        high = low + (min(int(self.high), most) - low) // step * step
        if high <= low:  # one value is a setting, and one is always taken
            return Dimension(self.path, "choice", (low,)) if high == low else None
        return replace(self, high=float(high))

    def describe(self) -> Any:
        """Return the dimension as plain TOML values, every rule spelled out."""
        if self.kind == "choice":
            return list(self.choices)
        low, high = self.extremes
        return {"low": low, "high": high, "log": self.log, "step": self.step}

    def draw(self, trial: Draws) -> Any:
        """Draw a value for one trial."""
        if self.kind == "choice":
            # Optuna stores plain values only; a list (betas, split points) travels as its position.
            if all(isinstance(choice, (bool, int, float, str, type(None))) for choice in self.choices):
                return trial.suggest_categorical(self.path, self.choices)
            return self.choices[trial.suggest_categorical(self.path, range(len(self.choices)))]
        if self.kind == "int":
            low, high = self.extremes
            return trial.suggest_int(self.path, low, high, step=int(self.step or 1), log=self.log)
        return trial.suggest_float(self.path, self.low, self.high, step=self.step, log=self.log)

    def check(self, base: BoostConfig) -> None:
        """Check every choice, or both ends, against the configuration's own rules.

        Raises:
            StudyError: Naming the path, the rule and the value.
        """
        for value in self.extremes:
            if self.path == "level":
                if not isinstance(value, str) or value not in LEVELS:
                    known = ", ".join(f'"{level}"' for level in LEVELS)
                    hint = did_you_mean(str(value), LEVELS)
                    raise StudyError(f"[space] `level` must be one of {known}, got {shown(value)}{hint}")
                continue
            try:
                base.with_values({self.parameter: value})
            except ConfigError as error:
                raise StudyError(f"[space] {error}") from None


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One trial's configuration.

    Args:
        level: Boost level.
        config: Configuration.
        parameters: What was drawn: path (``level`` included) -> value.
    """

    level: str
    config: BoostConfig
    parameters: Mapping[str, Any]


def read_space(content: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Read the table ``[space]``.

    Args:
        content: Path -> list of values, ``{low, high, log, step}``, or true / "default" for the declared range.
            Quoted dotted keys and TOML sub-tables mean the same.

    Returns:
        The dimensions, in the order of the file.

    Raises:
        StudyError: When a path is unknown or a range breaks its own rules (low above high, log from 0, ...).
    """
    dimensions = []
    for path, value in _flattened(content, set(describe_parameters())):
        try:
            about = None if path == "level" else parameter_at(path)
        except ConfigError as error:
            hint = did_you_mean(path, ["level"])
            raise StudyError(f"[space] {error}{hint if hint not in str(error) else ''}") from None
        dimensions.append(_dimension(path, value, about))
    return tuple(_but_for_others(one, dimensions) for one in dimensions)


def _but_for_others(dimension: Dimension, dimensions: Sequence[Dimension]) -> Dimension:
    """Return a dimension that leaves to ranges of named optimizers what is theirs."""
    if dimension.of_optimizer:
        return dimension
    named = (one.of_optimizer for one in dimensions if one.parameter == dimension.path and one.of_optimizer)
    return replace(dimension, but_for=tuple(named))


def within_layers(dimensions: Sequence[Dimension], layers: int) -> tuple[tuple[Dimension, ...], str]:
    """Leave out what asks for more freezing groups than the network has layers, which would freeze nothing.

    Args:
        dimensions: What is searched, from `read_space`.
        layers: Layers of the network that can form groups.

    Returns:
        The dimensions with ``grad_freeze.param_groups`` within the layers, and a sentence about the values that are not
        drawn; empty when all are.
    """
    asked = next((one for one in dimensions if one.path == _GROUPS), None)
    if asked is None or max(asked.extremes) <= layers:
        return tuple(dimensions), ""
    kept = asked.up_to(layers)
    replaced = (kept if one is asked else one for one in dimensions)
    left = tuple(one for one in replaced if one is not None)
    if asked.kind == "choice":
        named = ", ".join(str(value) for value in asked.choices if value > layers)
    else:
        first, last = max(layers + 1, asked.extremes[0]), asked.extremes[1]
        named = f"{first}" if first == last else f"{first} to {last}"
    return left, (f"`{_GROUPS}` = {named} is not tried: {cut_into(layers)}")


def suggest(trial: Draws, dimensions: Sequence[Dimension], base: BoostConfig, plans: StudyPlans) -> Suggestion:
    """Draw one trial's configuration: only what is in effect, given what was drawn before it.

    Switches set in the study count in mode manual only, so that mode is taken when the study searches a switch and
    does not search the mode itself. At level O0 everything is off, whatever the switches would say.

    Args:
        trial: Optuna trial, or anything that draws.
        dimensions: What is searched, from `read_space`.
        base: O0's configuration, from which every trial starts.
        plans: How the study resolves configurations.

    Returns:
        The suggestion.

    Raises:
        ConfigError: When drawn values contradict each other (for example ``init`` below ``minimum``).
    """
    values: dict[str, Any] = {}
    level = _USUAL_LEVEL
    for dimension in dimensions:
        if dimension.path == "level":
            level = values["level"] = dimension.draw(trial)
    config, waiting = _beginning(level, dimensions, base)
    unset: dict[str, Any] = {}  # drawn, and not read by any condition yet: a search makes thousands of configurations
    while waiting:
        one = waiting[0]
        if not unset.keys().isdisjoint(_deciding(one.parameter)):
            config, unset = config.with_values(unset), {}
        if _may_be_in_effect(one, config, level, plans, waiting):
            values[one.path] = unset[one.parameter] = one.draw(trial)
        waiting = waiting[1:]
    return Suggestion(level, config.with_values(unset), values)


def plans_by_level(dimensions: Sequence[Dimension], base: BoostConfig, plans: StudyPlans) -> dict[str, str | None]:
    """Return for each level the one plan that a trial can have there, by its key; None where several are drawn.

    Args:
        dimensions: What is searched, from `read_space`.
        base: O0's configuration.
        plans: How the study resolves configurations.
    """
    found: dict[str, str | None] = {}
    for level in next((one.choices for one in dimensions if one.path == "level"), (_USUAL_LEVEL,)):
        config, waiting = _beginning(level, dimensions, base)
        found[level] = None
        try:  # what has a single value is always as that says, and makes no second plan
            config = config.with_values({one.path: one.extremes[0] for one in waiting if _is_setting(one)})
        except ConfigError:  # each trial will say so
            continue
        waiting = [one for one in waiting if not _is_setting(one)]
        if not any(_may_be_in_effect(one, config, level, plans, waiting) for one in waiting):
            found[level] = plans.resolve(config, level).key()
    return found


def _is_setting(one: Dimension) -> bool:
    """Return whether a dimension has the same value in every trial; one of a single optimizer comes and goes."""
    return len(one.extremes) == 1 and not one.of_optimizer and not one.but_for


def _beginning(
    level: str, dimensions: Sequence[Dimension], base: BoostConfig
) -> tuple[BoostConfig, Sequence[Dimension]]:
    """Return where a suggestion begins: its configuration, and what may be drawn, in the order of drawing."""
    config = base
    if level == "O0":
        config = all_off(base)
    elif any(one.path in _SWITCHES for one in dimensions) and all(one.path != "boost.mode" for one in dimensions):
        config = base.with_values({"boost.mode": "manual"})
    is_off = level == "O0"
    drawn = [one for one in dimensions if one.path != "level" and not (is_off and one.path.startswith("boost."))]
    # Choices before ranges, most of which belong to one; studies of earlier versions were drawn so, too.
    drawn.sort(key=lambda one: one.kind != "choice")
    return config, [drawn[place] for place in _parents_first(tuple(one.parameter for one in drawn))]


def _may_be_in_effect(
    one: Dimension, config: BoostConfig, level: str, plans: StudyPlans, waiting: Sequence[Dimension]
) -> bool:
    """Return whether a dimension is in effect at some values of what is still to be drawn; a single choice always is.

    A switch is where turning it changes which methods act: its own, or one that it shuts out.

    Args:
        one: The dimension.
        config: What is decided so far.
        level: Boost level.
        plans: How the study resolves configurations.
        waiting: Dimensions still to be drawn, this one among them.
    """
    facts, when = plans.facts(level), describe_parameters()[one.parameter].when
    if _is_setting(one):
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
    """Return the paths that decide whether a dimension is in effect; of a switch also those of methods it shuts out."""
    infos = describe_parameters()
    shut_out = [other for other in _SWITCHES if path in _SWITCHES and path in infos[other].needs.reads]
    return parents_of(path).union(shut_out, *(parents_of(other) for other in shut_out))


def all_off(base: BoostConfig) -> BoostConfig:
    """Return O0: everything switched off, precision, loss scale and optimizer as in the study's baseline."""
    return base.with_values({"boost.mode": "disable_all"})


@functools.cache
def _parents_first(parameters: tuple[str, ...]) -> tuple[int, ...]:
    """Return the places of parameters in the given order, but what decides whether one is in effect before that one."""
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


@functools.cache
def _comes_before(one: str, other: str) -> bool:
    """Return whether a path must be drawn before another one.

    Where two decide about each other, as a switch and its parameter, it is the one that the configuration names first.
    """
    if one == other or one not in parents_of(other):
        return False
    named = list(describe_parameters())
    return other not in parents_of(one) or named.index(one) < named.index(other)


def _flattened(content: Mapping[str, Any], known: set[str], prefix: str = "") -> list[tuple[str, Any]]:
    """Open sub-tables; a table that is a parameter's own (its path is known, or it only has range keys) is a range."""
    flat: list[tuple[str, Any]] = []
    for key, value in content.items():
        path = f"{prefix}{key}"
        is_range = isinstance(value, Mapping) and (path in known or path == "level" or not value.keys() - _RANGE_KEYS)
        if isinstance(value, Mapping) and not is_range:
            flat.extend(_flattened(value, known, f"{path}."))
        else:
            flat.append((path, value))
    return flat


def _dimension(path: str, value: Any, info: Any) -> Dimension:
    if isinstance(value, list):
        if not value:
            raise StudyError(f"[space] `{path}` has an empty list: name at least one value or leave it out")
        duplicates = [item for position, item in enumerate(value) if _among(item, value[:position])]
        if duplicates:
            raise StudyError(f"[space] `{path}` lists {shown(duplicates[0])} twice")
        return Dimension(path, "choice", tuple(value))
    if value is True or value == "default":
        return _declared(path, info)
    if not isinstance(value, Mapping):
        raise StudyError(
            f"[space] `{path}` must be a list of values, {{ low, high, log, step }} or true, got {shown(value)}"
        )
    if info is None or info.kind not in {"float", "int"}:
        raise StudyError(f"[space] `{path}` is no number: give a list of values instead of a range")
    for key in value:
        if key not in _RANGE_KEYS:
            raise StudyError(f'[space] `{path}` has no option "{key}"{did_you_mean(key, _RANGE_KEYS)}')
    return _range(path, value, info)


def _range(path: str, value: Mapping[str, Any], info: Any) -> Dimension:
    low, high = value.get("low", info.low), value.get("high", info.high)
    log = value.get("log", info.log if "low" not in value and "high" not in value else False)
    step = value.get("step")
    if low is None or high is None:
        raise StudyError(f"[space] `{path}` has no declared search range: give both low and high")
    wanted: tuple[type, ...] = (int,) if info.kind == "int" else (int, float)
    numbers: dict[str, Any] = {"low": low, "high": high, **({"step": step} if step is not None else {})}
    for name, number in numbers.items():
        whole = info.kind == "int" and isinstance(number, float) and number.is_integer() and name not in value
        if whole:
            continue  # declared ranges are floats in config, whatever the parameter's kind
        if type(number) not in wanted or not math.isfinite(number):  # a bool is no number here
            noun = "a whole number" if info.kind == "int" else "a finite number"
            raise StudyError(f"[space] `{path}`: `{name}` must be {noun}, got {shown(number)}")
    if not isinstance(log, bool):
        raise StudyError(f"[space] `{path}`: `log` must be true or false, got {shown(log)}")
    if not low <= high:
        raise StudyError(f"[space] `{path}`: `low` must not exceed `high`, got low {low:g} and high {high:g}")
    if step is not None and not step > 0:
        raise StudyError(f"[space] `{path}`: `step` must be greater than 0, got {step:g}")
    if log and not low > 0:
        raise StudyError(f"[space] `{path}`: a logarithmic range must begin above 0, got low {low:g}")
    if log and step is not None:
        raise StudyError(f"[space] `{path}`: `log` and `step` exclude each other")
    return Dimension(path, info.kind, (), float(low), float(high), log, None if step is None else float(step))


def _declared(path: str, info: Any) -> Dimension:
    if info is None:
        return Dimension(path, "choice", tuple(LEVELS))
    if info.kind == "bool":
        return Dimension(path, "choice", (False, True))
    if info.kind == "choice":
        return Dimension(path, "choice", tuple(choice for choice in info.choices if choice is not None))
    if info.kind not in {"float", "int"} or info.low is None or info.high is None:
        raise StudyError(f"[space] `{path}` has no declared search range: list its values or give low and high")
    step = None if info.step is None else float(info.step)
    return Dimension(path, info.kind, (), float(info.low), float(info.high), bool(info.log), step)


def _among(item: Any, others: Sequence[Any]) -> bool:
    return any(type(item) is type(other) and item == other for other in others)
