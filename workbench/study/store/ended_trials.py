"""The trials of a study that have ended, each handed out once: what has ended never changes.

Who learns from all earlier trials whenever another one begins or ends keeps what it has learned and asks for the new
ones, so that the thousandth trial costs what the tenth did.
"""

from __future__ import annotations

from collections.abc import Collection

import optuna
from optuna.trial import FrozenTrial, TrialState

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of a trial that has run to an end."""
ENDED = (*FINISHED, TrialState.FAIL)
"""States that a trial never leaves."""


class EndedTrials:
    """Hands out the trials of a study that have ended in one of some states."""

    def __init__(self, study: optuna.Study, states: Collection[TrialState] = ENDED) -> None:
        self._study, self._states = study, tuple(states)
        self._seen = set[int]()

    def new(self) -> list[FrozenTrial]:
        """Return those that have ended since the last call, in the order of their numbers; other processes' too."""
        trials = self._study.get_trials(deepcopy=False, states=self._states)
        if len(trials) == len(self._seen):
            return []
        new = [trial for trial in trials if trial.number not in self._seen]
        self._seen.update(trial.number for trial in new)
        return new
