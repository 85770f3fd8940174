"""Train the rounds of a confirmation: on each seed the plans that are compared there, in turn.

One round follows the other, or several trainers take a seed each, so that runs which are compared still share a machine
and a minute. A run is stored as soon as it ends, or its round where there are several trainers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import optuna
from optuna.trial import TrialState

from workbench.config import Plan
from workbench.study.answer.confirmation_runs import ConfirmationRuns
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import Monitor, RunStep, Trained, TrainJob
from workbench.study.run.objective import metric_scale_of
from workbench.study.run.runner import Experimenter, end_if_over
from workbench.study.run.side_by_side import places, train_rounds
from workbench.study.run.warm_up import NO_WARM_UP, WarmUp, WarmUpError, WarmUps


@dataclass(frozen=True, slots=True)
class _Asked:
    """A run of a round, and what stores it."""

    seed: int
    key: str  # of the plan
    plan: Plan
    keep: Callable[[str, Trained], None]


@dataclass
class ConfirmationRounds:
    """Trains rounds, as far as the time goes."""

    study: optuna.Study
    file: StudyFile
    experimenter: Experimenter
    warm_ups: WarmUps
    _: KW_ONLY
    trainers: Sequence[Experimenter] = ()  # that train side by side; the experimenter does where there are none
    deadline: float | None = None  # by ``time.monotonic()``; no run is begun that would take longer
    on_run: Callable[[int, int], None] = lambda *_: None  # gets runs done, and as far as planned, after every run
    on_step: Callable[[RunStep], None] | None = None

    def __post_init__(self) -> None:
        self.runs = runs = ConfirmationRuns(self.study, self.file)
        self.metric = metric_scale_of(self.study.user_attrs)
        self.cut_short = False  # whether the time was over before all were trained
        self._n_ended = 0  # over all tests: a further one does not seem to begin from zero
        complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        known = (one.user_attrs for one in complete if {"plan_key", "trained"} <= one.user_attrs.keys())
        length = runs.steps / self.file.study.budget_steps
        self._searched_seconds = {one["plan_key"]: Trained.from_json(one["trained"]).by_clock(length) for one in known}

    def train(self, rounds: Mapping[int, Mapping[str, Plan]], is_over: Callable[[], bool] = lambda: False) -> None:
        """Train on each seed its plans, which take turns, as far as the time goes or until it is asked to be over.

        A round that would not end in time is not begun.
        """
        planned = self._n_ended + sum(map(len, rounds.values()))
        are_several = places(self.trainers, (plan for plans in rounds.values() for plan in plans.values())) > 1
        self.on_run(self._n_ended, planned)
        try:
            begun = self._begun(rounds, is_over)
            one_by_one = ((asked, self._train(asked)) for in_turn in begun for asked in in_turn)
            for asked, trained in self._side_by_side(begun) if are_several else one_by_one:
                asked.keep(asked.key, trained)
                self._n_ended += 1
                self.on_run(self._n_ended, planned)
        except OutOfTimeError:
            self.cut_short = True

    def seconds_of_run(self, key: str) -> float:
        """Return what a plan's run takes by the clock, by its runs here or else in the search; NaN when unknown."""
        seconds = self.runs.seconds(key)
        return self._searched_seconds.get(key, math.nan) if math.isnan(seconds) else seconds

    def _begun(
        self, rounds: Mapping[int, Mapping[str, Plan]], is_over: Callable[[], bool]
    ) -> Iterator[Sequence[_Asked]]:
        for seed, plans in rounds.items():
            if is_over():
                return
            known = [seconds for key in plans if math.isfinite(seconds := self.seconds_of_run(key))]
            end_if_over(self.deadline, sum(known))
            keep = self.runs.begin_round(seed)
            in_turn = list(plans.items())[:: -1 if self.runs.are_timed and seed % 2 else 1]
            yield [_Asked(seed, key, plan, keep) for key, plan in in_turn]

    def _side_by_side(self, rounds: Iterator[Sequence[_Asked]]) -> Iterator[tuple[_Asked, Trained]]:
        begun = ((one, [self._job(asked, NO_WARM_UP) for asked in one]) for one in rounds)
        for one, runs in train_rounds(self.trainers, begun):
            yield from zip(one, runs, strict=True)

    def _train(self, asked: _Asked) -> Trained:
        try:
            warm_up = self.warm_ups.before(asked.plan, asked.seed)
        except WarmUpError as error:
            return Trained(math.nan, (), 0.0, diverged=True, message=str(error))
        trained = self.experimenter.run(self._job(asked, warm_up), Monitor(on_step=self.on_step))
        # What one more seed would take, which needs its own warm-up.
        return replace(trained, seconds=trained.seconds + warm_up.seconds)

    def _job(self, asked: _Asked, warm_up: WarmUp) -> TrainJob:
        steps, evaluate_every = self.runs.steps, self.runs.evaluate_every
        job = warm_up.train_job(asked.plan, seed=asked.seed, steps=steps, evaluate_every=evaluate_every)
        return replace(job, is_timed=self.runs.are_timed)
