"""Confirmation trains pairs, shares runs between exports, stops when a verdict is in and goes on to the next."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest

from tests.kit.fake_runner import STUDY, FakeRunner, calls
from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, TrialRecord, Verdict
from workbench.study.answer.confirmation_runs import ConfirmationRuns
from workbench.study.answer.confirming import Confirmation
from workbench.study.answer.selection import Contender
from workbench.study.ask.study_file import StudyFile, parse_study
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedMeasured, Trained, TrainJob
from workbench.study.run.warm_up import WarmUps

FILE = parse_study(STUDY)
Change = Callable[[TrainJob, Trained], Trained]


class Scripted(FakeRunner):
    """O0 reaches 0.9 on every seed; a plan with freeze_p loses its drop, alternating by noise; tests change runs."""

    def __init__(
        self, directory: Path, drops: dict[float, float], noise: float = 0.0, changed: Change = lambda _, run: run
    ) -> None:
        super().__init__(directory)
        self.drops, self.noise, self.changed = drops, noise, changed

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not isinstance(job, TrainJob):
            return super().run(job, monitor)
        drop = self.drops[job.config.grad_freeze.freeze_p] if job.config.resolve(job.level).grad_freeze else 0.0
        self.log(f"trained {job.config.grad_freeze.freeze_p if drop or drop != drop else 'O0'} {job.seed}")
        noise = self.noise * (1 if job.seed % 2 else -1) if drop else 0.0
        return self.changed(job, Trained(0.9 - drop + noise, ((100, 0.9),), 2.0, diverged=math.isnan(drop)))


def contender(number: int, freeze_p: float, target: str = "o1", allowed: float = 0.02) -> Contender:
    config = BoostConfig.from_dict(
        {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"freeze_p": freeze_p}}
    )
    record = TrialRecord(
        number, "complete", relative_step_time=0.8, relative_low=0.7, relative_high=0.9, steps_to_target=100.0
    )
    return Contender(record, target, config, config.resolve("O1"), allowed, 100.0)


def new_study() -> optuna.Study:
    study = optuna.create_study()
    study.set_user_attr("metric_name", "accuracy")
    return study


def judge(
    experimenter: FakeRunner,
    pool: Sequence[Contender],
    study: optuna.Study | None = None,
    file: StudyFile = FILE,
    **options: Any,
) -> list[CandidateRecord]:
    pools: dict[str, list[Contender]] = {"o1": [], "o2": []}
    for one in pool:
        pools[one.target].append(one)
    warm_ups = WarmUps(file, experimenter.directory, experimenter)
    return Confirmation(study or new_study(), file, experimenter, warm_ups, **options).judge(pools)


def test_seeds_differ_from_the_search_s() -> None:
    assert FILE.study.seed not in ConfirmationRuns(optuna.create_study(), FILE).seeds(0, 20)


def test_a_clear_case_stops_at_the_first_look(tmp_path: Path) -> None:
    (record,) = judge(Scripted(tmp_path, {0.5: 0.001}), [contender(1, 0.5)])
    assert record.verdict is Verdict.CONFIRMED
    assert len(record.metrics) == 6
    assert record.n_seeds == 3  # those that the bound rests on
    assert "3 of 6 paired seeds" in record.sentence
    assert record.speedup == pytest.approx(1.0 / 0.75, rel=0.2)


def test_seeds_that_are_added_do_not_seem_to_begin_anew(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.02)
    judge(experimenter, [contender(1, 0.5)], on_run=lambda done, planned: told.append((done, planned)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0] == (0, 10)  # five pilots of O0 and one candidate
    assert told[-1] == (16, 16)
    assert all(done <= planned for done, planned in told)


def test_a_plan_that_competes_for_both_exports_is_trained_once(tmp_path: Path) -> None:
    pool = [contender(1, 0.5), contender(1, 0.5, "o2", 0.05)]
    records = judge(Scripted(tmp_path, {0.5: 0.001}), pool)
    assert [record.target for record in records] == ["o1", "o2"]
    assert sum(line.startswith("trained 0.5") for line in calls(tmp_path)) == 6


def test_the_next_are_tested_until_as_many_as_wanted_are_not_refuted(tmp_path: Path) -> None:
    drops = {0.1: 0.5, 0.2: 0.4, 0.3: math.nan, 0.5: 0.001, 0.6: 0.001}
    pool = [contender(number, freeze_p) for number, freeze_p in enumerate(drops, start=1)]
    records = judge(Scripted(tmp_path, drops, noise=0.001), pool)
    refuted, confirmed = Verdict.REFUTED, Verdict.CONFIRMED
    assert [record.verdict for record in records] == [refuted, refuted, refuted, confirmed, confirmed]
    assert sum(line.startswith("trained 0.3") for line in calls(tmp_path)) == 1  # one divergence is enough


@pytest.mark.parametrize(
    ("drop", "noise", "verdict"), [(0.0185, 0.01, Verdict.UNDECIDED), (0.5, 0.001, Verdict.REFUTED)]
)
def test_a_candidate_after_one_that_is_not_confirmed_is_tested_at_a_stricter_level(
    tmp_path: Path, drop: float, noise: float, verdict: Verdict
) -> None:
    study = new_study()
    experimenter = Scripted(tmp_path, {0.3: drop, 0.5: 0.001}, noise)
    first, _ = judge(experimenter, [contender(1, 0.3), contender(2, 0.5)], study)
    assert first.verdict is verdict
    one, other = (test["looks"] for test in study.user_attrs["confirm_tests:o1"])
    assert one[-1][1] == 0.035
    assert other == [[8, 0.005]]  # fewer than eight have no interval of 99 %


def test_further_seeds_are_fresh_and_judged_on_their_own(tmp_path: Path) -> None:
    study = new_study()
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.02)
    (first,) = judge(experimenter, [contender(1, 0.5)], study, command=lambda seeds, _: f"tune {seeds}")
    assert (first.verdict, first.n_seeds) == (Verdict.UNDECIDED, 8)
    assert "1.33 x" in first.sentence
    assert "`tune " in first.sentence.partition("fresh seeds would decide (")[2]
    experimenter.noise = 0.0001
    (second,) = judge(experimenter, [contender(1, 0.5)], study, confirm_seeds=12)
    assert second.verdict is Verdict.CONFIRMED
    assert (second.n_seeds, len(second.metrics)) == (4, 12)
    assert "4 of 12 paired seeds" in second.sentence  # the seeds of the first test are not counted again
    tests = study.user_attrs["confirm_tests:o1"]
    assert [(test["first"], test["looks"]) for test in tests] == [(0, [[4, 0.005], [8, 0.035]]), (8, [[4, 0.005]])]


def test_a_plan_that_is_confirmed_gets_no_further_seeds_and_says_so(tmp_path: Path) -> None:
    study, told = new_study(), list[str]()
    (first,) = judge(Scripted(tmp_path, {0.5: 0.001}), [contender(1, 0.5)], study)
    before, nobody = calls(tmp_path), Scripted(tmp_path, {})
    assert judge(nobody, [contender(1, 0.5)], study) == [first], "finished runs are used again"
    (same,) = judge(nobody, [contender(1, 0.5)], study, confirm_seeds=20, on_note=told.append)
    assert (same, calls(tmp_path)) == (first, before)
    assert told == ["o1: trial 1 is confirmed on 6 paired seeds already, so no more are trained"]


def test_one_further_seed_brings_a_second_one_along(tmp_path: Path) -> None:
    study, told = new_study(), list[str]()
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.02)
    judge(experimenter, [contender(1, 0.5)], study)
    (same,) = judge(experimenter, [contender(1, 0.5)], study, confirm_seeds=8, on_note=told.append)
    assert (len(same.metrics), told) == (8, [])
    (more,) = judge(experimenter, [contender(1, 0.5)], study, confirm_seeds=9, on_note=told.append)
    assert len(more.metrics) == 10
    assert told == ["o1: one fresh seed has no spread of its own, so a second one is trained"]


def test_an_edited_question_draws_on_the_error_that_is_left(tmp_path: Path) -> None:
    study = new_study()
    experimenter = Scripted(tmp_path, {0.5: 0.015}, noise=0.001)
    (first,) = judge(experimenter, [contender(1, 0.5, "o2", 0.05)], study)
    assert first.verdict is Verdict.CONFIRMED
    (second,) = judge(experimenter, [contender(1, 0.5, "o2", 0.02)], study)
    assert second.verdict is Verdict.CONFIRMED
    assert [test["looks"][-1][1] for test in study.user_attrs["confirm_tests:o2"]] == [0.035, 0.005]


def test_a_candidate_that_never_arrives_is_not_faster_to_the_target(tmp_path: Path) -> None:
    def changed(job: TrainJob, run: Trained) -> Trained:
        misses = job.config.resolve(job.level).grad_freeze and job.seed % 3 == 0
        return replace(run, curve=((100, 0.8 if misses else 0.9),))

    (record,) = judge(Scripted(tmp_path, {0.5: 0.001}, changed=changed), [contender(1, 0.5)])
    assert record.verdict is Verdict.UNDECIDED
    assert record.speedup_low == 0.0
    assert "whether it is faster" in record.sentence


def test_a_test_is_planned_before_it_goes_on_and_says_what_it_can_decide(tmp_path: Path) -> None:
    told: list[str] = []
    judge(Scripted(tmp_path, {0.5: 0.001}, noise=0.01), [contender(1, 0.5)], on_note=told.append)
    assert len(told) == 1
    assert told[0].startswith("o1: trial 1 is trained on 6 paired seeds, about 4 s; that is enough for an allowed drop")
    assert told[0].endswith(" or more, and the study allows 2 points")


def test_the_time_to_the_target_is_compared_over_the_seeds(tmp_path: Path) -> None:
    def changed(job: TrainJob, run: Trained) -> Trained:
        reached = 80 if job.config.resolve(job.level).grad_freeze else 40
        return replace(run, curve=((reached, 0.9), (100, 0.9)))

    (record,) = judge(Scripted(tmp_path, {0.5: 0.0}, changed=changed), [contender(1, 0.5)])
    assert record.verdict is Verdict.REFUTED  # a quicker step, but twice as many of them
    assert record.speedup == pytest.approx(0.5 / 0.75, rel=0.2)
    assert record.sentence.startswith("Refuted: slower to the target")


def test_without_time_nothing_is_run_and_the_verdict_is_open(tmp_path: Path) -> None:
    (record,) = judge(Scripted(tmp_path, {0.5: 0.0}), [contender(1, 0.5)], deadline=0.0)
    assert record.verdict is Verdict.UNDECIDED
    assert record.n_seeds == 0
    assert calls(tmp_path) == []
    assert record.speedup == pytest.approx(1.25)  # the search's own measurement
    assert (record.speedup_low, record.speedup_high) == (0.0, math.inf)  # one run has no interval
    assert "it was not tested over seeds, since time ran out" in record.sentence


TIMED = FILE.model_copy(update={"study": FILE.study.model_copy(update={"objective": "time_to_quality"})})


class Busy(Scripted):
    """O0 takes two seconds and every other plan one, times what the machine is busy with; it may be interrupted."""

    busy = 1.0
    runs_left = math.inf

    def __init__(self, *args: Any, after: Change = lambda _, run: run, **options: Any) -> None:
        super().__init__(*args, **options)
        self.after, self.jobs = after, list[TrainJob]()

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        if not self.runs_left > 0:
            raise KeyboardInterrupt
        self.runs_left -= 1
        outcome = super().run(job, monitor)
        assert isinstance(job, TrainJob)
        self.jobs.append(job)
        is_other = job.config.resolve(job.level).grad_freeze
        seconds = self.busy * (1.0 if is_other else 2.0) * (1.0 + 1e-4 * (job.seed % 5))
        return self.after(job, replace(outcome, seconds=seconds))


judge_timed = functools.partial(judge, file=TIMED)


def test_a_plan_tested_by_a_later_command_is_timed_beside_o0_again(tmp_path: Path) -> None:
    study, experimenter = new_study(), Busy(tmp_path, {0.5: 0.001, 0.7: 0.001})
    experimenter.busy = 3.0
    (first,) = judge_timed(experimenter, [contender(1, 0.5)], study)
    experimenter.busy = 1.0
    (second,) = judge_timed(experimenter, [contender(2, 0.7)], study)
    assert [first.speedup, second.speedup] == pytest.approx([2.0, 2.0])
    assert [line.split()[1] for line in calls(tmp_path) if line.endswith(" 1000")] == ["O0", "0.5", "O0", "0.7"]
    assert all(job.is_timed for job in experimenter.jobs)


def test_a_plan_tested_later_in_a_command_is_timed_beside_o0_again(tmp_path: Path) -> None:
    class Calming(Busy):
        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            self.busy *= 0.98
            return super().run(job, monitor)

    drops = {0.3: math.nan, 0.5: 0.001, 0.7: 0.001}
    pool = [contender(number, freeze_p) for number, freeze_p in enumerate(drops)]
    pool = [replace(one, trial=replace(one.trial, relative_step_time=0.9 - 0.1 * at)) for at, one in enumerate(pool)]
    records = judge_timed(Calming(tmp_path, drops), pool)
    assert [one.verdict for one in records] == [Verdict.REFUTED, Verdict.CONFIRMED, Verdict.CONFIRMED]
    assert [one.speedup for one in records[1:]] == pytest.approx([2.0, 2.0], rel=0.02)


def test_a_run_of_o0_that_diverged_gives_no_time(tmp_path: Path) -> None:
    def after(job: TrainJob, run: Trained) -> Trained:
        ends = job.seed == 1001 and not job.config.resolve("O1").grad_freeze
        return replace(run, metric=math.nan, diverged=True, seconds=0.1) if ends else run

    study, told = new_study(), list[str]()
    experimenter = Busy(tmp_path, {0.5: 0.001}, after=after)
    (record,) = judge_timed(experimenter, [contender(1, 0.5)], study, on_note=told.append, confirm_seeds=12)
    assert record.verdict is Verdict.CONFIRMED
    assert [record.speedup, record.speedup_low, record.speedup_high] == pytest.approx([2.0, 2.0, 2.0])
    assert "about 21 s" in told[0]  # the seven that follow the pilots, each of two seconds and one


def test_several_trainers_confirm_what_one_does(tmp_path: Path) -> None:
    pool, drops = [contender(1, 0.5), contender(2, 0.7)], {0.5: 0.03, 0.7: 0.001}
    alone = judge_timed(Busy(tmp_path, drops, noise=0.002), pool)
    trainers = [Busy(tmp_path, drops, noise=0.002) for _ in range(3)]
    together = judge_timed(Busy(tmp_path, {}), pool, trainers=trainers)
    assert together == alone
    assert [one.verdict for one in together] == [Verdict.REFUTED, Verdict.CONFIRMED]
    assert all(trainer.jobs for trainer in trainers)


def test_pairs_are_planned_for_the_rounds_that_several_trainers_have_time_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)
    trainers, told = [Busy(tmp_path, {0.5: 0.015}, noise=0.02) for _ in range(2)], list[str]()
    (record,) = judge_timed(
        Busy(tmp_path, {}),
        [contender(1, 0.5)],
        trainers=trainers,
        on_note=told.append,
        deadline=6.2,
    )
    # After five pilots; a pair takes three seconds, and an eighth one would take a second round.
    assert told[0].startswith("o1: trial 1 is trained on 7 paired seeds")
    assert record.n_seeds == 7


@pytest.mark.parametrize("runs_left", [1, 2, 3, 7])
def test_a_round_that_was_interrupted_is_trained_again(tmp_path: Path, runs_left: int) -> None:
    study, experimenter = new_study(), Busy(tmp_path, {0.5: 0.001})
    experimenter.busy, experimenter.runs_left = 3.0, runs_left
    with pytest.raises(KeyboardInterrupt):
        judge_timed(experimenter, [contender(1, 0.5)], study)
    experimenter.busy, experimenter.runs_left = 1.0, math.inf
    (record,) = judge_timed(experimenter, [contender(1, 0.5)], study)
    assert record.speedup == pytest.approx(2.0)
    rounds_lost = runs_left % 2  # of two runs each
    assert len(calls(tmp_path)) == 2 * len(record.metrics) + rounds_lost


def test_a_round_that_would_not_end_in_time_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, experimenter = new_study(), Clocked(tmp_path, {0.5: 0.001, 0.7: 0.001})
    monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
    judge_timed(experimenter, [contender(1, 0.5)], study)
    before, other = calls(tmp_path), contender(2, 0.7)
    known = {"plan_key": other.key, "trained": Trained(0.9, ((100, 0.9),), 2.0).to_json()}
    study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs=known))
    (record,) = judge_timed(experimenter, [other], study, deadline=experimenter.now + 3.5)  # a run takes two
    assert record.verdict is Verdict.UNDECIDED
    assert "it was not tested over seeds, since time ran out" in record.sentence
    assert calls(tmp_path) == before


def test_a_test_that_the_time_cuts_is_read_there_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs take longer from the seventh seed on than the test was planned for."""

    class Slowing(Busy):
        now = 0.0

        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            outcome = super().run(job, monitor)
            self.now += outcome.seconds + 2.0 * (job.seed > 1005)
            return outcome

    def records(drop: float, more_seconds: float = 0.0) -> tuple[CandidateRecord, tuple[bool, bool]]:
        folder = tmp_path / str(drop)
        folder.mkdir(exist_ok=True)
        experimenter = Slowing(folder, {0.5: drop}, noise=0.004)
        monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
        study = studies.setdefault(drop, new_study())
        warm_ups = WarmUps(TIMED, folder, experimenter)
        confirmation = Confirmation(study, TIMED, experimenter, warm_ups, deadline=27.0 + more_seconds)
        (record,) = confirmation.judge({"o1": [contender(1, 0.5)]})
        return record, (confirmation.cut_short, confirmation.is_open)

    studies: dict[float, optuna.Study] = {}
    (clear, clear_lacks), (close, close_lacks) = records(-0.01), records(0.0165)
    assert (clear.verdict, close.verdict) == (Verdict.CONFIRMED, Verdict.UNDECIDED)
    assert (clear_lacks, close_lacks) == ((False, False), (True, True)), "nothing is left to train for what is decided"
    assert clear.n_seeds == close.n_seeds == 7
    assert "7 of 8 planned seeds are trained; the same command trains the rest" in close.sentence
    later, later_lacks = records(0.0165, 100.0)
    assert (later.verdict, later.n_seeds, later_lacks) == (Verdict.CONFIRMED, 8, (False, False))
    (test,) = studies[0.0165].user_attrs["confirm_tests:o1"]
    assert test["looks"] == [[7, 0.005], [8, 0.035]]


