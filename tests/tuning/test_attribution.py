"""Set-ups taken apart: the factor of a part from the runs without it, what is no gain, and what fails meanwhile."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from tests.kit.set_up_search import LINEAR, begun_with, predicted_time, run, taken_of, write
from tests.kit.simulated_attribution import ADAMW, MERGED, SMOOTHED, SimulatedAttributor, Truth, true_and_shown
from tests.kit.surface_runner import SurfaceRunner, optimizer_of
from workbench.config import BoostConfig
from workbench.core.records import GainPart
from workbench.methods.batch.section import BatchSection
from workbench.methods.schedule.section import ScheduleSection
from workbench.study.answer.worth import _worth
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import Job, SpeedJob, SpeedMeasured, TrainJob
from workbench.study.set_up.attribution import (
    Attributor,
    _bar,
    _is_idle,
    _Needed,
    attribution_of,
    told_apart,
)
from workbench.study.set_up.parallel_lines import mean_of, parallel_lines
from workbench.study.set_up.parts import Part, parts_of
from workbench.study.set_up.stages import explain
from workbench.study.set_up.total_time import StepTimes

MERGING = Part("batch x 4", ("batch.factor",), "learning")


@pytest.mark.parametrize("spread", [math.nan, math.inf, 1e6, 2.0])
def test_runs_that_hardly_depend_on_their_length_bound_no_factor(spread: float) -> None:
    bar = _bar(MERGING, _Needed(0.4, spread, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0))
    assert bar.factor == pytest.approx(2.0)
    assert math.isnan(bar.low)
    assert math.isnan(bar.high)
    assert "do not bound" in bar.note
    assert not _is_idle(bar)


def test_runs_that_do_give_an_interval() -> None:
    bar = _bar(MERGING, _Needed(0.4, 0.05, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0))
    assert 1.7 < bar.low < 2.0 < bar.high < 2.3
    assert not _is_idle(bar)
    assert _is_idle(_bar(MERGING, _Needed(0.202, 0.05, 0.5, 9), _Needed(0.2, 0.0, 0.25, 0)))


def test_parts_whose_runs_tell_next_to_nothing_share_the_bar_of_the_schedule() -> None:
    schedule = GainPart("length 0.638, linear", 1.03)
    less_bn, smoothing = GainPart("LessBN", 2.47, 0.99, 6.18), GainPart("label smoothing 0.1", 0.86, 0.42, 1.77)
    merged, layout = GainPart("batch x 4", 1.1, note="its runs do not bound it"), GainPart("layout", 1.12, 1.0, 1.2)
    sure, margin = GainPart("Muon", 3.9, 2.2, 6.9), GainPart("safety margin", 0.5, 0.3, 0.82)
    shared, alone, *others = told_apart([schedule, layout, less_bn, merged, smoothing, sure, margin])
    assert shared.part == "length 0.638, linear, LessBN, batch x 4, label smoothing 0.1"
    assert shared.factor == pytest.approx(1.03 * 2.47 * 1.1 * 0.86)
    assert (shared.effect, shared.remark) == ("unmeasured", "their runs scatter too much to tell them apart")
    assert alone == layout
    assert others == [sure, margin], "wide, but surely a gain and surely a cost"
    cut = replace(schedule, note="no time was left to measure them one by one")
    assert told_apart([cut, less_bn])[0].note == cut.note
    assert told_apart([GainPart("the task's own schedule", 1.0), less_bn])[0].part == "LessBN"
    assert told_apart([schedule, layout]) == (schedule, layout)
    assert told_apart([GainPart("the task's own schedule", 1.004), layout]) == (layout,), "which adds nothing"
    assert told_apart([]) == ()


def test_set_ups_on_parallel_lines_are_as_far_apart_as_these() -> None:
    """Whatever the quality of either: the second needs twice the length."""
    safe = [(math.log(0.5), 0.05 - 0.04 * math.log(0.5))] * 2
    without = [(math.log(length), 0.05 - 0.04 * math.log(length / 2.0)) for length in (0.3, 0.5, 0.6)]
    lines = parallel_lines([safe, without])
    assert lines is not None
    assert lines.slope == pytest.approx(-0.04)
    assert lines.noise == pytest.approx(0.0, abs=1e-12)
    assert lines.freedom == 2
    assert lines.apart(mean_of(safe), mean_of(without))[0] == pytest.approx(math.log(2.0))
    assert lines.apart(mean_of(without), mean_of(safe))[0] == pytest.approx(-math.log(2.0))


@pytest.mark.parametrize("runs", [[], [(0.0, 0.1)] * 4, [(-1.0, 0.1), (0.0, 0.1), (0.1, 0.3)]])
def test_no_line_falls_through_runs_of_one_length_or_runs_that_get_worse(runs: list[tuple[float, float]]) -> None:
    assert parallel_lines([[(0.0, 0.0)] * 3, runs]) is None


SPACE = f'{LINEAR}\n"batch.factor" = [1.0, 2.0]\n"regularization.label_smoothing" = [0.0, 0.1]'


@pytest.fixture
def file(tmp_path: Path) -> StudyFile:
    return read_study(write(tmp_path / "study", space=SPACE))


@pytest.mark.parametrize("whole", [ADAMW | MERGED, ADAMW | MERGED | SMOOTHED], ids=["both help", "one does not"])
def test_intervals_hold_the_true_factors_of_a_set_up_with_a_safety_margin(
    file: StudyFile, whole: dict[str, Any]
) -> None:
    """Of 95 % intervals at least nine in ten; and in 19 of 20 the decisions are right that matter."""
    truth, idle = Truth(), Counter[str]()
    seen: dict[str, list[tuple[float, bool]]] = {}
    for seed in range(200):
        simulated = SimulatedAttributor(file, whole, truth, seed)
        bars = simulated.take_apart(0)
        idle.update(simulated.study.user_attrs["idle_parts"]["0"])
        assert math.prod(bar.factor for bar in bars) == pytest.approx(truth.margin / truth.needed(whole))
        for part, found in true_and_shown(truth, bars).items():
            seen.setdefault(part, []).append(found)
    for part, found in seen.items():
        off, held = zip(*found, strict=True)
        assert len(found) > 190, part
        assert sum(held) >= 0.9 * len(held), (part, sum(held))
        assert abs(sum(off) / len(off)) < 0.04, (part, sum(off) / len(off))
    assert {"AdamW", "batch x 2", "safety margin"} <= seen.keys()
    assert idle["AdamW"] <= 10
    assert idle["label smoothing 0.1"] >= 190 or "label smoothing 0.1" not in seen


def test_a_longer_form_of_a_set_up_has_a_larger_margin_and_else_the_same_parts(file: StudyFile) -> None:
    truth = Truth()
    simulated = SimulatedAttributor(file, ADAMW | MERGED, truth, 0)
    bars = simulated.take_apart(0)
    simulated.add(ADAMW | MERGED, 1.25 * truth.needed(ADAMW | MERGED) / truth.margin)
    schedule, *parts, margin = simulated._on_schedule(1, 0, bars)
    assert schedule.factor == bars[0].factor
    assert schedule.part != bars[0].part
    assert parts == bars[1:-1]
    assert margin.part == bars[-1].part == "safety margin"
    for end in ("factor", "low", "high"):
        assert getattr(margin, end) == pytest.approx(getattr(bars[-1], end) / 1.25)


def test_a_margin_that_may_be_none_counts_with_the_schedule(file: StudyFile) -> None:
    truth = Truth(margin=1.0)
    bars = SimulatedAttributor(file, ADAMW | MERGED, truth, 0).take_apart(0)
    assert [bar.part for bar in bars[1:]] == ["AdamW", "batch x 2"]
    assert math.prod(bar.factor for bar in bars) == pytest.approx(truth.margin / truth.needed(ADAMW | MERGED))


@pytest.mark.parametrize(
    ("bar", "said"),
    [
        (GainPart("LessBN", 0.8, 0.7, 0.9), "0.80 x as fast (95 % interval 0.70 to 0.90)"),
        (GainPart("LessBN", 0.97, 0.88, 1.07), "(95 % interval 0.88 to 1.07), no sure effect: its interval includes 1"),
        (GainPart("LessBN, linear", 2.0), "not measured separately; 2.00 x as fast with the others that were not"),
        (GainPart("LessBN, linear", 2.0, note="no time was left"), "with the others that were not: no time was left"),
    ],
)
def test_a_script_says_what_a_part_is_worth_and_how_surely(bar: GainPart, said: str) -> None:
    assert _worth("LessBN", (bar,)).endswith(said)


def test_a_part_takes_along_what_is_set_but_not_in_effect() -> None:
    off = {"boost": {"mode": "disable_all"}}
    given = BoostConfig.from_dict(off)
    stated = given.with_values({"optimizer.name": "AdamW", "optimizer.lr": 0.01, "optimizer.aux_lr": 0.005})
    (part,) = parts_of(stated.resolve("O0"), given.resolve("O0"))
    assert part.name == "AdamW"
    assert set(part.paths) == {"optimizer.name", "optimizer.lr", "optimizer.aux_lr"}
    assert given.with_values(part.taken_out({}, given)) == given


AVERAGE = '"regularization.weight_average" = ["ema"]\n"regularization.decay" = [0.9]'


def test_convolutions_by_shape_go_with_the_memory_format_without_which_they_do_nothing() -> None:
    given = BoostConfig().with_values({"boost.mode": "disable_all"})
    runtime = {"memory_format": "channels_last", "convolution": "by_shape", "threads": 1}
    plan = given.with_values({"runtime": runtime}).resolve("O0")
    layout, threads = parts_of(plan, given.resolve("O0"))
    assert (layout.name, layout.kind) == ("memory format channels last, convolutions by shape", "time")
    assert threads.name == "threads 1"
    left = given.with_values(layout.taken_out({"runtime.threads": 1}, given)).resolve("O0")
    assert not left.dropped
    assert [one.name for one in parts_of(left, given.resolve("O0"))] == ["threads 1"]


@pytest.mark.long
def test_a_part_that_does_nothing_is_taken_out_of_what_is_exported(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", space=f"{LINEAR}\n{AVERAGE}")
    result = run(folder, SurfaceRunner(folder, noise=0.003))
    _, config = taken_of(result)
    assert config.leaves()["regularization.weight_average"] == "none"
    assert not any("average" in bar.part for bar in result.attribution["o1"])
    product = math.prod(bar.factor for bar in result.attribution["o1"])
    assert product == pytest.approx(1.0 / predicted_time(config), rel=0.01)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_in_twenty_searches_the_part_that_does_nothing_goes_and_the_one_that_helps_stays(tmp_path: Path) -> None:
    """Averaging the weights does nothing on the surface; AdamW needs 0.6 of the time that the task's own SGD needs."""
    gone = kept = 0
    for seed in range(20):
        folder = write(tmp_path / str(seed), space=f"{LINEAR}\n{AVERAGE}")
        text = (folder / "study.toml").read_text().replace('["AdamW", "SGD"]', '["AdamW"]')
        (folder / "study.toml").write_text(text)
        taken = run(folder, SurfaceRunner(folder, noise=0.004, seed=seed)).choices["o1"].candidate
        config = BoostConfig() if taken is None else BoostConfig.from_dict(taken.config)
        gone += config.leaves()["regularization.weight_average"] == "none"
        kept += optimizer_of(config) == "AdamW"
    print(f"of 20 searches {gone} left out what does nothing, {kept} kept what helps")
    assert gone >= 19
    assert kept >= 19


