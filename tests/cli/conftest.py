"""A ten-line task on a real table, a study of it, and the command line as a function."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest

from workbench.cli import main

TASK = """\
import torch
from sklearn.datasets import load_wine
from torch import nn
from workbench import Task

x, y = load_wine(return_X_y=True)
x, y = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32), torch.tensor(y)
batches = [(x[i::8], y[i::8]) for i in range(8)]
task = Task(name="wine", model=lambda: nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3)),
            loss=nn.CrossEntropyLoss(), optimizer=lambda named: torch.optim.SGD(named, lr=0.1, fused=True),
            train=batches, evaluate=batches, metric="accuracy")
"""

STUDY = """\
[study]
task = "../wine.py"
budget_steps = 12
n_trials = 3
device = "cpu"
[sampler]
name = "random"
[speed]
rounds = 2
steps_per_block = 1
[confirm]
seeds_min = 2
seeds_max = 2
candidates = 1
[space]
level = ["O1"]
"boost.less_bn" = [false]
"boost.grad_freeze" = [false]
"boost.grad_accumulation" = [true, false]
"grad_accumulation.grad_accumulation_step" = [2, 4]
"""


@dataclass(frozen=True)
class Outcome:
    """What a command gave."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """The one line on stderr, without progress."""
        lines = [line for line in self.err.splitlines() if line.startswith("workbench: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0]

    def refused(self, code: int = 2) -> str:
        """Return that line, of a command that ended with this code."""
        assert self.code == code, self.err
        return self.sentence

    def succeeded(self) -> str:
        """Return what it printed, having done its work."""
        assert self.code == 0, self.err
        return self.out


Command = Callable[..., Outcome]


def write_study(folder: Path) -> None:
    """Write the task and a study of it that has not begun."""
    (folder / "wine.py").write_text(TASK)
    (folder / "study").mkdir()
    (folder / "study" / "study.toml").write_text(STUDY)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder that holds the task."""
    (tmp_path / "wine.py").write_text(TASK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORKBENCH_TRACEBACK", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def study(here: Path) -> Path:
    """Return the folder of a study that has not begun."""
    write_study(here)
    return Path("study")


@pytest.fixture(scope="session")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Return a folder that holds the task and a study of it that ran to its end, and what the command said."""
    folder = tmp_path_factory.mktemp("tuned")
    write_study(folder)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            main(["tune", "study"])
    return folder, Outcome(int(ended.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture
def tuned(tuned_once: tuple[Path, Outcome], here: Path) -> Path:
    """Return the folder of a study that has run to its end, the test's own copy."""
    shutil.copytree(tuned_once[0] / "study", here / "study")
    return Path("study")


@pytest.fixture
def workbench(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Return the command line as a function of its arguments."""

    def command(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["workbench", *(str(argument) for argument in arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return Outcome(int(ended.value.code or 0), captured.out, captured.err)

    return command
