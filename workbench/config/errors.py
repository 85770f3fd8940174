"""Say in one sentence what is wrong with a configuration.

pydantic reports a list of records; a person needs the parameter's path, the rule it broke, what came, and the nearest
known name. The rule is derived from the same field metadata that validates the value, so the two cannot disagree.
"""

from __future__ import annotations

import difflib
import json
import math
import types
from collections.abc import Iterable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

# Words for a bound that stands alone, by pydantic's name for it.
_ENDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}


class ConfigError(ValueError):
    """A configuration breaks a rule; the message is one sentence for the person who wrote it."""


def sentence_of(error: ValidationError, root: type[BaseModel], prefix: str = "") -> str:
    """Turn the first problem pydantic found into one sentence, such as `` `amp.level` must be one of ..., got 3 ``.

    The fields of ``root``, which was validated, give the rules; ``prefix`` names the section where it is one itself.
    """
    problem = first_problem(error)
    kind, location, value = problem["type"], problem["loc"], problem["input"]
    if kind == "value_error":  # our own validators already speak in sentences
        return str(problem["ctx"]["error"])
    depth, found, owner = _walk(root, location)
    path = ".".join(part for part in (prefix, *map(str, location[:depth])) if part)
    if kind in {"extra_forbidden", "invalid_key"}:
        return _unknown_key(str(location[-1]), path, owner, root)
    if kind == "model_type":
        return f"section `{path}` must be an object of named values, got {shown(value)}"
    if found is None:
        message = problem["msg"]
        return f"`{path or 'boost_config'}` {message[:1].lower()}{message[1:]}, got {shown(value)}"
    range_broken = kind in {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
    if len(location) > depth and isinstance(location[depth], int) and kind not in {"missing", "too_long", "too_short"}:
        item = get_args(inner_type(found.annotation))[0]
        rule = _rule_of_type(item, _interval(item), kind_matters=not range_broken)
        return f"`{path}[{location[depth]}]` must {rule}, got {shown(value)}"
    rule = rule_of(found, kind_matters=not range_broken)
    hint = did_you_mean(value, [str(choice) for choice in _choices(found)]) if isinstance(value, str) else ""
    return f"`{path}` must {rule}, got {shown(value)}{hint}"


def first_problem(error: ValidationError) -> Any:
    """Return the first problem pydantic found, but an unknown key, mostly a typo, before the one it leaves missing."""
    problems = error.errors(include_url=False)
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    return next(unknown, problems[0]) if problems[0]["type"] == "missing" else problems[0]


def sections_of(model: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the models of the fields that are sections themselves, by name."""
    inner = {name: inner_type(field.annotation) for name, field in model.model_fields.items()}
    return {name: kind for name, kind in inner.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def rule_of(field: FieldInfo, *, kind_matters: bool = True) -> str:
    """Return the rule of a field as the end of "... must ...", without the kind of value where that was right."""
    chosen = _choices(field)
    if chosen:
        return "be one of " + ", ".join(shown(choice) for choice in chosen)
    plain = inner_type(field.annotation)
    if get_origin(plain) in {list, tuple}:
        item = get_args(plain)[0]
        noun = "whole numbers" if _plain(item) is int else "numbers"
        length = "two " if get_origin(plain) is tuple else ""
        within = _interval(item)
        return f"be a list of {length}{noun}" + (f", each {_as_adverb(within)}" if within else "")
    return _rule_of_type(plain, _bounds(field.metadata) or _interval(field.annotation), kind_matters=kind_matters)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``'; did you mean "..."?'`` for the nearest known name, or nothing when none is near."""
    candidates = sorted(set(known))
    near = [candidate for candidate in candidates if candidate.lower() == name.lower()]  # difflib sees other letters
    near = near or difflib.get_close_matches(name, candidates, n=1, cutoff=0.6)
    return f'; did you mean "{near[0]}"?' if near else ""


def shown(value: object) -> str:
    """Return a value as it would stand in a JSON file, shortened so that the sentence stays one line."""
    if isinstance(value, float) and not math.isfinite(value):
        text = {math.inf: "inf", -math.inf: "-inf"}.get(value, "NaN")
    elif value is None or isinstance(value, (bool, str)):
        text = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, BaseModel):
        text = f"a {type(value).__name__}"
    else:
        try:
            text = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
        except ValueError:  # Python refuses to print integers of more than 4300 digits
            text = "a number of thousands of digits"
    return cut(text)


def cut(text: str, limit: int = 60) -> str:
    """Return a text as far as a sentence has room for it."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def inner_type(annotation: Any) -> Any:
    """Return the type without ``| None`` and without Annotated metadata."""
    if get_origin(annotation) in {Union, types.UnionType}:
        members = [member for member in get_args(annotation) if member is not type(None)]
        return _plain(members[0])
    return _plain(annotation)


def _plain(annotation: Any) -> Any:
    """Return the type inside Annotated."""
    return annotation.__origin__ if hasattr(annotation, "__metadata__") else annotation


def _choices(field: FieldInfo) -> tuple[Any, ...]:
    plain = inner_type(field.annotation)
    return get_args(plain) if get_origin(plain) is Literal else ()


def _interval(annotation: Any) -> str:
    """Return the range of a type as "lie in [0, 1)", "be at least 1", ... or an empty string."""
    members = get_args(annotation) if get_origin(annotation) in {Union, types.UnionType} else (annotation,)
    return next(filter(None, (_bounds(getattr(member, "__metadata__", ())) for member in members)), "")


def _bounds(metadata: Sequence[Any]) -> str:
    ends: dict[str, str] = {}
    for item in metadata:
        if isinstance(item, FieldInfo):  # pydantic's ``Field(...)`` inside Annotated keeps its own list of bounds
            return _bounds(item.metadata)
        ends |= {rule: _number(getattr(item, rule)) for rule in _ENDS if hasattr(item, rule)}
    if len(ends) < 2:
        return "".join(f"be {_ENDS[rule]} {end}" for rule, end in ends.items())
    low = f"[{ends['ge']}" if "ge" in ends else f"({ends['gt']}"
    high = f"{ends['le']}]" if "le" in ends else f"{ends['lt']})"
    return f"lie in {low}, {high}"


def _rule_of_type(annotation: Any, interval: str, *, kind_matters: bool) -> str:
    noun = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}.get(
        _plain(annotation), "an object of plain JSON values"
    )
    if not interval:
        return f"be {noun}"
    return f"be {noun} {_as_adverb(interval)}" if kind_matters else interval


def _as_adverb(interval: str) -> str:
    return interval.removeprefix("lie ").removeprefix("be ")


def _number(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _walk(root: type[BaseModel], location: Sequence[Any]) -> tuple[int, FieldInfo | None, type[BaseModel]]:
    """Return how many leading parts of a location are fields, the last of these, and the last section among them.

    List positions and branches of a union are no fields.
    """
    depth, found, owner = 0, None, root
    for part in map(str, location):
        if part not in owner.model_fields:
            break
        depth, found = depth + 1, owner.model_fields[part]
        section = sections_of(owner).get(part)
        if section is None:
            break
        owner = section
    return depth, found, owner


def _unknown_key(name: str, where: str, owner: type[BaseModel], root: type[BaseModel]) -> str:
    quoted = shown(name)
    label = f'unknown key {quoted} in section "{where}"' if where else f"unknown section {quoted}"
    homes = (section for section, model in sections_of(root).items() if name in model.model_fields)
    hint = did_you_mean(name, [field.alias or own for own, field in owner.model_fields.items()])
    home = None if hint else next(homes, None)
    return label + (f'; it belongs to section "{home}"' if home else hint)