def quick_batches(directory: Path, truth: Callable[[BoostConfig], float], noise: float) -> SurfaceRunner:
    """Return a runner where merging two batches saves 30 % of the time."""

    def timed(job: SpeedJob, speed: SpeedMeasured) -> SpeedMeasured:
        ratio = job.candidate[0].part(BatchSection).factor ** 0.5
        return replace(speed, ratio=ratio, low=0.99 * ratio, high=1.01 * ratio)

    return SurfaceRunner(directory, noise=noise, truth=truth, timed=timed)


def smoothing_of(config: BoostConfig) -> float:
    return float(config.leaves()["regularization.label_smoothing"])


class SmoothingFirst(Attributor):
    """Takes the smoothing for the least useful part, as a regression over few runs may."""

    def _least_useful(self, parts: Sequence[Part], now: Any) -> Part:
        return max(parts, key=lambda part: part.name.startswith("label smoothing"))


def test_a_part_that_helps_only_beside_another_one_is_kept(tmp_path: Path) -> None:
    """Once the smoothing has gone, merging batches is no gain; in the whole set-up it is."""

    def truth(config: BoostConfig) -> float:
        is_spoilt = config.part(BatchSection).factor == 2.0 and smoothing_of(config) == 0.0
        worth = config.part(ScheduleSection).length * (0.69 if is_spoilt else 1.0)
        return 0.98 + 0.04 * math.log2(worth * (1.1 if smoothing_of(config) else 1.0))

    runner = quick_batches(tmp_path, truth, noise=0.003)
    with begun_with(runner, space=SPACE) as (file, study, search):
        whole = {"schedule.length": 0.64, "batch.factor": 2.0, "regularization.label_smoothing": 0.1}
        number = search.run_given({**whole, "schedule.shape": "linear"}, {"n_seeds": 3})
        attributor = SmoothingFirst(study, file, StepTimes(study, file, runner), search.run_given, None)
        bars = {bar.part: bar for bar in attributor.take_apart(number)}
        assert bars["batch x 2"].low < 1.0
        assert bars["batch x 2"].alone == pytest.approx(2.0**0.5, rel=0.15)
        assert attributor.without_idle_parts(number) == number

    def cut_short(values: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        if values.get("regularization.label_smoothing") and values.get("batch.factor", 1.0) == 1.0:
            raise OutOfTimeError("the whole without merged batches")
        return search.run_given(values, attributes)

    runner = quick_batches(tmp_path / "cut", truth, noise=0.003)
    with begun_with(runner, space=SPACE) as (file, study, search):
        number = search.run_given({**whole, "schedule.shape": "linear"}, {"n_seeds": 3})
        attributor = SmoothingFirst(study, file, StepTimes(study, file, runner), cut_short, None)
        cut = {bar.part: bar for bar in attributor.take_apart(number)}["batch x 2"]
        assert cut.low < 1.0
        assert "no time was left to leave it out alone" in cut.note


def test_what_is_no_gain_goes_although_without_all_that_is_no_sure_gain_a_run_takes_longer(tmp_path: Path) -> None:
    """Few runs may not bound the factor of a part that helps: it goes back, the one that does nothing stays away.

    Merging batches costs no quality; smoothing labels does nothing.
    """
    runner = quick_batches(tmp_path, lambda config: 0.98 + 0.02 * math.log2(config.part(ScheduleSection).length), 0.002)
    with begun_with(runner, space=SPACE) as (file, study, search):
        merged = {"batch.factor": 2.0, "schedule.shape": "linear", "regularization.label_smoothing": 0.0}
        for length in (0.6, 0.75, 0.9):
            search.run_given({"schedule.length": length, **merged}, {"n_seeds": 4})
        whole = {"schedule.length": 0.75, **merged} | {"regularization.label_smoothing": 0.1}
        number = search.run_given(whole, {"n_seeds": 4})
        bars = [
            {"part": "length 0.75, linear", "factor": 1.33},
            {"part": "batch x 2", "factor": 1.07, "low": 0.79, "high": 1.45, "alone": 1.21},
            {"part": "label smoothing 0.1", "factor": 1.02, "low": 0.95, "high": 1.09, "alone": 1.02},
        ]
        study.set_user_attr("attribution", {str(number): bars})
        study.set_user_attr("idle_parts", {str(number): ["label smoothing 0.1", "batch x 2"]})
        attributor = Attributor(study, file, StepTimes(study, file, runner), search.run_given, None)
        remaining = attributor.without_idle_parts(number)
        config = BoostConfig.from_dict(study.get_trials(deepcopy=False)[remaining].user_attrs["config"])
        assert remaining != number
        assert smoothing_of(config) == 0.0
        assert config.part(BatchSection).factor == 2.0
        (first, kept) = attribution_of(study.user_attrs)[str(remaining)]
        assert first.part.startswith("length")
        assert kept.part == "batch x 2"
        assert "no sure gain by itself, but without it and label smoothing 0.1 a run takes 1." in kept.note
        assert study.user_attrs["remaining_set_up"]["idle"] == {"regularization.label_smoothing": 0.0}


@pytest.mark.parametrize("is_failing", [True, False], ids=["a run fails", "nothing is left"])
def test_taking_apart_goes_on_where_a_run_fails_and_may_come_to_the_baseline_itself(
    is_failing: bool, tmp_path: Path
) -> None:
    """Without AdamW and at full length nothing is left of the set-up, so that run is a repeat of O0's."""

    def fail(job: Job[Any]) -> None:
        """Nothing but AdamW gets through the compiler."""
        is_shorter = isinstance(job, TrainJob) and job.config.part(ScheduleSection).length < 1.0
        if is_failing and is_shorter and optimizer_of(job.config) == "task":
            raise RuntimeError("the compiler failed")

    runner = SurfaceRunner(tmp_path, noise=0.004, seed=3, before=fail)
    with begun_with(runner, space="") as (file, study, search):
        whole = {"optimizer.name": "AdamW", "optimizer.lr": 0.005, "schedule.length": 0.95}
        number = search.run_given(whole, {"n_seeds": 3})
        bars = Attributor(study, file, StepTimes(study, file, runner), search.run_given, None).take_apart(number)
        trials = study.get_trials(deepcopy=False)
    assert "AdamW" in {bar.part for bar in bars}
    assert any(one.state == TrialState.FAIL for one in trials) is is_failing
    assert any(one.user_attrs.get("repeats") == 0 for one in trials)


def test_the_interval_of_a_runtime_alone_is_its_own_since_o0_s_time_is_exactly_1(tmp_path: Path) -> None:
    runner = SurfaceRunner(tmp_path, noise=0.002)
    with begun_with(runner, space=SPACE) as (file, study, search):
        number = search.run_given({"schedule.length": 1.0, "amp.level": "O2"}, {})
        _, bar = Attributor(study, file, StepTimes(study, file, runner), search.run_given, None).take_apart(number)
    assert bar.part == "amp O2 float16"
    assert bar.low < bar.factor < bar.high


def test_without_time_to_train_times_of_steps_are_measured_and_the_rest_once_there_is(tmp_path: Path) -> None:
    runner = SurfaceRunner(tmp_path, noise=0.002)
    with begun_with(runner, space=SPACE) as (file, study, search):
        whole = {"schedule.length": 0.5, "schedule.shape": "linear", "regularization.label_smoothing": 0.1}
        number = search.run_given(whole | {"amp.level": "O2"}, {})
        over = time.monotonic() - 1.0
        bars = Attributor(study, file, StepTimes(study, file, runner), search.run_given, over).take_apart(number)
        assert [bar.part for bar in bars] == ["label smoothing 0.1, length 0.5, linear", "amp O2 float16"]
        assert bars[1].factor == pytest.approx(1.25, abs=0.02)
        assert "no time was left" in bars[0].note
        explain(search, number, deadline=over + 2.0**20)
        later = attribution_of(study.user_attrs)[str(number)]
    assert later[0].part == "length 0.5, linear"
    assert {"label smoothing 0.1", "amp O2 float16"} < {bar.part for bar in later}
    assert math.prod(bar.factor for bar in later) == pytest.approx(math.prod(bar.factor for bar in bars))
