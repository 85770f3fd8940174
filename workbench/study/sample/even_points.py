"""Points that fill a space evenly: a low-discrepancy sequence over all of it.

The position in the sequence is the trial's number, which no two processes share; so all of them walk one sequence.
(Optuna's sampler walks the parameters of the first finished trial. That is O0, which has next to none.)
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from workbench.study.sample.whole_space import SearchedSpace, values_at

__all__ = ["EvenSampler"]


class EvenSampler(BaseSampler):
    """Draw from a Sobol or Halton sequence.

    Args:
        space: What is searched.
        seed: Seed of this trial, for what has one value only.
        study_seed: Seed of the scrambling: the same for all trials, or it would be no sequence.
        qmc_type: ``"sobol"`` or ``"halton"``.
        scramble: Whether to scramble it.

    Raises:
        ValueError: When there is no such sequence.
    """

    def __init__(
        self,
        space: SearchedSpace,
        *,
        seed: int,
        study_seed: int,
        qmc_type: Literal["sobol", "halton"] = "sobol",
        scramble: bool = True,
    ) -> None:
        from scipy.stats import qmc  # type: ignore[import-untyped]  # here: reading a study's state need not wait for it

        kinds = {"sobol": qmc.Sobol, "halton": qmc.Halton}
        if qmc_type not in kinds:
            raise ValueError(f'qmc_type must be one of "sobol", "halton", got "{qmc_type}"')
        self._space = space
        random = np.random.default_rng(study_seed)
        self._make: Callable[[int], Any] = functools.partial(kinds[qmc_type], scramble=scramble, seed=random)
        self._random = RandomSampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the whole space."""
        return self._space.distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the next point."""
        if not search_space:
            return {}
        sequence = self._make(len(search_space))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a part of a Sobol sequence is no power of two
            sequence.fast_forward(trial.number)
            point = sequence.random(1)[0]
        return values_at(search_space, point.tolist())

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random what has only one value."""
        return self._random.sample_independent(study, trial, param_name, param_distribution)
