"""Draw and run trials until the whole study has enough of them, or the time is over.

One search or several, of one process or many, do the same: each looks at the storage for what is still wanted before
it draws the next trial.
"""

from __future__ import annotations

import datetime
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.core.credentials import hide_passwords
from workbench.runs import TelemetryError
from workbench.study.ask.search_space import GIVEN
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError, StudyFailedError, StudyStoppedError
from workbench.study.run.ending import SearchEnd
from workbench.study.run.job import RunStep
from workbench.study.run.objective import Objective, baseline_trial
from workbench.study.run.patience import STORAGE_ERRORS
from workbench.study.run.progress import StudyWatch
from workbench.study.run.runner import Experimenter, end_if_asked, end_if_over, reason_of_failure
from workbench.study.run.warm_up import WarmUps
from workbench.study.sample.sampling import make_pruner, make_sampler
from workbench.study.set_up.objective import SetUpObjective
from workbench.study.set_up.total_time import StepTimes
from workbench.study.store import storage
from workbench.study.store.ended_trials import ENDED, FINISHED
from workbench.study.store.liveness import StaleTrials, heartbeat
from workbench.study.store.stored_records import SURPLUS, counted_among
from workbench.study.store.study_storage import TAKEN_ERRORS, StudyStorage, TrialTakenError, was_given_up
from workbench.study.store.trial_ids import id_of

_FAILURES_IN_A_ROW = 3
_POLL_SECONDS = 0.25

_log = logging.getLogger("workbench")


