"""The table ``[space]`` of a study's file: what is searched, read and checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from workbench.config import LEVELS, ConfigError, ParameterInfo, describe_parameters, parameter_at
from workbench.config.errors import did_you_mean, shown
from workbench.study.ask.search_space import Dimension
from workbench.study.ask.study_text import RANGE_KEYS, flat
from workbench.study.errors import StudyError


def read_space(content: Mapping[str, Any]) -> tuple[Dimension, ...]:
    """Read the table ``[space]``, in the order of the file.

    A path has a list of values, ``{low, high, log, step}``, or true / "default" for the declared range. Quoted dotted
    keys and TOML sub-tables mean the same.
    """
    dimensions, known = [], {"level", *describe_parameters()}
    for path, value in flat(content, lambda path, table: path in known or not table.keys() - RANGE_KEYS).items():
        try:
            about = None if path == "level" else parameter_at(path)
        except ConfigError as error:
            hint = did_you_mean(path, ["level"])
            raise StudyError(f"[space] {error}{hint if hint not in str(error) else ''}") from None
        dimensions.append(_dimension(path, value, about))
    owners: dict[str, list[str]] = {}  # bare paths leave to ranges of named optimizers what is theirs
    for one in dimensions:
        if one.of_optimizer:
            owners.setdefault(one.parameter, []).append(one.of_optimizer)
    return tuple(replace(one, but_for=tuple(owners.get(one.path, ()))) for one in dimensions)


def _dimension(path: str, value: Any, info: ParameterInfo | None) -> Dimension:
    if isinstance(value, list):
        if not value:
            raise StudyError(f"[space] `{path}` has an empty list: name at least one value or leave it out")
        for place, item in enumerate(value):
            if any(type(item) is type(other) and item == other for other in value[:place]):
                raise StudyError(f"[space] `{path}` lists {shown(item)} twice")
        return Dimension(path, "choice", tuple(value))
    if value is True or value == "default":
        return _declared(path, info)
    if not isinstance(value, Mapping):
        raise StudyError(
            f"[space] `{path}` must be a list of values, {{ low, high, log, step }} or true, got {shown(value)}"
        )
    if info is None or info.kind not in {"float", "int"}:
        raise StudyError(f"[space] `{path}` is not a number: give a list of values instead of a range")
    for key in value:
        if key not in RANGE_KEYS:
            raise StudyError(f'[space] `{path}` has no option "{key}"{did_you_mean(key, RANGE_KEYS)}')
    return _range(path, value, info)


def _range(path: str, value: Mapping[str, Any], info: ParameterInfo) -> Dimension:
    is_declared = "low" not in value and "high" not in value
    low, high = value.get("low", info.low), value.get("high", info.high)
    log, step = value.get("log", is_declared and info.log), value.get("step", info.step if is_declared else None)
    if low is None or high is None:
        raise StudyError(f"[space] `{path}` has no declared search range: give both low and high")
    is_whole, noun = info.kind == "int", "a whole number" if info.kind == "int" else "a finite number"
    for name in ("low", "high", "step"):
        number = value.get(name, 0)  # a bool is not a number here
        if type(number) is not int and (is_whole or type(number) is not float or not math.isfinite(number)):
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
    kind: Literal["float", "int"] = "int" if is_whole else "float"
    return Dimension(path, kind, (), float(low), float(high), log, None if step is None else float(step))


def _declared(path: str, info: ParameterInfo | None) -> Dimension:
    if info is None:
        return Dimension(path, "choice", tuple(LEVELS))
    if info.kind in {"bool", "choice"}:
        return Dimension(path, "choice", tuple(choice for choice in info.choices if choice is not None))
    if info.kind not in {"float", "int"} or info.low is None or info.high is None:
        raise StudyError(f"[space] `{path}` has no declared search range: list its values or give low and high")
    return _range(path, {}, info)
