"""The Gaussian processes behind a search, against those of scikit-learn."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from workbench.study.set_up.gaussian_process import Process, Seen, likeliest

SHAPES = pytest.mark.parametrize(("n_points", "n_dimensions"), [(1, 3), (5, 4), (30, 6)])
NO_EFFECT = 1e6


def seen_at(n_points: int, n_dimensions: int) -> Seen:
    rng = np.random.default_rng(0)
    points = rng.random((n_points, n_dimensions))
    points[:, 1] = points[:, 1] > 0.5
    values = np.sin(3.0 * points[:, 0]) + rng.normal(0.0, 0.1, n_points)
    return Seen(points, values, rng.uniform(0.01, 0.1, n_points), np.arange(n_dimensions) == 0)


def compare(ours: Process, seen: Seen, own: Matern, optimizer: str | None, tolerance: float) -> None:
    """Compare with a regression whose kernel is a curve over the length, and what is each plan's own."""
    trend = ConstantKernel(9.0, "fixed") * Matern(np.where(seen.is_length, 1.0, NO_EFFECT), "fixed", nu=2.5)
    theirs = GaussianProcessRegressor(trend + own, alpha=seen.variances, optimizer=optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a smoothness at its bound is an answer, too
        theirs.fit(seen.points, seen.values)
    points = np.random.default_rng(1).random((50, seen.points.shape[1]))
    np.testing.assert_allclose(ours.predict(points), theirs.predict(points, return_std=True), atol=tolerance)
    np.testing.assert_allclose(ours.evidence, theirs.log_marginal_likelihood_value_, atol=tolerance)


@SHAPES
def test_a_process_of_one_smoothness_is_scikit_learns(n_points: int, n_dimensions: int) -> None:
    seen = seen_at(n_points, n_dimensions)
    compare(Process(seen, 0.8, 1.5), seen, ConstantKernel(1.5**2) * Matern(0.8, nu=2.5), None, 1e-8)


@SHAPES
def test_the_likeliest_process_is_scikit_learns(n_points: int, n_dimensions: int) -> None:
    seen = seen_at(n_points, n_dimensions)
    each = ConstantKernel(4.0, (0.5, 30.0)) * Matern(np.ones(n_dimensions), (0.3, 3.0), nu=2.5)
    compare(likeliest(seen), seen, each, "fmin_l_bfgs_b", 1e-6)


def test_what_was_seen_without_noise_is_predicted_there() -> None:
    seen = seen_at(5, 4)
    mean, spread = Process(Seen(seen.points, seen.values, np.full(5, 1e-9), seen.is_length), 0.5, 1.5).predict(
        seen.points
    )
    np.testing.assert_allclose(mean, seen.values, atol=1e-6)
    assert spread.max() < 1e-3
