"""A time limit counts from when the command was started, not from when it has loaded itself."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.cli.command_start import began, for_ranks

_SCRIPT = """
import time
while time.process_time() < 0.3:
    pass
from workbench.cli.command_start import began
then = began()
print(time.monotonic() - then)
"""


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass."""
    monkeypatch.setattr(time, "monotonic", lambda: 1000.0)
    monkeypatch.setattr(time, "time", lambda: 1e9)


def test_called_by_another_program_a_command_begins_now(still: None) -> None:
    assert began() == time.monotonic()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """Write a command that says how long ago it began."""
    path = tmp_path / "workbench"
    path.write_text(_SCRIPT)
    return path


def said_and_took(*words: object) -> tuple[float, float]:
    """Return what a command says, and how long it took as seen from here."""
    before = time.monotonic()
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True)
    return float(done.stdout), time.monotonic() - before


def test_the_time_before_the_command_could_look_at_a_clock_counts(script: Path) -> None:
    told, took = said_and_took(sys.executable, script)
    assert 0.3 <= told <= took + 0.02


@pytest.mark.skipif(sys.platform == "win32", reason="a shell becomes its last command on POSIX systems")
def test_what_a_shell_did_before_it_became_the_command_does_not_count(script: Path) -> None:
    told, took = said_and_took("sh", "-c", f"sleep 0.8; exec {sys.executable} {script}")
    assert told <= took - 0.8


def test_a_rank_begins_when_the_command_did_that_started_it(monkeypatch: pytest.MonkeyPatch, still: None) -> None:
    told = for_ranks()
    (name,) = told
    monkeypatch.setenv(name, repr(float(told[name]) - 3.0))
    assert time.monotonic() - began() == 3.0
    monkeypatch.setenv(name, repr(float(told[name]) - 86_400.0))  # somebody set the clock
    assert time.monotonic() - began() == 60.0
    monkeypatch.setenv(name, repr(float(told[name]) + 86_400.0))
    assert began() == time.monotonic()


@pytest.mark.slow
def test_a_limit_that_is_over_while_the_task_is_loaded_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text("import time\ntime.sleep(1000)\n")
    (tmp_path / "study.toml").write_text('[study]\ntask = "late.py:task"\nbudget_steps = 10\nn_trials = 2\n[space]\n')
    command = [sys.executable, "-m", "workbench", "tune", str(tmp_path), "--timeout", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "the time limit of 1 s was over before the task was loaded" in done.stderr


@pytest.mark.slow
def test_an_error_while_worker_processes_read_is_the_last_word(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        """
import torch
from torch.utils.data import DataLoader, TensorDataset
from workbench import Task

def no_metric(outputs, targets):
    raise ArithmeticError("there is none")

loader = DataLoader(TensorDataset(torch.zeros(64, 4), torch.zeros(64, 1)), batch_size=2, num_workers=1)
task = Task(
    name="mine", model=lambda: torch.nn.Linear(4, 1), loss=torch.nn.MSELoss(),
    optimizer=lambda named: torch.optim.SGD([p for _, p in named], lr=0.1),
    train=loader, evaluate=loader, metric=no_metric, direction="maximize",
)
"""
    )
    command = [sys.executable, "-m", "workbench", "tune", "mine.py:task", "--steps", "100"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    lines = done.stderr.splitlines()
    assert [line.startswith("workbench: ") for line in lines] == [True], done.stderr
    assert "there is none" in lines[0]
