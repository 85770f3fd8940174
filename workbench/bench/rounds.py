"""Rounds in which sides take turns, and what they say about a ratio or a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np

from workbench.training.speed import bootstrap_median_interval, take_turns

T = TypeVar("T")

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over ``rounds`` rounds with the ends of its 95 % interval."""

    value: float
    low: float
    high: float
    rounds: int

    @classmethod
    def exact(cls, value: float) -> Estimate:
        """Return what was counted and not timed."""
        return cls(value, value, value, 1)


def interleaved(sides: Sequence[Callable[[], T]], rounds: int, *, warm_up: int = 1) -> list[tuple[T, ...]]:
    """Let sides take turns: A B, B A, A B, ...

    The rounds that warm up, with their allocations, imports and caches, do not count. Returns one row per round, in the
    order of the sides.
    """
    if not rounds >= 1:
        raise ValueError(f"`rounds` must be at least 1, got {rounds!r}")
    return list(islice(take_turns(sides), warm_up, warm_up + rounds))


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return a function that does the work and returns how long it took, seconds of the clock."""

    def measure() -> float:
        began = clock()
        work()
        return clock() - began

    return measure


def median_of(values: Sequence[float]) -> Estimate:
    """Return the median of values, one per round, with a bootstrap over rounds."""
    observed = np.asarray(values, dtype=float)
    low, high = bootstrap_median_interval(observed, 0)
    return Estimate(float(np.median(observed)), low, high, len(observed))


def median_of_copies(copies: Sequence[Sequence[float]]) -> Estimate:
    """Return the median of values whose rounds stand on several copies of what is measured, one list for each copy.

    Copies of one thing differ, by where their arrays came to lie; so the bootstrap draws copies first, and then rounds
    of each.
    """
    n_rounds = np.array([len(values) for values in copies])
    observed = np.full((len(copies), n_rounds.max()), np.nan)
    for row, values in zip(observed, copies, strict=True):
        row[: len(values)] = values
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(copies), (_RESAMPLES, len(copies)))
    n_drawn = n_rounds[drawn][:, :, None]  # rounds of each copy that was drawn; as many of them are drawn
    picks = (rng.random((*drawn.shape, n_rounds.max())) * n_drawn).astype(np.int64)
    values_drawn = np.where(np.arange(n_rounds.max()) < n_drawn, observed[drawn[:, :, None], picks], np.nan)
    low, high = np.quantile(np.nanmedian(values_drawn.reshape(_RESAMPLES, -1), axis=1), (0.025, 0.975))
    return Estimate(float(np.nanmedian(observed)), float(low), float(high), int(n_rounds.sum()))


def ratio_of(candidate: Sequence[float], base: Sequence[float]) -> Estimate:
    """Return the median over rounds of candidate / base, each taken within its round."""
    return median_of(np.asarray(candidate, dtype=float) / np.asarray(base, dtype=float))
