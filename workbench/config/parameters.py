"""Every parameter, described: what controls, search spaces and documentation are made from.

Nothing is stated here; all of it is read from the fields of the sections.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from workbench.config.boost_config import BoostConfig
from workbench.config.conditions import Declared, declared
from workbench.config.errors import ConfigError, did_you_mean, inner_type, rule_of, sections_of, shown
from workbench.config.optimizer import HYPER_PARAMETERS, have_it, owners_of

Kind = Literal["float", "int", "bool", "choice", "str", "list"]


@dataclass(frozen=True, kw_only=True)
class ParameterInfo(Declared):
    """One parameter of a configuration, as its field describes it."""

    path: str  # for example "loss_scale.window"
    kind: Kind
    default: Any  # None when a rule decides while it is unset
    title: str  # a few words for a label
    description: str  # meaning, and what unset means
    choices: tuple[Any, ...] = ()  # legal values of a choice, and of a bool
    optional: bool = False  # whether None (unset) is allowed
    rule: str = ""  # legal values as the end of "... must ...", for example "be a finite number in [0, 1)"


def parameter_at(path: str) -> ParameterInfo:
    """Return the parameter that a search varies under a path.

    A parameter of optimizers may have a name in brackets, ``"optimizer.lr[Muon]"``: the same parameter with that
    optimizer's own search range. Where there is none such, a ConfigError names the nearest.
    """
    known = describe_parameters()
    if path in known:
        return known[path]
    plain, bracket, name = path.partition("[")
    if not bracket or not name.endswith("]") or plain not in known or not plain.startswith("optimizer."):
        raise ConfigError(f"unknown parameter {shown(path)}{did_you_mean(plain, known) if plain not in known else ''}")
    name, own = name.removesuffix("]"), plain.removeprefix("optimizer.")
    if name not in (owners := owners_of(own)):
        if not owners:
            raise ConfigError(f"`{plain}` has the same values for every optimizer; leave [{name}] out")
        lacks = f"{name} has no such parameter" if name in HYPER_PARAMETERS else f"there is no optimizer {shown(name)}"
        raise ConfigError(f"unknown parameter {shown(path)}: {lacks}; {have_it(own)}")
    about = known[plain]
    low, high = about.by_name.get(name, (about.low, about.high))
    return replace(about, path=path, low=low, high=high)


@functools.cache
def describe_parameters() -> Mapping[str, ParameterInfo]:
    """Return every parameter by its path, in file order; ``provenance`` is no parameter."""
    return MappingProxyType({one.path: one for part in parameters_by_section().values() for one in part.values()})


@functools.cache
def parameters_by_section() -> Mapping[str, Mapping[str, ParameterInfo]]:
    """Return the parameters of each section by their names in it, in file order."""
    return {
        section: {name: describe_field(f"{section}.{name}", field) for name, field in model.model_fields.items()}
        for section, model in sections_of(BoostConfig).items()
    }


@functools.cache
def parents_of(path: str) -> frozenset[str]:
    """Return the paths that decide whether a parameter is in effect, directly or because they decide about another one.

    A parameter whose own value decides is among them: one freezing group is none.
    """
    known, found, waiting = describe_parameters(), set[str](), [path]
    while waiting:
        about = known[waiting.pop()]
        new = (about.when.reads | about.needs.reads) - found
        found |= new
        waiting.extend(new)
    return frozenset(found)


def describe_field(path: str, member: FieldInfo) -> ParameterInfo:
    """Return what a field that was declared with ``described`` says of itself."""
    plain = inner_type(member.annotation)
    kinds: dict[Any, Kind] = {bool: "bool", int: "int", float: "float", str: "str"}
    kind: Kind = "choice" if get_origin(plain) is Literal else kinds.get(plain, "list")
    choices = get_args(plain) if kind == "choice" else (False, True) if kind == "bool" else ()
    return ParameterInfo(
        **vars(declared(member)),
        path=path,
        kind=kind,
        default=member.get_default(),
        choices=choices,
        title=member.title or path,
        description=" ".join((member.description or "").split()),
        optional=NoneType in get_args(member.annotation),
        rule=rule_of(member),
    )
