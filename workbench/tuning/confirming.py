"""Train the best candidates and O0 again over fresh seeds until the verdicts are in, or the time is over.

Every run is stored under (plan, seed, steps) as soon as it ends, so nothing finished is lost when the process ends,
and a plan that competes for both exports is trained once. Seeds differ from the search's: a candidate was picked for
doing well there, so that seed would flatter it.
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
from workbench.experiments.confirmation import Decision, decide, planned_looks, smallest_gap, verdict_sentence
from workbench.records import CandidateRecord, TrialRecord, Verdict
from workbench.tuning.errors import OutOfTimeError
from workbench.tuning.experimenter import Experimenter, RunStep, SpeedMeasured, Trained
from workbench.tuning.objective import plain, read_speed, read_trained
from workbench.tuning.plans import explicit_config, needs_warm_up
from workbench.tuning.search_space import all_off
from workbench.tuning.selection import TARGETS, competing_trials, with_policy
from workbench.tuning.stopping import end_if_over
from workbench.tuning.stored_records import baseline_record, trials_of
from workbench.tuning.study_file import StudyFile
from workbench.tuning.warm_up import WarmUpError, WarmUps

__all__ = ["Confirmation", "Contender", "confirmation_seeds", "contenders"]

_FIRST_SEED = 1000
"""Distance between the search's seed and the first seed of the confirmation."""


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
    """

    trial: TrialRecord
    target: str
    config: BoostConfig
    plan: Plan
    allowed_drop: float

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
            higher_is_better=bool(study.user_attrs["higher_is_better"]),
            plans=file.plans,
        )
        pools[target] = []
        for trial in ranked:
            config = with_policy(BoostConfig.from_dict(trial.config), policy, searched)
            plan = file.plans.resolve(config, trial.level)
            pools[target].append(Contender(trial, target, config, plan, allowed_drop))
    return pools


class Confirmation:
    """Run and judge the confirmation of a study.

    Args:
        study: The study; keeps every finished run as a user attribute.
        file: The study's file.
        experimenter: Who trains.
        warm_ups: Weight snapshots of every seed for plans that need them.
        command: Command that adds seeds, with ``{seeds}``.
        confirm_seeds: Number of seeds asked for on the command line; None follows the file.
        deadline: ``time.monotonic()`` at which the time is over; None for none. Who trains ends the run that goes on
            then; none is begun here that would take longer.
        on_run: Told (runs done, runs as far as planned) after every run; further seeds add to both.
        on_step: Told while a run trains.

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
    ) -> None:
        self._study = study
        self._file = file
        self._experimenter = experimenter
        self._warm_ups = warm_ups
        self._command = command
        first = file.confirm.seeds_min
        last = file.confirm.seeds_max if confirm_seeds is None else confirm_seeds
        self._looks = planned_looks(min(first, last), last)
        self._deadline = deadline
        self.cut_short = False
        self._on_run = on_run
        self._on_step = on_step
        self._runs_ended = 0  # over all looks and contenders: seeds that are added do not seem to begin anew
        self._steps = file.confirm.steps or file.study.budget_steps
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
        """Confirm the best contenders of each export; when all of them are refuted, the next ones.

        Args:
            pools: Export -> its contenders, best first.

        Returns:
            Judged candidates, in the order of the exports and of their ranking.
        """
        n_at_once = self._file.confirm.candidates
        begun = {target: list(pool[:n_at_once]) for target, pool in pools.items()}
        if not self._file.confirm.enabled:
            return self._records(begun)
        while True:
            try:
                self._confirm(begun)
            except OutOfTimeError:
                self.cut_short = True
            more = False
            for target, pool in pools.items():
                refuted = all(self._decision(one).verdict is Verdict.REFUTED for one in begun[target])
                if refuted and len(begun[target]) < len(pool) and not self._out_of_time():
                    begun[target] += pool[len(begun[target]) : len(begun[target]) + n_at_once]
                    more = True
            if not more:
                return self._records(begun)

    def _confirm(self, begun: Mapping[str, list[Contender]]) -> None:
        contenders = [one for pool in begun.values() for one in pool]
        for contender in contenders:
            self._speed(contender)
        for look in self._looks:
            still_open = self._open(begun)
            plans = {one.key: one.plan for one in still_open}
            if not plans:
                return
            plans = {self._baseline_key: self._baseline, **plans}
            seeds = confirmation_seeds(self._file.study.seed, look)
            missing = [(seed, key) for seed in seeds for key in plans if self._stored(key, seed) is None]
            planned = self._runs_ended + len(missing)
            for seed, key in missing:
                self._tell(planned)
                if not self._diverged(key):
                    self._end_before(key)
                    self._train(plans[key], seed)
                self._runs_ended += 1
            self._tell(planned)

    def _open(self, begun: Mapping[str, list[Contender]]) -> list[Contender]:
        """Return who still needs seeds; a slower contender than a confirmed one does not."""
        still_open = []
        for pool in begun.values():
            for contender in pool:
                verdict = self._decision(contender).verdict
                if verdict is Verdict.CONFIRMED:
                    break
                if verdict is Verdict.UNDECIDED:
                    still_open.append(contender)
        return still_open

    def _records(self, begun: Mapping[str, list[Contender]]) -> list[CandidateRecord]:
        return [self._record(one) for pool in begun.values() for one in pool]

    def _record(self, contender: Contender) -> CandidateRecord:
        decision = self._decision(contender)
        speed = self._stored_speed(contender.key)
        trial = contender.trial
        if speed is None:
            speed = SpeedMeasured(trial.relative_step_time, trial.relative_low, trial.relative_high)
        faster, slowest, fastest = 1.0 / speed.ratio, 1.0 / speed.high, 1.0 / speed.low
        verdict = verdict_sentence(
            decision,
            self._experimenter.metric_name,
            seconds_per_pair=self._seconds_per_pair(contender.key),
            command=self._command,
        )
        sentence = f"{verdict} {_speed_sentence(faster, slowest, fastest)}"
        return CandidateRecord(
            label=f"trial {trial.number}",
            trial_number=trial.number,
            target=contender.target,
            summary=contender.plan.summary(),
            config=contender.config.to_dict(),
            speedup=faster,
            speedup_low=slowest,
            speedup_high=fastest,
            drop=decision.bounds.mean,
            drop_bound=decision.bounds.upper,
            allowed_drop=contender.allowed_drop,
            n_seeds=decision.bounds.n_pairs,
            verdict=decision.verdict,
            sentence=f"{sentence}{self._before(contender)}.",
            metrics=tuple(self._pairs(contender.key)),
        )

    def _before(self, contender: Contender) -> str:
        """Say what a run of this contender begins with, where that is more than initial weights."""
        if not needs_warm_up(contender.plan):
            return ""
        return f", after a warm-up of {self._file.warm_up_steps} micro-batches of O0"

    def _decision(self, contender: Contender) -> Decision:
        """Judge at the last planned look that is complete, or at what there is when the first is not."""
        pairs = self._pairs(contender.key)
        reached = [look for look in self._looks if look <= len(pairs)]
        diverged = any(not math.isfinite(candidate) for _, candidate in pairs)
        at = pairs if diverged or not reached or self._out_of_time() else pairs[: reached[-1]]
        return decide(
            at,
            contender.allowed_drop,
            higher_is_better=self._experimenter.higher_is_better,
            n_looks=len(self._looks),
            resolution=self._resolution,
        )

    def _pairs(self, key: str) -> list[tuple[float, float]]:
        pairs = []
        for seed in confirmation_seeds(self._file.study.seed, self._looks[-1]):
            baseline, candidate = self._stored(self._baseline_key, seed), self._stored(key, seed)
            if baseline is not None and candidate is not None:
                pairs.append((_metric(baseline), _metric(candidate)))
        return pairs

    def _diverged(self, key: str) -> bool:
        return key != self._baseline_key and any(not math.isfinite(candidate) for _, candidate in self._pairs(key))

    def _train(self, plan: Plan, seed: int) -> None:
        try:
            warm_up = self._warm_ups.before(plan, seed)
            trained = self._experimenter.train(
                explicit_config(plan, warm_up.snapshots),
                plan.level,
                seed=seed,
                steps=self._steps,
                evaluate_every=self._steps,
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
        except WarmUpError:  # the run with this seed will say so
            return
        end_if_over(self._deadline)
        measured = self._experimenter.speed(
            (self._baseline.config, "O0"),
            (explicit_config(contender.plan, warm_up.snapshots), contender.plan.level),
            seed=seed,
            rounds=self._file.speed.rounds,
            steps_per_block=self._file.speed.steps_per_block,
        )
        self._keep(f"confirm_speed:{contender.key}", plain(asdict(measured)))

    def _keep(self, name: str, value: dict[str, Any]) -> None:
        self._study.set_user_attr(name, value)
        self._known[name] = value

    def _stored(self, key: str, seed: int) -> Trained | None:
        stored = self._known.get(self._run_name(key, seed))
        return None if stored is None else read_trained(stored)

    def _stored_speed(self, key: str) -> SpeedMeasured | None:
        stored = self._known.get(f"confirm_speed:{key}")
        return None if stored is None else read_speed(stored)

    def _run_name(self, key: str, seed: int) -> str:
        return f"confirm:{key}:{seed}:{self._steps}"

    def _seconds_per_pair(self, key: str) -> float:
        return self._seconds(self._baseline_key) + self._seconds(key)

    def _seconds(self, key: str) -> float:
        """Return what a run takes, by those that have ended; NaN when there is none."""
        runs = [
            stored.seconds
            for seed in confirmation_seeds(self._file.study.seed, self._looks[-1])
            if (stored := self._stored(key, seed)) is not None
        ]
        return sum(runs) / len(runs) if runs else math.nan

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


def _speed_sentence(speedup: float, slowest: float, fastest: float) -> str:
    """Say how fast a step is; an interval that holds 1 claims nothing."""
    interval = f"95 % interval of the speed-up {slowest:.2f} to {fastest:.2f}"
    if slowest <= 1.0 <= fastest:
        return f"A step is not clearly faster or slower than O0's: {speedup:.2f} x ({interval})"
    word = "faster" if speedup >= 1.0 else "slower"
    return f"It is {max(speedup, 1.0 / speedup):.2f} times {word} per step than O0 ({interval})"
