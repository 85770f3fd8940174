"""A clock that is set while something runs: durations, locks and lists stay right."""

from __future__ import annotations

import datetime as dates
import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.cli.conftest import Command
from tests.kit.fake_runner import STUDY, FakeRunner, write_study
from tests.telemetry.run_samples import some_steps
from workbench.runs import RunRecorder, TelemetryError, list_runs, prune_runs, read_run
from workbench.runs.writer_lock import being_written
from workbench.study import read_result, tune
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import UNMONITORED, Job, Monitor, TrainJob

DAY = 86_400.0


class Clock:
    """The time of day, as a test sets it; monotonic clocks go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.offset = 0.0
        now, create_time = time.time, psutil.Process.create_time
        clock = self

        class Date(dates.datetime):
            @classmethod
            def now(cls, tz: Any = None) -> Any:
                return cls.fromtimestamp(now() + clock.offset, tz)

        monkeypatch.setattr(time, "time", lambda: now() + self.offset)
        # Linux tells when a process began from when the machine did, which moves with the time of day.
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) + self.offset)
        monkeypatch.setattr("workbench.runs.recorder.datetime", Date)
        # Where it is looked up, and not in the module: SQLAlchemy asks what is a date and what a time.
        those = SimpleNamespace(datetime=Date, timedelta=dates.timedelta, UTC=dates.UTC)
        monkeypatch.setattr("optuna.storages._rdb.storage.datetime", Date)
        monkeypatch.setattr("workbench.study.run.ending.datetime", those)

    def jump(self, seconds: float) -> None:
        self.offset += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.mark.parametrize("jump", [-DAY, DAY], ids=["back", "forward"])
def test_a_run_keeps_its_writer_and_its_durations(jump: float, clock: Clock, tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {})
    recorder.write(some_steps(0, 3))
    clock.jump(jump)
    assert being_written(recorder.path, finished=False)
    with pytest.raises(TelemetryError, match="being written by another process"):
        RunRecorder.reopen(recorder.path)
    assert prune_runs(tmp_path, keep=0) == []
    recorder.write(some_steps(3, 3))
    recorder.finish({"metric": 1.0})
    run = read_run(recorder.path)
    assert run.duration == pytest.approx(2.75)
    assert len(list_runs(tmp_path)) == 1


def test_the_lock_of_a_killed_writer_does_not_come_back_with_the_clock(clock: Clock, tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {})
    lock = recorder.path / "writer.lock"
    owner = json.loads(lock.read_text())  # another process has its number now, an older one
    lock.write_text(json.dumps({**owner, "pid": os.getppid(), "ticks": owner["ticks"] + 1}))
    clock.jump(DAY)
    RunRecorder.reopen(recorder.path).close()


class Jumping(FakeRunner):
    """Sets the clock at every second run."""

    clock: Clock
    runs = 0

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if isinstance(job, TrainJob):
            Jumping.runs += 1
            Jumping.clock.jump(-DAY if Jumping.runs % 2 else DAY)
        return super().run(job, monitor)


@pytest.mark.slow
def test_a_study_ends_as_it_would_without_the_jumps(clock: Clock, tmp_path: Path) -> None:
    def make(file: StudyFile, directory: Path) -> FakeRunner:
        Jumping.clock = clock
        return Jumping(directory)

    text = STUDY.replace("n_trials = 10", "n_trials = 4").replace("[confirm]", "[confirm]\nenabled = false")
    steady = write_study(tmp_path / "steady", text)
    jumping = write_study(tmp_path / "jumping", text)
    calm = tune(steady, make_experimenter=lambda file, directory: FakeRunner(directory))
    etas: list[float] = []
    wild = tune(jumping, make_experimenter=make, timeout=600.0, on_progress=lambda one: etas.append(one.eta_seconds))
    assert [trial.value for trial in wild.trials] == [trial.value for trial in calm.trials]
    assert wild.chosen == calm.chosen
    assert 0.0 <= wild.seconds < 600.0
    assert not [eta for eta in etas if eta < 0.0]
    assert not [trial for trial in read_result(jumping).trials if not 0.0 <= trial.seconds < 600.0]


@pytest.mark.slow
def test_training_measures_with_a_clock_that_nobody_sets(
    workbench: Command, here: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = RunRecorder.write

    def jump_and_write(recorder: RunRecorder, *block: Any) -> None:
        clock.jump(-DAY)
        append(recorder, *block)

    monkeypatch.setattr(RunRecorder, "write", jump_and_write)
    outcome = workbench("train", "--task", "wine.py", "--steps", 20, "--device", "cpu", "--json")
    assert outcome.code == 0
    (path,) = (here / "runs").iterdir()
    run = read_run(path)
    assert 0.0 <= run.duration < 600.0
    assert run.steps["seconds"].is_monotonic_increasing
    assert (run.steps["step_ms"] >= 0.0).all()
