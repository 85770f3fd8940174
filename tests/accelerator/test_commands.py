"""The commands with ``--device auto`` on a machine that has an accelerator."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cli.conftest import STUDY, TASK
from workbench.cli import main
from workbench.training import compare

pytestmark = [
    pytest.mark.accelerator,
    pytest.mark.filterwarnings("ignore:less_bn had no effect"),
    pytest.mark.filterwarnings("ignore:grad_freeze is not in effect"),
]
Command = Callable[..., Any]


@pytest.fixture
def workbench(
    accelerator: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Return the command line as a function that gives what ``--json`` printed, in a folder with a task."""
    monkeypatch.chdir(tmp_path)
    Path("wine.py").write_text(TASK, encoding="utf-8")

    def call(*arguments: str) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*arguments, "--json"])
        said = capsys.readouterr()
        assert ended.value.code == 0, said.err
        return json.loads(said.out)

    return call


def test_auto_is_the_accelerator(workbench: Command, accelerator: torch.device) -> None:
    workbench("train", "--task", "wine.py", "--steps", "20")
    (folder,) = Path("runs").iterdir()
    environment = json.loads((folder / "environment.json").read_text(encoding="utf-8"))
    assert environment["device"]["type"] == accelerator.type


def test_configurations_are_compared_there(workbench: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(compare.measure_speed_ratio, rounds=2, precision=math.inf)  # how fast it is there nobody asks
    monkeypatch.setattr(compare, "measure_speed_ratio", few)
    Path("scaled.json").write_text('{"amp": {"level": "O2"}, "loss_scale": {"kind": "dynamic"}}', encoding="utf-8")
    said = workbench("compare", "scaled.json", "--task", "wine.py", "--steps", "12", "--seeds", "2")
    assert "scaled" in json.dumps(said)


def test_a_recorded_run_is_replayed(workbench: Command) -> None:
    Path("scaled.json").write_text(
        '{"amp": {"level": "O2"}, "loss_scale": {"kind": "dynamic", "init": 1e8, "window": 2}}', encoding="utf-8"
    )
    workbench("train", "--task", "wine.py", "--steps", "24", "--level", "O0", "--config", "scaled.json")
    (folder,) = Path("runs").iterdir()
    assert workbench("replay", str(folder))


def test_a_study_is_tuned_there(workbench: Command) -> None:
    folder = Path("study")
    folder.mkdir()
    text = STUDY.replace('device = "cpu"', 'device = "auto"')
    (folder / "study.toml").write_text(text, encoding="utf-8")
    workbench("tune", "study")
    assert (folder / "result/boost_config.o1.json").exists()
    assert (folder / "result/report.html").exists()
