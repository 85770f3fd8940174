"""The text of a study's file, read and changed: comments and layout survive.

Values go by paths such as ``"study.n_trials"``, the search space by config paths. ``parse_study`` checks what is
allowed; here nothing is checked beyond TOML.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import tomlkit

RANGE_KEYS: Final = frozenset({"low", "high", "log", "step"})


def values_of(text: str) -> dict[str, Any]:
    """Return every value of a study file by its path, the search space and the baseline apart."""
    return {
        f"{section}.{key}": value
        for section, table in tomllib.loads(text).items()
        if isinstance(table, dict) and section not in {"space", "baseline"}
        for key, value in table.items()
    }


def space_of(text: str) -> dict[str, Any]:
    """Return what a study file searches: path -> list, table with ``low`` and ``high``, or true.

    Quoted dotted keys and sub-tables mean the same.
    """
    return flat(tomllib.loads(text).get("space", {}), lambda _, table: not table.keys() - RANGE_KEYS)


def flat(
    content: Mapping[str, Any], is_value: Callable[[str, Mapping[str, Any]], bool] = lambda *_: False, prefix: str = ""
) -> dict[str, Any]:
    """Return values by dotted path; quoted dotted keys and sub-tables, both TOML spellings, mean the same.

    ``is_value`` is asked about each table, by its path, whether to keep it whole.
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        opened = isinstance(value, Mapping) and not is_value(path, value)
        found |= flat(value, is_value, f"{path}.") if opened else {path: value}
    return found


def study_text(template: str, values: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """Return a template with other values and another space; all else, comments included, stays as it is.

    ``values`` go by path, None removes one; ``space`` is all that is searched, new paths in this order.
    """
    document = tomlkit.parse(template)
    before = values_of(template)
    for path, value in values.items():
        section, _, key = path.partition(".")
        if value is None:
            if path in before:
                del _table(document, section)[key]
        elif path not in before or not _same(before[path], value):
            _table(document, section)[key] = value
    _set_space(document, space_of(template), space)
    return tomlkit.dumps(document)


def new_study_text(task: str, baseline: Mapping[str, Any], values: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """Return the file of a new study, whose ``baseline`` sets by config path what O0 means; see ``study_text``."""
    comments = (
        "Which boost settings train this task fastest without losing more than allowed?",
        "Written by the workbench; `workbench tune` on this folder continues it.",
    )
    return study_text(text_of(comments, {"study": {"task": task}, "baseline": baseline}), values, space)


def text_of(comments: Sequence[str], sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of a study file: comments, then the sections that are not empty."""
    document = tomlkit.document()
    for comment in comments:
        document.add(tomlkit.comment(comment))
    for name, values in sections.items():
        for key, value in values.items():
            _table(document, name)[key] = _item(value)
    return tomlkit.dumps(document)


def _set_space(document: tomlkit.TOMLDocument, before: Mapping[str, Any], space: Mapping[str, Any]) -> None:
    if _same(before, space):
        return
    table = _table(document, "space")
    if set(before) - set(table):  # sub-tables: written again, as quoted paths
        document["space"] = table = tomlkit.table()
        before = {}
    for path in before:
        if path not in space:
            del table[path]
    for path, value in space.items():
        if path not in before or not _same(before[path], value):
            table[path] = _item(value)


def _table(document: tomlkit.TOMLDocument, section: str) -> Any:
    return document.setdefault(section, tomlkit.table())


def _item(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    inline = tomlkit.inline_table()
    inline.update(value)
    return inline


def _same(one: Any, other: Any) -> bool:
    """Compare types, too: true and 1 are equal in Python and two things in a study."""
    return repr(one) == repr(other)
