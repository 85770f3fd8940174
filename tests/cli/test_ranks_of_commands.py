"""Commands over two ranks: under torchrun, and started by the command itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.kit.processes import run_command, start
from workbench.core import distributed

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "workbench")
Started = Callable[..., tuple[list[int | None], list[str], str]]
ALONE = (sys.executable, "-m", "workbench")

# The task of conftest, with ways to go wrong on a rank and at a step that the environment names.
FAILING = """\
import dataclasses, os, signal, time
import torch
from torch import nn
from wine import task as wine

seen = 0

def new_model():
    global seen
    seen = 0
    return nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))

def loss(model, batch):
    global seen
    if model.training:
        seen += 1
        time.sleep(float(os.environ.get("SLOW", 0)))
        if seen == 6 and os.environ.get("RANK", "0") in os.environ.get("WHO", "").split():
            if os.environ["HOW"] == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            if os.environ["HOW"] == "has no file":
                raise FileNotFoundError(2, "no such file", "labels.txt")
            raise RuntimeError("the label is missing")
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

task = dataclasses.replace(wine, model=new_model, loss=loss)
"""


@pytest.fixture
def two_ranks(study: Path) -> Path:
    """Let the study train over two ranks."""
    file = study / "study.toml"
    file.write_text(file.read_text().replace("[study]\n", "[study]\nranks = 2\n", 1))
    return study


@pytest.fixture
def failing(here: Path) -> str:
    """Write the task that fails when it is told to."""
    (here / "failing.py").write_text(FAILING)
    return "failing.py"


@pytest.fixture
def failing_study(two_ranks: Path, failing: str) -> Path:
    """Let the study over two ranks search that task."""
    file = two_ranks / "study.toml"
    file.write_text(file.read_text().replace("wine.py", failing))
    return two_ranks


@pytest.fixture
def as_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process be the first of two ranks."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)


def environment(**variables: object) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("WORKBENCH")}
    return (
        plain
        | {"PYTHONPATH": os.pathsep.join([".", *sys.path]), "OMP_NUM_THREADS": "1"}
        | {name: str(value) for name, value in variables.items()}
    )


def run(*command: object, **variables: object) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    told = environment(**variables)
    return subprocess.run(words, env=told, capture_output=True, text=True, timeout=200, check=False)


def interrupted(command: list[str], folder: Path, awaited: str, seconds: float) -> tuple[int, str]:
    """Press Ctrl-C so long after a file is there; return exit code and stderr."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment(SLOW=0.1), stdout=pipe, stderr=pipe, text=True)
    until = time.monotonic() + 60
    while not list(folder.glob(awaited)) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr


def sentences(stderr: str) -> list[str]:
    return [line for line in stderr.splitlines() if line.startswith("workbench: ")]


def _rank(place: dict[str, str], words: list[str], said: str, folder: str) -> None:
    os.environ.update(place)
    run_command(words, said, folder)


def under_torchrun(here: Path, *words: str) -> tuple[list[int | None], list[str], str]:
    """Return codes, outputs and what was said on stderr by two ranks."""
    done = run(*TORCHRUN, *words)
    return [done.returncode], [done.stdout], done.stderr


def as_torchrun_starts_them(here: Path, *words: str) -> tuple[list[int | None], list[str], str]:
    """Start two ranks in variables and beside a store like those of torchrun, where three processes import torch."""
    store, meeting = distributed.serve_store()
    places = [{**meeting, "WORLD_SIZE": "2", "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1")]
    said = [str(here / f"rank-{rank}") for rank in range(2)]
    ranks = [start(_rank, place, list(words), one, str(here)) for place, one in zip(places, said, strict=True)]
    for rank in ranks:
        rank.join(120)
    del store
    outs, errs = ([Path(f"{one}.{ending}").read_text() for one in said] for ending in ("out", "err"))
    return [rank.exitcode for rank in ranks], outs, "".join(errs)


@pytest.mark.parametrize(
    "started",
    [
        pytest.param(under_torchrun, marks=pytest.mark.long),
        pytest.param(as_torchrun_starts_them, marks=pytest.mark.slow),
    ],
)
def test_train_under_torchrun_writes_one_run_and_prints_one_object(started: Started, here: Path) -> None:
    codes, outs, err = started(here, "train", "--task", "wine.py", "--steps", "10", "--json")
    assert set(codes) == {0}, err
    result = json.loads("".join(outs))
    assert (result["steps"], result["stopped"]) == (10, False)
    assert [path.name for path in (here / "runs").iterdir()] == [Path(result["path"]).name]
    told = json.loads((here / result["path"] / "environment.json").read_text())
    assert told["world_size"] == 2


