"""Every notebook as it is shipped, from top to bottom, in a fresh kernel and an empty folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.notebooks.shipped import NOTEBOOKS

pytestmark = [pytest.mark.notebook, pytest.mark.timeout(600)]

LIMIT = 240  # seconds for one cell; a whole notebook takes half of that on a machine that does nothing else


# The quickstart is run in the browser by a test of its own; the others take longest.
LONG = {
    "00_quickstart",
    "01_boost_levels",
    "03_gradient_freezing",
    "04_dim_reduce",
    "05_thor_and_adam_offload",
    "06_automatic_search",
    "07_online_recommender",
    "09_where_the_gain_comes_from",
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_it_is_valid(path: Path) -> None:
    import nbformat  # which takes six seconds, in each process that collects tests

    nbformat.validate(nbformat.read(path, as_version=nbformat.NO_CONVERT))  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.long] * (path.stem in LONG)) for path in NOTEBOOKS],
)
def test_it_runs_from_top_to_bottom_and_complains_of_nothing(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")  # jupyter_core announces it as its coming default
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    client = NotebookClient(notebook, timeout=LIMIT, kernel_name="python3", resources={"metadata": {"path": tmp_path}})
    client.execute()
    if folder := os.environ.get("WORKBENCH_EXECUTED_NOTEBOOKS"):  # the documentation shows these copies
        Path(folder).mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, Path(folder) / path.name)
    outputs = [(i, output) for i, cell in enumerate(notebook.cells) for output in cell.get("outputs", [])]
    complaints = [f"cell {i}: {output.text}" for i, output in outputs if output.get("name") == "stderr"]
    assert complaints == []
    shown = [output for i, output in outputs if i == len(notebook.cells) - 1]
    assert shown, "a notebook ends in the thing to look at"
