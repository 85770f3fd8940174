"""The code of a task for a script that stands alone: its model, loss, optimizer and data, without this package.

A task of the user's is copied as it stands in its file, with a class that has the fields of `Task`, and no more, in its
place. Of one that is built in, the definitions it needs are gathered from ours, and `types.SimpleNamespace` will do.
Where that is not possible, the script loads the task through this package, and says why.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from workbench.tasks import Task
from workbench.tasks.loading import BUILT_IN, built_in_module

_PACKAGE = __name__.partition(".")[0]
_STAND_IN = "from types import SimpleNamespace as Task"
_FIELDS = textwrap.fill(", ".join(f'"{one.name}"' for one in dataclasses.fields(Task)), 108).splitlines()
_OWN_STAND_IN = (
    'dataclasses.make_dataclass("Task", [',
    *("    (name, object, None) for name in (", *(f"        {line}" for line in _FIELDS), "    )", "])"),
)
_SAID_ELSEWHERE = {"name", "data_hash", "description", "direction", "steps", "epochs"}  # fields no script reads
_LEFT_OUT = {"ShuffledBatches": {"on"}}  # methods that only this package calls
FILL_IN = """\
from my_project import build_model, build_optimizer, criterion, eval_loader, train_loader  # name yours here

task = SimpleNamespace(
    model=build_model, loss=criterion, optimizer=build_optimizer, train=train_loader, evaluate=eval_loader
)"""


@dataclass(frozen=True)
class OwnCode:
    """Statements that define a task, and the name that they give it."""

    imports: tuple[str, ...]  # of other people's packages, one statement each
    text: str  # the statements after them
    task: str  # an expression for the task, or what stands for it
    origin: str  # where the statements come from, a clause
    why_ours: str = ""  # why they need this package, a clause; empty where they do not
    is_complete: bool = True  # False where the user has to fill something in


def own_code(task: Task | None, *, alone: bool = True) -> OwnCode:
    """Return the code of a task; None stands for one that only another program knows, to be filled in by its user.

    A script that is not ``alone`` needs this package anyway, and simply loads the task.
    """
    place, _, attribute = ("" if task is None else task.spec).rpartition(":")
    if task is None or not task.spec:
        imports = ("from types import SimpleNamespace",)
        return OwnCode(imports, FILL_IN, "task", "fill in what is trained", is_complete=False)
    if not alone:
        return loaded(task.spec, "")
    if task.spec in BUILT_IN:
        module = importlib.import_module(built_in_module(task.spec))
        return _gathered(module, task.spec.replace("-", "_"), task.spec)
    if place.endswith(".py"):
        return _copied(Path(place), attribute)
    return loaded(task.spec, f"task {task.spec} is made by a package that imports {_PACKAGE}")


def loaded(spec: str, why: str) -> OwnCode:
    """Return code that loads a task through this package, for a reason."""
    imports = (f"from {_PACKAGE}.tasks import load_task",)
    return OwnCode(imports, f"task = load_task({spec!r})", "task", f"the task {spec}", why_ours=why)


def _copied(path: Path, attribute: str) -> OwnCode:
    """Return a user's file as it is, but for its `Task`, docstring, first imports and what runs as a program alone."""
    source = path.read_text(encoding="utf-8")
    tree, lines = ast.parse(source), source.splitlines()
    replaced = _replaced(tree)
    if why := _why_not_alone(path, tree, replaced):
        return loaded(f"{path}:{attribute}", why)
    has_neighbours = any((path.parent / f"{name}.py").is_file() for name, _ in _imported(tree))
    imports = [] if has_neighbours else _first_imports(tree, replaced)
    replaced |= {node.lineno: (node.end_lineno or node.lineno, []) for node in imports}
    for first in sorted(replaced, reverse=True):
        last, instead = replaced[first]
        lines[first - 1 : last] = instead
    needs = [f"__file__ = {str(path)!r}"] if "__file__" in source else []
    needs += ["import sys", "", f"sys.path.insert(0, {str(path.parent)!r})"] if has_neighbours else []
    is_function = any(isinstance(node, ast.FunctionDef) and node.name == attribute for node in tree.body)
    text = "\n".join([*needs, *lines]).strip("\n")
    statements = tuple(ast.unparse(one) for node in imports for one in _one_by_one(node))
    return OwnCode(statements, text, f"{attribute}()" if is_function else attribute, f"copied from {path.name}")


