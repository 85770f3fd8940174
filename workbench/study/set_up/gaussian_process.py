"""Gaussian processes over the parameters of plans, with one curve over the length of a run that all plans share.

The covariance of two plans is that of the curve plus that of what is each plan's own, both Matern of 5/2. The numbers
are those of scikit-learn's ``GaussianProcessRegressor``, whose kernels take many times as long where points are few.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006: algorithm 2.1 and equation 5.9.
Points have the shape ``[n_points, n_dimensions]``, in ranges of a parameter.
"""

from __future__ import annotations

import functools
import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

# What a shorter run does to the quality is much the same whatever else is chosen: one curve for all plans, beside what
# is each plan's own. Else a search would try with every switch whether a tenth of the run is enough.
_TREND_SMOOTHNESS, _TREND_HEIGHT = 1.0, 3.0
_EACH_SMOOTHNESS = (0.3, 3.0)
_SQUARE_HEIGHTS = (0.5, 30.0)


def on_one_thread() -> AbstractContextManager[Any]:
    """Keep linear algebra to one thread in the block.

    Runs are trained beside it: on cores that are taken, threads that wait for each other solve a small system ten times
    as slowly.
    """
    limit: AbstractContextManager[Any] = _linear_algebra().limit(limits=1, user_api="blas")
    return limit


@functools.cache
def _linear_algebra() -> Any:
    import scipy.linalg  # type: ignore[import-untyped]  # noqa: F401  # no types; what it loads is found below
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # likewise; here for a quick start

    return ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen at some points: values without their mean, the variances of their noise, and which are lengths."""

    points: np.ndarray
    values: np.ndarray  # [n_points]
    variances: np.ndarray  # [n_points]
    is_length: np.ndarray  # [n_dimensions]

    def trend(self, points: np.ndarray) -> np.ndarray:
        """Return the covariance of the shared curve between points and those seen."""
        mine, seen = (at[:, self.is_length] / _TREND_SMOOTHNESS for at in (points, self.points))
        return _TREND_HEIGHT**2 * _matern(_distances(mine, seen))


class Process:
    """The process that has seen some values, where plans differ by ``height`` over distances of ``smoothness``.

    Args:
        seen: What was seen.
        smoothness: Correlation length, for all dimensions or for each, in ranges of a parameter.
        height: Standard deviation of what is each plan's own.
    """

    def __init__(self, seen: Seen, smoothness: float | np.ndarray, height: float) -> None:
        from scipy.linalg import cho_solve, cholesky  # here for a quick start

        self._seen, self._smoothness, self._height = seen, smoothness, height
        covariance = self._covariance(seen.points) + np.diag(seen.variances)
        self.lower: np.ndarray = cholesky(covariance, lower=True, check_finite=False)
        self.weights: np.ndarray = cho_solve((self.lower, True), seen.values, check_finite=False)
        size = math.log(2.0 * math.pi) * len(seen.values)
        self.evidence = float(-0.5 * (seen.values @ self.weights + size) - np.log(np.diag(self.lower)).sum())
        """Logarithm of the marginal likelihood."""

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and standard deviation at points, without the noise of a run; both ``[n_points]``."""
        from scipy.linalg import solve_triangular  # here for a quick start

        covariance = self._covariance(points)
        known = solve_triangular(self.lower, covariance.T, lower=True, check_finite=False)
        variance = _TREND_HEIGHT**2 + self._height**2 - np.square(known).sum(axis=0)
        return covariance @ self.weights, np.sqrt(np.maximum(variance, 0.0))

    def _covariance(self, points: np.ndarray) -> np.ndarray:
        distances = _distances(points / self._smoothness, self._seen.points / self._smoothness)
        return self._seen.trend(points) + self._height**2 * _matern(distances)


def likeliest(seen: Seen) -> Process:
    """Return the process whose height, and whose smoothness in each dimension, make what was seen likeliest."""
    from scipy.linalg import cho_solve  # here for a quick start
    from scipy.optimize import minimize  # type: ignore[import-untyped]  # likewise

    n_points, n_dimensions = seen.points.shape
    squares = np.square(seen.points[:, None] - seen.points)

    def process_of(logs: np.ndarray) -> Process:  # of the square of the height, and of the smoothnesses
        return Process(seen, np.exp(logs[1:]), math.exp(0.5 * logs[0]))

    def unlikeliness(logs: np.ndarray) -> tuple[float, np.ndarray]:
        process, moved = process_of(logs), squares / np.exp(2.0 * logs[1:])
        distances = np.sqrt(moved.sum(axis=-1))
        inverse = cho_solve((process.lower, True), np.eye(n_points), check_finite=False)
        inner = 0.5 * math.exp(logs[0]) * (np.outer(process.weights, process.weights) - inverse)
        root = math.sqrt(5.0) * distances
        by_smoothness = np.einsum("ij,ijk->k", inner * 5.0 / 3.0 * (1.0 + root) * np.exp(-root), moved)
        return -process.evidence, -np.array([np.sum(inner * _matern(distances)), *by_smoothness])

    start = np.log([4.0, *np.ones(n_dimensions)])
    bounds = np.log([_SQUARE_HEIGHTS, *[_EACH_SMOOTHNESS] * n_dimensions])
    found = minimize(unlikeliness, start, method="L-BFGS-B", jac=True, bounds=bounds)
    return process_of(found.x)


def _matern(distances: np.ndarray) -> np.ndarray:
    root = math.sqrt(5.0) * distances
    return np.asarray((1.0 + root + root**2 / 3.0) * np.exp(-root))


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt(np.square(one[:, None] - other).sum(axis=-1)))
