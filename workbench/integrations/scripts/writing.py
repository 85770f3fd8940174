"""Write a set-up in the words of another framework: one file that runs there."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jinja2

from workbench.config import BOOST_SECTIONS
from workbench.config.mindspore_notes import mindspore_notes
from workbench.core.batch import EPOCH_HOLDERS, TARGET_KEYS
from workbench.core.records import ExportedScript
from workbench.integrations import lightning, mindspore_model, torch_loop, transformers
from workbench.integrations.carried import ACCUMULATION, Carried, choices
from workbench.integrations.scripts.own_code import OwnCode, defined_names, loaded, own_code
from workbench.integrations.scripts.set_up import HOOKS, Pieces, SetUp, handed_on, pieces_of
from workbench.tasks import Task

_PACKAGE = __name__.partition(".")[0]
_STANDARD = (
    "collections.abc",
    "copy",
    "dataclasses",
    "functools",
    "inspect",
    "itertools",
    "json",
    "math",
    "operator",
    "pickle",
    "time",
)
_OURS = {  # a call in a script -> where it comes from
    " apply(": f"from {_PACKAGE} import apply",
    "BoostedTrainer(": f"from {_PACKAGE}.integrations.transformers import BoostedTrainer",
    " Boost(": f"from {_PACKAGE}.integrations.lightning import Boost",
}
_QUOTES = chr(34) * 3
_NOT_MEASURED = "not measured separately"


@dataclass(frozen=True)
class Framework:
    """A world that a set-up can be written for."""

    title: str
    carried: Callable[..., Carried]
    template: str  # of a script
    boosted: str = ""  # template of one that needs this package, where it is another
    trains_torch: bool = True  # models of torch's, so that the task can be taken over
    imports: tuple[str, ...] = ("import torch",)
    counts_updates: bool = False  # some of its arguments, which therefore depend on today's length
    why_no_hooks: str = ""  # why a hook before a step of today's optimizer does not act there


_TRANSFORMERS = ("import torch", "from transformers import PretrainedConfig, Trainer, TrainingArguments")
_LIGHTNING = ("import lightning", "import torch")
_MINDSPORE = ("import mindspore as ms", "from mindspore import amp, nn", "from mindspore.train import Model")
FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework("torch", torch_loop.carried, "torch_loop.py.j2", boosted="torch_apply.py.j2"),
    "transformers": Framework(
        "Hugging Face's Trainer", transformers.carried, "transformers.py.j2", imports=_TRANSFORMERS, counts_updates=True
    ),
    "lightning": Framework(
        "Lightning",
        lightning.carried,
        "lightning.py.j2",
        imports=_LIGHTNING,
        why_no_hooks="Lightning computes gradients within the optimizer's step, after its hooks",
    ),
    "mindspore": Framework(
        "MindSpore", mindspore_model.carried, "mindspore.py.j2", trains_torch=False, imports=_MINDSPORE
    ),
}
"""Name, as ``--as`` takes it -> the framework."""


def write_script(framework: str, set_up: SetUp) -> ExportedScript:
    """Return a set-up as a file in the words of one of `FRAMEWORKS`, which is not written yet.

    Raises:
        ValueError: When there is no such framework.
        ConfigError: When the configuration cannot be in effect.
    """
    world = framework_of(framework)
    length = {"total_steps": set_up.steps} if world.counts_updates else {}
    answer = _for_task(world, world.carried(set_up.config, level=set_up.level, **length), set_up.task)
    own = own_code(set_up.task, alone=answer.is_whole) if world.trains_torch else OwnCode((), "", "", "")
    pieces = pieces_of(set_up.task) if world.trains_torch else Pieces()
    template = world.template if answer.is_whole else world.boosted or world.template
    body = _rendered(template, world, set_up, answer, own, pieces)
    if set_up.task is not None and (clash := _clash(body, own, world)):
        own = loaded(set_up.task.spec, f"the task's file and this one both define {', '.join(sorted(clash))}")
        body = _rendered(template, world, set_up, answer, own, pieces)
    left = ", ".join(answer.left)
    whys = [f"{world.title} has no counterpart for {left}"] if left and world.trains_torch else []
    whys += [own.why_ours] if own.why_ours and own.is_complete else []
    name, why = file_name(framework, set_up.target), "; and ".join(whys)
    if not world.trains_torch:
        sentence = f"it needs your network and dataset in {world.title}{f', and goes without {left}' if left else ''}"
    else:
        sentence = f"it needs {_PACKAGE}, because {why}" if why else f"it needs nothing of {_PACKAGE}"
        sentence += "" if own.is_complete else "; fill in the section on your model and data"
    docstring = _docstring(world, set_up, sentence, answer)
    text = f"{docstring}\n\n{_imports(_statements(body, own, world))}\n\n{body.strip()}\n"
    ast.parse(text, name)  # what is not Python is our mistake, and shows here
    carriers = {path: ", ".join(calls) for path, calls in answer.carriers.items()}
    return ExportedScript(framework, set_up.target, name, text, sentence, carriers, answer.left)


def framework_of(name: str) -> Framework:
    """Return a framework by its name; a ValueError names those that there are."""
    if name not in FRAMEWORKS:
        raise ValueError(f"there is no framework {name!r}; one of {', '.join(FRAMEWORKS)}")
    return FRAMEWORKS[name]


def file_name(framework: str, target: str) -> str:
    """Return what a script is called."""
    return f"train_{framework}_{target}.py"


def _rendered(template: str, world: Framework, set_up: SetUp, answer: Carried, own: OwnCode, pieces: Pieces) -> str:
    def worths(paths: Iterable[str]) -> str:
        known = dict.fromkeys(set_up.worth[path] for path in paths if path in set_up.worth)
        return "; ".join(known) or _NOT_MEASURED

    page = _templates().get_template(template)
    body = page.render(
        world=world,
        set_up=set_up,
        plan=set_up.plan,
        carried=answer,
        own=own,
        pieces=pieces,
        passes=set_up.passes,
        target_keys=TARGET_KEYS,
        epoch_holders=EPOCH_HOLDERS,
        worths=worths,
        micro_batches=ACCUMULATION[0],
        config_file=f"boost_config.{set_up.target}.json",
        chosen=choices(set_up.plan),
        plain=torch_loop.carried(set_up.config, level=set_up.level).arguments,
        carriers_of=lambda name: [path for path, names in answer.carriers.items() if name in names],
        boosts=[path for path in answer.carriers if path.partition(".")[0] in BOOST_SECTIONS],
        notes=mindspore_notes(set_up.config, set_up.plan) if not world.trains_torch else (),
    )
    return re.sub(r"\n{4,}", "\n\n\n", body)


def _docstring(world: Framework, set_up: SetUp, sentence: str, answer: Carried) -> str:
    said = [f"Train {'a model of yours' if set_up.task is None else set_up.task.name} in the set-up that was found."]
    said += [set_up.headline] if set_up.headline else []
    said.append(f"{sentence[0].upper()}{sentence[1:]}.")
    if answer.left:
        said.append(f"What {world.title} has no counterpart for:")
    text = "\n\n".join(textwrap.fill(one, 116) for one in said)
    for why, paths in answer.left_by_reason.items():
        text += "\n" + textwrap.fill(f"* {paths}: {why}", 116, initial_indent="", subsequent_indent="  ")
    text = text.replace("\\", "/").replace(_QUOTES, "...")
    return f"{_QUOTES}{text}\n{_QUOTES}"


def _for_task(world: Framework, answer: Carried, task: Task | None) -> Carried:
    """Return what a framework carries of a set-up where it is this task's optimizer that another one replaces."""
    replaced = [path for path in answer.carriers if path.startswith("optimizer.") or path == "batch.lr_rule"]
    replaces, has_hooks = "optimizer.name" in answer.carriers, bool(world.why_no_hooks) and answer.is_whole
    casts = str(answer.arguments.get("precision", "")).endswith("-true")
    moves = "kept" in answer.arguments.get("torch.utils.data.DataLoader", {}).values()
    if task is None or not world.trains_torch or not (replaces or has_hooks or casts or moves):
        return answer
    hands_on, left = handed_on(task) if replaces or has_hooks else [], dict(answer.left)
    if moves and pieces_of(task).train == "stream":
        left["runtime.data"] = "today's batches come from a stream that says itself where its samples lie"
    if casts:  # and the fused SGD of torch 2.13 updates such weights wrongly on a CPU, where ours takes the plain one
        left["amp.level"] = "Lightning casts the inputs of its own steps alone, and this file evaluates by itself"
    if replaces and hands_on:
        left |= dict.fromkeys(replaced, f"today's optimizer has {' and '.join(hands_on)}, which apply() hands on")
    if has_hooks and HOOKS in hands_on:
        left[f"{HOOKS} of today's optimizer"] = world.why_no_hooks
    kept = {path: names for path, names in answer.carriers.items() if path not in left}
    return dataclasses.replace(answer, carriers=kept, left=left)


