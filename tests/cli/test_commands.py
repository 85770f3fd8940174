"""Every command does its work and says it; --json prints one object."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from tests.cli.conftest import TASK, Command, Outcome
from tests.kit.processes import start_command
from workbench import __version__
from workbench.cli import _each_note_once, run_commands
from workbench.config import BoostConfig
from workbench.core.other_work import OtherWork
from workbench.runs import read_run


def test_version_is_printed(workbench: Command) -> None:
    outcome = workbench("--version")
    assert (outcome.code, outcome.out) == (0, f"{__version__}\n")


def test_train_records_a_run_and_says_metric_and_place(workbench: Command, here: Path) -> None:
    outcome = workbench("train", "--task", "wine.py", "--steps", 20, "--device", "cpu", "--out", "runs")
    assert outcome.code == 0
    (path,) = (here / "runs").iterdir()
    run = read_run(path)
    assert len(run.steps) == 20
    assert f"accuracy {run.summary['metric']:.5g} after 20 steps" in outcome.out
    assert f"recorded in runs/{path.name}" in outcome.out
    assert "wine.py: 20 of 20" in outcome.err


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_a_training_beside_other_work_says_so_once_after_some_seconds(
    workbench: Command, here: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(run_commands, "WATCHED_SECONDS", seconds)
    monkeypatch.setattr(OtherWork, "sentence", lambda self, threads: f"Others are busy, beside {threads}")
    outcome = workbench("train", "--task", "wine.py", "--steps", 20, "--device", "cpu")
    told = f"Others are busy, beside {torch.get_num_threads()}."
    assert outcome.err.splitlines().count(told) == (seconds == 0.0)


def test_train_counts_epochs_in_batches_of_the_loader(workbench: Command, here: Path) -> None:
    workbench("train", "--task", "wine.py", "--epochs", 1.5, "--device", "cpu").succeeded()
    (path,) = (here / "runs").iterdir()
    assert len(read_run(path).steps) == 12, "the loader has 8 batches"
    sentence = workbench("train", "--task", "wine.py", "--epochs", 1, "--steps", 8).refused()
    assert "--steps and --epochs say the same; give one of them" in sentence
    endless = (here / "wine.py").read_text().replace("train=batches", "train=lambda seed: itertools.cycle(batches)")
    (here / "endless.py").write_text(f"import itertools\n{endless}")
    sentence = workbench("train", "--task", "endless.py", "--epochs", 1).refused()
    assert "the loader of wine does not know its length; say --steps N instead of epochs" in sentence
    assert len(list((here / "runs").iterdir())) == 1


@pytest.mark.slow
def test_train_with_json_prints_one_object_whatever_the_task_prints(here: Path) -> None:
    noise = 'import os\nprint("said by the task")\nos.write(1, b"said below Python\\n")\n'
    (here / "noisy.py").write_text(noise + (here / "wine.py").read_text())
    process = start_command(["train", "--task", "noisy.py", "--steps", "4", "--json"], here / "said")
    process.join(120)
    out, err = (Path(f"{here}/said.{ending}").read_text() for ending in ("out", "err"))
    assert process.exitcode == 0, err
    assert json.loads(out)["steps"] == 4
    assert "said by the task" in err
    assert "said below Python" in err


def test_overflows_are_told_and_replay_judges_policies_on_them(workbench: Command, here: Path) -> None:
    amp = {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False},
        "amp": {"level": "O2", "dtype": "float16"},
        "loss_scale": {"kind": "dynamic", "init": 2.0**24, "window": 5},
    }
    BoostConfig.from_dict(amp).save(here / "amp.json")
    said = workbench("train", "--task", "wine.py", "--config", "amp.json", "--steps", 20, "--device", "cpu").succeeded()
    run = Path(next((here / "runs").iterdir()))
    overflows = len(read_run(run).overflow_steps)
    assert overflows > 0
    assert f"{overflows} update" in said
    assert f"workbench replay runs/{run.name}" in said

    told = json.loads(workbench("replay", run, "--init", 2.0**24, "--init", 16, "--window", 5, "--json").succeeded())
    assert told["recorded_overflows"] == overflows
    assert [policy["init"] for policy in told["policies"]] == [2.0**24, 16.0]
    assert told["policies"][1]["overflows"] == 0
    table = workbench("replay", run, "--init", 16)
    assert f"20 updates recorded, {overflows} of them overflowed" in table.out


@pytest.mark.parametrize(("scale", "told"), [(1024.0, "scale 2^10"), (1000.0, "scale 1000"), (1.5, "scale 1.5")])
def test_progress_writes_a_power_of_two_as_one_and_no_other_scale(
    workbench: Command, here: Path, scale: float, told: str
) -> None:
    off = {"boost": {"mode": "disable_all"}, "loss_scale": {"kind": "fixed", "init": scale}}
    (here / "config.json").write_text(json.dumps(off))
    result = workbench("train", "--task", "wine.py:task", "--config", "config.json", "--steps", 8, "--device", "cpu")
    assert re.search(rf"{re.escape(told)}$", result.err, re.MULTILINE)


@pytest.mark.parametrize(("said", "steps"), [("steps=5", 5), ("epochs=0.5", 4)], ids=["steps", "epochs"])
def test_train_and_compare_take_as_many_batches_as_the_task_says(
    said: str, steps: int, workbench: Command, here: Path
) -> None:
    (here / "own.py").write_text((here / "wine.py").read_text().replace("train=batches", f"{said}, train=batches"))
    BoostConfig().with_values({"boost.mode": "disable_all", "schedule.length": 0.5}).save(here / "half.json")
    trained = json.loads(workbench("train", "--task", "own.py", "--device", "cpu", "--json").out)
    assert trained["steps"] == steps
    compared = workbench("compare", "half.json", "--task", "own.py", "--seeds", 1, "--device", "cpu", "--json")
    assert json.loads(compared.out)["steps"] == steps


def test_compare_of_one_file_compares_with_o0(workbench: Command, here: Path) -> None:
    off = {"boost.mode": "manual", "boost.less_bn": False, "boost.grad_freeze": False}
    accumulating = off | {"boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 2}
    BoostConfig().with_values(accumulating).save(here / "one.json")
    common = ("compare", "one.json", "--task", "wine.py", "--steps", 6, "--device", "cpu")
    said = workbench(*common, "--seeds", 1).succeeded()
    assert "accumulation over 2" in said
    assert "one.json: " in said
    compared = json.loads(workbench(*common, "--seeds", 2, "--json").out)
    assert [side["label"] for side in compared["sides"]] == ["O0", "one.json"]
    assert compared["seeds"] == [0, 1]


def test_runs_are_listed_and_pruned(workbench: Command, here: Path) -> None:
    for seed in range(3):
        workbench("train", "--task", "wine.py", "--steps", 2, "--seed", seed, "--device", "cpu")
    listed = json.loads(workbench("runs", "list", "--json").out)["runs"]
    assert len(listed) == 3
    newest = listed[0]["run"]
    assert newest in workbench("runs", "list").out
    would = workbench("runs", "prune", "--keep", 1, "--dry-run")
    assert "2 runs would be removed" in would.out
    assert len(list((here / "runs").iterdir())) == 3
    assert "2 runs removed" in workbench("runs", "prune", "--keep", 1).out
    assert [path.name for path in (here / "runs").iterdir()] == [newest]


def test_tune_status_export_and_validate_make_one_way(
    workbench: Command, tuned_once: tuple[Path, Outcome], tuned: Path, here: Path
) -> None:
    study, said = tuned, tuned_once[1].succeeded()
    for name in ("boost_config.o1.json", "boost_config.o2.json", "report.html"):
        assert f"wrote study/result/{name}" in said
    assert "search: 0 of 3" in tuned_once[1].err

    status = workbench("status", study).succeeded()
    assert "3 of 3 trials finished" in status
    assert "exported study/result/boost_config.o1.json" in status
    told = json.loads(workbench("status", study, "--json").out)
    assert [trial["state"] for trial in told["trials"]].count("complete") >= 1
    assert told["trials"][0]["summary"] == "nothing switched on"

    exported = json.loads(workbench("export", study, "--out", "elsewhere", "--json").out)
    assert exported["exported"] == {name: f"elsewhere/boost_config.{name}.json" for name in ("o1", "o2")}
    assert (here / "elsewhere" / "report.html").exists()

    valid = workbench("validate", "elsewhere/boost_config.o1.json").succeeded()
    assert "valid; at level O1 it means:" in valid
    assert "from study study on task ../wine.py" in valid

    workbench("tune", study).succeeded()  # nothing is left to do, and nothing is done twice
    assert json.loads(workbench("status", study, "--json").out)["trials"] == told["trials"]


# The smallest network in which a BatchNorm can be spared: a residual branch of two behind one that stays.
RESIDUAL = """
import dataclasses

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.one, self.two = (nn.Sequential(nn.Conv2d(n, 8, 1), nn.BatchNorm2d(8)) for n in (13, 8, 8))
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        x = torch.relu(self.stem(x[..., None, None]))
        return self.fc(torch.relu(x + self.two(torch.relu(self.one(x)))).flatten(1))

