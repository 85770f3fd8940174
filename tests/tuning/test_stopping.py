"""Ending a study from another thread: within one step, with everything kept that Ctrl-C would keep."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState
from torch import nn

from tests.experiments.small_tasks import small_task
from tests.kit.fake_runner import (
    DIM_REDUCE,
    SEARCH,
    SHORT,
    STUDY,
    FakeRunner,
    calls,
    stored_trials,
    tuned,
    write_study,
)
from tests.kit.processes import wait_until
from workbench.config import BoostConfig
from workbench.study import StudyFile, StudyStoppedError, TaskExperimenter, TuneProgress, read_result, tune
from workbench.study.run.job import (
    UNMONITORED,
    AgreementJob,
    FreezingLimitJob,
    Job,
    Monitor,
    RunStep,
    SpeedJob,
    Trained,
    TrainJob,
)

TWO = SEARCH.replace("n_trials = 4", "n_trials = 2")
REPLAY = "\n[loss_scale_replay]\nsteps = 40\n"


class StopsWhen(FakeRunner):
    """Asks for the end as soon as a run of that name is at its second evaluation."""

    def __init__(self, directory: Path, prefix: str, asked: threading.Event) -> None:
        super().__init__(directory)
        self.prefix, self.asked = prefix, asked
        self.steps_after = 0

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob):
            return super().run(job, monitor)
        mine = job.run_id.startswith(self.prefix) if self.prefix else not job.run_id

        def on_step(step: RunStep) -> None:
            self.steps_after += self.asked.is_set()
            if monitor.on_step is not None:
                monitor.on_step(step)
            if mine and step.step >= 0.2 * step.steps:
                self.asked.set()

        return super().run(job, replace(monitor, on_step=on_step))


def states(directory: Path) -> list[TrialState]:
    return [trial.state for trial in stored_trials(directory)]


@pytest.mark.parametrize(
    ("prefix", "text"),
    [
        ("trial_0000", TWO),
        ("trial_0001", TWO),
        ("loss_scale_recording", TWO + REPLAY),
        ("loss_scale_rerun", TWO + REPLAY),
        ("warm_up", DIM_REDUCE),
        ("", SHORT.replace("n_trials = 4", "n_trials = 2")),
    ],
    ids=["O0", "a trial", "the recording", "its rerun", "a warm-up", "a confirmation run"],
)
def test_a_study_ends_within_the_step_whatever_it_is_doing_and_goes_on(tmp_path: Path, prefix: str, text: str) -> None:
    directory, asked = write_study(tmp_path / "s", text), threading.Event()
    made: list[StopsWhen] = []

    def make(_: Any, folder: Path) -> StopsWhen:
        made.append(StopsWhen(folder, prefix, asked))
        return made[0]

    with pytest.raises(StudyStoppedError, match="everything finished is saved"):
        tune(directory, make_experimenter=make, stop=asked.is_set)
    assert asked.is_set()
    assert made[0].steps_after == 0
    assert TrialState.RUNNING not in states(directory)
    assert states(directory).count(TrialState.WAITING) == (prefix in {"trial_0000", "trial_0001", "warm_up"})
    assert not read_result(directory).exported
    finished = [line for line in calls(directory) if line.startswith("trained")]
    result = tuned(directory)
    assert set(result.exported) == {"o1", "o2"}
    trained = [line for line in calls(directory) if line.startswith("trained")]
    assert trained[: len(finished)] == finished
    assert len(trained) == len(set(trained))


def test_a_request_before_the_first_step_trains_nothing(tmp_path: Path) -> None:
    with pytest.raises(StudyStoppedError):
        tuned(tmp_path, SEARCH, stop=lambda: True)
    assert calls(tmp_path) == []
    result = tuned(tmp_path, trials=2)
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}


class Endless(FakeRunner):
    """Comes to no end in trials after the first two, unless it is asked to."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob) or job.run_id in {"trial_0000", "trial_0001"}:
            return super().run(job, monitor)
        self.log("endless")
        assert monitor.stop is not None
        wait_until(monitor.stop)
        return Trained(math.nan, (), 0.01, message="stopped")


def make_endless(file: StudyFile, directory: Path) -> Endless:
    return Endless(directory)


@pytest.mark.slow
def test_workers_end_too_and_their_trials_wait_for_the_next_time(tmp_path: Path) -> None:
    directory, asked = write_study(tmp_path / "s", STUDY), threading.Event()

    def watch(progress: TuneProgress) -> None:
        if progress.phase == "search" and "endless" in calls(directory):
            asked.set()

    with pytest.raises(StudyStoppedError):
        tune(directory, jobs=2, make_experimenter=make_endless, on_progress=watch, stop=asked.is_set)
    assert asked.is_set()
    assert TrialState.RUNNING not in states(directory)
    result = tuned(directory)
    assert {trial.state for trial in result.trials} <= {"complete", "pruned"}


# -- with a real net ---------------------------------------------------------------------------------------------------


class Counting:
    """A task that counts its losses, and asks for the end at one of them."""

    def __init__(self, last: int, hidden: int = 0) -> None:
        self.last, self.losses, self.hidden = last, 0, hidden
        self.task = small_task(model=self.model, on_loss=self.count)

    def model(self) -> nn.Module:
        return nn.Sequential(*(nn.Linear(4, 4) for _ in range(self.hidden)), nn.Linear(4, 2))

    def count(self, _: int) -> None:
        self.losses += 1

    def asked(self) -> bool:
        return self.losses >= self.last


@pytest.mark.parametrize("last", [5, 6])
def test_training_ends_within_the_step(tmp_path: Path, last: int) -> None:
    counting = Counting(last)
    experimenter = TaskExperimenter(counting.task, "cpu", tmp_path / "runs")
    job = TrainJob(BoostConfig(), "O0", seed=0, steps=50, evaluate_every=50, run_id="one")
    trained = experimenter.run(job, Monitor(stop=counting.asked))
    assert trained.steps == counting.losses == last
    assert "stopped on request" in trained.message


OFF = BoostConfig().with_values({"boost.mode": "manual", "boost.grad_freeze": False, "boost.less_bn": False})
ACCUMULATED = OFF.with_values({"boost.grad_accumulation": True, "grad_accumulation.grad_accumulation_step": 8})
FROZEN = OFF.with_values({"boost.grad_freeze": True, "grad_freeze.param_groups": 4})


@pytest.mark.parametrize("last", [3, 13, 29])
@pytest.mark.parametrize("kind", ["timing", "windows of eight batches", "agreement", "a freezing limit"])
def test_whatever_runs_ends_within_the_batch(tmp_path: Path, kind: str, last: int) -> None:
    counting = Counting(last, hidden=11)
    experimenter = TaskExperimenter(counting.task, "cpu", tmp_path / "runs")
    plain, slow = (BoostConfig(), "O0"), (ACCUMULATED, "O1")
    jobs: dict[str, Job[Any]] = {
        "timing": SpeedJob(plain, plain, seed=0, rounds=50, steps_per_block=10),
        "windows of eight batches": SpeedJob(slow, slow, seed=0, rounds=50, steps_per_block=16),
        "agreement": AgreementJob(plain, plain, seed=0),
        "a freezing limit": FreezingLimitJob((FROZEN, "O1"), seed=0, rounds=50, steps_per_block=8),
    }
    with pytest.raises(StudyStoppedError):
        experimenter.run(jobs[kind], Monitor(stop=counting.asked))
    assert counting.losses == last
