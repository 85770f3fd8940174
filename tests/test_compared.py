"""The table that compares this project with others names a test for each line, and each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path("docs/guide/compared.md")


def test_each_line_of_the_comparison_names_a_test_that_exists() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")][2:]
    assert len(lines) > 15
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        assert len(cells) == 8, line
        if cells[-1] == "the same":
            continue
        path, _, name = cells[-1].strip("`").partition("::")
        text = Path(path).read_text(encoding="utf-8")
        assert not name or re.search(rf"^def {name}\(", text, re.MULTILINE), cells[-1]
