"""The time of a whole run is known before it is trained: passes times step times, each kind of step timed once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.kit.set_up_search import predicted_time, run, taken_of, write
from tests.kit.surface_runner import STEP_MS, SurfaceRunner, scaled, step_ratio
from workbench.config import BoostConfig, NetworkFacts, Plan
from workbench.methods.runtime.section import RuntimeSection
from workbench.study.ask.study_file import StudyFile, parse_study
from workbench.study.run.job import Job, SpeedJob, SpeedMeasured
from workbench.study.set_up.total_time import (
    StepTimes,
    compile_seconds,
    kinds_of_steps,
    known_step_times,
    mean_step,
    passes_of,
    total_time,
)

STEPS = 200
OFF = BoostConfig()
COLD_MS = 200.0
RESIZABLE = NetworkFacts(0, 0, 4, 4, 0, 4, no_sequence="it takes images")


@pytest.fixture
def file() -> StudyFile:
    text = f'[study]\ntask = "fake"\nbudget_steps = {STEPS}\nn_trials = 4\nobjective = "time_to_quality"\n'
    return parse_study(text).on_network(RESIZABLE)


def plan_of(file: StudyFile, **values: Any) -> Plan:
    """Return a plan; a path's dot is written as two underlines."""
    stated = {path.replace("__", "."): value for path, value in values.items()}
    return file.plans.resolve(BoostConfig().with_values({"boost.mode": "manual"} | stated), "O1")


@pytest.mark.parametrize(
    ("length", "factor", "passes"),
    [(1.0, 1.0, 200), (0.5, 1.0, 100), (0.25, 1.0, 50), (1.0, 4.0, 50), (0.5, 2.0, 50), (0.1, 4.0, 5)],
)
def test_a_run_takes_its_passes_times_the_step_time(file: StudyFile, length: float, factor: float, passes: int) -> None:
    plan = plan_of(file, schedule__length=length, batch__factor=factor)
    assert passes_of(plan, STEPS) == passes
    whole = total_time(plan, SpeedMeasured(1.6, 1.5, 1.7, STEP_MS), STEPS)
    share = passes / STEPS
    assert (whole.ratio, whole.low, whole.high) == pytest.approx((1.6 * share, 1.5 * share, 1.7 * share))


def test_compiling_and_a_warm_up_count_in_full_however_short_the_run(file: StudyFile) -> None:
    step = SpeedMeasured(0.5, 0.5, 0.5, STEP_MS, cold_ms=1000.0)
    baseline_ms = STEPS * STEP_MS
    for length in (1.0, 0.25):
        plan = plan_of(file, schedule__length=length)
        assert total_time(plan, step, STEPS).ratio == pytest.approx(0.5 * length + 1000.0 / baseline_ms)
        assert total_time(plan, step, STEPS, 50).ratio == pytest.approx(0.5 * length + 1000.0 / baseline_ms + 0.25)
        of_more = total_time(plan, step, STEPS, share_of_today=0.25).ratio
        assert of_more == pytest.approx(0.5 * length + 250.0 / baseline_ms), "four times as long, it compiles once"
        again = total_time(plan, replace(step, cold_again=True), STEPS, share_of_today=0.25).ratio
        assert again == pytest.approx(0.5 * length + 1000.0 / baseline_ms), "what each run repeats is in its own time"