def test_the_pairs_that_are_trained_when_time_runs_out_count_for_every_candidate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are trained in turn, eight pairs are planned, and the seventh ends after the deadline."""

    class LateAtLast(Busy):
        now = 0.0

        def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
            outcome = super().run(job, monitor)
            self.now += outcome.seconds + 4.0 * (job.seed > 1005)
            return outcome

    experimenter, study = LateAtLast(tmp_path, {0.5: -0.01, 0.7: -0.01}, noise=0.004), new_study()
    monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
    faster = contender(2, 0.7)
    pool = [contender(1, 0.5), replace(faster, trial=replace(faster.trial, relative_step_time=0.7))]
    records = judge_timed(experimenter, pool, study, deadline=34.0)
    assert experimenter.now > 34.0
    assert [(one.n_seeds, one.verdict) for one in records] == [(7, Verdict.CONFIRMED)] * 2


class Clocked(Scripted):
    """Moves a clock by what runs take: two seconds each, and as much beside what counts as theirs."""

    now = 0.0

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        outcome = super().run(job, monitor)
        if isinstance(job, TrainJob):
            self.now += 4.0
            outcome = replace(outcome, beside_seconds=2.0)
        return outcome


def test_what_runs_take_besides_their_steps_counts_when_a_test_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experimenter = Clocked(tmp_path, {0.5: 0.015}, noise=0.02)
    monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
    (record,) = judge(experimenter, [contender(1, 0.5)], deadline=60.0)
    assert record.n_seeds == 7  # five pairs take 40 s, and eight are wanted
    assert "planned seeds are trained" not in record.sentence


@pytest.mark.parametrize(
    ("deadline", "seeds", "is_together"),
    [(80.0, None, False), (200.0, None, True), (80.0, 3, True)],
    ids=["short", "enough", "few wanted"],
)
def test_where_time_is_short_the_plan_that_is_tested_first_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: float, seeds: int | None, is_together: bool
) -> None:
    experimenter, study = Clocked(tmp_path, {0.5: 0.019, 0.7: 0.019}, noise=0.02), new_study()
    monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
    faster = contender(2, 0.7)
    pool = [contender(1, 0.5), replace(faster, trial=replace(faster.trial, relative_step_time=0.7))]
    for plan in (TIMED.baseline_plan(), *(one.plan for one in pool)):
        known = {"plan_key": plan.key(), "trained": Trained(0.9, ((100, 0.9),), 4.0).to_json()}
        study.add_trial(optuna.trial.create_trial(value=1.0, user_attrs=known))
    judge_timed(experimenter, pool, study, deadline=deadline, confirm_seeds=seeds)
    trained = [call.split()[1] for call in calls(tmp_path) if call.startswith("trained")]
    assert {"O0", "0.5"} <= set(trained[:6])
    assert ("0.7" in trained[:6]) is is_together


def compiled(folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> CandidateRecord:
    """Judge a plan of which the search has seen that it compiles for so long, in 110 seconds."""
    experimenter, study = Clocked(folder, {0.5: 0.015}, noise=0.02), new_study()
    monkeypatch.setattr(time, "monotonic", lambda: experimenter.now)
    config = contender(1, 0.5).config.with_values({"runtime.compile": "default"})
    plan = FILE.plans.resolve(config, "O1")
    timed = SpeedMeasured(0.8, 0.7, 0.9, 20.0, 1000.0 * seconds)
    study.set_user_attr(f"step_time:{plan.step_key()}", timed.to_json())
    pool = [replace(contender(1, 0.5), config=config, plan=plan)]
    (record,) = judge_timed(experimenter, pool, study, deadline=110.0)
    return record


def test_compiling_counts_in_the_verdict_and_not_where_runs_are_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / name for name in ("without", "with")]
    for folder in folders:
        folder.mkdir()
    without, with_it = (compiled(folder, monkeypatch, at) for folder, at in zip(folders, (0.0, 6.0), strict=True))
    assert len(with_it.metrics) == len(without.metrics) > 5
    run_seconds = 2.0  # of the candidate, as of O0
    assert without.speedup / with_it.speedup == pytest.approx((run_seconds + 6.0) / run_seconds)
