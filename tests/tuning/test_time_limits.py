"""A time limit holds whatever it meets: by a clock that moves with every step of a stand-in for training."""

from __future__ import annotations

import math
import random
import time
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.kit.fake_runner import (
    DIM_REDUCE,
    LIMIT,
    STUDY,
    FakeRunner,
    calls,
    compute_subspace,
    cost_of,
    final_metric,
    make_fake,
    make_slow_fake,
    making,
    stored_trials,
    tuned,
    write_study,
)
from tests.tuning.ended_study import Ended
from workbench.config import BoostConfig
from workbench.core.records import Verdict
from workbench.study import OutOfTimeError, StudyError, StudyResult, StudyStoppedError, TuneProgress, join_study, tune
from workbench.study.run.job import (
    UNMONITORED,
    FreezingLimitJob,
    Job,
    Monitor,
    RunStep,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)
from workbench.study.run.objective import Baseline, prospect
from workbench.study.run.runner import Limits, StoppableExperimenter

SHORT = STUDY.replace("n_trials = 10", "n_trials = 5").replace("seeds_max = 8", "seeds_max = 6")
UNCONFIRMED = SHORT.replace("[confirm]", "[confirm]\nenabled = false")
REPLAY = "\n[loss_scale_replay]\nsteps = 40\n"
LIMITS = "\n[freezing_limit]\nrounds = 5\n"

STEP, EVALUATION = 1.0, 2.0


def late(*_: Any) -> SpeedMeasured:
    """Return that the steps of a trial take twice O0's time."""
    return SpeedMeasured(2.0, 1.9, 2.1)


