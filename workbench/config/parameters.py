"""Every parameter, described: what controls, search spaces and documentation are made from.

Nothing is stated here; all of it is read from the fields of the sections.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from workbench.config.boost_config import BoostConfig
from workbench.config.conditions import ALWAYS, Condition, declared
from workbench.config.errors import inner_type, rule_of

__all__ = ["ParameterInfo", "describe_parameters", "parents_of"]

Kind = Literal["float", "int", "bool", "choice", "str", "list"]


@dataclass(frozen=True, slots=True)
class ParameterInfo:
    """One parameter of a configuration.

    Args:
        path: Where it stands, for example ``"grad_freeze.freeze_p"``.
        kind: Kind of value.
        default: Default value; None when a rule decides while it is unset.
        low: Lower end of the default SEARCH range (not of the legal range); None when it is not searched by default.
        high: Upper end of the default search range.
        log: Whether the search range is walked in logarithmic steps.
        step: Grid of the search range; None for none.
        choices: Legal values of a choice (and of a bool); empty otherwise.
        unit: Unit for a person, empty when dimensionless.
        title: A few words for a label.
        description: Meaning, and what unset means.
        optional: Whether None (unset) is allowed.
        rule: Legal values in words, the end of "... must ...", for example ``"be a finite number in [0, 1)"``.
        when: When it is in effect.
        needs: Of a switch: what its method needs, once it is asked for, to be in effect.
    """

    path: str
    kind: Kind
    default: Any
    low: float | None
    high: float | None
    log: bool
    step: float | None
    choices: tuple[Any, ...]
    unit: str
    title: str
    description: str
    optional: bool
    rule: str
    when: Condition = ALWAYS
    needs: Condition = ALWAYS


def describe_parameters() -> dict[str, ParameterInfo]:
    """Return every parameter by its path, in file order; ``provenance`` is no parameter."""
    return dict(_described())


@functools.cache
def parents_of(path: str) -> frozenset[str]:
    """Return the paths that decide whether a parameter is in effect, directly or because they decide about another one.

    A parameter whose own value decides is among them: one freezing group is none.
    """
    known, found, waiting = dict(_described()), set[str](), [path]
    while waiting:
        about = known[waiting.pop()]
        new = (about.when.reads | about.needs.reads) - found
        found |= new
        waiting.extend(new)
    return frozenset(found)


@functools.cache
def _described() -> tuple[tuple[str, ParameterInfo], ...]:
    entries = []
    for section, field in BoostConfig.model_fields.items():
        model = inner_type(field.annotation)
        if isinstance(model, type) and issubclass(model, BaseModel):
            for name, member in model.model_fields.items():
                path = f"{section}.{name}"
                entries.append((path, _describe(path, member)))
    return tuple(entries)


def _describe(path: str, field: FieldInfo) -> ParameterInfo:
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    search: Any = extra.get("search", {})
    plain = inner_type(field.annotation)
    kind: Kind
    choices: tuple[Any, ...] = ()
    if get_origin(plain) is Literal:
        kind, choices = "choice", get_args(plain)
    elif plain is bool:
        kind, choices = "bool", (False, True)
    else:
        kind = {int: "int", float: "float", str: "str"}.get(plain, "list")  # type: ignore[assignment]  # all are Kinds
    conditions = declared(field)
    whole = int if kind == "int" else float
    return ParameterInfo(
        path=path,
        kind=kind,
        default=field.get_default(),
        low=whole(search["low"]) if "low" in search else None,
        high=whole(search["high"]) if "high" in search else None,
        log=bool(search.get("log", False)),
        step=search.get("step"),
        choices=choices,
        unit=str(extra.get("unit", "")),
        title=field.title or path,
        description=field.description or "",
        optional=NoneType in get_args(field.annotation),
        rule=rule_of(field),
        when=conditions.when,
        needs=conditions.needs,
    )
