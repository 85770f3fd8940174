"""Points that fill a space evenly: a low-discrepancy sequence over all of it.

The position in the sequence is the trial's number, which no two processes share; so all of them walk one sequence.
(Optuna's sampler walks the parameters of the first finished trial. That is O0, which has next to none.)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import optuna
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial

from workbench.study.ask.search_space import SearchedSpace
from workbench.study.sample.whole_space import WholeSpaceSampler, values_at

__all__ = ["EvenSampler"]


class EvenSampler(WholeSpaceSampler):
    """Draws from a Sobol or Halton sequence, scrambled by the study's seed: one of each trial's would make none."""

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
        super().__init__(space, RandomSampler(seed=seed))
        self._kind = kinds[qmc_type]
        self._options = {"scramble": scramble, "seed": np.random.default_rng(study_seed)}

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return the next point."""
        sequence = self._kind(len(self._space.distributions), **self._options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a part of a Sobol sequence is no power of two
            sequence.fast_forward(trial.number)
            point = sequence.random(1)[0]
        return values_at(self._space.distributions, point.tolist())
