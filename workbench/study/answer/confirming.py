"""Train the best candidates and O0 again over fresh seeds until the verdicts are in, or the time is over.

Candidates are tested in the search's order. Each test is planned and stored before it goes on: its number of seeds from
the standard deviation of its first few pairs, and its looks (`planned_tests` has the statistics and their source).
`confirmation_rounds` trains the runs, and each that has ended is stored, so nothing finished is lost when the process
ends (`confirmation_runs`). Where whole runs are timed, O0 and candidates take turns, and a candidate that is tested
later has O0 beside it again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from workbench.config import Plan
from workbench.core import paired_bounds
from workbench.core.paired_bounds import TimeRatio, decide
from workbench.core.records import CandidateRecord, Verdict, timed_per
from workbench.core.text import format_duration
from workbench.study.answer import planned_tests
from workbench.study.answer.confirmation_rounds import ConfirmationRounds
from workbench.study.answer.planned_tests import Judgement, PlannedTest, judge
from workbench.study.answer.selection import Contender, computing_as_o0
from workbench.study.ask.plans import needs_warm_up
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import SpeedMeasured
from workbench.study.run.objective import steps_within
from workbench.study.run.runner import end_if_over
from workbench.study.run.side_by_side import places
from workbench.study.run.warm_up import WarmUpError
from workbench.study.set_up.total_time import compile_seconds
from workbench.study.store.stored_records import metrics_seen

_N_PILOTS = 5  # pairs of a test from whose standard deviation its number of pairs is planned
FEWEST_PAIRS = 7  # a test should have time for these: fewer rarely confirm a plan no better than today's
_N_TIMED = 10  # pairs whose times say from what length of training compiling pays off
_SHARE_OF_TIME = 0.9  # of what is left, for which a test is planned; the rest is for what takes longer than before


@dataclass
class Confirmation(ConfirmationRounds):
    """Runs and judges the confirmation of a study, which keeps every finished run and every planned test."""

    command: Callable[[int, float], str] | None = None  # gives what adds seeds, see `planned_tests.sentence`
    confirm_seeds: int | None = None  # from the command line; None lets the pilots decide
    on_note: Callable[[str], None] = lambda _: None  # gets a sentence about each test before it

    def __post_init__(self) -> None:
        super().__post_init__()
        self.is_open = False  # whether an undecided test lacks pairs since the time was over
        self._trained_alongside: list[Contender] = []
        # Equal metrics over all pairs would give a bound without width; the search has seen how finely they can differ.
        gap = paired_bounds.smallest_gap(metrics_seen(self.study))
        self._scale: dict[str, Any] = {"higher_is_better": self.metric.higher_is_better, "resolution": gap or None}

    def judge(self, pools: Mapping[str, Sequence[Contender]]) -> list[CandidateRecord]:
        """Test the best contenders of each export in turn, until as many as the file asks for are not refuted.

        Those for which there was no time stay undecided.
        """
        tested = [one for target, pool in pools.items() for one in self._tested(target, pool)]
        judged = [self._judged(contender) for contender, _ in tested]
        undecided = [one for one in judged if one.verdict is Verdict.UNDECIDED]
        self.cut_short = self.cut_short and bool(undecided)  # what is decided lacks nothing
        self.is_open = self.cut_short and any(one.missing for one in undecided)
        # After all runs, so that a second call says the same.
        return [self._record(contender, why_untested) for contender, why_untested in tested]

    def _tested(self, target: str, pool: Sequence[Contender]) -> list[tuple[Contender, str]]:
        """Return each contender examined, with the reason it was not tested (empty if it was)."""
        begun: list[tuple[Contender, str]] = []
        why = "" if self.file.confirm.enabled else "it was not tested over seeds, since [confirm] is switched off"
        wanted = self.file.confirm.candidates
        if self.runs.are_timed and not why:
            first = [one for at, one in enumerate(pool[:wanted]) if not self._is_beaten(one, pool[:at])]
            self._trained_alongside = [one for one in first if self._measure_and_is_faster(one)]
            while len(self._trained_alongside) > 1 and self._is_short(self._trained_alongside[0]):
                self._trained_alongside.pop()
        for contender in pool:
            confirmed = [one for one, _ in begun if self._judged(one).verdict is Verdict.CONFIRMED]
            if wanted == 0 or self._is_beaten(contender, confirmed):
                break
            why_untested = why
            if not why:
                why_untested = "it was not tested over seeds, since its steps are not clearly faster"
                if self._measure_and_is_faster(contender):
                    why_untested = self._run_tests(contender)
            begun.append((contender, why_untested))
            wanted -= self._judged(contender).verdict is not Verdict.REFUTED
        return begun

    def _is_beaten(self, contender: Contender, others: Sequence[Contender]) -> bool:
        """Return whether another one, if confirmed, would be exported first; known only where whole runs are timed."""
        time = contender.trial.relative_step_time
        return self.runs.are_timed and any(one.trial.relative_step_time <= time for one in others)

    def _run_tests(self, contender: Contender) -> str:
        """Train and judge a contender's test, and a further one if its verdict is open and more seeds are asked for.

        Return why it was not tested; empty if it was.
        """
        if not self._tests(contender) and (why_untested := self._plan_first(contender)):
            return why_untested
        self._train_test(contender)
        judged, asked = self._judged(contender), self.confirm_seeds or 0
        if judged.verdict is Verdict.UNDECIDED and judged.missing == 0 and asked > judged.end:
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.cut_short = True
                return ""
            n_further = self.runs.n_further(contender.target)
            if asked == judged.end + 1:
                self.on_note(f"{contender.target}: one fresh seed has no spread of its own, so a second one is trained")
            n_fresh = max(asked - judged.end, 2)
            test = planned_tests.further_test(judged.end, n_fresh, n_further)
            self.runs.keep_test(contender.target, contender.key, test, contender.allowed_drop)
            self._train_test(contender)
        elif judged.verdict is Verdict.CONFIRMED and asked > judged.end:
            self.on_note(
                f"{contender.target}: trial {contender.trial.number} is confirmed on {judged.n_pairs} paired seeds "
                "already, so no more are trained"
            )
        return ""

    def _plan_first(self, contender: Contender) -> str:
        """Decide from pilot pairs how many pairs the contender's first test takes, and store that before it goes on.

        Return why no test was planned; empty if one was.
        """
        section, drop = self.file.confirm, contender.allowed_drop
        is_at_full_level = self._all_confirmed_at_once(contender.target, drop)
        n_further = self.runs.n_further(contender.target)
        error = planned_tests.FIRST_ERROR if is_at_full_level else planned_tests.further_error(n_further)
        n_pilots = min(_N_PILOTS, self.confirm_seeds or section.seeds_min)
        pilots = PlannedTest(0, ((n_pilots, error),))
        self._train_pairs(contender, pilots, n_pilots)
        pairs = self.runs.metrics(contender.key, pilots)
        has_diverged = self.runs.diverged(contender.key, 0, n_pilots)
        if len(pairs) < n_pilots and not has_diverged:
            # Nothing is spent on a test too short.
            begun = f" after {len(pairs)} of the {n_pilots} pairs of runs by which the length of its test is chosen"
            return f"it was not tested over seeds, since time ran out{begun if pairs else ''}"
        bounds = decide(pairs, 0.0, **self._scale).bounds
        is_bounded = bounds.n_pairs >= 2 and not has_diverged
        n_pairs = self._n_pairs(contender, bounds.spread if is_bounded else None, error, n_pilots)
        if is_bounded:
            smallest = paired_bounds.decidable_drop(bounds.spread, n_pairs, error=error)
            if not is_at_full_level and smallest > 2.0 * drop:
                return "it was not tested over seeds: after the tests before it there was time for too few seeds"
            seconds = self._seconds_per_pair(contender)
            written = self.metric.difference_text
            takes = f", about {format_duration(max(n_pairs - n_pilots, 0) * seconds)}" if math.isfinite(seconds) else ""
            self.on_note(
                f"{contender.target}: trial {contender.trial.number} is trained on {n_pairs} paired seeds{takes}; that "
                f"is enough for an allowed drop of {written(smallest)} or more, and the study allows {written(drop)}"
            )
        test = planned_tests.further_test(0, n_pairs, n_further)
        if is_at_full_level:  # whose runs may give the time, too
            test = planned_tests.first_test(n_pairs, section.seeds_min if self.runs.are_timed else 2)
        self.runs.keep_test(contender.target, contender.key, test, drop)
        return ""

    def _n_pairs(self, contender: Contender, spread: float | None, error: float, n_pilots: int) -> int:
        """Return how many pairs a first test takes, by the spread of its pilots' drops; None where there is none."""
        section = self.file.confirm
        if self.confirm_seeds is not None or spread is None:
            return self.confirm_seeds or section.seeds_max
        n_pairs = paired_bounds.planned_pairs(
            spread, contender.allowed_drop, error=error, at_least=section.seeds_min, at_most=section.seeds_max
        )
        if self.runs.are_timed:  # the search has aimed below the allowed drop for this number
            n_pairs = max(n_pairs, section.usual_seeds)
        if self.deadline is not None:
            return self._affordable(contender, n_pilots, n_pairs)
        if self.runs.count_steps:
            time_error = min(error, planned_tests.LARGEST_TIME_ERROR)
            n_pairs = max(n_pairs, paired_bounds.fewest_pairs_for_a_ratio(time_error))
        return n_pairs

    def _is_short(self, contender: Contender) -> bool:
        """Return whether the time is short for a contender's test while others are trained alongside."""
        fewest = min(FEWEST_PAIRS, self.confirm_seeds or self.file.confirm.seeds_max)
        return self.deadline is not None and self._affordable(contender, 0, fewest) < fewest

    def _affordable(self, contender: Contender, n_done: int, n_wanted: int) -> int:
        """Return how many pairs the time allows: a pair takes the time of its missing runs, at one of the places."""
        assert self.deadline is not None
        keys = self._trained_together(contender)
        left = _SHARE_OF_TIME * max(self.deadline - time.monotonic(), 0.0)  # what is trained takes none
        busy = [0.0] * places(self.trainers, keys.values())  # seconds that each place has to train
        if not sum(self.seconds_of_run(key) for key in keys) > 0.0:
            return n_wanted
        for n_pairs, seed in enumerate(self.runs.seeds(n_done, n_wanted - n_done), start=n_done):
            busy.sort()
            busy[0] += sum(map(self.seconds_of_run, self.runs.lacking(keys, seed)))
            if busy[0] > left:
                return n_pairs
        return n_wanted

    def _all_confirmed_at_once(self, target: str, allowed_drop: float) -> bool:
        """Return whether each plan tested before was confirmed by its first test; the next then has the full level."""
        tests = self.runs.tests(target)
        question = self.runs.question(allowed_drop)
        if any(one.question != question or one.test.first > 0 for one in tests):
            return False
        untimed = TimeRatio(1.0, 0.0, math.inf)
        for one in tests:
            pairs = self.runs.metrics(one.key, one.test)
            judged = judge([(one.test, pairs)], allowed_drop, lambda *_: untimed, untimed, **self._scale)
            if judged.quality.verdict is not Verdict.CONFIRMED:
                return False
        return True

    def _train_test(self, contender: Contender) -> None:
        """Train the pairs of a contender's last test up to each look, and stop at the first that decides."""
        test = self._tests(contender)[-1]
        for n_pairs, _ in test.looks:
            self._train_pairs(contender, test, n_pairs)
            if self._judged(contender).verdict is not Verdict.UNDECIDED:
                return
        n_done = len(self.runs.metrics(contender.key, test))
        if self.cut_short and FEWEST_PAIRS <= n_done < test.n_pairs:
            self.runs.read_early(contender.target, contender.key, n_done)

    def _train_pairs(self, contender: Contender, test: PlannedTest, n_pairs: int) -> None:
        """Train what is missing of a test's first pairs, O0 and the contender seed by seed, as far as the time goes."""
        plans = self._trained_together(contender)
        seeds = self.runs.seeds(test.first, n_pairs)
        lacking = {seed: {key: plans[key] for key in self.runs.lacking(plans, seed)} for seed in seeds}
        self.train(lacking, lambda: self.runs.diverged(contender.key, test.first, n_pairs))

    def _trained_together(self, contender: Contender) -> dict[str, Plan]:
        """Return the plans that take turns on a seed; where runs are timed, those to be tested later are among them.

        So O0 is trained once for all of them.
        """
        contenders = [contender, *(one for one in self._trained_alongside if one.target == contender.target)]
        return {self.runs.baseline_key: self.runs.baseline} | {one.key: one.plan for one in contenders}

    def _seconds_per_pair(self, contender: Contender) -> float:
        seconds = self.runs.seconds(self.runs.baseline_key) + self.runs.seconds(contender.key)
        return seconds / places(self.trainers, [contender.plan])

    def _measure_and_is_faster(self, contender: Contender) -> bool:
        """Return whether training can confirm the contender; where only step time counts, that is known beforehand."""
        self._measure_step_time(contender)
        return self.runs.count_steps or self._untested_ratio(contender).low > 1.0

    def _record(self, contender: Contender, why_untested: str) -> CandidateRecord:
        judged = self._judged(contender)
        if judged.quality.reason == "not tested":
            judged = replace(judged, quality=replace(judged.quality, reason=why_untested or judged.quality.reason))
        sentence = planned_tests.sentence(
            judged,
            self.metric.name,
            per="to the target" if self.runs.count_steps else timed_per(self.file.study.objective),
            next_error=planned_tests.further_error(self.runs.n_further(contender.target)),
            seconds_per_pair=self._seconds_per_pair(contender),
            command=self.command,
        )
        if needs_warm_up(contender.plan):
            sentence = f"After a warm-up of {self.file.warm_up_steps} batches of O0. {sentence}"
        if contender.trial.number in computing_as_o0(self.study):
            sentence += (
                " Losses and first gradient agree with O0's within rounding; comparing two shows how trainings end."
            )
        if (today := self.file.set_up.todays_steps) is not None and not self.runs.are_timed:  # a headline says it
            sentence += f" All this in runs of {self.runs.steps} of today's {today} batches."
        sentence += self._about_compiling(contender)
        bounds, ratio = judged.quality.bounds, judged.time
        pairs = [pair for test in self._tests(contender) for pair in self.runs.metrics(contender.key, test)]
        return CandidateRecord(
            label=f"trial {contender.trial.number}",
            trial_number=contender.trial.number,
            target=contender.target,
            summary=contender.plan.summary(),
            config=contender.config.to_dict(),
            speedup=ratio.ratio,
            speedup_low=ratio.low,
            speedup_high=ratio.high,
            drop=bounds.mean,
            drop_bound=bounds.upper,
            allowed_drop=contender.allowed_drop,
            n_seeds=bounds.n_pairs or judged.n_pairs,
            verdict=judged.verdict,
            sentence=sentence,
            metrics=tuple(pairs),
        )

    def _tests(self, contender: Contender) -> list[PlannedTest]:
        """Return the tests of its plan that ask today's question."""
        question, tests = self.runs.question(contender.allowed_drop), self.runs.tests(contender.target)
        return [one.test for one in tests if (one.key, one.question) == (contender.key, question)]

    def _judged(self, contender: Contender) -> Judgement:
        return judge(
            [(test, self.runs.metrics(contender.key, test)) for test in self._tests(contender)],
            contender.allowed_drop,
            lambda test, n_pairs, error: self._time_ratio(contender, test, n_pairs, error),
            self._untested_ratio(contender),
            **self._scale,
        )

    def _step_time(self, contender: Contender) -> tuple[float, float, float] | None:
        """Return the relative time of a step with its interval; None when it was not measured."""
        trial = contender.trial
        searched = SpeedMeasured(trial.relative_step_time, trial.relative_low, trial.relative_high)
        speed = self.runs.speed(contender.key) or searched
        measured = (speed.ratio, speed.low, speed.high)
        return measured if all(math.isfinite(one) and one > 0.0 for one in measured) else None

    def _time_ratio(self, contender: Contender, test: PlannedTest, n_pairs: int, error: float) -> TimeRatio:
        """Return how much faster the contender is at a look, by the study's objective."""
        pairs = self.runs.usable_pairs(contender.key, test.first, n_pairs)
        if self.runs.are_timed:
            compiling = self.file.share_of_today * compile_seconds(contender.plan, self.file, self.study.user_attrs)
            return paired_bounds.run_time_ratio(
                [(baseline.seconds, candidate.seconds + compiling) for baseline, candidate in pairs], error=error
            )
        measured = self._step_time(contender)
        if measured is None or not self.runs.count_steps:
            return self._untested_ratio(contender)
        higher, drop, times = self.metric.higher_is_better, contender.allowed_drop, []
        for given, mine in pairs:
            metric = given.metric
            first, second = (steps_within(one.curve, metric, drop, higher_is_better=higher) for one in (given, mine))
            times.append((min(first, float(self.runs.steps)), second))
        return paired_bounds.time_ratio(times, measured, warm_up=contender.trial.warm_up_steps, error=error)

    def _untested_ratio(self, contender: Contender) -> TimeRatio:
        """Return what is known without pairs: the time of a step, or the search's one run to the target.

        One run has no interval; if the confirmation is switched off, that of the step time is used.
        """
        measured, trial = self._step_time(contender), contender.trial
        if measured is None:
            return TimeRatio(1.0 / trial.relative_step_time, 0.0, math.inf, None)
        if not self.runs.count_steps:
            return paired_bounds.time_ratio((), measured)
        ratio, high, low = (
            contender.baseline_steps / (trial.warm_up_steps + one * trial.steps_to_target) for one in measured
        )
        if self.file.confirm.enabled:
            low, high = 0.0, math.inf
        return TimeRatio(ratio, low, high, None)

    def _about_compiling(self, contender: Contender) -> str:
        """Say what compiling takes, and from what length of training it pays off; empty where nothing is compiled."""
        compiling = compile_seconds(contender.plan, self.file, self.study.user_attrs)
        took = f"{compiling:.2g} s" if compiling < 10.0 else format_duration(compiling)
        if not self.runs.are_timed:
            return f" A training compiles for {took} at its start." if compiling > 0.0 else ""
        # By each of today's batches.
        pairs = self.runs.usable_pairs(contender.key, 0, _N_TIMED)
        saved = [(given.seconds - mine.seconds) / self.runs.steps for given, mine in pairs]
        if not (compiling > 0.0 and sum(saved) > 0.0):
            return ""
        pays = f"which pays off in trainings of more than {math.ceil(compiling / fmean(saved)):,} batches"
        share = "" if self.file.share_of_today == 1.0 else "its share of "
        return f" Its time includes {share}{took} of compiling, timed once, {pays}."

    def _measure_step_time(self, contender: Contender) -> None:
        """Time the contender's steps again: it was picked by the search's timing, which therefore flatters it."""
        if self.runs.are_timed or self.runs.speed(contender.key) is not None:  # whole runs are timed by themselves
            return
        (seed,) = self.runs.seeds(0, 1)
        try:
            warm_up = self.warm_ups.before(contender.plan, seed)
            end_if_over(self.deadline)
            measured = self.experimenter.run(warm_up.speed_job(contender.plan, self.file, seed))
        except WarmUpError:  # the run with this seed will say so
            return
        except OutOfTimeError:
            self.cut_short = True
            return
        self.runs.keep_speed(contender.key, measured)