@pytest.mark.long
def test_compare_under_torchrun_prints_one_table(here: Path) -> None:
    (here / "two.json").write_text(
        '{"boost": {"mode": "manual", "less_bn": false, "grad_freeze": false, '
        '"grad_accumulation": true}, "grad_accumulation": {"grad_accumulation_step": 2}}'
    )
    done = run(*TORCHRUN, "compare", "--task", "wine.py", "two.json", "--steps", 6, "--seeds", 2, "--out", "runs")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("configuration") == 1
    assert len(list((here / "runs").iterdir())) == 4


@pytest.mark.long
def test_tune_starts_the_ranks_of_the_study_itself(two_ranks: Path) -> None:
    done = run(*ALONE, "tune", two_ranks, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert sorted(result["exported"]) == ["o1", "o2"]
    assert (two_ranks / "result" / "boost_config.o1.json").exists()
    assert (two_ranks / "result" / "report.html").exists()
    runs = sorted(path.name for path in (two_ranks / "runs").iterdir())
    trained = [one for one in result["trials"] if one["seconds"]]
    assert runs == [f"trial_{one['number']:04d}" for one in trained], "one run directory per trial"
    told = json.loads((two_ranks / "runs" / runs[0] / "environment.json").read_text())
    assert told["world_size"] == 2


@pytest.mark.usefixtures("as_rank_0")
def test_ranks_that_disagree_with_the_study_are_one_sentence(
    study: Path, workbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert workbench("tune", study).refused().startswith("workbench: `study.ranks` is 1, but 2 ranks were started")
    monkeypatch.setenv("RANK", "1")
    outcome = workbench("tune", study)
    assert (outcome.code, outcome.err) == (2, ""), "rank 0 has said it"


@pytest.mark.usefixtures("as_rank_0")
def test_several_workers_and_several_ranks_exclude_each_other(two_ranks: Path, workbench: Command) -> None:
    sentence = workbench("tune", two_ranks, "--jobs", 2).refused()
    assert "--jobs (in the Tune tab: Workers) must be 1 for a study with `study.ranks` = 2" in sentence


# Who fails and how, and what the one sentence says; a file that is missing is wrong input where rank 0 misses it.
FAILURES = {
    "every rank": ({"WHO": "0 1", "HOW": "fails"}, "the label is missing"),
    "a file of rank 0": ({"WHO": 0, "HOW": "has no file"}, "labels.txt"),
    "a file of rank 1": ({"WHO": 1, "HOW": "has no file"}, "labels.txt"),
    "rank 0 dies": ({"WHO": 0, "HOW": "dies", "SLOW": 0.1}, "workbench: rank 0 of 2 has died"),
    "rank 1 dies": ({"WHO": 1, "HOW": "dies", "SLOW": 0.1}, "workbench: rank 1 of 2 has died"),
}


@pytest.mark.long
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_ends_a_study_on_all_ranks_with_one_sentence(name: str, failing_study: Path) -> None:
    variables, words = FAILURES[name]
    done = run(*ALONE, "tune", failing_study, **variables)
    (sentence,) = sentences(done.stderr)
    assert words in sentence
    assert done.returncode in ((1, 2) if "file" in name else (1,))
    assert run(*ALONE, "tune", failing_study).returncode == 0, "nothing finished was lost: the same command continues"


@pytest.mark.long
def test_when_all_ranks_are_killed_the_command_that_started_them_says_so(failing_study: Path) -> None:
    done = run(*ALONE, "tune", failing_study, WHO="0 1", HOW="dies")
    assert done.returncode == 1
    assert sentences(done.stderr) == ["workbench: all 2 ranks were ended from outside (rank 0 by SIGKILL)"]


@pytest.mark.long
def test_ctrl_c_ends_every_rank_of_a_study_and_the_same_command_continues(failing_study: Path) -> None:
    file = failing_study / "study.toml"
    file.write_text(file.read_text().replace("budget_steps = 12", "budget_steps = 200"))
    command = [*ALONE, "tune", str(failing_study)]
    code, stderr = interrupted(command, failing_study / "runs", "trial_0000", 2.0)
    assert code == 130
    assert "everything finished is saved" in stderr
    assert sentences(stderr) == []
    summary = json.loads((failing_study / "runs" / "trial_0000" / "summary.json").read_text())
    assert summary["state"] == "interrupted"


@pytest.mark.long
def test_ctrl_c_ends_a_run_under_torchrun_at_one_step_of_all_ranks(here: Path, failing: str) -> None:
    command = [*TORCHRUN, "train", "--task", failing, "--steps", "500", "--evaluate-every", "500"]
    _, stderr = interrupted(command, here / "runs", "*/steps*", 1.0)
    assert "interrupted; the" in stderr
    runs = list((here / "runs").iterdir())
    assert json.loads((runs[0] / "summary.json").read_text())["state"] == "stopped"
    assert len(runs) == 1
