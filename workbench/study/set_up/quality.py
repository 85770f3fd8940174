"""What is known of the quality that plans reach: a regression over all runs of the search.

The best of many runs is too good by selection. So a plan is not believed by its own runs alone: a Gaussian process over
all plans and seeds gives mean and uncertainty of its deficit, and with them the probability that it keeps the quality.
A *deficit* is how far a run's final metric lies on the wrong side of the baseline's on the same seed.

Rasmussen and Williams, "Gaussian Processes for Machine Learning", MIT Press 2006, chapter 2; with a Matern kernel of
5/2 over the plan's parameters, and the noise of a mean over its seeds at each point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.study.ask.search_space import Dimension
from workbench.study.set_up.gaussian_process import Process, Seen, likeliest, on_one_thread

_LENGTH = "schedule.length"
_LENGTH_WEIGHT = 2.0  # how much more the length of a run says about its quality than another range
WORST = math.sinh(5.0)  # deficits beyond, in scales, count alike: that a plan fails is news, by how much is not
_NEAR = 5.0  # times the allowed drop, or the usual noise where that is larger
_SMOOTHNESS = (0.3, 0.5, 0.8, 1.3)  # correlation lengths, in ranges of a parameter
_HEIGHTS = (1.5, 3.0)  # how much quality varies, in scales
_MOST_VALUES, _MOST_PLANS = 9, 100  # of a parameter whose influence is asked, and in which it varies
_FEW_RUNS = 4  # as many as a plan that would lead is soon trained on


@dataclass(frozen=True, slots=True)
class Tried:
    """A plan that was trained: its parameters by path, and the deficit on each seed, inf where it diverged."""

    values: Mapping[str, Any]
    deficits: tuple[float, ...]


def point_of(dimensions: Sequence[Dimension], values: Mapping[str, Any]) -> np.ndarray:
    """Return a plan's parameters as a point; those without a value have the usual one, or are in the middle."""
    point: list[float] = []
    for one in dimensions:
        value = _value_of(one, values)
        value = one.usual if value is None else value
        if one.kind == "choice":
            if len(one.choices) > 1:
                point += [0.7 * (value == choice) for choice in one.choices]  # two choices lie 1 apart
            continue
        place = 0.5
        if value is not None and one.high > one.low:
            low, high, at = (math.log(x) if one.log else x for x in (one.low, one.high, float(value)))
            place = (at - low) / (high - low)
        point.append(_LENGTH_WEIGHT * place if one.path == _LENGTH else place)
    return np.array(point)


def _value_of(one: Dimension, values: Mapping[str, Any]) -> Any:
    """Return a plan's value of a dimension; a range of one optimizer's also where the plan states the bare path."""
    is_bare = bool(one.of_optimizer) and values.get("optimizer.name") == one.of_optimizer and one.path not in values
    return values.get(one.parameter if is_bare else one.path)


def noise_of(tried: Sequence[Tried], prior: float, allowed: float = 0.0, prior_weight: int = 4) -> float:
    """Return the standard deviation of one run's deficit, from plans with several seeds.

    ``prior`` is what is expected before any plan has two; it counts for ``prior_weight`` degrees of freedom. Plans that
    lose far more than is allowed do not count: how runs that go wrong scatter says nothing about those that may lead.
    """
    near = _NEAR * max(prior, allowed)
    squares, freedom = prior_weight * prior**2, prior_weight
    for one in tried:
        finite = [value for value in one.deficits if math.isfinite(value)]
        if len(finite) > 1 and np.median(one.deficits) <= near:
            squares += (len(finite) - 1) * float(np.var(finite, ddof=1))
            freedom += len(finite) - 1
    return math.sqrt(squares / freedom)