def _first_imports(tree: ast.Module, replaced: Mapping[int, object]) -> list[ast.Import | ast.ImportFrom]:
    """Return the imports that a file begins with; those from this package, which are replaced, are none of them."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) and node.names[0].name != "*":
            found += [node] if node.lineno not in replaced else []
        elif not _is_docstring(node):
            break
    return found


def _one_by_one(node: ast.Import | ast.ImportFrom) -> Iterator[ast.stmt]:
    for one in node.names:
        yield ast.ImportFrom(node.module, [one], 0) if isinstance(node, ast.ImportFrom) else ast.Import([one])


def _replaced(tree: ast.Module) -> dict[int, tuple[int, list[str]]]:
    """Return the statements that are not copied: the first line of each -> its last, and the lines in its place."""
    replaced: dict[int, tuple[int, list[str]]] = {}
    for node in tree.body:
        instead: list[str] = []
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            instead = [f"{node.names[0].asname or 'Task'} = {_OWN_STAND_IN[0]}", *_OWN_STAND_IN[1:]]
        elif not (_is_docstring(node) or _is_main(node) or ast.unparse(node).startswith("from __future__ ")):
            continue
        replaced[node.lineno] = (node.end_lineno or node.lineno, instead)
    return replaced


def _why_not_alone(path: Path, tree: ast.Module, replaced: Mapping[int, tuple[int, object]]) -> str:
    """Return why a file cannot do without this package, a clause; empty where it takes `Task` from it and no more."""
    ours = [node for node in tree.body if isinstance(node, ast.ImportFrom) and _is_ours(node.module)]
    for node in ours:
        if others := [one.name for one in node.names if one.name != "Task"]:
            return f"{path.name} imports {', '.join(others)} from {node.module}"
    for name, number in _imported(tree):
        if _is_ours(name) and not any(first <= number <= last for first, (last, _) in replaced.items()):
            return f"{path.name} imports {_PACKAGE} in line {number}"
        beside = path.parent / f"{name}.py"
        if beside.is_file() and any(_is_ours(one) for one, _ in _imported(ast.parse(beside.read_text("utf-8")))):
            return f"{beside.name}, which {path.name} imports, imports {_PACKAGE}"
    return ""


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _imported(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the packages that a file imports, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((one.name.partition(".")[0], node.lineno) for one in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0], node.lineno


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == _PACKAGE


def _gathered(module: ModuleType, name: str, spec: str) -> OwnCode:
    """Return a definition of ours with all the definitions it needs, each module's in its own order."""
    gathering = _Gathering()
    gathering.take(module.__name__, name)
    imports = sorted(gathering.imports)
    text = "\n\n\n".join(part for one in gathering.order for part in gathering.texts(one))
    return OwnCode(tuple(imports), re.sub(r"\n{3,}(?=\w+ = )", "\n\n", text), f"{name}()", f"the built-in task {spec}")


@dataclass
class _Gathering:
    """Definitions of ours that were taken, by module, and the imports that they need."""

    imports: set[str] = field(default_factory=set)
    order: list[str] = field(default_factory=list)  # modules, those that are needed first
    _taken: dict[str, dict[str, ast.stmt]] = field(default_factory=dict)

    def take(self, module: str, name: str) -> None:
        """Take a module's name, and what it stands on."""
        node = _definitions(module).get(name)
        if node is None or name in self._taken.setdefault(module, {}):
            return
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module):
            if name == "Task":
                self.imports.add(_STAND_IN)
                return
            self.take(str(node.module), next(one.name for one in node.names if (one.asname or one.name) == name))
            return
        if isinstance(node, ast.Import | ast.ImportFrom):
            alias = next(one for one in node.names if (one.asname or one.name).partition(".")[0] == name)
            start = f"from {node.module} " if isinstance(node, ast.ImportFrom) else ""
            self.imports.add(start + ast.unparse(ast.Import([alias])))
            return
        self._taken[module][name] = node
        for needed in _names_in(node):
            self.take(module, needed)
        if module not in self.order:
            self.order.append(module)

    def texts(self, module: str) -> Iterator[str]:
        """Yield the statements that were taken from a module."""
        nodes = {node.lineno: node for node in self._taken[module].values()}
        for number in sorted(nodes):
            yield _text(_source(module).splitlines(), nodes[number])


def _source(module: str) -> str:
    return inspect.getsource(importlib.import_module(module))


@functools.cache
def _definitions(module: str) -> dict[str, ast.stmt]:
    """Return the statement that defines each name of a module."""
    return {name: node for node in ast.parse(_source(module)).body for name in defined_names(node)}


def _text(lines: list[str], node: ast.stmt) -> str:
    """Return a statement of a module with these lines as a script has it."""
    decorators: Iterable[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(one.lineno for one in decorators)])
    if made := _task_made_in(node):
        fields = [one for one in made.keywords if one.arg not in _SAID_ELSEWHERE]
        written = "".join(f"        {one.arg}={ast.unparse(one.value)},\n" for one in fields)
        head = lines[first - 1 : made.lineno - 1]
        return "\n".join([*head, f"    return Task(\n{written}    )"])
    left_out = _left_out(node)
    kept = [lines[at - 1] for at in range(first, (node.end_lineno or node.lineno) + 1) if at not in left_out]
    return re.sub(r"  # type: ignore.*", "", "\n".join(kept))


def _task_made_in(node: ast.stmt) -> ast.Call | None:
    calls = (one for one in ast.walk(node) if isinstance(one, ast.Call))
    return next((one for one in calls if ast.unparse(one.func) == "Task"), None)


def defined_names(node: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [(one.asname or one.name).partition(".")[0] for one in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return [one.id for target in targets if target for one in ast.walk(target) if isinstance(one, ast.Name)]


def _names_in(node: ast.stmt) -> list[str]:
    """Return the names that a definition uses and Python does not know, in a fixed order."""
    skipped = _left_out(node)
    made = _task_made_in(node)
    for one in made.keywords if made else ():
        if one.arg in _SAID_ELSEWHERE:
            skipped |= set(range(one.lineno, (one.value.end_lineno or one.lineno) + 1))
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.lineno not in skipped}
    return sorted(used - set(dir(builtins)))


def _left_out(node: ast.stmt) -> set[int]:
    """Return the lines of a class's methods that only this package calls, with the empty line before each."""
    names = _LEFT_OUT.get(getattr(node, "name", ""), set())
    methods = [one for one in getattr(node, "body", ()) if isinstance(one, ast.FunctionDef) and one.name in names]
    return {line for one in methods for line in range(one.lineno - 1, (one.end_lineno or one.lineno) + 1)}
