"""Pages that say what the code knows, written as Markdown before Sphinx looks for pages.

A function per page, from the description that also serves panels, search spaces and error sentences. The folders in
`GENERATED` hold nothing else and git ignores them: whatever is left of an earlier build is removed.
"""

from __future__ import annotations

import html
import importlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from workbench.cli import app as command_line
from workbench.config.errors import inner_type, rule_of
from workbench.config.parameters import ParameterInfo, describe_field, parameters_by_section
from workbench.core.records import EventKind
from workbench.methods.protocol import Description
from workbench.methods.registry import METHODS
from workbench.runs.schema import COLUMNS, EVENT_COLUMNS, METHOD_COLUMNS
from workbench.study.answer.trial_table import TRIAL_COLUMNS
from workbench.study.ask.study_file import CANNOT_CHANGE_A_TRIAL, StudyFile
from workbench.study.sample.sampling import PRUNERS, SAMPLERS

ROOT = Path(__file__).parents[1]
GENERATED = ("methods", "reference", "tutorials")
"""Folders of ``docs`` that hold generated pages and nothing else."""

MODULES = {
    "workbench": "The five verbs, the configuration, tasks and the application.",
    "workbench.boost": "The names of `mindspore.boost`.",
    "workbench.nn": "The names of `mindspore.nn` that this package has.",
    "workbench.rec": "The names of `mindspore_rec`.",
    "workbench.tasks": "What is trained.",
    "workbench.runs": "Recorded runs: read, replay, mirror.",
    "workbench.online": "Streams without an end.",
    "workbench.figures": "Every figure as plain Plotly.",
}
"""Modules of the Python reference, each with a sentence."""


def pages() -> dict[str, str]:
    """Return every generated page but the tutorials: path below ``docs`` -> Markdown."""
    found = {
        "reference/configuration.md": configuration_page(),
        "reference/study.md": study_page(),
        "reference/commands.md": commands_page(),
        "reference/columns.md": columns_page(),
        "methods/index.md": methods_index(),
    }
    found |= {f"reference/{_file_of(name)}.md": module_page(name) for name in MODULES}
    found |= {f"methods/{one.name}.md": method_page(one) for one in METHODS}
    return {**found, "reference/index.md": reference_index()}


# Configuration and study.toml


def configuration_page() -> str:
    """Return the table of every configuration path."""
    parts = [
        "# Configuration",
        "Every key of a `boost_config.json`, from the description that panels, search spaces and error messages are "
        "made of, too. Python attributes, JSON keys and the paths of a study's `[space]` have the same names. "
        "`workbench schema` prints the same as JSON Schema, `workbench validate FILE` checks a file. *Searched* is the "
        "range that a study draws from when it says `true`; the legal range may be larger. A key that is not *in "
        "effect* is accepted and does nothing; plan, panel and `print(boosted)` say why.",
    ]
    for section, members in parameters_by_section().items():
        parts += [f"## `{section}`", _parameter_table(members.values())]
    return _page(parts)