def _statements(body: str, own: OwnCode, world: Framework) -> list[str]:
    """Return the import statements of a file: what its text uses, and what the task's code needs."""
    rest = body.replace(own.text, "", 1)
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    found: dict[str, set[str]] = {}  # of modules of which names are imported
    plain = {f"import {name}" for name in _STANDARD if re.search(rf"(?<![\w.]){name}\.\w", rest)}
    ours = [statement for call, statement in _OURS.items() if call in body]
    from_paths = ("from pathlib import Path",) if "Path(__file__)" in rest else ()
    for statement in (*world.imports, *own.imports, *ours, *from_paths):
        if match := re.fullmatch(r"from (\S+) import (.+)", statement):
            is_own = statement in own.imports
            names = {name for name in match[2].split(", ") if is_own or name.split()[-1] in used}
            found.setdefault(match[1], set()).update(names)
        else:
            plain.add(statement)
    named = [f"from {module} import {', '.join(sorted(names, key=_place))}" for module, names in found.items() if names]
    return [*sorted(plain), *sorted(named)]


def _place(name: str) -> tuple[bool, bool, str]:
    """Return where linters want an imported name: constants, then classes, then the rest."""
    return not name.isupper(), not name[0].isupper(), name


def _imports(statements: Iterable[str]) -> str:
    """Return import statements as the head of a file: of Python's own modules, then of others."""
    of_python = [one for one in statements if re.split(r"[ .]", one)[1] in sys.stdlib_module_names]
    of_others = [one for one in statements if one not in of_python]
    parts = (["from __future__ import annotations"], of_python, of_others)
    return "\n\n".join("\n".join(part) for part in parts if part)


def _clash(body: str, own: OwnCode, world: Framework) -> set[str]:
    """Return the names that the task's code and the rest of a file use for different things."""
    head = "\n".join(_statements(body, dataclasses.replace(own, imports=()), world))
    theirs, ours = _bound("\n".join([*own.imports, own.text])), _bound(head) | _bound(body.replace(own.text, "", 1))
    return {name for name in theirs.keys() & ours.keys() if not theirs[name] or theirs[name] != ours[name]} - {"task"}


def _bound(text: str) -> dict[str, str]:
    """Return the names that statements of a module bind, with what is imported by them; empty for a definition."""
    bound: dict[str, str] = {}
    for node in ast.parse(text).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            bound |= dict.fromkeys(defined_names(node), "")
            continue
        start = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for one in node.names:
            name, _, part = one.name.partition(".")
            bound[one.asname or name] = start + (f"{name}.{part}" if one.asname and part else name)
    return bound


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader(__package__ or "", "."),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # Python, no HTML
    )
    templates.globals["keywords"] = _keywords
    templates.tests["match"] = lambda value, pattern: re.match(pattern, value) is not None
    return templates


def _keywords(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())
