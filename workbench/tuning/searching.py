"""Draw and run trials until the whole study has enough of them, or the time is over.

One process or several do the same: each looks at the storage for what is still wanted before it draws the next trial.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from workbench.tuning import storage as kept
from workbench.tuning.errors import StudyFailedError, StudyStoppedError
from workbench.tuning.experimenter import Experimenter, MakeExperimenter, experimenter_for
from workbench.tuning.objective import Objective, baseline_trial
from workbench.tuning.progress import StudyWatch
from workbench.tuning.quiet import quiet_optuna
from workbench.tuning.sampling import make_pruner, make_sampler
from workbench.tuning.stopping import end_if_asked
from workbench.tuning.stored_records import FINISHED, counted_trials
from workbench.tuning.study_file import StudyFile, read_study
from workbench.tuning.warm_up import WarmUps

__all__ = ["Search", "search"]

_FAILURES_IN_A_ROW = 3
_REPEATS_PER_TRIAL = 3


def search(
    study_dir: Path,
    url: str,
    *,
    n_trials: int | None = None,
    deadline: float | None = None,
    make_experimenter: MakeExperimenter | None = None,
) -> None:
    """Run trials of a study that ``tune`` has begun: what one worker process does.

    Args:
        study_dir: Folder with ``study.toml``.
        url: Optuna storage URL.
        n_trials: Finished trials of the whole study; None follows the file.
        deadline: ``time.monotonic()`` after which no trial is begun; None for none.
        make_experimenter: Who trains; None trains the task the file names.

    Raises:
        StudyError: When the study is wrong or has not been started.
        StudyFailedError: When trials keep failing.
    """
    file = read_study(study_dir)
    with quiet_optuna():
        experimenter = experimenter_for(file, study_dir, make_experimenter)
        database = kept.open_storage(url)
        study = kept.find_study(database, file.study.name)
        total = n_trials or file.study.n_trials
        watch = StudyWatch(study, file, total, None, None)
        allowed = file.allowed_drops(experimenter.metric_name)
        with kept.plain_storage_errors():
            warm_ups = WarmUps(file, study_dir, experimenter, watch.step)
            here = Search(file, database, study, experimenter, warm_ups, allowed, total, deadline, watch)
            here.run_baseline()
            here.run()


class Search:
    """Run trials until the whole study has enough of them or the time is over."""

    def __init__(
        self,
        file: StudyFile,
        database: RDBStorage,
        study: optuna.Study,
        experimenter: Experimenter,
        warm_ups: WarmUps,
        allowed: dict[str, float],
        n_trials: int,
        deadline: float | None,
        watch: StudyWatch,
        stop: Callable[[], bool] | None = None,
    ) -> None:
        self._file = file
        self._database = database
        self._study = study
        self._n_trials = n_trials
        self._deadline = deadline
        self._watch = watch
        self._stop = stop
        self._objective = Objective(file, study, experimenter, allowed, warm_ups, on_step=watch.step)
        study.pruner = make_pruner(file.pruner.name, file.pruner.options, budget_steps=file.study.budget_steps)
        study.sampler = make_sampler(
            file.sampler.name,
            file.sampler.options,
            space=file.searched,
            seed=file.study.seed,
            n_trials=n_trials,
            objective=file.study.objective,
        )

    def run_baseline(self) -> None:
        """Run O0 if it has not been run, or wait for the process that runs it."""
        self._watch.phase("search")
        while baseline_trial(self._study) is None:
            states = {trial.state for trial in self._study.get_trials(deepcopy=False)}
            if TrialState.WAITING in states:
                self._run_one()
            elif TrialState.RUNNING in states:
                end_if_asked(self._stop)
                time.sleep(1.0)
            else:
                raise StudyFailedError("the study has no O0 trial any more; start over with --fresh")

    def run(self) -> None:
        """Run the other trials."""
        failures = 0
        while self._wanted() and not self._out_of_time():
            end_if_asked(self._stop)  # before a trial is drawn
            self._watch.trial_finished()
            failures = 0 if self._run_one() else failures + 1
            if failures >= _FAILURES_IN_A_ROW:
                last = self._study.get_trials(deepcopy=False, states=(TrialState.FAIL,))[-1]
                raise StudyFailedError(
                    f"{failures} trials in a row failed, the last with: {last.user_attrs.get('message', 'no message')}"
                )
        self._watch.trial_finished()

    def _wanted(self) -> bool:
        counted = counted_trials(self._study)
        begun = self._study.get_trials(deepcopy=False, states=(*FINISHED, TrialState.RUNNING))
        # Repeats cost nothing, but a space with fewer plans than trials would be drawn from for ever.
        repeats = len(begun) - len(counted)
        return len(counted) < self._n_trials and repeats < _REPEATS_PER_TRIAL * self._n_trials

    def _run_one(self) -> bool:
        """Run one trial; return whether it finished."""
        study = self._study
        trial = study.ask()
        kept.mark_process(trial)
        if self._is_surplus(trial.number):
            study.tell(trial, state=TrialState.FAIL)
            return True
        try:
            with kept.beating(self._database, study, trial.number):
                values = self._objective(trial)
        except optuna.TrialPruned:
            study.tell(trial, state=TrialState.PRUNED)
            return True
        except (KeyboardInterrupt, SystemExit):
            kept.put_back(self._database, study, trial.number)
            raise
        except (StudyFailedError, StudyStoppedError, OSError, *kept.STORAGE_ERRORS):
            # O0 does not train, the disk is full, the database gone, or somebody asked to end: no later trial would do
            # better, and this one is worth repeating.
            kept.put_back(self._database, study, trial.number)
            raise
        except Exception as error:  # one configuration that cannot run must not end the search
            if trial.user_attrs.get("baseline"):
                kept.put_back(self._database, study, trial.number)
                raise
            trial.set_user_attr("message", f"{type(error).__name__}: {error}")
            study.tell(trial, state=TrialState.FAIL)
            return False
        study.tell(trial, values)
        return True

    def _is_surplus(self, number: int) -> bool:
        """Return whether other processes have begun the last trials in the meantime."""
        others = [one for one in counted_trials(self._study) if one.number != number]
        earlier = [one for one in others if one.state in FINISHED or one.number < number]
        return len(earlier) >= self._n_trials

    def _out_of_time(self) -> bool:
        return self._deadline is not None and time.monotonic() > self._deadline
