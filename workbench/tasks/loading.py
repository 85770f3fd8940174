"""Find a task as the command line names it: a built-in name, a module's attribute, a file's attribute."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from workbench.core.error_place import what_and_where
from workbench.core.own_generators import kept_generators
from workbench.core.signatures import why_not_called
from workbench.core.warning import warn
from workbench.tasks.errors import TaskError
from workbench.tasks.task import Task

# Name -> module, and what it is.
_BUILT_IN = {
    "clicks": ("clicks", "recommender on an endless synthetic click stream with drift"),
    "digits-autoencoder": ("autoencoder", "deep autoencoder of scikit-learn's handwritten digits"),
    "digits-lenet": ("digits", "LeNet on scikit-learn's handwritten digits"),
    "digits-resnet": ("digits", "ResNet-20 with BatchNorm on scikit-learn's handwritten digits"),
    "topics-gpt": ("topics", "byte-level transformer on the text of Python's help topics"),
}
BUILT_IN: Mapping[str, str] = MappingProxyType({name: text for name, (_, text) in _BUILT_IN.items()})
"""Built-in tasks and what they are; reading this loads no data."""
_KINDS_OF_DATA = ("cifar10", "criteo")  # each a module with a function of the place of the data


def built_in_module(name: str) -> str:
    """Return the module, in this package, of a built-in task."""
    return f"{__package__}.{_BUILT_IN[name][0]}"


def load_task(spec: Task | str, folder: str | Path | None = None) -> Task:
    """Return the task that a name stands for; its ``spec`` leads back to it from any working directory.

    Args:
        spec: ``"digits-resnet"`` (see ``BUILT_IN``), ``"criteo:path/to/data"``, ``"package.module:attribute"``,
            ``"path/to/file.py:attribute"`` or ``"path/to/file.py"`` (attribute ``task``). The attribute is a Task or a
            function without arguments that returns one. A Task stands for itself.
        folder: First place to look for a relative path, before the working directory.

    Raises:
        TaskError: When nothing stands for this name, its code fails, or what it names is no task.
    """
    if isinstance(spec, Task):
        return spec
    if not isinstance(spec, str) or not spec.strip():
        raise TaskError(f"a task must be named by text such as 'digits-resnet' or 'file.py:task', got {spec!r}")
    spec = spec.strip()
    if spec in BUILT_IN:
        module = importlib.import_module(built_in_module(spec))
        task: Task = getattr(module, spec.replace("-", "_"))()
        return dataclasses.replace(task, spec=spec, description=BUILT_IN[spec])
    kind, colon, place = spec.partition(":")
    if colon and kind in _KINDS_OF_DATA:
        return _task_of_data(kind, place, folder)
    place, colon, attribute = spec.rpartition(":")
    if spec.endswith(".py") or not colon:
        place, attribute = spec, ""
    if place.endswith(".py"):
        tried, path = _looked_for(place, folder, Path.is_file)
        if path is None:
            looked = " and ".join(str(path.absolute()) for path in tried)
            raise TaskError(f"task file {place} is not there; looked at {looked}")
        return _task_of(_load_file(path), attribute or "task", str(path))
    if not attribute or not re.fullmatch(r"\w+(\.\w+)*", place):
        near = difflib.get_close_matches(spec, BUILT_IN, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"built in are {', '.join(BUILT_IN)}"
        raise TaskError(
            f"unknown task {spec!r}; {hint} (or name your own as 'package.module:attribute' or 'file.py:attribute'; "
            "one that a program has made is known to that program alone, whose `tune` continues its study)"
        )
    return _task_of(_load_module(place), attribute, place)


def _task_of_data(kind: str, place: str, folder: str | Path | None) -> Task:
    if not place:
        raise TaskError(f"task {kind}: needs the place of its data, write {kind}:path/to/data")
    tried, found = _looked_for(place, folder, Path.exists)
    found = found or tried[0]  # whose absence the task explains
    make = getattr(importlib.import_module(f"workbench.tasks.{kind}"), f"{kind}_task")
    task: Task = make(str(found))
    return dataclasses.replace(task, spec=f"{kind}:{found}")


def _looked_for(place: str, folder: str | Path | None, is_it: Callable[[Path], bool]) -> tuple[list[Path], Path | None]:
    """Return where a path may lie, and where it does; a warning where that is not the folder of the study naming it."""
    path = Path(place).expanduser()
    tried = [path] if folder is None or path.is_absolute() else [Path(folder) / path, path]
    found = next((one.resolve() for one in tried if is_it(one)), None)
    if found not in (None, tried[0].resolve()):
        warn(f"{place} is not in {tried[0].parent}; {found}, of the working directory, is taken")
    return tried, found


def task_sources(task: Task) -> dict[str, str]:
    """Return file -> digests of the code of a user's task: its file, and what it has imported from the same folder.

    One digest is of the bytes, one of the code without comments and layout, which depends on the Python version. A task
    that is built in has none; one that only a program knows is known by its parts, as torch prints them.
    """
    if not task.spec:
        return _parts_of(task)
    place = task.spec.rpartition(":")[0]
    its_file = place if place.endswith(".py") else getattr(sys.modules.get(place), "__file__", None)
    if its_file is None:
        return {}
    home = Path(its_file).resolve()
    foreign = re.compile(r"/(site|dist)-packages/|/workbench/|/lib/python3")
    named = {getattr(module, "__file__", None) or "" for module in [*sys.modules.values()]}
    files = {_resolved(file) for file in named if file.endswith(".py")}
    # Some modules of torch name a file that is none, relative to the working directory: _ops.py.
    folder = os.path.join(home.parent, "")  # noqa: PTH118  # compared as text, thousands of times
    beside = [path for path in files if str(path).startswith(folder) and path.is_file()]
    ours = {home, *(path for path in beside if not foreign.search(f"/{path.relative_to(home.parent).as_posix()}"))}
    return {path.relative_to(home.parent).as_posix(): _code_digest(path) for path in sorted(ours)}


def _parts_of(task: Task) -> dict[str, str]:
    with kept_generators():
        model = task.new_model()
        optimizer = task.new_optimizer(model)
    shapes = [(name, tuple(one.shape), one.dtype) for name, one in model.named_parameters()]
    options = [{**group, "params": len(group["params"])} for group in optimizer.param_groups]
    kind = type(optimizer).__name__
    parts = {"model": (model, shapes), "optimizer": (kind, options), "loss": task.loss, "metric": task.metric_name}
    printed = {name: re.sub(r" at 0x[0-9a-f]+", "", repr(part)) for name, part in parts.items()}
    return {f"its {name}": hashlib.sha256(text.encode()).hexdigest()[:16] for name, text in printed.items()}


@functools.cache
def _resolved(file: str) -> Path:
    return Path(file).resolve()  # the file of a module, one of thousands


def _code_digest(path: Path) -> str:
    try:
        content = path.read_bytes()
        code = ast.dump(ast.parse(content)).encode("utf-8", "surrogatepass")
    except (OSError, ValueError, SyntaxError):
        return "unreadable"
    return " ".join(hashlib.sha256(one).hexdigest()[:16] for one in (content, code))


def _load_file(path: Path) -> ModuleType:
    """Execute a file as a module of its own, once per content, with its folder importable."""
    try:
        source = path.read_bytes()
    except OSError as error:
        raise TaskError(f"task file {path} cannot be read: {error.strerror or error}") from error
    # Path and content make the name: the same file is one module however often it is named (its classes stay the
    # same objects), and an edited file is a new one.
    fingerprint = hashlib.sha256(str(path).encode() + b"\0" + source).hexdigest()[:12]
    name = "_".join(("workbench_task", re.sub(r"\W", "_", path.stem), fingerprint))
    if name in sys.modules:
        return sys.modules[name]
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = str(path)
    folder = str(path.parent)
    # First while it runs, as for a script; last afterwards, so that its neighbours shadow nothing of ours.
    sys.path.insert(0, folder)
    try:
        # Compiled from what was read, not through the loader: its bytecode cache goes by whole seconds and size, and
        # would hand us the former version of a file edited twice within a second.
        with _no_command_line(str(path)):
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TaskError(f"task file {path} cannot be loaded: {_what_is_wrong(error)}") from error
    finally:
        sys.path.remove(folder)
    if folder not in sys.path:
        sys.path.append(folder)
    return module


def _load_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # a console script does not see the working directory by itself
    try:
        with _no_command_line(name):
            return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise TaskError(
                f"task module {name} is not there: no module named {missing!r} in {here} or among the installed "
                "packages; run from the folder that holds it, or name the file: path/to/file.py:attribute"
            ) from error
        raise TaskError(f"task module {name} cannot be imported: {_what_is_wrong(error)}") from error


@contextlib.contextmanager
def _no_command_line(name: str) -> Iterator[None]:
    """Let what a script reads from its command line be its defaults: the arguments there are this program's."""
    arguments, sys.argv = sys.argv, [name]
    try:
        yield
    finally:
        sys.argv = arguments


