"""Notebooks as text: stripped, numbered, told in sentences, and built on public names only."""

from __future__ import annotations

import ast
import importlib
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.notebooks.shipped import NOTEBOOKS, read_notebook

LONGEST_CELL = 20  # lines of code; a study in quotes, which is one text, may be longer

each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])


def code_of(path: Path) -> str:
    return "\n\n".join(cell.source for cell in read_notebook(path)[1] if cell.kind == "code")


def imported_names(code: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of everything that is imported from the package."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "workbench":
            yield from ((node.module or "", alias.name) for alias in node.names)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "workbench")


def test_the_notebooks_are_numbered_and_each_number_is_used_once() -> None:
    numbers = [re.fullmatch(r"(\d\d)_[a-z][a-z_]*", path.stem) for path in NOTEBOOKS]
    assert NOTEBOOKS
    assert all(numbers), [path.name for path in NOTEBOOKS]
    assert len({number.group(1) for number in numbers if number}) == len(NOTEBOOKS)


@each_notebook
def test_it_is_stripped_but_for_its_kernel(path: Path) -> None:
    metadata, cells = read_notebook(path)
    assert set(metadata) <= {"kernelspec", "language_info"}
    assert metadata["kernelspec"]["name"] == "python3"
    assert set(metadata.get("language_info", {})) <= {"name"}
    for kind, source, stored in cells:
        assert not stored["metadata"], source
        if kind == "code":
            assert (stored["outputs"], stored["execution_count"]) == ([], None), source


@each_notebook
def test_a_sentence_says_what_to_look_for_before_every_cell_of_code(path: Path) -> None:
    _, cells = read_notebook(path)
    kinds = [cell.kind for cell in cells]
    assert kinds[0] == "markdown"
    assert cells[0].source.startswith("# ")
    assert "**Question.**" in cells[0].source
    assert kinds[-1] == "code", "a notebook ends in the thing to look at"
    assert ("code", "code") not in itertools.pairwise(kinds)


@each_notebook
def test_cells_are_short_and_seeds_in_view(path: Path) -> None:
    code = code_of(path)
    for cell in read_notebook(path)[1]:
        if cell.kind == "code":
            lines = re.sub(r'""".*?"""', '""', cell.source, flags=re.DOTALL).splitlines()
            assert len([line for line in lines if line.strip()]) <= LONGEST_CELL, cell.source
    assert re.search(r"SEED\b.*= .*\d|^seed = \d", code, flags=re.MULTILINE)


@each_notebook
def test_it_imports_public_names_only(path: Path) -> None:
    names = list(imported_names(code_of(path)))
    assert names
    for module, name in names:
        home = importlib.import_module(module)
        assert name in getattr(home, "__all__", vars(home)), f"{module}.{name}"
        assert not any(part.startswith("_") for part in (*module.split("."), name))


@pytest.mark.optional
@each_notebook
def test_its_text_survives_a_review_as_py_percent(path: Path) -> None:
    jupytext = pytest.importorskip("jupytext", reason="jupytext is for development: pip install -e '.[dev]'")
    notebook = jupytext.read(path)
    back = jupytext.reads(jupytext.writes(notebook, fmt="py:percent"), fmt="py:percent")
    assert [(one.cell_type, one.source) for one in back.cells] == [cell[:2] for cell in read_notebook(path)[1]]