class QualityModel:
    """The regression, fitted to the plans that were trained, if any.

    Few points cannot show how smooth quality is in a plan's parameters, and the likeliest answer alone would be too
    sure of itself. So several answers are kept, each as likely as the data make it: one smoothness for all parameters,
    on a grid, and one for each parameter, which pays for its freedom (Schwarz 1978). ``noise`` is the standard
    deviation of one run's deficit; ``shared`` that of the error that all deficits share, since the baseline's mean
    comes from few runs.
    """

    def __init__(
        self,
        dimensions: Sequence[Dimension],
        tried: Sequence[Tried],
        allowed: float,
        noise: float,
        shared: float = 0.0,
    ) -> None:
        self._dimensions = dimensions
        sizes = [np.full(point_of([one], {}).size, one.path == _LENGTH) for one in dimensions]
        self._is_length = np.concatenate([*sizes, np.zeros(0, dtype=bool)])
        self._scale = max(allowed, noise, 1e-12)
        self._limit = math.asinh(allowed / self._scale)
        self._noise = max(noise, 1e-3 * self._scale) / self._scale
        self._shared = shared / self._scale / math.hypot(1.0, allowed / self._scale)
        self._mean = self._limit + 0.5  # what is unknown probably falls short
        self._processes: list[tuple[Process, float]] = []  # with their weights
        if tried:
            with on_one_thread():
                self._fit(tried, max(noise, 1e-3 * self._scale))

    def probability(self, plans: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """Return for each plan, given by its parameters, the probability that its mean deficit is within the drop."""
        return self._averaged(plans, lambda margin, spread: margin / np.maximum(np.hypot(spread, self._shared), 1e-6))

    def probability_to_convince(self, plans: Sequence[Mapping[str, Any]], sure: float) -> np.ndarray:
        """Return each plan's probability that after a few runs it would be ``sure`` to keep the quality.

        A well-known plan that is a little too bold has next to none, however probable it is: nothing would change.
        """
        from scipy.special import ndtri  # type: ignore[import-untyped]  # scipy ships no types; here for a quick start

        def scores(margin: np.ndarray, spread: np.ndarray) -> np.ndarray:
            left = 1.0 / np.sqrt(1.0 / np.maximum(spread, 1e-6) ** 2 + _FEW_RUNS / self._noise**2)
            moved = np.sqrt(np.maximum(spread**2 - left**2, 1e-12))
            return np.asarray((margin - ndtri(sure) * np.hypot(left, self._shared)) / moved)

        return self._averaged(plans, scores)

    def influence(self, plans: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Return, by path, how much the quality is expected to vary with one parameter while a plan's others stay.

        It is a variance, in squared scales, over values that some of the plans have, and the mean over plans.
        """
        found, plans = dict[str, float](), plans[:: max(len(plans) // _MOST_PLANS, 1)]
        for one in self._dimensions:
            having = [plan for plan in plans if _value_of(one, plan) is not None]
            different = {str(value): value for plan in having if (value := _value_of(one, plan)) is not None}
            values = sorted(different.values(), key=str if one.kind == "choice" else float)
            places = np.linspace(0, len(values) - 1, min(len(values), _MOST_VALUES)).round().astype(int)
            expected = [self._expected([{**plan, one.path: values[at]} for plan in having]) for at in places]
            found[one.path] = float(np.var(expected, axis=0).sum()) / len(plans) if len(values) > 1 else 0.0
        return found

    def _expected(self, plans: Sequence[Mapping[str, Any]]) -> np.ndarray:
        points = np.array([point_of(self._dimensions, values) for values in plans])
        with on_one_thread():
            expected = [weight * process.predict(points)[0] for process, weight in self._processes]
        return np.asarray(np.sum(expected, axis=0))

    def _averaged(
        self, plans: Sequence[Mapping[str, Any]], scores: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Return a probability per plan, averaged over processes, by a score of how far the mean is below the limit."""
        from scipy.special import ndtr  # here for a quick start

        if not self._processes or not plans:
            return np.full(len(plans), float(ndtr(self._limit - self._mean)))
        points = np.array([point_of(self._dimensions, values) for values in plans])
        found = np.zeros(len(plans))
        with on_one_thread():
            predicted = [process.predict(points) for process, _ in self._processes]
        for (mean, spread), (_, weight) in zip(predicted, self._processes, strict=True):
            found += weight * ndtr(scores(self._limit - mean - self._mean, spread))
        return found

    def _fit(self, tried: Sequence[Tried], noise: float) -> None:
        points = np.array([point_of(self._dimensions, one.values) for one in tried])
        levels, spreads = [], []
        for one in tried:
            deficits = np.minimum(np.asarray(one.deficits, dtype=float), WORST * self._scale)
            deficit = float(np.mean(deficits)) / self._scale
            slope = 1.0 / math.sqrt(1.0 + deficit**2)  # of asinh: large deficits are distinguished less finely
            levels.append(math.asinh(deficit))
            spreads.append(noise / self._scale * slope / math.sqrt(len(deficits)))
        values = np.array(levels)
        self._mean = float(np.median(values))
        # A plan differs from its neighbours in more than its parameters say: a little noise of its own.
        seen = Seen(points, values - self._mean, np.array(spreads) ** 2 + 0.05**2, self._is_length)
        processes = [Process(seen, length, height) for length, height in itertools.product(_SMOOTHNESS, _HEIGHTS)]
        evidence = [one.evidence for one in processes]
        n_points, n_dimensions = points.shape
        if n_points > 2 * n_dimensions:
            freedom = 0.5 * n_dimensions * math.log(n_points)
            each = likeliest(seen)
            # Shared among as many members as the grid has, which the data cannot distinguish either.
            evidence.append(each.evidence - freedom + math.log(len(processes)))
            processes.append(each)
        weights = np.exp(np.array(evidence) - max(evidence))
        weights /= weights.sum()
        self._processes = [(process, float(w)) for process, w in zip(processes, weights, strict=True) if w > 1e-3]
