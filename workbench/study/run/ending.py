"""When a search draws no further trial: enough trials or device-hours, nothing better for long, or nothing left.

Everything is read from the stored trials, so all processes agree, and a study that is continued counts what it has used
before. Only the time limit belongs to a command (`SearchEnd.out_of_time`); ``runner.py`` ends the running trial.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from workbench.study.answer.doubts import finds_steps_alone, needs_no_training
from workbench.study.ask.search_space import GIVEN
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.objective import baseline_trial
from workbench.study.sample.sampling import PerTrialSampler
from workbench.study.store.ended_trials import FINISHED
from workbench.study.store.stored_records import allowed_drop_of, counted_among
from workbench.study.store.study_storage import seconds_of

_IN_VAIN_PER_TRIAL = 3
_DRAWN_IN_VAIN = {
    "repeats": "nearly every draw repeated a trial",
    "skipped": "nearly no draw could be faster than the leader",
}
_ATTRIBUTE = "search_ended"


class SearchEnd:
    """Says whether a search, of a study with its sampler, is over."""

    def __init__(self, study: optuna.Study, file: StudyFile, n_trials: int) -> None:
        self._study, self._file = study, file
        self._section, self._most_plans = file.study, file.most_plans()
        self._n_trials = n_trials

    def reason(self, trials: Sequence[FrozenTrial]) -> str:
        """Return, as a sentence, why the study wants no further trial; empty while it wants one."""
        n_counted = len(counted_among(trials))
        if finds_steps_alone(self._study, self._file):
            return "The search ended with what makes a step faster, since runs so short show no more."
        if n_counted >= self._n_trials:
            return f"The search ended with all {self._n_trials} trials."
        if self._most_plans == 1 and n_counted:
            return "The search ended with O0, since nothing that is searched acts on this network."
        if needs_no_training(self._study, self._file):
            return "The search ended with O0, since no training is needed for its quality."
        why = self._why(trials, n_counted)
        return f"The search ended because {why}; {self._finished(trials)}." if why else ""

    def _why(self, trials: Sequence[FrozenTrial], n_counted: int) -> str:
        # Such draws cost nothing, but a space with fewer plans than trials would be drawn from for ever, and so would
        # one whose fastest plan leads.
        drawn = [one.user_attrs for one in trials if GIVEN not in one.user_attrs]
        for attribute, why in _DRAWN_IN_VAIN.items():
            if sum(attribute in one for one in drawn) >= _IN_VAIN_PER_TRIAL * self._n_trials:
                return why
        if self._most_plans is not None and n_counted >= self._most_plans:
            return "nothing else that it may draw acts on this network"
        sampler = self._study.sampler
        if isinstance(sampler, PerTrialSampler) and sampler.is_exhausted(self._study):
            return "every point of the grid has been tried"
        limit, patience = self._section.device_hours, self._section.patience
        if limit is not None and (used := device_hours(trials, self._section.ranks)) >= limit:
            return f"it has used {used:.3g} of {limit:g} device-hours"
        if patience is not None and (idle := trials_without_gain(self._study)) >= patience:
            return f"{idle} trials in a row found nothing better (`study.patience` is {patience})"
        return ""

    def out_of_time(self, trials: Sequence[FrozenTrial]) -> str:
        """Return the sentence for a search that its command's time limit has ended."""
        return f"The search ended with its share of the time limit; {self._finished(trials)}."

    def _finished(self, trials: Sequence[FrozenTrial]) -> str:
        finished = sum(trial.state in FINISHED for trial in counted_among(trials))
        given = sum(GIVEN in one.user_attrs for one in trials if one.state in FINISHED)
        beside = f", besides {given} that the search does not choose, such as tuned plain" if given else ""
        return f"{finished} of {self._n_trials} trials had finished{beside}"

    def note(self, sentence: str) -> None:
        """Keep with the study why its search ended; empty when it goes on again."""
        if self._study.user_attrs.get(_ATTRIBUTE, "") != sentence:
            self._study.set_user_attr(_ATTRIBUTE, sentence)


def device_hours(trials: Sequence[FrozenTrial], ranks: int) -> float:
    """Return the device-hours that trials have taken: hours times ranks, each with one device.

    Failed trials and those that run now count, too; of a trial that was run again only the last run is known.
    """
    now = datetime.datetime.now()
    seconds = 0.0
    for trial in trials:
        if trial.datetime_start is not None and trial.state != TrialState.WAITING:
            ended = trial.datetime_complete is not None
            taken = seconds_of(trial) if ended else (now - trial.datetime_start).total_seconds()
            seconds += max(taken, 0.0)  # a clock that was set back takes nothing from what others have used
    return seconds * ranks / 3600.0


def trials_without_gain(study: optuna.Study) -> int:
    """Return how many trials have finished since the best allowed one, repeats of equal plans aside.

    With two objectives a trial is a gain when it is faster than O0, keeps more than the allowed drop leaves, and no
    allowed trial before it is as good in both; before the first gain all trials after O0 count.
    """
    finished = [trial for trial in counted_among(study.get_trials(deepcopy=False)) if trial.state in FINISHED]
    finished.sort(key=lambda trial: (trial.datetime_complete or datetime.datetime.max, trial.number))
    signs = [1.0 if one == StudyDirection.MINIMIZE else -1.0 for one in study.directions]
    best, idle, points = math.inf, 0, list[tuple[float, float]]()
    baseline = baseline_trial(study)
    for trial in finished:
        is_gain = False
        is_allowed = all(value <= 0.0 for value in trial.constraints.values())
        if trial.state == TrialState.COMPLETE and is_allowed and trial.values:
            values = [sign * value for sign, value in zip(signs, trial.values, strict=True)]
            if len(values) == 1:
                is_gain, best = values[0] < best, min(best, values[0])
            elif baseline is not None and baseline.values:
                # In the metric the allowed drop lies beyond O0's.
                drop = allowed_drop_of(study.user_attrs)
                x, y = values[0] - signs[0] * baseline.values[0] - drop, values[1] - baseline.values[1]
                is_better = x < 0.0 and y < 0.0 and not any(left <= x and low <= y for left, low in points)
                is_gain = is_better or not points
                points.append((x, y))
        idle = 0 if is_gain else idle + 1
    return idle
