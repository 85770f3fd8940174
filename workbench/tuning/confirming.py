"""Train the best candidates and O0 again over fresh seeds until the verdicts are in, or the time is over.

Candidates are tested in the search's order, the next one only while the last was not left open. Each test is planned
and stored before it goes on: its number of seeds from the standard deviation of its first few pairs, and its looks (the
statistics and their source are in :mod:`workbench.experiments.confirmation`). Every run is stored as soon as it ends,
so nothing finished is lost when the process ends, and a plan that competes for both exports is trained once. Seeds
differ from the search's: a candidate was picked for doing well there, so that seed would flatter it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import optuna
from optuna.trial import TrialState

from workbench.config import BoostConfig, Plan
from workbench.experiments.confirmation import (
    FINAL_ERROR,
    Decision,
    PlannedTest,
    TimeRatio,
    decidable_drop,
    decide,
    first_test,
    format_duration,
    further_test,
    judge_test,
    planned_pairs,
    smallest_gap,
    time_ratio,
    verdict_of,
    verdict_sentence,
)
from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning.errors import OutOfTimeError
from workbench.tuning.experimenter import Experimenter, RunStep, SpeedMeasured, Trained
from workbench.tuning.objective import plain, read_speed, read_trained, steps_to_target
from workbench.tuning.plans import explicit_config, needs_warm_up
from workbench.tuning.search_space import all_off
from workbench.tuning.selection import TARGETS, aimed_at, competing_trials, with_policy
from workbench.tuning.stopping import end_if_over
from workbench.tuning.stored_records import baseline_record, trials_of
from workbench.tuning.study_file import StudyFile
from workbench.tuning.warm_up import WarmUpError, WarmUps

__all__ = ["Confirmation", "Contender", "confirmation_seeds", "contenders"]

_FIRST_SEED = 1000
"""Distance between the search's seed and the first seed of the confirmation."""

_N_PILOTS = 5
"""Pairs of a test whose standard deviation says how many it takes in all."""

_SHARE_OF_TIME = 0.9
"""Part of the time left that a test is planned for; the rest is for what takes longer than before."""