def _what_is_wrong(error: BaseException) -> str:
    ends = '; what is for a script alone goes below `if __name__ == "__main__":`, as does reading its arguments'
    return f"{what_and_where(error)}{ends if isinstance(error, SystemExit) else ''}"


def _task_of(module: ModuleType, attribute: str, place: str) -> Task:
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            values = getattr(found, "__dict__", {})  # what it could have been: tasks, and functions that may make one
            tasks = [name for name in values if isinstance(values[name], Task)]
            functions = [name for name in values if inspect.isfunction(values[name]) and not name.startswith("_")]
            near = difflib.get_close_matches(part, tasks + functions, n=1) or tasks[:1]
            hint = f"; did you mean {place}:{near[0]}?" if near else ""
            raise TaskError(f"{place} has no attribute {part!r}{hint}")
        found = getattr(found, part)
    if callable(found) and not isinstance(found, Task):
        found = _called(found, f"{place}:{attribute}")
    if not isinstance(found, Task):
        raise TaskError(
            f"{place}:{attribute} must be a workbench Task or a function that returns one, got {type(found).__name__}"
        )
    return dataclasses.replace(found, spec=f"{place}:{attribute}")


def _called(function: Any, label: str) -> Any:
    if why_not_called(function):
        raise TaskError(
            f"{label} must be a Task or a function without arguments, got one with {inspect.signature(function)}"
        )
    try:
        return function()
    except (Exception, SystemExit) as error:
        raise TaskError(f"{label} failed: {what_and_where(error)}") from error