class Clock:
    """Monotonic time that a test moves on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passed = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.passed)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Clocked(FakeRunner):
    """Trains in steps of one second times their relative cost, evaluates in two, and asks at each step to stop."""

    clock: Clock

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        match job:
            case TrainJob():
                return self.train(job, monitor)
            case SpeedJob():
                self.measure("speed", monitor)
            case FreezingLimitJob():
                self.log("train freezing limit")
                self.measure("freezing limit", monitor)
                self.log("trained freezing limit")
                return LIMIT
        return super().run(job, monitor)

    def train(self, job: TrainJob, monitor: Monitor) -> Trained:
        config, plan = job.config, job.config.resolve(job.level)
        name = job.run_id or f"confirmation {plan.key()} {job.seed}"
        self.log(f"train {name}")
        if plan.dim_reduce:
            compute_subspace(config)
        final = final_metric(config, job.level, job.seed)
        final = 0.5 if math.isnan(final) else final
        seconds = STEP * cost_of(config, job.level)
        curve: list[tuple[int, float]] = []
        for step in range(1, job.steps + 1):
            self.clock.passed += seconds
            if monitor.on_step is not None:
                monitor.on_step(RunStep(step, job.steps, math.nan))
            if monitor.stop is not None and monitor.stop():
                self.log(f"cut {name}")
                return Trained(math.nan, tuple(curve), step * seconds, message="stopped", steps=step)
            if step % job.evaluate_every == 0 or step == job.steps:
                self.clock.passed += EVALUATION
                curve.append((step, final * (1.0 - math.exp(-6.0 * step / job.steps)) / (1.0 - math.exp(-6.0))))
                if monitor.on_evaluation is not None and monitor.on_evaluation(*curve[-1]) and step < job.steps:
                    self.log(f"trained {name}")
                    return Trained(math.nan, tuple(curve), step * seconds, message="ended early", steps=step)
        path = self.keep_snapshots(config, job.run_id) if config.snapshots.count else f"runs/{job.run_id}"
        self.log(f"trained {name}")
        return Trained(final, tuple(curve), job.steps * seconds, path=path, overflows=3, steps=job.steps)

    def measure(self, name: str, monitor: Monitor) -> None:
        for _ in range(10):
            self.clock.passed += STEP
            if monitor.stop is not None and monitor.stop():
                self.log(f"cut {name}")
                return


def states(directory: Path) -> list[TrialState]:
    return [trial.state for trial in stored_trials(directory)]


def run(
    directory: Path, clock: Clock, limit: float | None, text: str | None = None, **options: Any
) -> tuple[StudyResult, float]:
    """Return the result of a command and how long it took, by the clock; with a text, write its study first."""
    began, make = time.monotonic(), making(Clocked, clock=clock)
    result = tuned(directory, text, make_experimenter=make, timeout=limit, **options)
    return result, time.monotonic() - began


WHOLE = SHORT.replace("n_trials = 5", "n_trials = 3") + REPLAY + LIMITS


@pytest.mark.parametrize(
    ("text", "shortest"),
    [
        pytest.param(WHOLE, 900.0, id="a search, a float16 recording and freezing"),
        pytest.param(WHOLE, 250.0, id="the same in many commands", marks=pytest.mark.long),
        pytest.param(DIM_REDUCE, 250.0, id="warm-ups"),
    ],
)
def test_no_limit_is_exceeded_by_more_than_a_step_and_an_evaluation_and_nothing_finished_is_lost(
    text: str, shortest: float, tmp_path: Path, clock: Clock
) -> None:
    draw = random.Random(4)
    write_study(tmp_path, text)
    ended: list[str] = []
    n_commands = 0
    while n_commands < 60:
        n_commands += 1
        limit = math.exp(draw.uniform(math.log(shortest), math.log(4.8 * shortest)))
        before = calls(tmp_path)
        result, taken = run(tmp_path, clock, limit)
        assert taken <= limit + STEP * 1.5 + EVALUATION + 0.05 * limit
        assert TrialState.RUNNING not in states(tmp_path)
        now = calls(tmp_path)[len(before) :]
        ended += [line for line in now if line.startswith("trained") and "limit" not in line]
        if not any(line.startswith("cut") for line in now) and not any("time limit" in one for one in result.messages):
            break
    assert n_commands > 1
    assert set(states(tmp_path)) <= {TrialState.COMPLETE, TrialState.PRUNED}
    assert len(ended) == len({line.rsplit(".", 1)[0] for line in ended}), "something was trained twice"
    assert result.exported.keys() == {"o1", "o2"}
    again, _ = run(tmp_path, clock, None)
    assert again.chosen == result.chosen


@pytest.mark.parametrize("limit", [20.0, pytest.param(100.0, marks=pytest.mark.long)])
def test_a_limit_too_short_for_o0_says_what_it_needs(limit: float, tmp_path: Path, clock: Clock) -> None:
    with pytest.raises(StudyError, match=f"time limit of {limit:g} s is too short for O0 itself") as caught:
        run(tmp_path, clock, limit, SHORT)
    assert states(tmp_path) == [TrialState.WAITING]
    at_least = float(str(caught.value).rsplit("give it ", 1)[1].split()[0])
    result, taken = run(tmp_path, clock, at_least)
    assert result.trials[0].state == "complete"
    assert taken <= at_least


def test_a_run_that_could_not_end_in_time_is_not_begun(tmp_path: Path, clock: Clock) -> None:
    run(tmp_path, clock, 180.0, SHORT)  # O0 takes 120 seconds, and no trial half as long
    assert [line for line in calls(tmp_path) if line.startswith("train ")] == ["train trial_0000"]
    assert states(tmp_path) == [TrialState.COMPLETE, TrialState.WAITING]
    run(tmp_path, clock, None, trials=2)
    for _ in range(2):  # runs of the confirmation, whose seconds are known
        before = calls(tmp_path)
        run(tmp_path, clock, 250.0, confirm_seeds=12, trials=2)
        assert not [line for line in calls(tmp_path)[len(before) :] if line.startswith("cut")]


def test_a_confirmation_that_is_cut_short_says_so(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "checkpoints" / "of a run that nobody asks for").mkdir(parents=True)
    run(tmp_path, clock, None, UNCONFIRMED, trials=2)
    assert not (tmp_path / "checkpoints").exists()
    (tmp_path / "checkpoints" / "of a run that was stopped").mkdir(parents=True)
    result, taken = run(tmp_path, clock, 250.0, SHORT, trials=2)  # two runs of a hundred seconds or less
    assert (tmp_path / "checkpoints" / "of a run that was stopped").exists()
    assert taken <= 250.0
    assert {one.verdict for one in result.candidates} == {Verdict.UNDECIDED}
    assert "The time limit ended the confirmation; the same command continues from there." in result.messages


@pytest.mark.slow
def test_a_confirmation_that_was_cut_short_goes_on_before_the_search_does(tmp_path: Path, clock: Clock) -> None:
    run(tmp_path, clock, None, UNCONFIRMED)
    write_study(tmp_path, SHORT)
    n_trials, seeds = len(states(tmp_path)), []
    for trials, seconds in ((5, 1400.0), (8, 4500.0)):  # too short for a verdict, and long enough for the first look
        options: dict[str, Any] = {"confirm_seeds": 40, "trials": trials}
        result, _ = run(tmp_path, clock, seconds, **options)
        assert len(states(tmp_path)) == n_trials, "no trial is drawn while a test lacks seeds"
        seeds.append(result.candidates[0].n_seeds)
    assert seeds[0] < seeds[1] == 20, "its first look"
    assert result.candidates[0].verdict is Verdict.CONFIRMED
    run(tmp_path, clock, 200.0, trials=8)
    assert len(states(tmp_path)) > n_trials


@pytest.mark.slow
def test_a_confirmation_that_was_stopped_goes_on_before_the_search_does(tmp_path: Path, clock: Clock) -> None:
    write_study(tmp_path, SHORT)

    def is_in_second_pair() -> bool:
        return sum(line.startswith("trained confirmation") for line in calls(tmp_path)) == 3

    with pytest.raises(StudyStoppedError):
        run(tmp_path, clock, 1e5, stop=is_in_second_pair)
    n_trials = len(states(tmp_path))
    result, _ = run(tmp_path, clock, 1e5, trials=8)
    assert len(states(tmp_path)) == n_trials, "no trial is drawn while the confirmation is not finished"
    assert Verdict.CONFIRMED in {one.verdict for one in result.candidates}
    run(tmp_path, clock, 200.0, trials=8)
    assert len(states(tmp_path)) > n_trials


@pytest.mark.slow
def test_more_seeds_for_what_is_undecided_come_before_the_search(tmp_path: Path) -> None:
    first = tuned(tmp_path, SHORT.replace("o1 = 0.02", "o1 = 0.0001").replace("o2 = 0.05", ""))
    (undecided,) = (one for one in first.candidates if one.verdict is Verdict.UNDECIDED)
    told, n_trials = list[str](), len(states(tmp_path))
    options: dict[str, Any] = {"make_experimenter": make_fake, "trials": n_trials + 1}
    more = tune(tmp_path, confirm_seeds=12, on_progress=lambda progress: told.append(progress.note), **options)
    assert "the confirmation, for which more seeds are asked, goes on before the search does" in told
    assert len(states(tmp_path)) == n_trials
    assert [len(one.metrics) for one in more.candidates if one.label == undecided.label] == [12]
    tune(tmp_path, confirm_seeds=12, **options)
    assert len(states(tmp_path)) > n_trials, "the same command again: those seeds are there"


def test_a_worker_ends_at_its_limit_and_puts_its_trial_back(tmp_path: Path, clock: Clock) -> None:
    write_study(tmp_path, SHORT)
    began = time.monotonic()
    first = join_study(tmp_path, make_experimenter=making(Clocked, clock=clock), timeout=50.0)
    assert time.monotonic() - began <= 50.0 + STEP + 2.0
    assert (first.finished, first.complete) == (0, False)
    assert states(tmp_path) == [TrialState.WAITING]


@pytest.mark.slow
def test_worker_processes_end_at_the_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, passed = time.monotonic, [0.0]  # who waits for a process needs a clock that goes on by itself
    monkeypatch.setattr(time, "monotonic", lambda: real() + passed[0])

    def watch(progress: TuneProgress) -> None:
        passed[0] = 1000.0 * (progress.trials >= 3)

    text = STUDY.replace("n_trials = 10", "n_trials = 1000")
    tuned(tmp_path, text, jobs=2, make_experimenter=make_slow_fake, timeout=1000.0, on_progress=watch)
    assert len(states(tmp_path)) < 1000
    assert TrialState.RUNNING not in states(tmp_path)


# -- one experimenter -------------------------------------------------------------------------------------------------


def clocked(folder: Path, clock: Clock) -> Clocked:
    runner = Clocked(folder)
    runner.clock = clock
    return runner


SIDE = (BoostConfig(), "O0")
RUN = TrainJob(*SIDE, seed=0, steps=50, evaluate_every=50)


def test_a_run_that_is_cut_says_how_long_it_would_have_taken(tmp_path: Path, clock: Clock) -> None:
    guard = StoppableExperimenter(clocked(tmp_path, clock), Limits(deadline=time.monotonic() + 10.5))
    with pytest.raises(OutOfTimeError) as caught:
        guard.run(RUN)
    assert caught.value.needed_seconds == pytest.approx(50.0, rel=0.02)
    with pytest.raises(OutOfTimeError):
        guard.run(RUN)
    assert [line.split()[0] for line in calls(tmp_path)] == ["train", "cut"]


def test_what_trains_beside_another_ends_with_it_when_its_deadline_changes(tmp_path: Path, clock: Clock) -> None:
    limits = Limits()
    beside = StoppableExperimenter(clocked(tmp_path, clock), limits)
    assert beside.run(RUN).steps == 50
    limits.deadline = time.monotonic() + 10.5
    with pytest.raises(OutOfTimeError):
        beside.run(RUN)


def test_a_run_whose_last_evaluation_ends_after_the_deadline_is_kept(tmp_path: Path, clock: Clock) -> None:
    guard = StoppableExperimenter(clocked(tmp_path, clock), Limits(deadline=time.monotonic() + 51.0))
    assert guard.run(RUN).steps == 50
    with pytest.raises(OutOfTimeError):
        guard.run(SpeedJob(SIDE, SIDE, seed=0, rounds=2, steps_per_block=2))


def test_a_measurement_that_is_cut_is_no_result(tmp_path: Path, clock: Clock) -> None:
    guard = StoppableExperimenter(clocked(tmp_path, clock), Limits(deadline=time.monotonic() + 3.5))
    with pytest.raises(OutOfTimeError):
        guard.run(FreezingLimitJob(SIDE, seed=0, rounds=2, steps_per_block=2))
    assert calls(tmp_path)[-2:] == ["cut freezing limit", "trained freezing limit"]


# -- what the incumbents make pointless -------------------------------------------------------------------------------

CURVE = ((10, 0.5), (20, 0.7), (30, 0.8), (40, 0.9))
BASELINE = Baseline(0.9, CURVE, True, 40)


def test_what_a_run_can_still_get_is_what_it_has_used_until_it_reaches_its_target() -> None:
    so_far = prospect(CURVE[:3], 0.5, BASELINE, 0.05, "time_to_target", 4)
    assert (so_far.least, so_far.reached) == (4 + 0.5 * 30, False)
    there = prospect(CURVE[:3], 0.5, BASELINE, 0.15, "time_to_target")
    assert (there.least, there.reached) == (pytest.approx(0.5 * 25.0), True)
    assert prospect(CURVE[:1], 0.5, BASELINE, 0.15, "speed").least == 0.5


SLOW = """
[study]
task = "fake"
budget_steps = 100
evaluate_every = 10
n_trials = 3
objective = "{objective}"
[allowed_drop]
o1 = 0.02
o2 = 0.02
[baseline]
"boost.mode" = "manual"
[space]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_p" = [0.9]
[sampler]
name = "grid"
[pruner]
name = "{pruner}"
[confirm]
enabled = false
"""


@pytest.mark.parametrize("objective", ["time_to_target", "speed"])
def test_a_trial_that_cannot_win_any_more_ends_pruned_with_a_sentence(objective: str, tmp_path: Path) -> None:
    result = tuned(tmp_path, SLOW.format(objective=objective, pruner="median"), make_experimenter=making(timed=late))
    others = [one for one in result.trials if one.number > 0 and one.seconds]
    assert others
    assert {one.state for one in others} == {"pruned"}
    assert all("it can no longer be better than O0" in one.message for one in others)
    for trial in (one for one in stored_trials(tmp_path) if one.state == TrialState.PRUNED):  # what samplers need
        assert trial.intermediate_values
        assert math.isfinite(trial.constraints["metric_deficit"])
        assert max(step for step, _ in trial.user_attrs["trained"]["curve"]) <= 60


@pytest.mark.parametrize(("objective", "sampler"), [("time_to_target", "grid"), ("pareto", "random")])
def test_without_a_pruner_and_with_two_objectives_every_run_goes_to_its_end(
    objective: str, sampler: str, tmp_path: Path
) -> None:
    text = SLOW.format(objective=objective, pruner="none").replace('name = "grid"', f'name = "{sampler}"')
    assert {one.state for one in tuned(tmp_path, text, make_experimenter=making(timed=late)).trials} == {"complete"}


def test_trials_that_would_be_confirmed_are_not_pruned_because_one_is_better(whole: Ended) -> None:
    _, result, _ = whole
    complete = [one for one in result.trials if one.state == "complete" and one.feasible and one.seconds]
    assert len(complete) >= 3  # O0 and at least as many as are confirmed at once


def test_without_anybody_to_confirm_the_search_has_that_time_too(tmp_path: Path, clock: Clock) -> None:
    text = SHORT.replace("o1 = 0.02", "o1 = 0.0").replace("o2 = 0.05", "o2 = 0.0")
    result, taken = run(tmp_path, clock, 330.0, text)
    assert taken <= 330.0
    assert not result.candidates
    assert sum(line.startswith("trained") for line in calls(tmp_path)) >= 2  # O0 takes 120 of its own 198
