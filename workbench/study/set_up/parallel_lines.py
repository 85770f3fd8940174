"""How much longer is one set-up than another at the same quality? Parallel lines through the deficits of both.

Finney, "Statistical Method in Biological Assay", 3rd edition, Griffin 1978, chapter 4: doses are lengths here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

_CURVED = 0.02  # how much straight lines may mislead about the logarithm of a factor, as a standard deviation
WIDEST = math.log(10.0)  # margin of a logarithm from which an interval says nothing: quality hardly depends on length

Runs = Sequence[tuple[float, float]]
"""Logarithm of the length of each run, and its deficit."""


class Mean(NamedTuple):
    """Mean of some runs."""

    at: float  # logarithm of the length
    deficit: float
    n_runs: float  # inf for a deficit that is known


@dataclass(frozen=True, slots=True)
class Lines:
    """Parallel lines through the deficits of set-ups, over the logarithm of the length."""

    slope: float  # below 0: longer runs are better
    noise: float  # standard deviation of a run
    squares: float  # sum of squared distances of the logarithms from the mean of their set-up
    freedom: int

    def apart(self, here: Mean, there: Mean) -> tuple[float, float]:
        """Return how much longer ``there`` takes to the same deficit, as a logarithm, and its standard deviation."""
        at = (there.deficit - here.deficit) / self.slope
        variance = 1.0 / here.n_runs + 1.0 / there.n_runs + at * at / self.squares
        longer = there.at - here.at - min(max(at, -WIDEST), WIDEST)
        return longer, math.hypot(self.noise / self.slope * math.sqrt(variance), _CURVED)


def parallel_lines(set_ups: Sequence[Runs]) -> Lines | None:
    """Return parallel lines through the runs of set-ups; None where they are too few, or do not fall."""
    apart = [np.array(runs) - np.mean(runs, axis=0) for runs in set_ups if runs]
    at, deficits = np.concatenate([*apart, np.zeros((0, 2))]).T
    squares, freedom = float(at @ at), len(at) - len(apart) - 1
    slope = float(at @ deficits) / squares if squares > 0.0 else 0.0
    if not slope < 0.0 or freedom < 1:
        return None
    return Lines(slope, float(np.linalg.norm(deficits - slope * at)) / math.sqrt(freedom), squares, freedom)


def mean_of(runs: Runs) -> Mean:
    """Return the mean of at least one run."""
    at, deficit = np.mean(runs, axis=0)
    return Mean(float(at), float(deficit), len(runs))
