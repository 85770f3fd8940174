"""A sampler that is made afresh for every trial, seeded by the trial's number.

A study that was interrupted draws what it would have drawn anyway, and two processes never draw the same, since no
number is given twice. What a sampler must remember beyond one trial has to lie in the storage.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial


class PerTrialSampler(BaseSampler):
    """Passes every call on to the trial's own sampler, which ``make`` makes from a seed."""

    def __init__(
        self,
        make: Callable[[int], BaseSampler],
        seed: int,
        is_exhausted: Callable[[optuna.Study], bool] = lambda _: False,
    ) -> None:
        self._make = make
        self._seed = seed
        self.is_exhausted = is_exhausted  # whether nothing is left to draw in a study
        self._inner: dict[int, BaseSampler] = {}  # by trial number: a driver may run several trials

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Make the trial's sampler; a new one where the trial is run again."""
        self._inner.pop(trial.number, None)
        self._of(trial).before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """See `BaseSampler`."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        """See `BaseSampler`."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, *asked: Any) -> Any:
        """See `BaseSampler`."""
        return self._of(trial).sample_independent(study, trial, *asked)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, *ended: Any) -> None:
        """Let the trial's sampler go, where it was drawn in this process."""
        inner = self._inner.pop(trial.number, None)
        if inner is not None:
            inner.after_trial(study, trial, *ended)

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number not in self._inner:
            seed = int(np.random.SeedSequence([self._seed, trial.number]).generate_state(1)[0])
            self._inner[trial.number] = self._make(seed)
        return self._inner[trial.number]
