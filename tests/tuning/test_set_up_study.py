"""Whole searches for the fastest set-up, on a surface whose truth is known."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import statistics
import time
from collections.abc import Callable, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.kit.set_up_search import (
    ALLOWED,
    LINEAR,
    SEARCH_ALONE,
    begun_with,
    predicted_time,
    run,
    searching,
    stored_trials,
    taken_of,
    waiting_trials,
    write,
)
from tests.kit.surface_runner import SurfaceRunner, optimizer_of, scaled, step_ratio, true_metric
from workbench.config import BoostConfig, NetworkFacts
from workbench.core.records import StudyResult, Verdict
from workbench.core.trial_counts import outcome_of
from workbench.methods.batch.section import BatchSection
from workbench.methods.schedule.section import ScheduleSection
from workbench.study import TuneProgress, read_result
from workbench.study.answer.confirming import FEWEST_PAIRS
from workbench.study.answer.selection import FORM_OF, contenders, first_contender
from workbench.study.ask.sections import ACCURACY_DROPS
from workbench.study.ask.study_file import read_study
from workbench.study.errors import StudyError, StudyFailedError, StudyStoppedError
from workbench.study.run.job import UNMONITORED, Job, Monitor, RunStep, Trained, TrainJob
from workbench.study.set_up.attribution import Attributor
from workbench.study.set_up.objective import SKIPPED
from workbench.study.set_up.stages import (
    Timetable,
    has_found,
    settle,
    stage_ends,
    take_apart,
    train_forms,
)
from workbench.study.set_up.standing import BOLD, MOST_SEEDS, baseline_metrics, standing_now
from workbench.study.set_up.tuned_plain import PLAIN

SHORTER = "The study trains 36 of 430 batches. For 430, give it --minutes 47 --fresh."
NOT_CAST = "bfloat16 is left out, because this CPU has no instructions for it."


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyResult, SurfaceRunner]:
    """Return one study that was run to its end, its result and who trained it."""
    left_out = f'left_out = ["{SHORTER}", "{NOT_CAST}"]'
    folder = write(tmp_path_factory.mktemp("searched") / "study", set_up=left_out, plain_runs=5)
    runner = SurfaceRunner(folder, noise=0.004, seed=3)
    return folder, run(folder, runner), runner


@pytest.fixture(scope="module")
def baseline_known(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write(tmp_path_factory.mktemp("begun") / "study", plain_runs=0)
    run(folder, SurfaceRunner(folder, noise=0.001), trials=1)
    return folder


@pytest.fixture
def begun(baseline_known: Path, tmp_path: Path) -> Path:
    """Return the folder of a study that has trained O0, the test's own copy."""
    return shutil.copytree(baseline_known, tmp_path / "study")


BETTER = {"optimizer.name": "AdamW", "optimizer.lr": 0.005, "schedule.length": 0.6}
LOST = {"metric": math.nan, "curve": (), "diverged": True, "message": "the loss is nan"}

Searched = tuple[Path, StudyResult, SurfaceRunner]


def test_what_is_exported_is_what_was_confirmed_faster_and_truly_keeps_the_quality(searched: Searched) -> None:
    _, result, _ = searched
    taken, config = taken_of(result)
    assert 1.0 / predicted_time(config) > 1.3
    assert taken.speedup == pytest.approx(1.0 / predicted_time(config), rel=0.05)
    assert true_metric(BoostConfig()) - true_metric(config) < ALLOWED
    assert list(result.exported) == ["o1"], "one drop, one export"
    exported = BoostConfig.from_json(result.exported["o1"])
    assert exported.resolve("O1").key() == config.resolve("O1").key()
    assert true_metric(exported) == true_metric(config)
    assert predicted_time(exported) == predicted_time(config)
    holds = taken.speedup_low > 1.0 and taken.drop_bound <= taken.allowed_drop
    assert str(taken.verdict) == ("confirmed" if holds else "undecided")
    assert str(taken.verdict) in result.choices["o1"].sentence.lower()
    assert taken.drop == pytest.approx(statistics.mean(reference - metric for reference, metric in taken.metrics))
    assert taken.n_seeds >= 10


def test_what_is_read_later_is_what_tune_has_told(searched: Searched) -> None:
    folder, result, _ = searched
    later = read_result(folder)
    assert later.chosen == result.chosen
    assert later.choice_sentences == result.choice_sentences
    assert later.candidates == result.candidates
    assert later.attribution == result.attribution
    assert later.tuned_plain == result.tuned_plain
    assert later.allowed_drops == result.allowed_drops == {"o1": ALLOWED}
    assert later.counts == result.counts
    assert set(later.messages) >= set(result.choice_sentences)
    assert SHORTER in result.messages, "that runs were shorter than the task's own is said with the answer"
    assert SHORTER in later.messages
    assert NOT_CAST not in result.messages


def test_a_trial_keeps_the_quality_where_all_runs_of_the_search_say_so(searched: Searched) -> None:
    folder, result, _ = searched
    file = read_study(folder)
    standing = standing_now(optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / 'study.db'}"), file)
    leaders = set(standing.ranking)
    assert leaders
    assert all(result.trials[number].feasible for number in leaders)
    for trial in result.trials[1:]:
        if trial.state == "complete":
            assert trial.feasible == (trial.chance >= 0.9)
            assert outcome_of(trial, result.allowed_drops) != "within the allowed drop" or trial.feasible
    taken, _ = taken_of(result)
    parts = {one.number for one in stored_trials(folder) if " without " in one.user_attrs.get("purpose", "")}
    faster = [
        trial.number
        for trial in result.trials[1:]
        if outcome_of(trial, result.allowed_drops) == "within the allowed drop"
        and trial.number not in parts  # what was trained to know a part's worth stands behind what remained of them all
        and trial.relative_step_time < 0.98 * result.trials[taken.trial_number].relative_step_time
    ]
    assert set(faster) <= {one.trial_number for one in result.candidates}, "each winner is the winner, or was tested"


def test_the_parts_of_the_gain_multiply_to_the_total(searched: Searched) -> None:
    _, result, _ = searched
    parts = result.attribution["o1"]
    total = 1.0 / predicted_time(taken_of(result)[1])
    assert math.prod(part.factor for part in parts) == pytest.approx(total, rel=0.01)
    assert parts[0].part.startswith("length"), "the schedule is the ground on which the others stand"


def test_tuned_plain_differs_from_the_task_in_its_schedule_and_rate_alone(searched: Searched) -> None:
    _, result, _ = searched
    beside = result.tuned_plain["o1"]
    config = BoostConfig.from_dict(beside.config)
    assert optimizer_of(config) == "task"
    assert config.part(BatchSection).factor == 1.0
    assert beside.relative_time == pytest.approx(config.part(ScheduleSection).length, rel=0.02)
    expected = beside.relative_time / predicted_time(taken_of(result)[1])
    assert beside.speedup == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
