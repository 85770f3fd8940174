"""Commands that only look answer without the libraries that train, search and draw: counted by what is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome
from workbench.study.store.status_file import STATUS_NAME

HEAVY = {"torch", "optuna", "pandas", "pyarrow", "plotly", "sklearn", "scipy", "sqlalchemy"}
PROGRAM = """
import sys
from workbench.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    code = ended.code
print(code, *sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def loaded_by(folder: Path, *arguments: str) -> tuple[str, set[str]]:
    """Run a command in a process of its own; return what it printed and the packages it has loaded."""
    command = [sys.executable, "-c", PROGRAM, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True)
    code, *packages = done.stderr.splitlines()[-1].split()
    assert code == "0", done.stderr
    return done.stdout, set(packages)


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("status", "study"), "3 of 3 trials finished"),
        (("status", "study", "--json"), '"n_trials": 3'),
        (("validate", "study/result/boost_config.o1.json"), "valid; at level O1"),
        (("runs", "list", "."), "started (UTC)"),
        (("runs", "list", ".", "--json"), '"started"'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_command_that_looks_loads_nothing_heavy(
    tuned_once: tuple[Path, Outcome], arguments: tuple[str, ...], shown: str
) -> None:
    printed, packages = loaded_by(tuned_once[0], *arguments)
    assert shown in printed
    assert not packages & HEAVY


def test_help_draws_no_boxes(tmp_path: Path) -> None:
    printed, packages = loaded_by(tmp_path, "--help")
    assert "search, confirm, export" in " ".join(printed.split())  # sentences are whole
    assert not packages & (HEAVY | {"rich", "numpy"})


@pytest.mark.slow
def test_status_says_the_same_without_the_kept_file(tuned_once: tuple[Path, Outcome], tmp_path: Path) -> None:
    folder = tuned_once[0]
    kept = [loaded_by(folder, "status", "study", *more)[0] for more in ((), ("--json",))]
    away = (folder / "study" / STATUS_NAME).rename(tmp_path / STATUS_NAME)
    try:
        read = [loaded_by(folder, "status", "study", *more) for more in ((), ("--json",))]
    finally:
        away.rename(folder / "study" / STATUS_NAME)
    assert "optuna" in read[0][1]
    assert kept == [printed for printed, _ in read]