def confirmation_seeds(search_seed: int, n_seeds: int) -> range:
    """Return the seeds of the paired runs."""
    return range(search_seed + _FIRST_SEED, search_seed + _FIRST_SEED + n_seeds)


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial that competes for an export.

    Args:
        trial: The trial.
        target: ``"o1"`` or ``"o2"``.
        config: Its configuration with the chosen loss-scale policy.
        plan: What that means at its boost level.
        allowed_drop: Drop the export allows.
        baseline_steps: Steps in which O0 reached this export's target in the search; NaN when unknown.
    """

    trial: TrialRecord
    target: str
    config: BoostConfig
    plan: Plan
    allowed_drop: float
    baseline_steps: float = math.nan

    @property
    def key(self) -> str:
        """Key of its plan."""
        return self.plan.key()


def contenders(study: optuna.Study, file: StudyFile, policy: Mapping[str, Any] | None) -> dict[str, list[Contender]]:
    """Return who competes for each export.

    Args:
        study: The study, searched.
        file: The study's file.
        policy: The loss-scale policy that every contender gets; None, or one whose choice failed, changes nothing.

    Returns:
        Export -> contenders, best first.
    """
    trials = trials_of(study)
    baseline = baseline_record(study, trials)
    higher = bool(study.user_attrs["higher_is_better"])
    searched = [dimension.path for dimension in file.dimensions]
    pools: dict[str, list[Contender]] = {}
    for target in TARGETS:
        allowed_drop = float(study.user_attrs["allowed_drops"][target])
        ranked = competing_trials(
            trials,
            baseline,
            target,
            allowed_drop,
            objective=file.study.objective,
            higher_is_better=higher,
            plans=file.plans,
        )
        baseline_steps = aimed_at(baseline, baseline, allowed_drop, higher_is_better=higher).steps_to_target
        pools[target] = []
        for trial in ranked:
            config = with_policy(BoostConfig.from_dict(trial.config), policy, searched)
            plan = file.plans.resolve(config, trial.level)
            if file.plans.resolve(config, TARGETS[target]).key() != plan.key():
                config = plan.explicit_config()  # means this plan at any level
            pools[target].append(Contender(trial, target, config, plan, allowed_drop, baseline_steps))
    return pools


class Confirmation:
    """Run and judge the confirmation of a study.

    Args:
        study: The study; keeps every finished run and every planned test as user attributes.
        file: The study's file.
        experimenter: Who trains.
        warm_ups: Weight snapshots of every seed for plans that need them.
        command: Command that adds seeds, with ``{seeds}``.
        confirm_seeds: Number of seeds asked for on the command line; None lets the pilots decide.
        deadline: ``time.monotonic()`` at which the time is over; None for none. Who trains ends the run that goes on
            then; none is begun here that would take longer.
        on_run: Called with (runs done, runs as far as planned) after every run; further seeds add to both.
        on_step: Called while a run trains.
        on_note: Called with a sentence before each test: how many seeds it takes, how long, and what it can decide.

    Attributes:
        cut_short: Whether the time was over before all verdicts were in.
    """

    def __init__(
        self,
        study: optuna.Study,
        file: StudyFile,
        experimenter: Experimenter,
        warm_ups: WarmUps,
        *,
        command: str = "",
        confirm_seeds: int | None = None,
        deadline: float | None = None,
        on_run: Callable[[int, int], None] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self._study = study
        self._file = file
        self._experimenter = experimenter
        self._warm_ups = warm_ups
        self._command = command
        self._asked = confirm_seeds
        self._deadline = deadline
        self.cut_short = False
        self._on_run = on_run
        self._on_step = on_step
        self._on_note = on_note
        self._runs_ended = 0  # over all tests: a further one does not seem to begin from zero
        self._steps = file.confirm.steps or file.study.budget_steps
        self._counts_steps = file.study.objective == "time_to_target"
        self._evaluate_every = min(file.evaluate_every, self._steps) if self._counts_steps else self._steps
        self._baseline = file.plans.resolve(all_off(file.base_config()), "O0")
        self._baseline_key = self._baseline.key()
        # Equal metrics over all pairs would give a bound without width; the search has seen how finely they can differ.
        seen = (metric for trial in trials_of(study) for _, metric in trial.curve)
        self._resolution = smallest_gap(seen) or None
        self._searched_seconds = {
            str(trial.user_attrs["plan_key"]): read_trained(trial.user_attrs["trained"]).seconds
            * self._steps
            / file.study.budget_steps
            for trial in study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if {"plan_key", "trained"} <= trial.user_attrs.keys()
        }
        self._known = dict(study.user_attrs)  # every look asks for every run, and each question to SQLite costs

    def judge(self, pools: Mapping[str, Sequence[Contender]]) -> list[CandidateRecord]:
        """Test the best contenders of each export in turn, as many as the file says beside those that are refuted.

        Args:
            pools: Export -> its contenders, best first.

        Returns:
            Judged candidates, in the order of the exports and of their ranking. Those behind one whose verdict stays
            open, or for which there was no time, are not tested and stay undecided.
        """
        tested = [one for target, pool in pools.items() for one in self._tested(target, pool)]
        return [self._record(one) for one in tested]  # after all runs, so that a second call says the same

    def _tested(self, target: str, pool: Sequence[Contender]) -> list[Contender]:
        begun: list[Contender] = []
        wanted, is_open = self._file.confirm.candidates, not self._file.confirm.enabled
        for contender in pool:
            if wanted == 0:
                break
            begun.append(contender)
            if not is_open:
                self._speed(contender)
                if self._may_be_faster(contender):
                    self._run_tests(target, contender)
                    is_open = self._verdict(contender) is Verdict.UNDECIDED
            wanted -= self._verdict(contender) is not Verdict.REFUTED
        return begun

    def _run_tests(self, target: str, contender: Contender) -> None:
        """Train and judge a contender's test, and a further one where its verdict is open and more seeds are asked."""
        tests = self._tests(target)
        if contender.key not in [key for key, _ in tests]:
            self._plan_first(target, contender)
        self._train_test(contender)
        last = self._last_test(contender)
        if last is None or self._asked is None or self._verdict(contender) is not Verdict.UNDECIDED:
            return
        end = last.first + last.n_pairs
        if len(self._pairs(contender)) == last.n_pairs and self._asked >= end + 2:
            if self._out_of_time():
                self.cut_short = True
                return
            self._keep_test(target, contender.key, further_test(end, self._asked - end, self._n_further(target)))
            self._train_test(contender)

    def _plan_first(self, target: str, contender: Contender) -> None:
        """Decide from pilot pairs how many pairs the contender's first test takes, and keep that before it goes on."""
        section = self._file.confirm
        n_pairs = section.seeds_min if self._asked is None else self._asked
        if self._asked is None and section.seeds_max > section.seeds_min:
            pilots = PlannedTest(0, ((min(_N_PILOTS, section.seeds_min), 0.25),))
            self._train_pairs(contender, pilots)
            pairs = self._stored_pairs(contender.key, pilots)
            higher = self._experimenter.higher_is_better
            bounds = decide(pairs, 0.0, higher_is_better=higher, resolution=self._resolution).bounds
            n_pairs = section.seeds_max
            if bounds.n_pairs >= 2:
                n_pairs = planned_pairs(
                    bounds.spread, contender.allowed_drop, at_least=section.seeds_min, at_most=section.seeds_max
                )
            seconds = self._seconds_per_pair(contender.key)
            if len(pairs) < pilots.n_pairs and not self._diverged(contender.key, self._seeds(pilots)):
                return  # out of time: the next command goes on here, and nothing has been spent on a test too short
            if self._deadline is not None and seconds > 0.0:
                left = _SHARE_OF_TIME * (self._deadline - time.monotonic()) / seconds
                n_pairs = min(n_pairs, max(len(pairs) + int(left), pilots.n_pairs))
            self._tell_plan(target, contender, n_pairs, len(pairs), bounds.spread)
        tests = self._tests(target)
        is_first_choice = all(self._is_confirmed_at_once(target, key, contender.allowed_drop) for key, _ in tests)
        test = first_test(n_pairs) if is_first_choice else further_test(0, n_pairs, self._n_further(target))
        self._keep_test(target, contender.key, test)

    def _is_confirmed_at_once(self, target: str, key: str, allowed_drop: float) -> bool:
        """Return whether the first and only test of a plan confirmed it: then the next is tested at the full level."""
        tests = [test for one, test in self._tests(target) if one == key]
        pairs = self._stored_pairs(key, tests[0])
        return len(tests) == 1 and self._judged(tests[0], pairs, allowed_drop).verdict is Verdict.CONFIRMED

    def _tell_plan(self, target: str, contender: Contender, n_pairs: int, done: int, spread: float) -> None:
        if self._on_note is None:
            return
        seconds = max(n_pairs - done, 0) * self._seconds_per_pair(contender.key)
        takes = f", about {format_duration(seconds)}" if math.isfinite(seconds) else ""
        smallest = decidable_drop(spread, n_pairs) if math.isfinite(spread) else math.inf
        self._on_note(
            f"{target}: trial {contender.trial.number} is trained on {n_pairs} paired seeds{takes}; that can decide "
            f"allowed drops from {smallest:.2g} ({contender.allowed_drop:g} is asked)"
        )

    def _train_test(self, contender: Contender) -> None:
        """Train the pairs of a contender's last test up to each look, and stop at the first that decides."""
        test = self._last_test(contender)
        if test is None:
            return
        for n_pairs, _ in test.looks:
            self._train_pairs(contender, replace(test, looks=((n_pairs, 0.25),)))
            if self._verdict(contender) is not Verdict.UNDECIDED:
                return

    def _train_pairs(self, contender: Contender, test: PlannedTest) -> None:
        """Train what is missing of a test's pairs: O0 and the contender, seed by seed, as far as the time goes."""
        plans = {self._baseline_key: self._baseline, contender.key: contender.plan}
        seeds = self._seeds(test)
        missing = [(seed, key) for seed in seeds for key in plans if self._stored(key, seed) is None]
        planned = self._runs_ended + len(missing)
        try:
            for seed, key in missing:
                if self._diverged(contender.key, seeds):
                    return
                self._tell(planned)
                self._end_before(key)
                self._train(plans[key], seed)
                self._runs_ended += 1
        except OutOfTimeError:
            self.cut_short = True
        self._tell(planned)

    def _may_be_faster(self, contender: Contender) -> bool:
        """Return whether training can confirm the contender: where only a step's time counts, that is known before."""
        return self._counts_steps or self._time_ratio(contender).low > 1.0

    def _verdict(self, contender: Contender) -> Verdict:
        return verdict_of(self._decision(contender), self._time_ratio(contender))

    def _record(self, contender: Contender) -> CandidateRecord:
        quality, ratio = self._decision(contender), self._time_ratio(contender)
        trial = contender.trial
        sentence = verdict_sentence(
            quality,
            ratio,
            self._experimenter.metric_name,
            per="to the target" if self._counts_steps else "per step",
            seconds_per_pair=self._seconds_per_pair(contender.key),
            command=self._command,
        )
        return CandidateRecord(
            label=f"trial {trial.number}",
            trial_number=trial.number,
            target=contender.target,
            summary=contender.plan.summary(),
            config=contender.config.to_dict(),
            speedup=ratio.ratio,
            speedup_low=ratio.low,
            speedup_high=ratio.high,
            drop=quality.bounds.mean,
            drop_bound=quality.bounds.upper,
            allowed_drop=contender.allowed_drop,
            n_seeds=quality.bounds.n_pairs,
            verdict=verdict_of(quality, ratio),
            sentence=f"{sentence}{self._before(contender)}",
            metrics=tuple(self._pairs(contender)),
        )

    def _before(self, contender: Contender) -> str:
        """Say what a run of this contender begins with, where that is more than initial weights."""
        if not needs_warm_up(contender.plan):
            return ""
        return f" It begins with a warm-up of {self._file.warm_up_steps} micro-batches of O0."

    def _decision(self, contender: Contender) -> Decision:
        return self._judged(self._test(contender), self._pairs(contender), contender.allowed_drop)

    def _judged(self, test: PlannedTest, pairs: Sequence[tuple[float, float]], allowed_drop: float) -> Decision:
        higher = self._experimenter.higher_is_better
        return judge_test(test, pairs, allowed_drop, higher_is_better=higher, resolution=self._resolution)

    def _time_ratio(self, contender: Contender) -> TimeRatio:
        """Return how much faster the contender is, of the study's objective."""
        speed = self._stored_speed(contender.key)
        trial = contender.trial
        if speed is None:
            speed = SpeedMeasured(trial.relative_step_time, trial.relative_low, trial.relative_high)
        if not all(math.isfinite(one) and one > 0.0 for one in (speed.ratio, speed.low, speed.high)):
            return TimeRatio(1.0 / speed.ratio if speed.ratio > 0.0 else math.nan, 0.0, math.inf, None)
        measured = (speed.ratio, speed.low, speed.high)
        if not self._counts_steps:
            return time_ratio((), measured)
        times = self._times(contender)
        if times:
            return time_ratio(times, measured, warm_up=trial.warm_up_steps)
        # Not tested: all that is known is the search's one run, and how exactly its steps were timed.
        steps = trial.steps_to_target
        ratio, high, low = (contender.baseline_steps / (trial.warm_up_steps + one * steps) for one in measured)
        return TimeRatio(ratio, low, high, None)

    def _times(self, contender: Contender) -> list[tuple[float, float]]:
        """Return the steps to the target of O0 and of the contender, pair by pair; censored at the run's length."""
        higher = self._experimenter.higher_is_better
        sign = 1.0 if higher else -1.0
        times = []
        for seed in self._seeds(self._test(contender)):
            runs = [self._stored(key, seed) for key in (self._baseline_key, contender.key)]
            if any(run is None or not math.isfinite(_metric(run)) for run in runs):
                continue
            goal = _metric(runs[0]) - sign * contender.allowed_drop  # type: ignore[arg-type]  # neither is None
            steps = [steps_to_target(run.curve, goal, higher_is_better=higher) for run in runs if run is not None]
            times.append((min(steps[0], float(self._steps)), min(steps[1], float(self._steps))))
        return times

    def _seeds(self, test: PlannedTest) -> Sequence[int]:
        return confirmation_seeds(self._file.study.seed, test.first + test.n_pairs)[test.first :]

    def _pairs(self, contender: Contender) -> list[tuple[float, float]]:
        """Return the pairs of the contender's last test that are trained, up to the first that is missing."""
        return self._stored_pairs(contender.key, self._test(contender))

    def _stored_pairs(self, key: str, test: PlannedTest) -> list[tuple[float, float]]:
        pairs = []
        for seed in self._seeds(test):
            baseline, candidate = self._stored(self._baseline_key, seed), self._stored(key, seed)
            if baseline is None or candidate is None:
                break
            pairs.append((_metric(baseline), _metric(candidate)))
        return pairs

    def _diverged(self, key: str, seeds: Sequence[int]) -> bool:
        runs = (self._stored(key, seed) for seed in seeds)
        return any(run is not None and not math.isfinite(_metric(run)) for run in runs)

    def _train(self, plan: Plan, seed: int) -> None:
        try:
            warm_up = self._warm_ups.before(plan, seed)
            trained = self._experimenter.train(
                explicit_config(plan, warm_up.snapshots),
                plan.level,
                seed=seed,
                steps=self._steps,
                evaluate_every=self._evaluate_every,
                on_step=self._on_step,
            )
            # What one more seed would take, which needs a warm-up of its own.
            trained = replace(trained, seconds=trained.seconds + warm_up.seconds)
        except WarmUpError as error:
            trained = Trained(math.nan, (), 0.0, diverged=True, message=str(error))
        self._keep(self._run_name(plan.key(), seed), plain(asdict(trained)))

    def _speed(self, contender: Contender) -> None:
        # The search's own measurement flatters the fastest: it was picked for being the fastest.
        if self._stored_speed(contender.key) is not None:
            return
        seed = self._file.study.seed + _FIRST_SEED
        try:
            warm_up = self._warm_ups.before(contender.plan, seed)
            end_if_over(self._deadline)
            measured = self._experimenter.speed(
                (self._baseline.config, "O0"),
                (explicit_config(contender.plan, warm_up.snapshots), contender.plan.level),
                seed=seed,
                rounds=self._file.speed.rounds,
                steps_per_block=self._file.speed.steps_per_block,
            )
        except WarmUpError:  # the run with this seed will say so
            return
        except OutOfTimeError:
            self.cut_short = True
            return
        self._keep(f"confirm_speed:{contender.key}", plain(asdict(measured)))

    def _tests(self, target: str) -> list[tuple[str, PlannedTest]]:
        """Return the planned tests of an export with the key of the plan each is about, in the order of planning."""
        stored = self._known.get(f"confirm_tests:{target}", [])
        return [
            (one["key"], PlannedTest(one["first"], tuple((n_pairs, error) for n_pairs, error in one["looks"])))
            for one in stored
        ]

    def _last_test(self, contender: Contender) -> PlannedTest | None:
        mine = [test for key, test in self._tests(contender.target) if key == contender.key]
        return mine[-1] if mine else None

    def _test(self, contender: Contender) -> PlannedTest:
        """Return a contender's last test; where none is planned yet, one that lacks a pair and so decides nothing."""
        test = self._last_test(contender)
        if test is None:
            n_pairs = self._asked or self._file.confirm.seeds_min
            while self._stored(contender.key, self._seeds(first_test(n_pairs))[-1]) is not None:
                n_pairs += 1  # trained for another export's question
            test = PlannedTest(0, ((n_pairs, FINAL_ERROR),))
        return test

    def _n_further(self, target: str) -> int:
        """Return how many tests of an export have drawn on the error that is kept for what was not planned."""
        return sum(test.looks[-1][1] < FINAL_ERROR for _, test in self._tests(target))

    def _keep_test(self, target: str, key: str, test: PlannedTest) -> None:
        """Store a test; one of the same plan that begins with the same pair is replaced."""
        tests = self._tests(target)
        at = next((i for i, (one, old) in enumerate(tests) if one == key and old.first == test.first), len(tests))
        tests[at : at + 1] = [(key, test)]
        stored = [{"key": one, "first": old.first, "looks": [list(look) for look in old.looks]} for one, old in tests]
        self._keep(f"confirm_tests:{target}", stored)

    def _keep(self, name: str, value: Any) -> None:
        self._study.set_user_attr(name, value)
        self._known[name] = value

    def _stored(self, key: str, seed: int) -> Trained | None:
        stored = self._known.get(self._run_name(key, seed))
        return None if stored is None else read_trained(stored)

    def _stored_speed(self, key: str) -> SpeedMeasured | None:
        stored = self._known.get(f"confirm_speed:{key}")
        return None if stored is None else read_speed(stored)

    def _run_name(self, key: str, seed: int) -> str:
        # Version 0.6 evaluated at the end alone, which says nothing of the time to the target.
        evaluated = f":{self._evaluate_every}" if self._evaluate_every < self._steps else ""
        return f"confirm:{key}:{seed}:{self._steps}{evaluated}"

    def _seconds_per_pair(self, key: str) -> float:
        return self._seconds(self._baseline_key) + self._seconds(key)

    def _seconds(self, key: str) -> float:
        """Return what a run takes, by those that have ended; NaN when there is none."""
        runs = (self._stored(key, seed) for seed in confirmation_seeds(self._file.study.seed, _N_PILOTS))
        known = [run.seconds for run in runs if run is not None]
        return sum(known) / len(known) if known else math.nan

    def _end_before(self, key: str) -> None:
        """End the confirmation if a run would not end in time, by its like here or else in the search."""
        seconds = self._seconds(key)
        end_if_over(self._deadline, self._searched_seconds.get(key, math.nan) if math.isnan(seconds) else seconds)

    def _out_of_time(self) -> bool:
        return self.cut_short or (self._deadline is not None and time.monotonic() > self._deadline)

    def _tell(self, planned: int) -> None:
        if self._on_run is not None:
            self._on_run(self._runs_ended, planned)


def _metric(trained: Trained) -> float:
    return math.nan if trained.diverged else trained.metric
