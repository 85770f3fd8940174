"""The arithmetic of the study, on plain numbers: steps to a target, what a trial is worth, ratios with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CENSORED", "Interval", "first_step_at", "ratio_interval", "trial_value", "worst_after"]

CENSORED = 10.0
"""A trial that never arrives counts as this many budgets at least: more than any that did, since no step takes ten
times as long as the baseline's."""

MOST_GAP = 100.0


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its 95 % interval.

    Args:
        middle: The estimate.
        low: Lower end.
        high: Upper end.
    """

    middle: float
    low: float
    high: float

    def __str__(self) -> str:
        """Return ``0.61 (0.55 to 0.70)``."""
        return f"{self.middle:.2f} ({self.low:.2f} to {self.high:.2f})"


def first_step_at(curve: Sequence[tuple[int, float]], target: float, *, higher_is_better: bool) -> float:
    """Return the steps before the first evaluation that stands at or beyond the target; infinity if none does.

    Args:
        curve: Pairs (steps done, metric), in order.
        target: The metric to reach.
        higher_is_better: Direction of the metric.
    """
    for step, value in curve:
        if (value >= target) if higher_is_better else (value <= target):
            return float(step)
    return math.inf


def worst_after(curve: Sequence[tuple[int, float]], step: float, *, higher_is_better: bool) -> float:
    """Return the worst metric from a step on, that step included; NaN when there is none.

    Args:
        curve: Pairs (steps done, metric).
        step: Where to begin; infinity for nowhere.
        higher_is_better: Direction of the metric.
    """
    values = [value for at, value in curve if at >= step]
    if not values:
        return math.nan
    return min(values) if higher_is_better else max(values)


def trial_value(
    curve: Sequence[tuple[int, float]],
    target: float,
    *,
    higher_is_better: bool,
    step_time: float,
    budget: int,
    diverged: bool = False,
) -> float:
    """Return what a tuner minimises: steps to the target times the relative step time.

    A run that does not arrive counts ten budgets and more, by how far from the target it remained: the gap of its best
    evaluation, relative to the target, at most 100; always 100 when it diverged.

    Args:
        curve: Pairs (steps done, metric).
        target: The metric to reach.
        higher_is_better: Direction of the metric.
        step_time: Step time relative to the baseline's.
        budget: Steps of a whole run.
        diverged: Whether the run broke down before it arrived.
    """
    steps = first_step_at(curve, target, higher_is_better=higher_is_better)
    if math.isfinite(steps):
        return steps * step_time
    finite = [value for _, value in curve if math.isfinite(value)]
    gap = MOST_GAP
    if finite and not diverged:
        best = max(finite) if higher_is_better else min(finite)
        gap = min(abs(best - target) / abs(target), MOST_GAP)
    return CENSORED * budget * (1.0 + gap)


def ratio_interval(
    candidate: Sequence[float],
    baseline: Sequence[float],
    step_times: Sequence[float] = (1.0,),
    *,
    n_resamples: int = 4000,
    seed: int = 0,
) -> Interval:
    """Return the ratio of the median steps to the target, times the median step-time ratio, with a 95 % interval.

    Percentile bootstrap: seeds are drawn with replacement, the same ones on both sides (a seed is one split and one
    order of batches, so the runs are paired), and step-time measurements are drawn independently of them. Runs that
    never arrived are infinite; a resample in which both medians are is left out.

    Args:
        candidate: Steps to the target per seed; infinity where it was not reached.
        baseline: The same for the baseline, same seeds in the same order.
        step_times: Candidate's step time / baseline's, one per measurement; ``(1.0,)`` gives the ratio of steps alone.
        n_resamples: Resamples.
        seed: Seed of the resampling.

    Raises:
        ValueError: When the sides differ in length or one is empty.
    """
    if len(candidate) != len(baseline) or not candidate or not step_times:
        raise ValueError(
            f"a ratio needs the same seeds on both sides and a step time, got {len(candidate)}, {len(baseline)} and "
            f"{len(step_times)}"
        )
    rng = np.random.default_rng(seed)
    above, below, times = (np.asarray(values, dtype=np.float64) for values in (candidate, baseline, step_times))
    picks = rng.integers(0, len(above), size=(n_resamples, len(above)))
    rounds = rng.integers(0, len(times), size=(n_resamples, len(times)))
    with np.errstate(invalid="ignore"):  # the median of two infinities, and their ratio
        middle = float(_median(above) / _median(below) * np.median(times))
        ratios = _median(above[picks]) / _median(below[picks]) * np.median(times[rounds], axis=1)
    ratios = ratios[~np.isnan(ratios)]
    if not len(ratios):
        return Interval(middle, math.nan, math.nan)
    low, high = np.quantile(ratios, [0.025, 0.975], method="inverted_cdf")  # never between a number and infinity
    return Interval(middle, float(low), float(high))


def _median(values: np.ndarray) -> np.ndarray:
    """Return the median over the last axis; infinity when one of the middle two is."""
    ordered = np.sort(values, axis=-1)
    n = values.shape[-1]
    middle: np.ndarray = (ordered[..., (n - 1) // 2] + ordered[..., n // 2]) / 2
    return middle
