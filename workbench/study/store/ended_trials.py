"""The trials of a study that have ended, each returned once: what has ended never changes.

Whatever learns from all earlier trials keeps what it has learned and asks only for the new ones, so that the thousandth
trial costs what the tenth did.
"""

from __future__ import annotations

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
        self._seen = set[int]()  # numbers of those that have been returned

    def new(self, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
        """Return those of some trials that have ended since the last call."""
        new = [trial for trial in trials if trial.state in self._states and trial.number not in self._seen]
        self._seen.update(trial.number for trial in new)
        return new
