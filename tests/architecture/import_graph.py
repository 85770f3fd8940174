"""The import graph of the package, read from its source without importing it.

An import counts wherever it stands, inside functions too; only those under ``if TYPE_CHECKING:`` do not, because they
never happen. ``importlib.import_module("a.b")`` counts when the name is written out.
"""

from __future__ import annotations

import ast
import functools
import gc
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ROOT", "Import", "home", "imports_below", "imports_of", "module_name", "nodes_below"]

ROOT = Path(__file__).resolve().parents[2] / "workbench"
PACKAGE = ROOT.name


@dataclass(frozen=True)
class Import:
    """One imported module: who imports it, where, and its full dotted name."""

    importer: str
    target: str
    path: Path
    line: int

    @property
    def is_ours(self) -> bool:
        return self.target.partition(".")[0] == PACKAGE

    @property
    def is_third_party(self) -> bool:
        top = self.target.partition(".")[0]
        return not self.is_ours and top not in sys.stdlib_module_names

    @property
    def where(self) -> str:
        return f"{self.path}:{self.line}"

    def __str__(self) -> str:
        return f"{self.where}: {self.importer} imports {self.target}"


def module_name(path: Path, root: Path = ROOT) -> str:
    """Return the dotted name of a source file below the package's folder."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def home(module: str) -> str:
    """Return the package or module directly below ``workbench`` that a dotted name belongs to; "" for the root."""
    return module.split(".")[1] if "." in module else ""


@functools.cache
def nodes_below() -> dict[Path, list[ast.AST]]:
    """Return what each file of the package consists of, the module first; they are read once for all tests."""
    nodes = {path: list(ast.walk(ast.parse(path.read_text(encoding="utf-8")))) for path in sorted(ROOT.rglob("*.py"))}
    gc.collect()  # or what is garbage now would stay until the end
    gc.freeze()  # a look for garbage need not go through all of them
    return nodes


def imports_of(path: Path, root: Path = ROOT) -> list[Import]:
    """Return what one source file imports, in the order of the file."""
    importer = module_name(path, root)
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    text = path.read_text(encoding="utf-8")
    # Most of a tree are expressions, which need not be looked through where no call imports anything.
    passed_over = () if "import_module(" in text or "__import__(" in text else ast.expr
    tree = nodes_below()[path][0] if root == ROOT else ast.parse(text)
    found = []
    for node in _running(tree, passed_over):
        found += [Import(importer, target, path, node.lineno) for target in _targets(node, package, root)]
    return sorted(found, key=lambda entry: entry.line)


@functools.cache
def imports_below() -> tuple[Import, ...]:
    """Return every import of the package."""
    return tuple(entry for path in nodes_below() for entry in imports_of(path))


def _running(
    tree: ast.AST, passed_over: type[ast.expr] | tuple[()]
) -> Iterator[ast.Import | ast.ImportFrom | ast.Call]:
    """Yield the imports and calls of a tree, in no order, without the branches that only type checkers see."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and _is_type_checking(node.test):
            waiting += node.orelse
            continue
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            yield node
        waiting += (child for child in ast.iter_child_nodes(node) if not isinstance(child, passed_over))


def _is_type_checking(test: ast.expr) -> bool:
    name = test.attr if isinstance(test, ast.Attribute) else getattr(test, "id", None)
    return name == "TYPE_CHECKING"


def _targets(node: ast.Import | ast.ImportFrom | ast.Call, package: str, root: Path) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
        first = node.args[0] if node.args else None
        written_out = isinstance(first, ast.Constant) and isinstance(first.value, str)
        return [first.value] if name in {"import_module", "__import__"} and written_out else []
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, *([node.module] if node.module else [])])
    if base == "__future__":
        return []
    if base.partition(".")[0] != root.name:
        return [base]
    # "from workbench import devices" imports workbench.core.devices; "from workbench.config import BoostConfig" does
    # not.
    return sorted(
        {f"{base}.{alias.name}" if _is_module(f"{base}.{alias.name}", root) else base for alias in node.names}
    )


@functools.cache
def _is_module(name: str, root: Path) -> bool:
    place = root.parent.joinpath(*name.split("."))
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