def test_tuned_plain_takes_turns_with_the_export(tmp_path: Path) -> None:
    def calming(_: TrainJob, run: Trained) -> Trained:
        """The machine becomes faster with every run."""
        return replace(run, seconds=run.seconds * 0.98**runner.runs)

    folder = write(tmp_path / "study", allowed=0.03, set_up="attribution_share = 0.0")
    runner = SurfaceRunner(folder, noise=0.004, seed=3, trained=calming)
    result = run(folder, runner, trials=6)
    beside, (taken, config) = result.tuned_plain["o1"], taken_of(result)
    assert beside.relative_time < 1.0
    assert beside.config != taken.config
    assert taken.speedup == pytest.approx(1.0 / predicted_time(config), rel=0.05)
    assert beside.speedup == pytest.approx(beside.relative_time / predicted_time(config), rel=0.05)


def test_where_nothing_plainer_is_faster_the_export_is_as_fast_beside_it_as_the_verdict_says(tmp_path: Path) -> None:
    def truth(config: BoostConfig) -> float:
        is_plain = optimizer_of(config) == "task" and config.part(ScheduleSection).length < 1.0
        return true_metric(config) - (0.2 if is_plain else 0.0)

    folder = write(tmp_path / "study", allowed=0.03, plain_runs=2, set_up="attribution_share = 0.0")
    result = run(folder, SurfaceRunner(folder, noise=0.004, seed=3, truth=truth), trials=4)
    taken, _ = taken_of(result)
    assert taken.n_seeds > 5
    assert result.tuned_plain["o1"].speedup == pytest.approx(taken.speedup)
    assert "kept the quality in 2 runs" in result.headlines["o1"]


