"""The table of CONTRIBUTING.md that says where things happen names files and definitions that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = GUIDE.partition("## Where things happen")[2].partition("\n## ")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "|---" not in line][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:40])
def test_what_a_row_names_is_in_its_files(row: str) -> None:
    named = re.findall(r"`([^`]+)`", row)
    files = [name for name in named if name.endswith(".py")]
    found = [path for name in files for path in (ROOT / "workbench").rglob(f"*{name}")]
    assert files
    assert {name for name in files if not any(path.as_posix().endswith(f"/{name}") for path in found)} == set()
    text = "\n".join(path.read_text(encoding="utf-8") for path in found)
    definitions = [name.rpartition(".")[2] for name in named if re.fullmatch(r"_?[A-Za-z]\w*(\.\w+)?", name)]
    assert [name for name in definitions if name != "py" and not re.search(rf"\b{name}\b", text)] == []
