"""One word for one thing in what people read, as the page of words (``docs/guide/words.md``) has it."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.architecture.import_graph import nodes_below

ROOT = Path(__file__).parents[1]

# What a framework or a person plans, and names of Python that a page explains.
_PLAN = re.compile(r"(?<![\w.`])[Pp]lans?(?![\w`.(])")


def _texts_of_code(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield the texts in a module that may be shown: all but docstrings, annotations and plain names."""
    unseen = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = node.value if isinstance(node, ast.Constant) and id(node) not in unseen else None
        if isinstance(text, str) and not text.isidentifier() and text != "Plan(":
            yield text


def _prose(path: Path) -> str:
    """Return what people read of a page, a template or a notebook; code, but not its comments, is left out."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    if path.suffix == ".j2":
        text = re.sub(r"\{[{%#].*?[}%#]\}", "", text, flags=re.DOTALL)
    return text


def _pages() -> list[Path]:
    found = [ROOT / "README.md", *(ROOT / "notebooks").glob("*.ipynb"), *(ROOT / "studies").glob("*/README.md")]
    found += (ROOT / "docs" / "guide").glob("*.md")
    for pattern in ("*.md", "*.j2", "*.js"):
        found += (ROOT / "workbench").rglob(pattern)
    return sorted(found)


@pytest.mark.parametrize("path", _pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_say_set_up_and_write_times_as_x(path: Path) -> None:
    text = _prose(path)
    assert "×" not in text
    if path.name != "words.md":
        assert not [line for line in text.splitlines() if _PLAN.search(line)]


def test_sentences_of_the_program_say_set_up_and_write_times_as_x() -> None:
    found = []
    for path, nodes in nodes_below().items():
        found += [(path.name, text) for text in _texts_of_code(nodes) if "×" in text or _PLAN.search(text)]
    assert found == []