def test_tuned_plain_that_no_run_has_tried_is_not_taken_for_the_task_as_given(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", allowed=0.03, plain_runs=0, set_up="attribution_share = 0.0")
    result = run(folder, SurfaceRunner(folder, noise=0.004, seed=3), trials=3)
    assert math.isnan(result.tuned_plain["o1"].relative_time)
    assert math.isnan(result.tuned_plain["o1"].speedup)
    assert "Tuned plain was not tried" in result.headlines["o1"]
    assert math.isnan(read_result(folder).fair_baselines["o1"][1])


def test_values_are_predicted_times_and_what_cannot_lead_is_pruned_untrained_and_not_counted(
    searched: Searched,
) -> None:
    folder, result, _ = searched
    trials = stored_trials(folder)
    drawn = [one for one in trials if "given" not in one.user_attrs]
    counted = [one for one in drawn if SKIPPED not in one.user_attrs and "repeats" not in one.user_attrs]
    assert len(counted) == 14
    for trial in (one for one in trials if one.state == optuna.trial.TrialState.COMPLETE):
        if not trial.user_attrs["trained"]["diverged"]:
            config = BoostConfig.from_dict(trial.user_attrs["config"])
            one_pass = step_ratio(config) / 200  # there are no halves of them
            assert trial.value == pytest.approx(predicted_time(config), abs=one_pass)
    for trial in (one for one in trials if SKIPPED in one.user_attrs):
        assert trial.state == optuna.trial.TrialState.PRUNED
        assert trial.values is None
        assert not trial.constraints
        assert "trained" not in trial.user_attrs
        assert math.isnan(result.trials[trial.number].value)


def test_trials_are_paired_with_the_baseline_s_seeds(searched: Searched) -> None:
    """The first seed of a trial goes round the baseline's five; a deficit is the difference on one seed."""
    folder, _, runner = searched
    runs, baseline = runner.train_jobs, runner.train_jobs[0].config
    assert [job.seed for job in runs[:5]] == [0, 1, 2, 3, 4]
    assert all(job.config == baseline for job in runs[:5])
    assert all(job.steps == job.evaluate_every == 200 for job in runs), "to its own end, and evaluated there alone"

    def metric(config: BoostConfig, seed: int) -> float:
        again = TrainJob(config, "O1", seed=seed, steps=200, evaluate_every=200)
        return float(SurfaceRunner(folder, noise=0.004, seed=3).run(again).metric)

    checked = 0
    for trial in stored_trials(folder):
        lost = trial.user_attrs.get("deficits", [None])[0]
        seed = trial.number % 5
        plan = BoostConfig.from_dict(trial.user_attrs["config"]).resolve(trial.user_attrs["level"])
        leaves = plan.explicit_config().leaves()
        own = next((job for job in runs if job.seed == seed and job.config.leaves() == leaves), None)
        if own is not None and lost is not None:
            checked += 1
            assert lost == pytest.approx(metric(baseline, seed) - metric(own.config, seed))
    assert checked > 5


def test_a_trial_shows_what_its_own_runs_reached(searched: Searched) -> None:
    """Not O0's mean less its drop: O0's luck on the trial's seeds is no part of what a run has measured."""
    folder, result, _ = searched
    stored = {trial.number: trial.user_attrs for trial in stored_trials(folder)}
    several = 0
    for trial in result.trials:
        if trial.state == "complete" and math.isfinite(trial.metric):
            metrics = stored[trial.number]["run_metrics"]
            assert trial.metric == pytest.approx(sum(metrics) / len(metrics))
            several += len(metrics) > 1
            lost = stored[trial.number].get("deficits")
            if lost is not None:
                assert metrics[0] + lost[0] in stored[0]["run_metrics"], "O0's on the same seed"
    assert several > 1


def test_a_finished_study_is_not_trained_any_further(searched: Searched) -> None:
    folder, result, _ = searched
    again = SurfaceRunner(folder)
    told = run(folder, again)
    assert again.runs == 0
    assert told.chosen == result.chosen
    assert told.attribution == result.attribution


def test_a_range_may_hold_one_value(tmp_path: Path) -> None:
    space = f'{LINEAR}\n"schedule.warmup" = {{low = 0.1, high = 0.1}}'
    result = run(write(tmp_path, space=space, n_trials=30, **SEARCH_ALONE))
    drawn = [one.parameters["schedule.warmup"] for one in result.trials if "schedule.warmup" in one.parameters]
    assert len(drawn) > 15
    assert set(drawn) == {0.1}


def test_a_search_may_choose_between_lists(tmp_path: Path) -> None:
    space = LINEAR + '\n"optimizer.betas" = [[0.9, 0.999], [0.8, 0.99]]'
    folder = write(tmp_path / "study", space=space, plain_runs=0, n_trials=3, **SEARCH_ALONE)
    assert sum(trial.state == "complete" for trial in run(folder).trials) > 1


def test_tuned_plain_tries_what_fails_once(tmp_path: Path) -> None:
    def fail_when_short(job: Job[Any]) -> None:
        """The task's own optimizer fails in runs that are much shorter than today's."""
        is_plain = isinstance(job, TrainJob) and optimizer_of(job.config) == "task"
        if is_plain and job.config.part(ScheduleSection).length < 0.55:
            raise ZeroDivisionError

    folder = write(tmp_path / "study", plain_runs=9, n_trials=1, **SEARCH_ALONE)
    run(folder, SurfaceRunner(folder, before=fail_when_short))
    plain = [trial for trial in stored_trials(folder) if trial.user_attrs.get(PLAIN)]
    asked = [str(trial.user_attrs["given"]) for trial in plain]
    assert len(asked) == len(set(asked)) <= 9
    assert any(trial.state == optuna.trial.TrialState.FAIL for trial in plain)


@pytest.mark.slow
def test_where_groups_have_their_own_rates_search_and_tuned_plain_scale_them_all(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", plain_runs=4, n_trials=9, **SEARCH_ALONE)
    text = (folder / "study.toml").read_text().replace('"optimizer.name" = ["AdamW", "SGD"]\n', "")
    text = text.replace('"optimizer.lr" = {low = 0.001, high = 0.3', '"optimizer.lr_factor" = {low = 0.25, high = 8.0')
    text = text.replace("plain_rates = [0.05, 0.1]", 'plain_rate = "optimizer.lr_factor"\nplain_rates = [1.0, 2.0]')
    (folder / "study.toml").write_text(text)
    runner = SurfaceRunner(folder, noise=0.001)
    result = run(folder, runner)
    plain = [one.user_attrs["given"]["optimizer.lr_factor"] for one in stored_trials(folder) if PLAIN in one.user_attrs]
    assert len(plain) == 4
    assert min(plain) >= 1.0
    assert max(plain) <= 2.0
    sections = [job.config.optimizer for job in runner.train_jobs if job.config.optimizer is not None]
    assert {(one.name, one.lr) for one in sections} == {(None, None)}
    best = taken_of(result)[1].optimizer
    assert best is not None
    assert best.lr_factor is not None
    assert 1.0 < best.lr_factor < 4.0, "twice the task's rates are best"


@pytest.mark.slow
def test_what_is_as_fast_as_the_leader_is_not_drawn_again_and_again(tmp_path: Path) -> None:
    """The first steps of each kind take as long as a tenth of today's run."""
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=0, **SEARCH_ALONE)
    runner = SurfaceRunner(folder, noise=0.004, seed=3)
    runner.timed = lambda _, speed: replace(speed, cold_ms=20 * speed.baseline_ms)
    run(folder, runner)
    trials = [one for one in stored_trials(folder) if "given" not in one.user_attrs]
    assert sum(SKIPPED in one.user_attrs for one in trials) <= 2, "once it was two of three"


def test_the_runtime_has_its_share_of_the_time_however_late_it_has_become(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert stage_ends(now - 5.0, 100.0, now + 50.0) == now + 20.0
    assert stage_ends(now + 40.0, 100.0, now + 50.0) == now + 40.0
    assert stage_ends(now - 5.0, 100.0, now + 1.0) == now + 1.0
    assert stage_ends(None, None, None) is None


def whole_runs_alone(config: BoostConfig) -> float:
    """A truth where whatever is shorter than the task as given is much worse."""
    return 0.98 if config.part(ScheduleSection).length == 1.0 else 0.5


def test_nothing_but_the_baseline_is_exported_where_no_shorter_run_keeps_the_quality(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=0)
    result = run(folder, SurfaceRunner(folder, truth=whole_runs_alone), trials=3)
    assert result.chosen == {"o1": "O0"}
    assert "O0 is exported" in result.choices["o1"].sentence
    assert result.attribution == {}
    exported = BoostConfig.from_json(result.exported["o1"])
    assert exported.part(ScheduleSection).length == 1.0
    assert optimizer_of(exported) == "task"
    assert read_result(folder).choice_sentences == result.choice_sentences


@pytest.mark.parametrize(
    ("today", "truth", "is_told"),
    [(2000, whole_runs_alone, True), (None, whole_runs_alone, False), (2000, true_metric, False)],
    ids=["cut", "whole", "cut, and shorter ones do"],
)
def test_a_search_cut_short_says_where_no_shorter_run_keeps_the_quality(
    tmp_path: Path, today: int | None, truth: Callable[[BoostConfig], float], is_told: bool
) -> None:
    set_up = f"attribution_share = 0.0\ntodays_steps = {today}" if today else "attribution_share = 0.0"
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=3, set_up=set_up, n_trials=8)
    result = run(folder, SurfaceRunner(folder, noise=0.002, truth=truth))
    assert (result.chosen == {"o1": "O0"}) is (truth is whole_runs_alone)
    told = [one for one in result.messages if "shorter trainings that were tried surely keeps the quality" in one]
    assert len(told) == is_told
    assert all("The 200 of today's 2000 batches" in one for one in told)
    assert read_result(folder).messages == result.messages


@pytest.mark.parametrize("of_usual", [0.75, 1.1])
def test_where_no_shorter_run_keeps_the_quality_the_faster_runtime_alone_is_a_gain(
    tmp_path: Path, of_usual: float
) -> None:
    """Amp O2 takes 0.6 of the time, or 0.88, which is not worth ending a search."""

    def share(config: BoostConfig) -> float:
        return of_usual if config.amp.level == "O2" else 1.0

    set_up = '[set_up.runtime]\n"amp.level" = ["O0", "O2"]'
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=0, set_up=set_up)
    runner = SurfaceRunner(
        folder,
        truth=whole_runs_alone,
        trained=lambda job, run: replace(run, seconds=run.seconds * share(job.config)),
        timed=lambda job, speed: scaled(speed, share(job.candidate[0])),
    )
    result = run(folder, runner, trials=3)
    taken, config = taken_of(result)
    assert (taken.verdict, config.amp.level, config.part(ScheduleSection).length) == ("confirmed", "O2", 1.0)
    assert optimizer_of(config) == "task"
    assert taken.speedup == pytest.approx(1.0 / (0.8 * of_usual), rel=0.05)
    factors = {part.part: part.factor for part in result.attribution["o1"]}
    assert factors["amp O2 float16"] == pytest.approx(1.0 / (0.8 * of_usual))