def test_samples_that_are_kept_are_read_once_and_those_that_a_run_does_not_reach_never(file: StudyFile) -> None:
    step = SpeedMeasured(0.5, 0.4, 0.6, STEP_MS, reading_ms=3.0, epoch=STEPS // 2)
    half, quarter = STEPS // 2, STEPS // 4
    for changed, n_batches in (({}, half), ({"schedule__length": 0.25}, quarter), ({"batch__factor": 4.0}, half)):
        plan = plan_of(file, **changed)
        share, extra = passes_of(plan, STEPS) / STEPS, 3.0 * n_batches / (STEPS * STEP_MS)
        whole = total_time(plan, step, STEPS)
        expected = tuple(share * one + extra for one in (0.5, 0.4, 0.6))
        assert (whole.ratio, whole.low, whole.high) == pytest.approx(expected)
    assert SpeedMeasured.from_json(step.to_json()) == step


def test_a_curriculum_takes_the_time_of_its_stages(file: StudyFile) -> None:
    growing = {"kind": "resolution", "start": 0.5, "until": 0.5, "stages": 2}
    plan = plan_of(file, **{f"curriculum__{name}": value for name, value in growing.items()})
    kinds = kinds_of_steps(plan, file.plans, STEPS)
    assert sum(share for _, share in kinds) == pytest.approx(1.0)
    assert [share for _, share in kinds] == pytest.approx([0.25, 0.25, 0.5])
    assert len({kind.step_key() for kind, _ in kinds}) == 3, "one of these kinds would never be timed"
    assert kinds[-1][0].step_key() == plan_of(file).step_key(), "at full size a step is the step without a curriculum"

    def timed(ratio: float, cold_ms: float) -> SpeedMeasured:
        return SpeedMeasured(ratio, ratio - 0.1, ratio + 0.1, STEP_MS, cold_ms)

    mean = mean_step([(timed(0.3, 10.0), 0.25), (timed(0.6, 20.0), 0.25), (timed(1.0, 0.0), 0.5)])
    assert mean.ratio == pytest.approx(0.25 * 0.3 + 0.25 * 0.6 + 0.5)
    assert (mean.low, mean.high) == pytest.approx((mean.ratio - 0.1, mean.ratio + 0.1))
    assert mean.cold_ms == 30.0, "each size is compiled once, whatever its share"


@pytest.mark.parametrize(
    ("changed", "is_shared"),
    [
        ({"schedule__length": 0.3}, True),
        ({"schedule__shape": "linear", "schedule__warmup": 0.2}, True),
        ({"optimizer__lr": 0.02, "optimizer__weight_decay": 0.1}, True),
        ({"optimizer__name": "SGD"}, False),
        ({"batch__factor": 2.0}, False),
        ({"amp__level": "O2"}, False),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_rates_and_lengths_share_a_step_time_and_what_changes_a_step_is_timed_by_itself(
    file: StudyFile, changed: dict[str, Any], is_shared: bool
) -> None:
    name = {"optimizer__name": "AdamW"}
    plain, other = plan_of(file, **name), plan_of(file, **name | changed)
    assert plain.key() != other.key()
    assert (plain.step_key() == other.step_key()) is is_shared


def counting(folder: Path) -> SurfaceRunner:
    """Return what keeps the jobs that it has timed."""

    def look(job: Job[Any]) -> None:
        assert isinstance(job, SpeedJob)
        assert job.loading, "a step's time includes its batch"

    return SurfaceRunner(folder, before=look)


def test_a_step_is_timed_once_for_all_plans_that_share_it_and_never_again_by_later_commands(
    file: StudyFile, tmp_path: Path
) -> None:
    study, runner = optuna.create_study(), counting(tmp_path)
    times = StepTimes(study, file, runner)
    short, long = (plan_of(file, optimizer__name="AdamW", schedule__length=length) for length in (0.2, 0.9))
    first = times.measured(short)
    assert first.ratio == pytest.approx(step_ratio(short.config))
    assert times.measured(long) == first
    assert StepTimes(study, file, runner).measured(long) == first
    assert len(runner.jobs) == 1
    times.measured(plan_of(file, optimizer__name="AdamW", batch__factor=2.0))
    assert len(runner.jobs) == 2
    assert len(known_step_times(study.user_attrs)) == 2


def test_steps_of_the_task_as_given_are_not_timed_beside_themselves(file: StudyFile, tmp_path: Path) -> None:
    runner = counting(tmp_path)
    shorter = plan_of(file, schedule__length=0.5)
    step = StepTimes(optuna.create_study(), file, runner).measured(shorter)
    assert (step.ratio, step.low, step.high) == (1.0, 1.0, 1.0)
    assert total_time(shorter, step, STEPS).ratio == pytest.approx(0.5)
    assert runner.jobs == []


def test_what_another_process_has_timed_is_taken(file: StudyFile, tmp_path: Path) -> None:
    study, here, there = optuna.create_study(), counting(tmp_path), counting(tmp_path)
    times = StepTimes(study, file, here)
    plan = plan_of(file, optimizer__name="AdamW")
    StepTimes(study, file, there).measured(plan)
    times.read_again()
    times.measured(plan)
    assert (len(here.jobs), len(there.jobs)) == (0, 1)


def test_the_verdict_counts_compiling_and_says_from_what_length_of_training_it_pays_off(tmp_path: Path) -> None:
    """Compiling halves a step's time; it takes a while before a plan's steps are timed, and in no run."""

    def is_compiled(config: BoostConfig) -> bool:
        return config.part(RuntimeSection).compile != "off"

    runtime = 'attribution_share = 0.0\n[set_up.runtime]\n"runtime.compile" = ["off", "default"]'
    folder = write(tmp_path / "study", set_up=runtime, n_trials=3, plain_runs=0)
    runner = SurfaceRunner(
        folder,
        noise=0.004,
        seed=3,
        trained=lambda job, run: replace(run, seconds=0.5 * run.seconds) if is_compiled(job.config) else run,
        timed=lambda job, speed: (
            replace(scaled(speed, 0.5), cold_ms=COLD_MS) if is_compiled(job.candidate[0]) else speed
        ),
    )
    taken, config = taken_of(run(folder, runner))
    assert is_compiled(config)
    run_ms = STEPS * STEP_MS
    assert 1.0 / taken.speedup == pytest.approx(0.5 * predicted_time(config) + COLD_MS / run_ms, rel=0.05)
    told = r"includes 0\.2 s of compiling, timed once, which pays off in trainings of more than (\d+) batches\."
    said = re.search(told, taken.sentence)
    assert said is not None
    saved_ms = STEP_MS * (1.0 - 0.5 * predicted_time(config))
    assert int(said[1]) == pytest.approx(COLD_MS / saved_ms, rel=0.1)


def test_nothing_is_counted_where_nothing_is_compiled(file: StudyFile) -> None:
    plain, compiled = plan_of(file), plan_of(file, runtime__compile="default")
    known = {
        f"step_time:{plan.step_key()}": SpeedMeasured(1.0, 1.0, 1.0, 20.0, 700.0).to_json()
        for plan in (plain, compiled)
    }
    assert compile_seconds(plain, file, known) == 0.0
    assert compile_seconds(compiled, file, known) == pytest.approx(0.7)
    assert compile_seconds(compiled, file, {}) == 0.0
    again = SpeedMeasured(1.0, 1.0, 1.0, 20.0, 700.0, cold_again=True)  # as a CUDA graph, which every run captures
    assert compile_seconds(compiled, file, {f"step_time:{compiled.step_key()}": again.to_json()}) == 0.0
