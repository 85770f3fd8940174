"""Rounds in which sides take turns, and what they say about a ratio or a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from workbench.training.speed import bootstrap_median_interval

__all__ = ["Estimate", "fair_clock", "interleaved", "median_of", "median_of_copies", "ratio_of", "timed"]

T = TypeVar("T")

_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median over rounds with its 95 % interval.

    Args:
        value: The median.
        low: Lower end of the interval.
        high: Upper end of the interval.
        rounds: Rounds behind it.
    """

    value: float
    low: float
    high: float
    rounds: int


def interleaved(sides: Sequence[Callable[[], T]], rounds: int, *, warm_up: int = 1) -> list[tuple[T, ...]]:
    """Let sides take turns, every other round in reverse order: A B, B A, A B, ...

    Args:
        sides: Functions that do their part of a round and return what they measured.
        rounds: Rounds that count, >= 1.
        warm_up: Rounds before them whose answers are dropped: allocations, imports, caches.

    Returns:
        One row per round, in the order of ``sides``.

    Raises:
        ValueError: If there is no side or ``rounds`` is not at least 1.
    """
    if not sides:
        raise ValueError("`sides` must hold at least one function, got none")
    if not rounds >= 1:
        raise ValueError(f"`rounds` must be at least 1, got {rounds!r}")
    rows = []
    for number in range(warm_up + rounds):
        order = range(len(sides)) if number % 2 == 0 else reversed(range(len(sides)))
        answers = {index: sides[index]() for index in order}
        if number >= warm_up:
            rows.append(tuple(answers[index] for index in range(len(sides))))
    return rows


def timed(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> Callable[[], float]:
    """Return a function that does the work and returns how long it took, seconds.

    Args:
        work: What is timed.
        clock: Seconds that only grow.
    """

    def measure() -> float:
        began = clock()
        work()
        return clock() - began

    return measure


def fair_clock(device: torch.device) -> Callable[[], float]:
    """Return a clock of seconds that only grow.

    One thread on a CPU that never waits: its processor time is its time on a machine that does nothing else, so that is
    counted. Otherwise, time as it passes.

    Args:
        device: Where the work happens.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def median_of(values: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median of values, one per round.

    Args:
        values: At least one.
        seed: Seed of the bootstrap over rounds.
    """
    observed = np.asarray(values, dtype=float)
    low, high = bootstrap_median_interval(observed, seed)
    return Estimate(float(np.median(observed)), low, high, len(observed))


def median_of_copies(copies: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Return the median of values whose rounds stand on several copies of what is measured.

    Copies of one thing differ, by where their arrays came to lie; so the bootstrap draws copies first, and then rounds
    of each.

    Args:
        copies: For every copy one value per round, at least one.
        seed: Seed of the bootstrap.
    """
    observed = [np.asarray(values, dtype=float) for values in copies]
    rng = np.random.default_rng(seed)
    medians = []
    for _ in range(_RESAMPLES):
        drawn = [observed[index] for index in rng.integers(0, len(observed), len(observed))]
        medians.append(np.median(np.concatenate([rng.choice(values, len(values)) for values in drawn])))
    low, high = np.quantile(medians, (0.025, 0.975))
    together = np.concatenate(observed)
    return Estimate(float(np.median(together)), float(low), float(high), len(together))


def ratio_of(candidate: Sequence[float], base: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median over rounds of candidate / base, each taken within its round.

    Args:
        candidate: Seconds, one per round.
        base: Seconds, one per round, > 0.
        seed: Seed of the bootstrap over rounds.
    """
    return median_of(np.asarray(candidate, dtype=float) / np.asarray(base, dtype=float), seed)
