"""Commands that only look answer without the libraries that train, search and draw: counted by what is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome
from workbench.study.store.status_file import STATUS_NAME

HEAVY = {"torch", "optuna", "pandas", "pyarrow", "plotly", "sklearn", "scipy", "sqlalchemy"}
# Runs one command after the other; after each it says on a page of its own how it ended and what is loaded.
PROGRAM = r"""
import sys
from workbench.cli import main
for command in sys.argv[1:]:
    try:
        main(command.split())
    except SystemExit as ended:
        code = ended.code
    print("\f", code, *sorted({name.partition(".")[0] for name in sys.modules}), end="\f")
"""
LOOKS = {
    "status study": "3 of 3 trials finished",
    "status study --json": '"n_trials": 3',
    "validate study/result/boost_config.o1.json": "valid; at level O1",
    "runs list .": "started (UTC)",
    "runs list . --json": '"started"',
}
NAMES = ("tune", "status", "export", "train", "compare", "replay", "runs", "validate", "schema", "init", "doctor")


def loaded_by(folder: Path, *commands: str) -> list[tuple[str, set[str]]]:
    """Run commands in one fresh process; return what each printed, and the packages loaded by then."""
    program = [sys.executable, "-c", PROGRAM, *commands]
    done = subprocess.run(program, cwd=folder, capture_output=True, text=True, timeout=120, check=True)
    pages = done.stdout.split("\f")
    told = []
    for printed, end in zip(pages[:-1:2], pages[1::2], strict=True):
        code, *packages = end.split()
        assert code == "0", done.stderr
        told.append((printed, set(packages)))
    return told


def test_commands_that_look_load_nothing_heavy_and_help_draws_no_boxes(tuned_once: tuple[Path, Outcome]) -> None:
    (told, loaded), *looks = loaded_by(tuned_once[0], "--help", *LOOKS)
    assert all(f" {name} " in told for name in NAMES)
    assert "search, confirm, export" in " ".join(told.split()), "sentences are whole"
    assert not loaded & (HEAVY | {"rich", "numpy"})
    for (command, shown), (printed, packages) in zip(LOOKS.items(), looks, strict=True):
        assert shown in printed, command
        assert not packages & HEAVY, command


@pytest.mark.slow
def test_status_says_the_same_without_the_kept_file(tuned_once: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder, commands = tuned_once[0], ("status study", "status study --json")
    kept = loaded_by(folder, *commands)
    away = (folder / "study" / STATUS_NAME).rename(tmp_path / STATUS_NAME)
    try:
        read = loaded_by(folder, *commands)
    finally:
        away.rename(folder / "study" / STATUS_NAME)
    assert "optuna" in read[0][1]
    assert [printed for printed, _ in kept] == [printed for printed, _ in read]
