"""Where the notebooks are, and how their files are read."""

from __future__ import annotations

from pathlib import Path

import nbformat

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """Return a notebook as it lies on the disk, without being brought up to date."""
    notebook: nbformat.NotebookNode = nbformat.reads(path.read_text(encoding="utf-8"), as_version=nbformat.NO_CONVERT)  # type: ignore[no-untyped-call]
    return notebook