class Search:
    """Run trials until the whole study has enough of them or the time is over.

    After ``deadline``, by ``time.monotonic()``, no trial is begun; the experimenter ends the one that is running
    (`StoppableExperimenter`). ``stop`` is asked between trials. ``finished_here`` counts trials run to their end here.
    """

    def __init__(
        self,
        file: StudyFile,
        directory: Path,
        database: StudyStorage,
        study: optuna.Study,
        experimenter: Experimenter,
        *,
        n_trials: int,
        deadline: float | None,
        watch: StudyWatch | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        file = storage.on_its_network(file, study)
        self.file, self.study, self.experimenter = file, study, experimenter
        self._directory, self._database, self._n_trials = directory, database, n_trials
        self._watch = StudyWatch(study, file, n_trials) if watch is None else watch
        self.deadline, self._stop = deadline, stop
        self.warm_ups = WarmUps(file, directory, experimenter, self._watch.step)
        self._stale = StaleTrials(database, study)
        self._lost: threading.Event | None = None  # set once another process has the trial that runs here
        self.finished_here = 0
        self.at_places: Callable[[Search], None] | None = None  # goes on with this search where there are several
        objective_class = SetUpObjective if file.study.objective == "time_to_quality" else Objective
        self.objective = objective_class(file, database, study, experimenter, self.warm_ups, deadline, self._step)
        study.pruner = make_pruner(file.pruner.name, file.pruner.options, budget_steps=file.study.budget_steps)
        study.sampler = make_sampler(
            file.sampler.name,
            file.sampler.options,
            space=file.searched,
            seed=file.study.seed,
            n_trials=n_trials,
            objective=file.study.objective,
        )
        self._end = SearchEnd(study, file, n_trials)

    def run_baseline(self, deadline: float | None = None) -> None:
        """Run O0 if it has not been run, or wait for the process that runs it: until a deadline, or the search's."""
        if self.file.study.objective == "time_to_quality" and baseline_trial(self.study) is None:
            self._watch.phase("O0", total=float(self.file.set_up.baseline_seeds))
        else:
            self._watch.phase("search")
        while True:
            trials = self._trials()  # read once: another process may finish it at any moment
            baseline = {trial.state: trial for trial in trials if trial.user_attrs.get("baseline")}
            if TrialState.COMPLETE in baseline:
                return
            if TrialState.WAITING in baseline:
                # This very trial: asked for the next one, Optuna draws a new one where another process was faster.
                self._run_waiting(baseline[TrialState.WAITING])
            elif TrialState.RUNNING in baseline:
                end_if_asked(self._stop)
                end_if_over(self.deadline if deadline is None else deadline)
                if not self._stale.put_back():
                    time.sleep(_POLL_SECONDS)
            else:
                raise StudyFailedError("the study no longer has an O0 trial; start over with --fresh")

    def beside(self, experimenter: Experimenter, stop: Callable[[], bool]) -> Search:
        """Return a search for the same trials, for another thread, that trains with an experimenter of its own."""
        study = storage.find_study(self._database, self.file.study.name)  # its own, since a study has one sampler
        where = (self.file, self._directory, self._database, study, experimenter)
        return Search(*where, n_trials=self._n_trials, deadline=self.deadline, stop=stop)

    def step_times(self) -> StepTimes:
        """Return the step times of the study, measured where they are not known."""
        return StepTimes(self.study, self.file, self.experimenter)

    def run_until(self, deadline: float | None) -> None:
        """Go on as `run` does, with another deadline."""
        self.until(deadline)
        self.run()

    def settle(self, n_seeds: int) -> None:
        """Train the leader of a search for a set-up on further seeds (`SetUpObjective.settle`)."""
        if isinstance(self.objective, SetUpObjective):
            self.objective.settle(n_seeds)
            self._watch.trial_finished()

    def until(self, deadline: float | None) -> None:
        """Set another deadline."""
        self.deadline = self.objective.deadline = deadline

    def run(self) -> None:
        """Run the other trials, until enough have finished; those of processes that die meanwhile are run here, too."""
        failures = 0
        self._end.note("")
        self._watch.phase("search")
        if self.at_places is not None:
            self.at_places(self)
        while self.deadline is None or time.monotonic() <= self.deadline:
            end_if_asked(self._stop)  # before a trial is drawn
            self._stale.put_back()
            trials = self._trials()
            self._watch.trial_finished(trials)
            _end_if_workers_keep_dying(trials)
            if not self._end.reason(trials):
                try:
                    failures = 0 if self._run_one(self.study.ask()) else failures + 1
                except OutOfTimeError:  # it waits for the next command
                    break
            elif any(trial.state == TrialState.RUNNING for trial in trials):
                time.sleep(_POLL_SECONDS)
            else:
                break
            if failures >= _FAILURES_IN_A_ROW:
                last = self.study.get_trials(deepcopy=False, states=(TrialState.FAIL,))[-1]
                raise StudyFailedError(f"{failures} trials in a row failed, the last with: {_message(last)}")
        trials = self._trials()
        self._end.note(self._end.reason(trials) or self._end.out_of_time(trials))
        self._watch.trial_finished()

    def run_given(self, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        """Run a trial whose parameters are given instead of drawn, with further user attributes; return its number.

        ``values``, config path -> value, come on top of the ground that every trial starts from. When the time is over
        (OutOfTimeError) the trial waits for the next command.
        """
        end_if_asked(self._stop)
        asked = {GIVEN: dict(values), **attributes}
        while True:
            waiting = self.study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            # This very trial, which an earlier command may have left behind: one that was drawn may wait, too.
            same = [one for one in waiting if asked.items() <= one.user_attrs.items()]
            if not same:
                self.study.enqueue_trial({}, user_attrs=asked)
            elif self._run_waiting(same[0]):
                self._watch.trial_finished()
                return same[0].number

    def is_wanted(self) -> bool:
        """Return whether the study wants further trials, or some are running."""
        trials = self._trials()
        return not self._end.reason(trials) or any(trial.state == TrialState.RUNNING for trial in trials)

    def _trials(self) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False)

    def _run_waiting(self, waiting: FrozenTrial) -> bool:
        """Run a trial that waits; return whether it was taken here and not by another process."""
        taken = self._database.set_trial_state_values(id_of(waiting), TrialState.RUNNING)
        if taken:
            self._run_one(optuna.Trial(self.study, id_of(waiting)))
        return taken

    def _run_one(self, trial: optuna.Trial) -> bool:
        """Run a trial that has been begun; return False if the trial failed and the failure counts."""
        database, trial_id = self._database, id_of(trial)
        try:
            with heartbeat(database, trial_id) as self._lost:
                self._watch.trial_begun()
                # Read again: others may have begun the last trials with this one.
                state, values = self._outcome(trial, self._trials())
                self.study.tell(trial, values, state=state)
        except TAKEN_ERRORS:
            _log.warning("trial %d: this process was silent for so long that another runs it now", trial.number)
            return True
        except (Exception, KeyboardInterrupt, SystemExit):
            # The user asked to end, O0 does not train, the disk is full or the database gone: no later trial would do
            # better, and this one is worth repeating.
            database.hand_back(trial_id)
            raise
        finally:
            self._lost = None
            database.forget(trial_id)
        self.finished_here += state in FINISHED
        return state != TrialState.FAIL or SURPLUS in trial.user_attrs

    def _outcome(
        self, trial: optuna.Trial, trials: Sequence[FrozenTrial]
    ) -> tuple[TrialState, tuple[float, ...] | None]:
        """Run a trial and return how it ended; one configuration that cannot run must not end the search."""
        if self._is_surplus(trial.number, trials):
            trial.set_user_attr(SURPLUS, True)
            return TrialState.FAIL, None
        try:
            return TrialState.COMPLETE, self.objective(trial)
        except optuna.TrialPruned:
            return TrialState.PRUNED, None
        # A run that cannot be written says nothing of its configuration either: the disk is full, or not writable.
        except (StudyFailedError, StudyStoppedError, OSError, TelemetryError, *TAKEN_ERRORS, *STORAGE_ERRORS):
            raise
        except Exception as error:
            if trial.user_attrs.get("baseline"):
                raise
            trial.set_user_attr("message", hide_passwords(reason_of_failure(error)))
            return TrialState.FAIL, None

    def _step(self, step: RunStep) -> None:
        if self._lost is not None and self._lost.is_set():
            raise TrialTakenError("another process runs this trial now")
        self._watch.step(step)

    def _is_surplus(self, number: int, trials: Sequence[FrozenTrial]) -> bool:
        """Return whether other processes have begun the last trials in the meantime."""
        if len(trials) <= self._n_trials or GIVEN in trials[number].user_attrs:
            return False
        others = [one for one in counted_among(trials) if one.number != number]
        return sum(one.state in FINISHED or one.number < number for one in others) >= self._n_trials


def _end_if_workers_keep_dying(trials: Sequence[FrozenTrial]) -> None:
    """End the search if no trial has finished between the last ones that were given up."""
    if not any(was_given_up(trial) for trial in trials):
        return
    ended = [trial for trial in trials if trial.state in ENDED]
    ended.sort(key=lambda trial: trial.datetime_complete or datetime.datetime.min)
    last = ended[-_FAILURES_IN_A_ROW:]
    if len(last) == _FAILURES_IN_A_ROW and all(was_given_up(trial) for trial in last):
        raise StudyFailedError(f"{len(last)} trials in a row ended their workers; the last: {_message(last[-1])}")


def _message(trial: FrozenTrial) -> str:
    return str(trial.user_attrs.get("message", "no message"))