def test_where_seeds_differ_by_more_than_may_be_lost_the_runtime_alone_is_exported_undecided(
    tmp_path: Path,
) -> None:
    """Nothing is sure then, and it computes what O0 does; amp O2 takes 0.8 of the time."""
    folder = write(
        tmp_path / "study", space=LINEAR, plain_runs=0, set_up='[set_up.runtime]\n"amp.level" = ["O0", "O2"]'
    )
    result = run(folder, SurfaceRunner(folder, noise=0.3, seed=1, truth=whole_runs_alone), trials=3)
    taken, config = taken_of(result)
    assert (taken.verdict, config.amp.level, config.part(ScheduleSection).length) == ("undecided", "O2", 1.0)
    asked = re.search(r"`tune\(\.\.\., confirm_seeds=(\d+)\)`", taken.sentence)  # no command can load this task
    assert asked is not None
    assert int(asked[1]) > taken.n_seeds
    assert taken.drop > taken.allowed_drop, "which is luck"
    assert "Losses and first gradient agree with O0's within rounding" in taken.sentence


def with_amp_taking(share: float, folder: Path) -> SurfaceRunner:
    """Return a runner where amp O2 takes a share of its usual time, and shorter runs lose little."""

    def truth(config: BoostConfig) -> float:
        return 0.98 - 0.005 * math.log(1.0 / config.part(ScheduleSection).length)

    return SurfaceRunner(
        folder,
        noise=0.001,
        truth=truth,
        trained=lambda job, run: replace(run, seconds=run.seconds * (share if job.config.amp.level == "O2" else 1.0)),
        timed=lambda job, speed: scaled(speed, share if job.candidate[0].amp.level == "O2" else 1.0),
    )


@pytest.mark.parametrize(("share", "is_tried"), [(0.75, True), (1.0, False)])
def test_tuned_plain_is_tried_in_a_runtime_that_saves_much_and_competes(
    tmp_path: Path, share: float, is_tried: bool
) -> None:
    """Amp O2 takes 0.6 of the time, or 0.8."""
    set_up = '[set_up.runtime]\n"amp.level" = ["O0", "O2"]'
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=4, set_up=set_up, confirms=str(is_tried).lower())
    result = run(folder, with_amp_taking(share, folder), trials=1)
    trials = stored_trials(folder)
    plain = [one.user_attrs["given"] for one in trials if PLAIN in one.user_attrs]
    assert {one["amp.level"] for one in plain} == {"O0"}
    without = [{path: value for path, value in one.items() if path != "amp.level"} for one in plain]
    joined = [one for one in trials if PLAIN not in one.user_attrs and one.user_attrs.get("given") in without]
    assert len(joined) == is_tried
    if is_tried:
        assert joined[0].number == len(plain) + 1, "before anything is drawn"
        taken, config = taken_of(result)
        assert config.amp.level == "O2"
        assert taken.speedup > 1.3 * result.tuned_plain["o1"].speedup
        factors = {part.part: part.factor for part in result.attribution["o1"]}
        assert factors["amp O2 float16"] == pytest.approx(1.0 / 0.6)


@pytest.mark.slow
def test_a_study_that_was_stopped_goes_on_and_trains_nothing_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", n_trials=4, plain_runs=2, set_up="attribution_share = 0.0")
    first, second = SurfaceRunner(folder), SurfaceRunner(folder)
    with pytest.raises(StudyStoppedError):
        run(folder, first, stop=lambda: first.runs >= 14)
    before = [one for one in stored_trials(folder) if one.state.is_finished()]
    assert len(before) >= 3
    result = run(folder, second)
    after = {one.number: one for one in stored_trials(folder)}
    for trial in before:
        assert after[trial.number].state == trial.state
        assert after[trial.number].values == trial.values
        assert after[trial.number].user_attrs.get("deficits") == trial.user_attrs.get("deficits")
    known = {(job.seed, repr(job.config)) for job in first.train_jobs}
    again = [job for job in second.train_jobs if (job.seed, repr(job.config)) in known]
    # The trial in hand is run again, no other; the baseline's seeds are 0 to 4.
    assert len({repr(job.config) for job in again}) <= 1
    assert not any(job.config == first.train_jobs[0].config for job in again)
    assert result.chosen["o1"] != ""


def metrics_of_o0(runner: SurfaceRunner) -> list[float]:
    """Return what the runs of O0 that a search begins with come to, whoever has trained them."""
    o0 = runner.train_jobs[0]
    return [SurfaceRunner(runner.directory).run(replace(o0, seed=seed)).metric for seed in range(5)]


def test_runs_of_o0_that_ended_are_not_trained_again_after_ctrl_c_in_a_later_one(tmp_path: Path) -> None:
    def interrupt(_: Job[Any]) -> None:
        if first.runs == 4:
            raise KeyboardInterrupt

    folder = write(tmp_path / "study", plain_runs=0)
    first, second = SurfaceRunner(folder, before=interrupt), SurfaceRunner(folder)
    with pytest.raises(KeyboardInterrupt):
        run(folder, first)
    interrupted = run(folder, second, trials=1)
    assert [job.seed for job in second.train_jobs if job.seed < 5] == [4]
    assert interrupted.trials[0].metric == pytest.approx(statistics.fmean(metrics_of_o0(second)))


def test_a_relative_drop_is_a_share_of_the_mean_baseline_and_stays_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", allowed='"2 %"', plain_runs=0, **SEARCH_ALONE)
    runner = SurfaceRunner(folder)
    first = run(folder, runner, trials=1)
    assert first.allowed_drops == {"o1": pytest.approx(0.02 * statistics.fmean(metrics_of_o0(runner)))}
    again = run(folder, trials=1)
    assert again.allowed_drops == first.allowed_drops
    assert read_result(folder).allowed_drops == first.allowed_drops


def test_a_usual_drop_stays_what_it_was_when_the_study_began(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "study", plain_runs=0, **SEARCH_ALONE)
    text = (folder / "study.toml").read_text()
    (folder / "study.toml").write_text(text.replace(f"o1 = {ALLOWED}\n", ""))
    with monkeypatch.context() as earlier:
        earlier.setitem(ACCURACY_DROPS, "o1", 0.009)  # 1 %, where a name was not known for an accuracy
        first = run(folder, trials=1)
    assert first.allowed_drops == {"o1": 0.009}
    assert run(folder, trials=1).allowed_drops == first.allowed_drops


class Clock:
    """Time that passes by what runs take, and by nothing else."""

    now = 0.0

    def trained(self, _: TrainJob, run: Trained) -> Trained:
        self.now += run.seconds
        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_a_limit_too_short_for_all_runs_of_o0_says_what_those_that_are_missing_need(
    tmp_path: Path, clock: Clock
) -> None:
    class Stepping(SurfaceRunner):
        """A run takes four seconds, and asks at each of its steps to stop."""

        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            outcome = super().run(job, monitor)
            steps = 0
            while isinstance(job, TrainJob) and steps < job.steps and not (monitor.stop is not None and monitor.stop()):
                steps += 1
                clock.now += 0.02
            return replace(outcome, steps=steps, seconds=0.02 * steps) if steps else outcome

    folder = write(tmp_path / "study", plain_runs=0)
    first, second = Stepping(folder), Stepping(folder)
    with pytest.raises(StudyError, match="too short for O0 itself, which still needs") as refused:
        run(folder, first, timeout=13.0)
    n_kept = first.runs - 1
    assert n_kept >= 1
    at_least = float(str(refused.value).rsplit("give it ", 1)[1].split()[0])
    assert at_least >= (5 - n_kept) * 4.0
    result = run(folder, second, trials=1, timeout=at_least)
    assert result.trials[0].state == "complete"
    assert [job.seed for job in second.train_jobs][: 5 - n_kept] == list(range(n_kept, 5))