task = dataclasses.replace(task, name="residual", model=Residual)
"""


def test_train_and_compare_say_whose_head_was_normalised(workbench: Command, here: Path) -> None:
    (here / "residual.py").write_text(TASK + RESIDUAL)
    (here / "less_bn.json").write_text('{"boost": {"mode": "manual", "grad_freeze": false}}')
    trained = workbench("train", "--task", "residual.py", "--config", "less_bn.json", "--steps", 1)
    assert "in effect: LessBN\n  head `fc` normalised\n" in trained.out
    compared = workbench("compare", "--task", "residual.py", "less_bn.json", "--seeds", 1, "--steps", 1)
    assert "LessBN; head `fc` normalised" in compared.out


def test_validate_says_what_is_not_in_effect_and_what_the_file_leaves_to_the_level(
    workbench: Command, here: Path
) -> None:
    (here / "one.json").write_text('{"boost": {"mode": "manual", "adasum": true, "grad_freeze": true}}')
    assert "not in effect: " in workbench("validate", "one.json", "--level", "O1", "--world-size", 1).succeeded()
    told = json.loads(workbench("validate", "one.json", "--json").out)
    assert told["valid"] is True
    assert "adasum" in told["not_in_effect"]
    assert "grad_freeze.freeze_p" in told["parameters"]

    (here / "two.json").write_text('{"boost": {"mode": "manual", "less_bn": true}}')
    left = "switches that are not named take the default of level O1: grad_freeze on; adasum, grad_accumulation, "
    said = workbench("validate", "two.json").out
    assert left in said
    assert 'in MindSpore: Pass boost_level="O1"' in said
    assert json.loads(workbench("validate", "two.json", "--json").out)["level_defaults"]["grad_freeze"] is True
    BoostConfig.from_json(here / "two.json").resolve("O1").explicit_config().save(here / "all.json")
    assert "are not named" not in workbench("validate", "all.json").out


def test_schema_is_the_schema_of_the_configuration(workbench: Command) -> None:
    assert json.loads(workbench("schema").out) == BoostConfig.json_schema()


def test_doctor_finds_this_machine_able(workbench: Command) -> None:
    told = json.loads(workbench("doctor", "--json").out)
    subjects = {finding["subject"]: finding for finding in told["findings"]}
    assert {"Python", "torch", "device", "float16", "disk", "folder"} <= set(subjects)
    table = workbench("doctor")
    assert table.code == (0 if told["ok"] else 1)
    assert subjects["torch"]["text"] in table.out


def test_init_writes_studies_and_names_the_next_command(workbench: Command, here: Path) -> None:
    said = workbench("init", "my folder").succeeded()
    assert (here / "my folder" / "studies" / "quickstart" / "study.toml").exists()
    assert "next: workbench tune 'my folder/studies/quickstart'" in said


@pytest.mark.parametrize("command", ["", "runs"])
def test_a_group_without_a_command_prints_its_help(workbench: Command, command: str) -> None:
    outcome = workbench(*command.split())
    assert outcome.code == 2
    assert "Commands" in outcome.out + outcome.err


def test_a_note_that_comes_back_at_every_trial_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    show = _each_note_once()
    for _ in range(3):
        show("the model has no BatchNorm", UserWarning, "study.py", 7)
    show("another", UserWarning, "study.py", 8)
    assert capsys.readouterr().err == "note: the model has no BatchNorm\nnote: another\n"
