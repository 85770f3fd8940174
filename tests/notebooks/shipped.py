"""Where the notebooks are, and how their files are read.

As JSON: nbformat takes six seconds to import, in each process that collects tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


class Cell(NamedTuple):
    """A cell as it lies on the disk."""

    kind: str
    source: str
    stored: dict[str, Any]


def read_notebook(path: Path) -> tuple[dict[str, Any], list[Cell]]:
    """Return a notebook's metadata and its cells."""
    stored = json.loads(path.read_text(encoding="utf-8"))
    return stored["metadata"], [Cell(one["cell_type"], "".join(one["source"]), one) for one in stored["cells"]]