def test_tuned_plain_has_its_share_of_the_time_however_late_it_has_become(tmp_path: Path, clock: Clock) -> None:
    folder = write(tmp_path / "study", plain_runs=3, set_up="plain_share = 0.15")
    run(folder, SurfaceRunner(folder, noise=0.001, trained=clock.trained), trials=1, timeout=36.0)  # O0 takes 20 s
    plain = [trial for trial in stored_trials(folder) if trial.user_attrs.get(PLAIN)]
    assert any(trial.state == optuna.trial.TrialState.COMPLETE for trial in plain)


@pytest.mark.slow
def test_where_further_seeds_leave_nothing_in_the_lead_the_search_goes_on(begun: Path, clock: Clock) -> None:
    """The first seeds flatter every plan: on the sixth it turns out to be worse than is allowed."""

    def flattered(job: TrainJob, run: Trained) -> Trained:
        is_worse = optimizer_of(job.config) == "AdamW" and job.seed >= 5
        return clock.trained(job, replace(run, metric=0.5) if is_worse else run)

    with searching(begun, SurfaceRunner(begun, noise=0.001, trained=flattered)) as (file, study, search):
        search.run_given(BETTER, {"n_seeds": 3})
        n_trials = len(study.get_trials(deepcopy=False))
        assert standing_now(study, file).leader is not None
        end = time.monotonic() + 100.0  # a run takes four
        settle(search, Timetable(study, file, end, 100.0), deadline=end)
        assert len(study.get_trials(deepcopy=False)) > n_trials


def test_further_seeds_of_the_leader_leave_time_for_the_least_test(begun: Path, clock: Clock) -> None:
    with searching(begun, SurfaceRunner(begun, noise=0.001, trained=clock.trained)) as (file, study, search):
        number = search.run_given(BETTER, {"n_seeds": 3})
        assert standing_now(study, file).leader == number
        now, end = time.monotonic(), time.monotonic() + 70.0
        times = Timetable(study, file, end, 70.0)
        least = end - (times.before_a_test(end) or 0.0)
        assert 70.0 > least > FEWEST_PAIRS * 4.0 * (1.0 + standing_now(study, file).times[number])
        settle(search, times, deadline=end)
        assert time.monotonic() > now
        assert end - time.monotonic() >= least
        assert times.before_a_test(end - 69.0) == end - 69.0, "before it, nothing changes"
        clock.now = end - 10.0
        assert times.before_a_test(end) == time.monotonic()
        unconfirmed = file.model_copy(update={"confirm": file.confirm.model_copy(update={"enabled": False})})
        assert Timetable(study, unconfirmed, end, 70.0).before_a_test(end) == end


def diverging_on(lost: Set[int]) -> Callable[[TrainJob, Trained], Trained]:
    """Let runs of O0 with these seeds diverge."""
    return lambda job, run: replace(run, **LOST) if job.seed in lost and optimizer_of(job.config) == "task" else run


@pytest.mark.parametrize("lost", [{6}, set(range(5, 100))], ids=["one further seed", "all further seeds"])
def test_a_seed_on_which_o0_diverges_compares_nothing_and_the_search_goes_on(lost: set[int], begun: Path) -> None:
    runner = SurfaceRunner(begun, noise=0.001, trained=diverging_on(lost))
    with searching(begun, runner) as (file, study, search):
        number = search.run_given(BETTER, {"n_seeds": 7, MOST_SEEDS: 7})
        search.settle(10)
        standing = standing_now(study, file)
        trained = [job.seed for job in runner.train_jobs if optimizer_of(job.config) == "AdamW"]
    assert not lost & set(trained)
    assert len(standing.tried[number].deficits) == len(set(trained)) == (10 if lost == {6} else 5)
    assert standing.leader == number
    where = "seed 6 of the search (1 of its 11 runs)" if lost == {6} else "seeds 5, 6"
    (told,) = (one for one in read_result(begun).messages if "diverge" in one)
    assert told.startswith(f"The task as given diverged on {where}")


def test_where_o0_diverges_on_its_seeds_others_take_their_place(tmp_path: Path) -> None:
    lost = {0, 5}  # one that every search begins with, and the one that takes its place
    runner = SurfaceRunner(tmp_path, noise=0.001, trained=diverging_on(lost))
    with begun_with(runner) as (_, study, search):
        metrics = baseline_metrics(study.user_attrs)
        kept = [metric for metric in metrics.values() if math.isfinite(metric)]
        assert (len(kept), len(metrics)) == (5, 5 + len(lost))
        assert study.get_trials()[0].user_attrs["trained"]["metric"] == pytest.approx(statistics.fmean(kept))
        for length in (0.7, 0.8):
            number = search.run_given({**BETTER, "schedule.length": length}, {"n_seeds": 6, MOST_SEEDS: 6})
            seeds = study.get_trials()[number].user_attrs["seeds"]
            assert sorted(seeds) == sorted({*range(6 + len(lost))} - lost)
        search.settle(10)
    (told,) = (one for one in read_result(tmp_path).messages if "diverge" in one)
    assert told.startswith("The task as given diverged on seed")


def test_progress_counts_the_runs_of_o0(tmp_path: Path) -> None:
    class Reporting(SurfaceRunner):
        """Says that it is half way, and at the end."""

        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            for step in (50, 100) if monitor.on_step is not None else ():
                monitor.on_step(RunStep(step, 100, math.nan))
            return super().run(job, monitor)

    told = list[TuneProgress]()
    folder = write(tmp_path / "study", plain_runs=0, set_up="baseline_seeds = 3")
    run(folder, Reporting(folder), trials=1, on_progress=told.append)
    baseline = list(itertools.takewhile(lambda one: one.phase == "O0", told))
    assert [(one.done, one.total) for one in baseline] == [(done / 2.0, 3.0) for done in range(7)]
    assert told[len(baseline)].phase == "search"


