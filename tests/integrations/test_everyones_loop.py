"""The study of three frameworks' own examples: how little changes, and that what it keeps still trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integrations.test_pages import changed

STUDY = Path(__file__).parents[2] / "studies/everyones_loop"
CHANGED = {"transformers": 4, "lightning": 2, "accelerate": 3}


def program(framework: str, which: str) -> Path:
    return STUDY / f"with_{framework}" / f"{which}.py"


@pytest.mark.parametrize("framework", CHANGED)
def test_four_lines_at_most_are_other_ones(framework: str) -> None:
    before, after = (program(framework, which).read_text(encoding="utf-8") for which in ("before", "after"))
    assert changed(before, after) == CHANGED[framework] <= 4
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    (row,) = [line for line in readme.splitlines() if f"with_{framework}" in line]
    assert row.split(" | ")[1] == str(CHANGED[framework])


@pytest.mark.parametrize("framework", CHANGED)
def test_the_page_says_what_the_files_hold(framework: str) -> None:
    compared = json.loads((STUDY / "result" / f"{framework}_compared.json").read_text(encoding="utf-8"))
    found = json.loads((STUDY / "result" / f"{framework}_found.json").read_text(encoding="utf-8"))
    readme = (STUDY / "README.md").read_text(encoding="utf-8")
    ratio = compared["ratio"]
    assert f"{ratio['mean']:.2f} x ({ratio['low']:.2f} to {ratio['high']:.2f})" in readme
    assert f"{found['speedup']:.2f} x ({found['speedup_low']:.2f} to {found['speedup_high']:.2f})" in readme


@pytest.mark.long
@pytest.mark.parametrize("framework", CHANGED)
def test_the_set_up_that_is_kept_trains_in_the_framework(framework: str) -> None:
    compared = json.loads((STUDY / "result" / f"{framework}_compared.json").read_text(encoding="utf-8"))
    ended = subprocess.run(
        [sys.executable, str(program(framework, "after")), "1"], capture_output=True, text=True, timeout=240,
        check=False, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(STUDY.parents[1])},
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    _, accuracy = json.loads(ended.stdout.splitlines()[-1].replace("(", "[").replace(")", "]"))
    assert accuracy == pytest.approx(compared["means"]["after_accuracy"], abs=0.04)
