"""The trials of a study that have ended, each returned once: what has ended never changes.

Whatever learns from all earlier trials keeps what it has learned and asks only for the new ones, so that the thousandth
trial costs what the tenth did.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from optuna.trial import FrozenTrial, TrialState

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of a trial that has run to an end."""
ENDED = (*FINISHED, TrialState.FAIL)
"""States that a trial never leaves."""


class EndedTrials:
    """Returns the trials of a study that have ended in one of some states."""

    def __init__(self, states: Collection[TrialState] = ENDED) -> None:
        self._states = states
        self._n_over = 0  # this many first trials have ended and been looked at
        self._seen = set[int]()  # later ones that have been returned

    def new(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return those that have ended since the last call, of all trials of the study in the order of their numbers.

        Another process may end a trial after later ones.
        """
        later = trials[self._n_over :]
        new = [trial for trial in later if trial.state in self._states and trial.number not in self._seen]
        self._n_over += sum(1 for _ in itertools.takewhile(lambda trial: trial.state in ENDED, later))
        self._seen = {number for number in (*self._seen, *(trial.number for trial in new)) if number >= self._n_over}
        return new