def test_o0_that_diverges_on_most_of_its_seeds_does_not_train_until_it_is_mended(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", plain_runs=0)
    runner = SurfaceRunner(folder, trained=diverging_on({0, 2, 3}))
    with pytest.raises(StudyFailedError, match=r"with seeds 0, 2, 3, so there is nothing to compare with: the loss is"):
        run(folder, runner)
    run(folder, trials=1)


class Edited(SurfaceRunner):
    """Has code of a version, and a network."""

    version, network = "a", NetworkFacts(1, 1, 4, 3, 0, 4)

    def environment(self) -> dict[str, Any]:
        return {"sources": {"task.py": self.version}}

    def network_facts(self) -> NetworkFacts:
        return self.network


def test_no_run_of_a_task_before_it_was_edited_is_counted_for_the_task_after(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", plain_runs=0)
    before, after = Edited(folder, truth=lambda _: 0.5, trained=diverging_on({2, 3, 4})), Edited(folder)
    after.version, after.network = "b", replace(before.network, no_merging="x")
    with pytest.raises(StudyFailedError, match="O0 itself does not train"):
        run(folder, before)  # of seeds 0 and 1 the runs are kept
    run(folder, after, trials=1)
    with searching(folder, after) as (_, study, _):
        assert baseline_metrics(study.user_attrs) == dict(enumerate(metrics_of_o0(after)))
        assert study.user_attrs["network_facts"] == after.network.to_dict()


@pytest.mark.parametrize(
    ("allowed", "start", "end"),
    [
        (0.0005, "From seed to seed the accuracy of the task as given differs by", "0.05 points may be lost: "),
        (0.03, "", ""),
        (0.0, "No drop of the accuracy is allowed: ", ""),  # every run ends alike, as where all samples are told apart
    ],
)
def test_a_drop_that_lets_nothing_equal_be_confirmed_is_told_before_the_search(
    allowed: float, start: str, end: str, tmp_path: Path
) -> None:
    folder, notes = write(tmp_path / "study", allowed=allowed, plain_runs=0), set[str]()
    runner = SurfaceRunner(folder, noise=0.01, trained=lambda _, run: run if allowed else replace(run, metric=1.0))
    run(folder, runner, trials=1, on_progress=lambda progress: notes.add(progress.note))
    told = "only set-ups that end clearly better can be confirmed."
    found = [note for note in notes if told in note]
    assert len(found) == bool(start)
    assert all(note.startswith(start) and end + told in note for note in found)


@pytest.mark.parametrize(("spread", "is_told"), [(1.5, True), (0.05, False)])
def test_where_runs_differ_by_factors_a_logarithm_is_advised(spread: float, is_told: bool, tmp_path: Path) -> None:
    folder, notes = write(tmp_path / "study", allowed=1e-9, plain_runs=0), set[str]()

    def trained(job: TrainJob, run: Trained) -> Trained:
        return replace(run, metric=1e-5 * math.exp(spread * (-1) ** job.seed))

    runner = SurfaceRunner(folder, trained=trained)
    runner.metric_name, runner.higher_is_better = "mse", False
    run(folder, runner, trials=1, on_progress=lambda progress: notes.add(progress.note))
    advice = "with the logarithm of the mse as the metric"
    (told,) = [note for note in notes if "only set-ups that end clearly better" in note]
    assert (advice in told) is is_told


def test_several_trainers_learn_of_a_set_up_what_one_learns(baseline_known: Path, tmp_path: Path) -> None:
    found = []
    for n_trainers in (0, 3):
        folder = shutil.copytree(baseline_known, tmp_path / f"study {n_trainers}")
        runner, *trainers = (SurfaceRunner(folder, noise=0.001) for _ in range(1 + n_trainers))
        with searching(folder, runner) as (file, study, search):
            search.objective.trainers = list(trainers)
            number = search.run_given(BETTER, {"n_seeds": 7, MOST_SEEDS: 7})  # two more than O0 has been trained on
            search.settle(13)
            standing, seeds = standing_now(study, file), study.get_trials(deepcopy=False)[number].user_attrs["seeds"]
            found.append((seeds, standing.tried[number].deficits, baseline_metrics(study.user_attrs)))
        assert all(one.train_jobs for one in trainers)
        assert not trainers or not runner.train_jobs
    assert len(found[0][1]) == 13
    assert found[0] == found[1]


@pytest.mark.parametrize(("most", "n_seeds", "expected"), [(1, 1, 1), (5, 1, 5), (2, 3, 2), (20, 1, 8)])
def test_a_plan_that_would_lead_is_never_tried_on_more_seeds_than_is_allowed(
    most: int, n_seeds: int, expected: int, begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(begun, plain_runs=0, set_up=f"most_seeds = {most}")
    with searching(begun, SurfaceRunner(begun)) as (_, study, search):
        monkeypatch.setattr("workbench.study.set_up.objective._NO_DOUBT", 1.1)
        number = search.run_given({**BETTER, "schedule.length": 0.7}, {"n_seeds": n_seeds})
        assert len(study.get_trials(deepcopy=False)[number].user_attrs["seeds"]) == expected


def test_several_workers_keep_every_run_of_o0_that_one_of_them_trained(begun: Path) -> None:
    runners = [SurfaceRunner(begun) for _ in range(2)]
    with searching(begun, runners[0]) as (_, study, one), searching(begun, runners[1]) as (_, _, other):
        for search, n_seeds in ((one, 6), (other, 7), (one, 8)):
            given = {**BETTER, "schedule.length": 0.1 * n_seeds}
            search.run_given(given, {"n_seeds": n_seeds, MOST_SEEDS: n_seeds})
        assert sorted(baseline_metrics(study.user_attrs)) == list(range(8))
    jobs = [job for runner in runners for job in runner.train_jobs if optimizer_of(job.config) == "task"]
    assert sorted(job.seed for job in jobs) == [5, 6, 7]


def test_a_search_that_finds_nothing_uses_all_its_time(tmp_path: Path, clock: Clock) -> None:
    folder = write(tmp_path / "study", space=LINEAR, plain_runs=0, n_trials=1000)
    text = (folder / "study.toml").read_text().replace("[allowed_drop]", "timeout_seconds = 34.0\n[allowed_drop]")
    (folder / "study.toml").write_text(text)
    began = time.monotonic()
    runner = SurfaceRunner(folder, truth=lambda config: 0.98 if optimizer_of(config) == "task" else 0.5)
    runner.trained = clock.trained
    assert run(folder, runner).chosen == {"o1": "O0"}
    assert time.monotonic() - began > 0.8 * 34.0  # the confirmation would have had 0.4 of it; a run takes four


def test_a_search_that_finds_nothing_gets_the_confirmation_s_time(begun: Path) -> None:
    with searching(begun, SurfaceRunner(begun)) as (file, study, _):
        assert file.study.timeout_seconds is None  # the command's own limit counts
        end = time.monotonic() + 400.0
        ends = Timetable(study, file, end, 400.0).ends_of_search()
        first, later, last = (end - one for one in ends if one is not None)
        assert first == pytest.approx(10 / 7 * later)  # ten pairs of runs, then seven
        assert last == 0.0
        assert Timetable(study, file, None, None).ends_of_search() == [None]
        unconfirmed = file.model_copy(update={"confirm": file.confirm.model_copy(update={"enabled": False})})
        assert Timetable(study, unconfirmed, end, 400.0).ends_of_search() == [end]


def test_what_the_confirmation_does_not_need_of_its_share_the_search_has(begun: Path) -> None:
    with searching(begun, SurfaceRunner(begun)) as (file, study, _):
        end, limit = time.monotonic() + 4000.0, 4000.0
        times = [Timetable(study, file, end, limit, places) for places in (1, 2)]
        later, latest = (end - (one.search_ends() or 0.0) for one in times)
        apart, share = file.set_up.attribution_share * limit, file.confirm.time_share * limit
        assert latest - apart == pytest.approx((later - apart) / 2.0), "two pairs at a time take half as long"
        assert later < apart + share
        least = end - (times[0].confirmation_begins() or 0.0)
        assert least == pytest.approx((later - apart) * file.confirm.seeds_min / file.confirm.usual_seeds)
        tight = Timetable(study, file, end, limit / 1000.0).search_ends()
        assert tight == pytest.approx(end - (apart + share) / 1000.0), "no more than the shares"
        assert Timetable(study, file, None, None).search_ends() is None


def test_evaluations_and_a_slow_leader_count_in_the_time_that_is_kept_for_the_confirmation(
    tmp_path: Path, clock: Clock
) -> None:
    """Evaluations take three times as long as O0 does to train."""
    runner = SurfaceRunner(tmp_path, noise=0.001)
    runner.trained = lambda job, run: replace(clock.trained(job, run), beside_seconds=12.0)
    with begun_with(runner, candidates=2) as (file, study, search):
        end = time.monotonic() + 1e5

        def kept() -> float:
            return end - (Timetable(study, file, end, 1e5).confirmation_begins() or 0.0)

        assert kept() == pytest.approx(1.25 * 10 * (3 * 12.0 + 4.0 * (1.0 + 2 * 0.35)), rel=0.02)
        search.run_given({**BETTER, "schedule.length": 0.85}, {"n_seeds": 4})
        assert kept() == pytest.approx(1.25 * 10 * (3 * 12.0 + 4.0 * (1.0 + 2 * 0.85 * 1.1)), rel=0.02)


def test_a_search_in_which_tuned_plain_leads_has_found_nothing_yet(begun: Path) -> None:
    with searching(begun, SurfaceRunner(begun, noise=0.001)) as (file, study, search):
        assert not has_found(study, file)
        plain = search.run_given({"schedule.length": 0.8, "optimizer.lr": 0.1}, {"n_seeds": 3, PLAIN: True})
        assert first_contender(study, file) == plain
        assert not has_found(study, file)
        number = search.run_given(BETTER, {"n_seeds": 3})
        assert first_contender(study, file) == number
        assert has_found(study, file)


def test_a_drawn_plan_that_waits_is_not_taken_for_a_given_one(begun: Path) -> None:
    """A trial that the time limit has ended waits; tuned plain and the attribution must not train it for their own."""
    with searching(begun, SurfaceRunner(begun)) as (_, study, search):
        study.enqueue_trial({"optimizer.name": "SGD"})
        number = search.run_given(BETTER, {"purpose": "a test"})
        trial = study.get_trials(deepcopy=False)[number]
    assert trial.user_attrs["parameters"] == BETTER
    assert [one.number for one in waiting_trials(begun)] == [number - 1]
    assert trial.user_attrs["purpose"] == "a test"


def test_what_a_given_set_up_leaves_out_it_has_as_the_task_does(begun: Path) -> None:
    """Whether a shorter form of a leader keeps the quality was unknown where it did not say what it does not use."""
    averages = (
        '"regularization.weight_average" = ["none", "ema"]\n"regularization.label_smoothing" = {low = 0, high = 0.2}'
    )
    write(begun, plain_runs=0, space=f"{LINEAR}\n{averages}")
    with searching(begun, SurfaceRunner(begun, noise=0.001)) as (file, study, search):
        stated = {"regularization.weight_average": "none", "regularization.label_smoothing": 0.0}
        search.run_given({**BETTER, **stated}, {"n_seeds": 4})
        (sure,) = standing_now(study, file).model.probability([BETTER])
        (other,) = standing_now(study, file).model.probability([{**BETTER, "regularization.weight_average": "ema"}])
    assert sure > 0.99
    assert other < sure - 0.05


FORMS = {"set_up": "attribution_share = 0.0001"}


@pytest.mark.slow
def test_the_safer_form_of_the_leader_is_tested_first_and_the_fastest_confirmed_is_exported(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", **FORMS, candidates=4)
    runner = SurfaceRunner(folder, noise=0.004, seed=6)
    result = run(folder, runner)
    trials = stored_trials(folder)
    seeds = [job.seed for job in runner.train_jobs if job.seed >= 1000]
    assert seeds[:40] == [seed for seed in range(1000, 1010) for _ in range(4)], "O0 and all candidates take turns"
    safer = {one.user_attrs.get("repeats", one.number): one for one in trials if FORM_OF in one.user_attrs}
    assert result.candidates[0].trial_number in safer, "the safer form is tested first"
    leader = safer[result.candidates[0].trial_number].user_attrs[FORM_OF]
    assert result.candidates[1].trial_number == leader
    assert len(result.candidates) == 3, "a bolder one comes last; what is slower than what is confirmed is not tested"
    lengths = [BoostConfig.from_dict(one.config).part(ScheduleSection).length for one in result.candidates[:2]]
    assert lengths[0] == pytest.approx(1.12 * lengths[1], abs=2e-3)
    assert all(one.n_seeds >= 10 for one in result.candidates), "no look before the fewest seeds"
    confirmed = [one for one in result.candidates if one.verdict is Verdict.CONFIRMED]
    taken, config = taken_of(result)
    assert taken.speedup == max(one.speedup for one in confirmed)
    schedule = result.attribution["o1"][0].part
    assert f"length {config.part(ScheduleSection).length:.3g}" in schedule


@pytest.mark.parametrize(
    ("noise", "candidates", "forms"),
    [
        (0.018, 3, ["safer", "bolder"]),
        (0.008, 3, ["a little bolder", "bolder"]),
        (0.018, 2, ["safer"]),
        (0.008, 2, ["a little bolder"]),
    ],
    ids=["", "surely", "two", "two, surely"],
)
def test_a_leader_gets_its_forms_though_its_parts_take_all_their_time_and_no_safer_one_where_it_surely_is(
    noise: float, candidates: int, forms: list[str], tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take_all_the_time(attributor: Attributor, number: int) -> int:
        assert attributor.deadline is not None
        clock.now = max(attributor.deadline, clock.now)
        return number

    monkeypatch.setattr(Attributor, "without_idle_parts", take_all_the_time)
    runner = SurfaceRunner(tmp_path, noise=noise, truth=lambda _: 0.9, trained=clock.trained)
    with begun_with(runner, candidates=candidates) as (_, study, search):
        number = search.run_given({**BETTER, "schedule.length": 0.85}, {"n_seeds": 4})  # half of today's time
        end = time.monotonic() + 100.0  # a run of today's takes four
        take_apart(search, deadline=end)
        train_forms(search, deadline=end)
        purposes = [one.user_attrs.get("purpose") for one in study.get_trials(deepcopy=False)]
    assert [one for one in purposes if one] == [f"trial {number}, {form}" for form in forms]


@pytest.mark.parametrize(("left", "n_forms"), [(100.0, 2), (40.0, 0)], ids=["", "that of the least test"])
def test_forms_have_time_of_their_own_though_the_search_has_used_it_up(
    left: float, n_forms: int, tmp_path: Path, clock: Clock
) -> None:
    runner = SurfaceRunner(tmp_path, noise=0.018, truth=lambda _: 0.9, trained=clock.trained)
    with begun_with(runner, candidates=3) as (file, study, search):
        number = search.run_given({**BETTER, "schedule.length": 0.85}, {"n_seeds": 4})
        times = Timetable(study, file, time.monotonic() + left, 300.0)
        train_forms(search, deadline=times.ends_of_forms(time.monotonic()))
        done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    assert sum(one.user_attrs.get(FORM_OF) == number for one in done) == n_forms


@pytest.mark.slow
def test_a_search_whose_runs_take_longer_than_expected_trains_the_forms_that_its_verdict_counts_on(
    tmp_path: Path, clock: Clock
) -> None:
    def slower(job: TrainJob, run: Trained) -> Trained:
        clock.now += 0.5 * run.seconds * (job.seed < 1000)
        return clock.trained(job, run)

    folder = write(tmp_path / "study", **FORMS, candidates=3, n_trials=1000)
    text = (folder / "study.toml").read_text().replace("[allowed_drop]", "timeout_seconds = 200.0\n[allowed_drop]")
    (folder / "study.toml").write_text(text)
    result = run(folder, SurfaceRunner(folder, noise=0.006, seed=6, trained=slower))
    forms = [trial.state for trial in stored_trials(folder) if FORM_OF in trial.user_attrs]
    assert forms == [optuna.trial.TrialState.COMPLETE] * 2
    assert len(result.candidates) == 3


@pytest.mark.slow
def test_the_bolder_form_of_the_leader_is_tested_last_and_exported_where_it_is_confirmed(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", **FORMS, candidates=3)
    runner = SurfaceRunner(folder, noise=0.006, seed=6)
    result = run(folder, runner)
    forms = [BoostConfig.from_dict(one.config) for one in result.candidates]
    lengths = [one.part(ScheduleSection).length for one in forms]
    assert len(forms) == 3
    assert lengths == sorted(lengths, reverse=True), "safer, leader, bolder"
    assert len({json.dumps(one.with_values({"schedule.length": 0.5}).to_dict()) for one in forms}) == 1
    bolder = result.candidates[2]
    purposes = [trial.user_attrs.get("purpose", "") for trial in stored_trials(folder)]
    assert f"trial {result.candidates[1].trial_number}, bolder" in purposes
    chosen = result.choices["o1"].candidate
    assert chosen is not None
    assert chosen.trial_number == (
        bolder.trial_number if bolder.verdict is Verdict.CONFIRMED else result.candidates[1].trial_number
    )
    assert run(folder, runner).choices["o1"].candidate == chosen, "a second call trains no further forms"
    assert purposes == [trial.user_attrs.get("purpose", "") for trial in stored_trials(folder)]


@pytest.mark.parametrize(("candidates", "order"), [(1, [2, 1]), (3, [2, 3, 4, 1])])
def test_a_leader_without_a_bolder_form_is_followed_by_faster_trials_that_may_keep_the_quality(
    candidates: int, order: list[int], tmp_path: Path
) -> None:
    def truth(config: BoostConfig) -> float:
        return 0.9 - 0.03 * (0.85 / config.part(ScheduleSection).length - 1.0)

    runner = SurfaceRunner(tmp_path, noise=0.008, truth=truth)
    with begun_with(runner, candidates=candidates) as (file, study, search):
        for length, n_seeds in ((0.85, 4), (0.7, 2), (0.6, 1), (0.55, 1), (0.5, 1), (0.3, 1)):
            search.run_given({**BETTER, "schedule.length": length}, {"n_seeds": n_seeds})
        standing = standing_now(study, file)
        assert standing.leader == 2
        assert standing.sure[3] > standing.sure[4] >= BOLD > standing.sure[5]
        assert [one.trial.number for one in contenders(study, file)["o1"]] == order


@pytest.mark.slow
def test_where_nothing_leads_what_is_likely_has_a_safer_form_that_is_tested_first(tmp_path: Path) -> None:
    folder = write(tmp_path / "study", **FORMS, candidates=2, n_trials=6, plain_runs=3)
    result = run(folder, SurfaceRunner(folder, noise=0.018, seed=21))
    study = optuna.load_study(study_name=folder.name, storage=f"sqlite:///{folder / 'study.db'}")
    assert standing_now(study, read_study(folder)).leader is None
    safer = {one.user_attrs.get("repeats", one.number) for one in study.trials if FORM_OF in one.user_attrs}
    assert [one.trial_number for one in result.candidates][:1] == [*safer]


@pytest.mark.slow
def test_what_no_time_was_left_to_explain_the_next_command_explains_before_it_searches_on(
    begun: Path, clock: Clock
) -> None:
    def searched(trials: int, timeout: float) -> tuple[StudyResult, int]:
        runner = SurfaceRunner(begun, noise=0.001, trained=clock.trained)
        result = run(begun, runner, trials=trials, timeout=timeout)
        return result, sum("given" not in one.user_attrs for one in stored_trials(begun))

    told = "The time limit ended the measurement of where the gain comes from; the same command continues from there."
    first, n_drawn = searched(14, 80.0)  # a run takes four
    assert told in first.messages
    assert first.attribution["o1"][0].part == "AdamW, batch x 2, length 0.477, linear"
    second, n_then = searched(30, 120.0)
    assert taken_of(second)[0].trial_number == taken_of(first)[0].trial_number
    assert {"AdamW", "batch x 2"} < {one.part for one in second.attribution["o1"] if math.isfinite(one.low)}
    assert told not in second.messages
    assert n_then == n_drawn
    assert searched(30, 30.0)[1] > n_drawn
