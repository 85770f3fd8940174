"""CMA-ES over the numbers of a space; its switches and choices are left to TPE.

Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772; the arithmetic is that of the package ``cmaes``.

A trial keeps its generation and its point in the unit cube. The state of the evolution is worked out again from the
finished trials, generation by generation, well under a millisecond each, so any process continues it and nothing is
unpickled from a database. (Optuna's own CMA-ES would be; it also gives up where trials differ in what they have drawn.)
A number that is not in effect moves freely until it is. Only ranks matter, so a trial within the allowed drop comes
before any that is not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.study.ask.search_space import SearchedSpace
from workbench.study.errors import StudyError
from workbench.study.sample.whole_space import WholeSpaceSampler, keep_sampler_state, sampler_state, values_at


class EvolutionSampler(WholeSpaceSampler):
    """Draws the numbers by CMA-ES, everything else by TPE.

    A generation has ``popsize`` trials (None: 4 + 3 ln(numbers)); ``sigma0`` is the first standard deviation, as a
    share of each range.
    """

    def __init__(self, space: SearchedSpace, *, seed: int, popsize: int | None = None, sigma0: float = 0.25) -> None:
        try:
            import cmaes  # type: ignore[import-not-found, import-untyped, unused-ignore]  # asked for by name only
        except ImportError:
            raise StudyError('the sampler "cmaes" needs a package that is missing: pip install cmaes') from None
        if popsize is not None and not popsize >= 3:
            raise ValueError(f"popsize must be at least 3, got {popsize}")
        if not 0.0 < sigma0 <= 1.0:
            raise ValueError(f"sigma0 must lie in (0, 1], got {sigma0}")
        self._popsize = popsize or 4 + int(3 * math.log(max(len(space.numbers), 1)))
        # Two are the least that a covariance has; a single range gets a second axis that nothing reads.
        n_axes = max(len(space.numbers), 2)
        self._evolution = cmaes.CMA(
            mean=np.full(n_axes, 0.5),
            sigma=sigma0,
            bounds=np.tile([0.0, 1.0], (n_axes, 1)),
            seed=seed % 2**31,
            population_size=self._popsize,
        )
        super().__init__(space, optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._popsize))

    def propose(self, study: optuna.Study, trial: FrozenTrial) -> Mapping[str, Any]:
        """Return a value for every range."""
        evolution = self._evolution
        members = _by_generation(study.get_trials(deepcopy=False))
        while len(members.get(evolution.generation, [])) >= self._popsize:
            first = members[evolution.generation][: self._popsize]
            places = {one.number: float(place) for place, one in enumerate(sorted(first, key=_standing))}
            evolution.tell([(np.array(sampler_state(one)["point"]), places[one.number]) for one in first])
        point = evolution.ask()
        keep_sampler_state(study, trial, {"generation": evolution.generation, "point": [float(x) for x in point]})
        return values_at(self._space.numbers, point[: len(self._space.numbers)].tolist())


def _by_generation(trials: Sequence[FrozenTrial]) -> dict[int, list[FrozenTrial]]:
    """Return generation -> its finished trials, in the order in which they finished: none comes in between later.

    Pruned trials count: they came last in their generation, and leaving them out would make it forget that.
    """
    found: dict[int, list[FrozenTrial]] = {}
    for trial in sorted(trials, key=lambda one: (one.datetime_complete or datetime.max, one.number)):
        state = sampler_state(trial)
        if state and trial.state in {TrialState.COMPLETE, TrialState.PRUNED}:
            found.setdefault(state["generation"], []).append(trial)
    return found


def _standing(trial: FrozenTrial) -> tuple[int, float, float]:
    """Order by: allowed and finished, then by how far beyond what is allowed, pruned ones last."""
    violation = max([0.0, *trial.constraints.values()])
    if trial.state == TrialState.PRUNED or trial.values is None:
        return 2, violation, 0.0
    return (1, violation, trial.values[0]) if violation > 0.0 else (0, 0.0, trial.values[0])