def study_page() -> str:
    """Return the table of every key of a ``study.toml``."""
    parts = [
        "# study.toml",
        "Every key of a study's file. An unknown key or a value out of range is refused with a sentence that names the "
        "nearest known one. Keys marked *free* may be edited while the study goes on; any other change is another "
        "question and needs `--fresh`.",
    ]
    for name, member in StudyFile.model_fields.items():
        kind = inner_type(member.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            about = member.description or _first_sentence(kind)
            parts += [f"## `[{name}]`", about, _study_table(name, kind)]
        else:
            parts += [f"## `[{name}]`", f"{member.description} Any path of the [configuration](configuration.md)."]
    return _page(parts)


def study_keys() -> Iterator[tuple[str, FieldInfo]]:
    """Yield every key of a ``study.toml`` by its path, as it is written in the file."""
    for name, member in StudyFile.model_fields.items():
        kind = inner_type(member.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from ((f"{name}.{field.alias or key}", field) for key, field in kind.model_fields.items())


def _study_table(section: str, kind: type[BaseModel]) -> str:
    names = {"sampler.name": SAMPLERS, "pruner.name": tuple(PRUNERS)}
    rows = []
    for path, field in study_keys():
        if path.partition(".")[0] != section:
            continue
        about = describe_field(path, field)
        legal = names.get(path) or about.choices
        words = ", ".join(f"`{_toml(one)}`" for one in legal) or _rule(field, about.unit)
        default = _study_default(section, path, field)
        free = " *Free.*" if path in CANNOT_CHANGE_A_TRIAL or section in CANNOT_CHANGE_A_TRIAL else ""
        rows.append(
            (_key(path, path.partition(".")[2]), default, words, f"{_bold(about.title)} {about.description}{free}")
        )
    return _table(("key", "default", "legal values", "meaning"), rows)


def _study_default(section: str, path: str, field: FieldInfo) -> str:
    whole = StudyFile.model_fields[section].get_default()
    if path.endswith(".name") and isinstance(whole, BaseModel) and not whole.model_dump().get("task"):
        return f"`{_toml(getattr(whole, 'name', ''))}`"
    if field.is_required():
        return "*required*"
    value = field.get_default(call_default_factory=True)
    return "unset" if value is None else f"`{_toml(value)}`"


def _parameter_table(members: Iterable[ParameterInfo]) -> str:
    rows = []
    for one in members:
        legal = ", ".join(f"`{_json(value)}`" for value in one.choices) or _words_of_rule(one.rule, one.unit)
        searched = _search_range(one)
        shown = f"{legal}<br>searched: {searched}" if searched else legal
        default = "unset" if one.default is None else f"`{_json(one.default)}`"
        effect = " and ".join(dict.fromkeys(w for w in (one.when.words, one.needs.words) if w != "always"))
        meaning = f"{_bold(one.title)} {one.description}" + (f"<br>*In effect where {effect}.*" if effect else "")
        rows.append((_key(one.path), default, shown, meaning))
    return _table(("path", "default", "legal values", "meaning"), rows)


def _search_range(one: ParameterInfo) -> str:
    ranges = {"": (one.low, one.high), **one.by_name}
    grain = ", logarithmic" if one.log else ""
    return "; ".join(
        f"{low:g} to {high:g}{grain}{f' ({name})' if name else ''}"
        for name, (low, high) in ranges.items()
        if low is not None and high is not None
    )


def _rule(field: FieldInfo, unit: str) -> str:
    if get_origin(inner_type(field.annotation)) is dict:
        return "a table of lists"
    share = ', or a share such as `"2 %"`' if "pattern=" in repr(field.annotation) else ""
    return _words_of_rule(rule_of(field), unit) + share


def _words_of_rule(rule: str, unit: str) -> str:
    words = rule.removeprefix("be ").removeprefix("a ").replace("finite ", "")
    return f"{words} ({unit})" if unit else words


# Methods


def quickstart() -> dict[str, str]:
    """Return the figures of the quickstart's answer, to be shown on first pages."""
    about = json.loads((ROOT / "studies/quickstart/published/boost_config.o1.json").read_text(encoding="utf-8"))[
        "provenance"
    ]
    speedup, low, high = (f"{value:.2f}" for value in about["speedup"])
    drop, allowed = (f"{100 * about[name]:.1f}".removesuffix(".0") for name in ("drop", "allowed_drop"))
    seeds = str(about["n_seeds"])
    return {
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "drop": drop,
        "allowed": allowed,
        "seeds": seeds,
    }


def methods_index() -> str:
    """Return the table of the methods, in the order in which they act."""
    rows = [(f"[{one.title}]({one.name}.md)", one.summary, _measured(one)) for one in METHODS]
    return _page(
        [
            "# Methods",
            "In the order in which they act. Each page says what the method does, when it helps and when it hurts, "
            "usual values, our own measurements and the source. Measured on CPUs unless a card says where. Optimizers "
            "and loss scales have guides of their own: [THOR and AdamOffload](../guide/optimizers.md), "
            "[loss scales](../guide/loss_scales.md).",
            _table(("method", "what it does", "measured"), rows),
            _toctree(one.name for one in METHODS),
        ]
    )


def method_page(method: Description) -> str:
    """Return a method's page: its card, included, and its parameters."""
    folder = method.acts.partition(":")[0].rpartition(".")[0].replace(".", "/")
    path = f"../../{folder}/card.md"
    parts = ["```{include} " + path + "\n```"]
    members = parameters_by_section().get(method.section)
    own = [one for one in (members or {}).values() if not method.comes_with or one.path == method.switch]
    switch = [one for section in parameters_by_section().values() for one in section.values()]
    own = [one for one in switch if one.path == method.switch and one not in own] + own
    parts += ["## Parameters", _parameter_table(own)]
    if method.columns:
        rows = [(f"`{method.name}.{name}`", unit, meaning) for name, (unit, meaning) in method.columns.items()]
        parts += ["## Columns of the trace", _table(("column", "unit", "meaning"), rows)]
    return _page(parts)


def _measured(method: Description) -> str:
    """Return the first sentence of what its card says under "Measured"."""
    found = re.search(r"\*\*Measured\.\*\* (.*?)(?:\n\n|\Z)", method.card(), re.DOTALL)
    return re.split(r"(?<=[a-z)x%])\. (?=[A-Z`])", " ".join(found.group(1).split()))[0] if found else "not yet"


# Commands and columns


def commands_page() -> str:
    """Return every command with its arguments and options."""
    parts = [
        "# Commands",
        "Exit codes: 0 done, 1 the work failed, 2 the input is wrong (one sentence on stderr), 130 interrupted (state "
        "saved). `--json` prints one JSON object on stdout and nothing else there.",
    ]
    for path, command in commands():
        rows = []
        for one in command.params:
            if one.name == "help":
                continue
            kind = (one.metavar or "") if getattr(one, "metavar", None) else ""
            name = kind if one.param_type_name == "argument" else ", ".join((*one.opts, *one.secondary_opts))
            shown = f"`{name} {kind}`" if kind and name != kind else f"`{name or one.name.upper()}`"
            rows.append((shown, " ".join((getattr(one, "help", "") or "").split())))
        parts += [f"## `{path}`", html.escape(command.help or "", quote=False).replace("\f", "")]
        parts += [_table(("argument or option", "meaning"), rows)] if rows else []
    return _page(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Yield every command that can be run, with its words: ``workbench runs list`` and its click command."""
    waiting: list[tuple[str, Any]] = [("workbench", typer.main.get_command(command_line))]
    while waiting:
        path, command = waiting.pop(0)
        inner = getattr(command, "commands", None)
        if inner is None:
            yield path, command
        else:
            waiting[:0] = [(f"{path} {name}", one) for name, one in inner.items()]


def columns_page() -> str:
    """Return every column of steps, events and trials."""
    steps = [(f"`{name}`", one.kind, one.unit, one.description) for name, one in COLUMNS.items()]
    methods = [
        (f"`{name}*`" if name.endswith(".") else f"`{name}`", one.unit, one.description)
        for name, one in METHOD_COLUMNS.items()
    ]
    events = [(f"`{name}`", one.kind, one.unit, one.description) for name, one in EVENT_COLUMNS.items()]
    trials = [(f"`{name}`", kind, unit, meaning) for name, (kind, unit, meaning) in TRIAL_COLUMNS.items()]
    header = ("column", "type", "unit", "meaning")
    return _page(
        [
            "# Columns",
            "What `workbench.runs.read_run(path)` gives as DataFrames, and what stands in the Parquet files. "
            "[What is recorded](../guide/telemetry.md) explains the files.",
            "## Steps",
            _table(header, steps),
            "## Steps, columns of methods",
            "Written where the method acts; NaN on steps without a value.",
            _table(("column", "unit", "meaning"), methods),
            "## Events",
            "Kinds: " + ", ".join(f"`{kind.value}`" for kind in EventKind) + ".",
            _table(header, events),
            "## Trials",
            "Of `workbench export STUDY --trials FILE`; after these comes a column for each searched path.",
            _table(header, trials),
        ]
    )


# Python


def module_page(name: str) -> str:
    """Return the page of a module's public names; what an earlier page documents is left to that one."""
    before = [one for one in MODULES if list(MODULES).index(one) < list(MODULES).index(name)]
    modules = [importlib.import_module(one) for one in before]
    known = {id(getattr(one, each)) for one in modules for each in one.__all__}
    module = importlib.import_module(name)
    again = [each for each in module.__all__ if id(getattr(module, each)) in known]
    options = ["   :members:", f"   :exclude-members: {', '.join([*again, 'model_config'])}"]
    directive = "\n".join(["```{eval-rst}", f".. automodule:: {name}", *options, "```"])
    return _page([f"# `{name}`", directive])


def short_signature(_app: Any, what: str, _name: str, of: Any, *_options: Any) -> tuple[str, str] | None:
    """Say of a class whose arguments are its sections only that; their defaults fill a page of their own."""
    is_model = what == "class" and isinstance(of, type) and issubclass(of, BaseModel)
    return ("(**sections)", "") if is_model else None


def reference_index() -> str:
    """Return the first page of the reference."""
    own = {
        "configuration": "every path of a `boost_config.json`",
        "study": "every key of a `study.toml`",
        "commands": "every command and option",
        "columns": "every column of steps, events and trials",
    }
    rows = [(f"[{name}]({name}.md)", words) for name, words in own.items()]
    rows += [(f"[`{name}`]({_file_of(name)}.md)", words) for name, words in MODULES.items()]
    return _page(
        [
            "# Reference",
            "Generated from the code when these pages are built.",
            _table(("page", "what it lists"), rows),
            _toctree([*own, *map(_file_of, MODULES)]),
        ]
    )


def _file_of(module: str) -> str:
    return module.replace(".", "_")


# Markdown


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in line) + " |" for line in lines)


def _toctree(names: Iterable[str]) -> str:
    return "```{toctree}\n:hidden:\n\n" + "\n".join(names) + "\n```"


def _key(path: str, shown: str = "") -> str:
    """Return a path in code, with an anchor to link to."""
    return f'<span id="{path.replace(".", "-").replace("_", "-")}"></span>`{shown or path}`'


def _bold(title: str) -> str:
    return f"**{title if title.endswith('?') else f'{title}.'}**"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _toml(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) >= 1e6:
        return f"{value:.0f}.0"
    return json.dumps(value, ensure_ascii=False).replace("{}", "{ }")


def _first_sentence(kind: type) -> str:
    words = " ".join((kind.__doc__ or "").split("\n\n")[0].split()).replace("``", "`")
    return re.sub(r"^`\[\w+\]`: (\w)", lambda first: first.group(1).upper(), words)


def write_pages(docs: Path, texts: Mapping[str, str]) -> None:
    """Write generated pages below ``docs`` where they changed, and remove what an earlier build has left there."""
    for name, text in texts.items():
        path = docs / name
        path.parent.mkdir(exist_ok=True)
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for folder in GENERATED:
        for path in (docs / folder).glob("*"):
            if f"{folder}/{path.name}" not in texts:
                path.unlink()
