"""Does a candidate keep the metric? Paired bounds, verdicts and what it would take to decide.

A *pair* is one seed: O0 and the candidate trained on the same split with the same seed. The *drop* of a pair is how
far the candidate's metric lies on the wrong side of O0's (positive = worse), so subtracting within the pair removes
what the seed does to both. The mean drop is bounded by Student's t, as for any paired comparison.

Seeds are added while the verdict is open, so the data are looked at several times, and a 95 % bound looked at three
times is wrong more often than one time in twenty. The looks are therefore planned (5, 10, 20 seeds) and share the
error: each takes ``error / looks`` (Bonferroni over the looks; Pocock, Biometrika 64, 1977, would gain a little but
assumes a known variance). The probability that a candidate whose true drop exceeds what is allowed is ever called
confirmed is then at most 5 %, and with a single look the bound is the ordinary one-sided 95 % bound.

Pure arithmetic on plain numbers: no torch, no storage, no clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.records import Verdict

__all__ = [
    "Decision",
    "DropBounds",
    "decide",
    "format_duration",
    "paired_drop_bounds",
    "paired_drops",
    "pairs_to_decide",
    "planned_looks",
    "smallest_gap",
    "verdict_sentence",
]

_FAR = 10_000
"""Pairs beyond which a comparison counts as undecidable in practice."""


@dataclass(frozen=True, slots=True)
class DropBounds:
    """Mean paired drop with its one-sided bounds.

    Args:
        mean: Mean drop, in the metric's unit (positive = worse than O0).
        lower: One-sided lower bound; -inf with fewer than two pairs.
        upper: One-sided upper bound; +inf with fewer than two pairs.
        spread: Standard deviation of one pair's drop that the bounds use; NaN with fewer than two pairs.
        n_pairs: Number of pairs.
        error: Probability that one of the bounds misses the true mean, in (0, 0.5).
    """

    mean: float
    lower: float
    upper: float
    spread: float
    n_pairs: int
    error: float


@dataclass(frozen=True, slots=True)
class Decision:
    """Verdict after some pairs, and what it would take to reach one that is still open.

    Args:
        verdict: Confirmed, undecided or refuted.
        bounds: The bounds it rests on.
        allowed_drop: Drop that is allowed, in the metric's unit.
        more_pairs: Further pairs that would probably decide it; 0 when decided, None when no practical number would.
        leaning: Where an open verdict would then fall; the verdict itself when decided.
        reason: Why, where it is not the bounds: a diverged run, too few pairs; empty otherwise.
    """

    verdict: Verdict
    bounds: DropBounds
    allowed_drop: float
    more_pairs: int | None
    leaning: Verdict
    reason: str = ""


def planned_looks(first: int, last: int) -> tuple[int, ...]:
    """Return the numbers of pairs at which the verdict is judged: ``first``, doubled until ``last``.

    Args:
        first: Pairs before the first look, at least 2.
        last: Pairs at the last look, at least 2; when smaller than ``first`` it is the only look.

    Returns:
        Increasing numbers that end in ``last``.

    Raises:
        ValueError: When either number is below 2, since one pair has no spread.
    """
    if first < 2 or last < 2:
        raise ValueError(f"a paired comparison needs at least 2 seeds, got first={first}, last={last}")
    looks = []
    n_pairs = first
    while n_pairs < last:
        looks.append(n_pairs)
        n_pairs *= 2
    return (*looks, last)


def paired_drops(pairs: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[float]:
    """Return how far the candidate lies on the wrong side of O0, pair by pair.

    Args:
        pairs: (O0 metric, candidate metric), one per seed.
        higher_is_better: Direction of the metric.

    Returns:
        Drops in the metric's unit, positive = worse.
    """
    sign = 1.0 if higher_is_better else -1.0
    return [sign * (baseline - candidate) for baseline, candidate in pairs]


def paired_drop_bounds(drops: Sequence[float], *, error: float = 0.05, resolution: float = 0.0) -> DropBounds:
    """Bound the mean of paired drops from both sides, each with probability ``1 - error``.

    ``mean -+ t(1 - error, n - 1) * s / sqrt(n)`` with ``s`` the sample standard deviation. When a metric moves in
    steps, five equal pairs would give s = 0 and a bound of no width; ``s`` is therefore never taken below the spread
    of the rounding itself, ``resolution / sqrt(12)``.

    Args:
        drops: Drop of every pair, in the metric's unit; finite.
        error: Probability that a bound misses, in (0, 0.5).
        resolution: Smallest step of the metric, in its unit; 0 for a continuous one.

    Returns:
        The bounds; infinite with fewer than two pairs, and with a NaN mean when there is none.

    Raises:
        ValueError: When ``error`` lies outside (0, 0.5), or a drop is NaN or infinite.
    """
    if not 0.0 < error < 0.5:
        raise ValueError(f"`error` must lie in (0, 0.5), got {error}")
    if not all(math.isfinite(drop) for drop in drops):
        raise ValueError(f"`drops` must be finite, got {list(drops)}; a diverged run has no drop")
    n_pairs = len(drops)
    mean = math.fsum(drops) / n_pairs if n_pairs else math.nan
    if n_pairs < 2:
        return DropBounds(mean, -math.inf, math.inf, math.nan, n_pairs, error)
    spread = max(float(np.std(np.asarray(drops, dtype=np.float64), ddof=1)), resolution / math.sqrt(12.0))
    margin = _margin(spread, n_pairs, error)
    return DropBounds(mean, mean - margin, mean + margin, spread, n_pairs, error)


def pairs_to_decide(bounds: DropBounds, allowed_drop: float) -> int | None:
    """Return how many pairs in all would decide, if mean and spread stayed what they are now.

    Args:
        bounds: Bounds so far, of at least two pairs.
        allowed_drop: Drop that is allowed, in the metric's unit.

    Returns:
        Number of pairs in all; None when the mean lies on the allowed drop, or no practical number is enough.
    """
    distance = abs(allowed_drop - bounds.mean)
    if bounds.n_pairs < 2 or not distance > 0.0:
        return None
    low, high = 2, 4  # the margin shrinks with every pair: find the first that fits by doubling, then by halves
    while _margin(bounds.spread, high, bounds.error) > distance:
        low, high = high, 2 * high
        if high > _FAR:
            return None
    while low < high:
        middle = (low + high) // 2
        if _margin(bounds.spread, middle, bounds.error) > distance:
            low = middle + 1
        else:
            high = middle
    return high


def smallest_gap(values: Iterable[float]) -> float:
    """Return the smallest step between metrics that were seen: for an accuracy over N samples 1 / N, or a multiple.

    Args:
        values: Metrics of any runs of one task; NaN is passed over.

    Returns:
        The smallest difference of two values that differ by more than rounding; 0 when there is none.
    """
    finite = sorted(value for value in values if math.isfinite(value))
    # Metrics that differ only by rounding are one value: an accuracy 0.9 computed in two ways is no step of 1e-17.
    scale = max((abs(value) for value in finite), default=0.0)
    gaps = [b - a for a, b in itertools.pairwise(finite) if b - a > 1e-9 * scale]
    return min(gaps, default=0.0)


def decide(
    pairs: Sequence[tuple[float, float]],
    allowed_drop: float,
    *,
    higher_is_better: bool,
    n_looks: int = 1,
    error: float = 0.05,
    resolution: float | None = None,
) -> Decision:
    """Judge a candidate by its pairs at one of ``n_looks`` planned looks.

    Args:
        pairs: (O0 metric, candidate metric), one per seed; a diverged candidate has a NaN metric.
        allowed_drop: Drop that is allowed, in the metric's unit, at least 0.
        higher_is_better: Direction of the metric.
        n_looks: Looks that share the error (see the module docstring), at least 1.
        error: Probability of a wrong verdict over all looks, in (0, 0.5).
        resolution: Smallest step of the metric; None takes the smallest gap between the metrics seen.

    Returns:
        Confirmed when the upper bound lies within the allowed drop, refuted when the lower bound lies above it or a
        run of the candidate diverged, undecided otherwise. Pairs whose O0 run diverged say nothing and are left out.

    Raises:
        ValueError: When ``allowed_drop`` is not a number of at least 0 or ``n_looks`` is below 1.
    """
    if not allowed_drop >= 0.0:
        raise ValueError(f"`allowed_drop` must be at least 0, got {allowed_drop}")
    if n_looks < 1:
        raise ValueError(f"`n_looks` must be at least 1, got {n_looks}")
    usable = [(a, b) for a, b in pairs if math.isfinite(a)]
    diverged = sum(not math.isfinite(b) for _, b in usable)
    finite = [(a, b) for a, b in usable if math.isfinite(b)]
    step = smallest_gap(value for pair in finite for value in pair) if resolution is None else resolution
    drops = paired_drops(finite, higher_is_better=higher_is_better)
    bounds = paired_drop_bounds(drops, error=error / n_looks, resolution=step)
    if diverged:
        reason = f"{diverged} of {len(usable)} runs diverged"
        return Decision(Verdict.REFUTED, bounds, allowed_drop, 0, Verdict.REFUTED, reason)
    if bounds.n_pairs < 2:
        reason = f"only {bounds.n_pairs} of the at least 2 pairs a bound needs"
        return Decision(Verdict.UNDECIDED, bounds, allowed_drop, 2 - bounds.n_pairs, Verdict.UNDECIDED, reason)
    if bounds.upper <= allowed_drop:
        return Decision(Verdict.CONFIRMED, bounds, allowed_drop, 0, Verdict.CONFIRMED)
    if bounds.lower > allowed_drop:
        return Decision(Verdict.REFUTED, bounds, allowed_drop, 0, Verdict.REFUTED)
    leaning = Verdict.CONFIRMED if bounds.mean < allowed_drop else Verdict.REFUTED
    total = pairs_to_decide(bounds, allowed_drop)
    more = None if total is None else max(total - bounds.n_pairs, 1)
    return Decision(Verdict.UNDECIDED, bounds, allowed_drop, more, leaning)


def verdict_sentence(decision: Decision, metric: str, *, seconds_per_pair: float = math.nan, command: str = "") -> str:
    """Say a verdict in one sentence a person can act on.

    Args:
        decision: The verdict.
        metric: Name of the metric.
        seconds_per_pair: What one more pair takes; NaN leaves the time out.
        command: Command that adds the pairs, with ``{seeds}`` where their total number goes; empty leaves it out.

    Returns:
        One sentence that begins with the verdict and ends with a full stop.
    """
    bounds = decision.bounds
    seeds = f"{bounds.n_pairs} paired seed{'s' if bounds.n_pairs != 1 else ''}"
    if decision.reason and decision.verdict is Verdict.REFUTED:
        return f"Refuted: {decision.reason}."
    if decision.verdict is Verdict.CONFIRMED:
        return (
            f"Confirmed: the {metric} drop is at most {bounds.upper:.4g} (95 % bound, mean {bounds.mean:.4g}, "
            f"{seeds}), within the allowed {decision.allowed_drop:g}."
        )
    if decision.verdict is Verdict.REFUTED:
        return (
            f"Refuted: the {metric} drop is at least {bounds.lower:.4g} (95 % bound, mean {bounds.mean:.4g}, "
            f"{seeds}), more than the allowed {decision.allowed_drop:g}."
        )
    if decision.reason:
        told = f"Undecided: {decision.reason}"
    else:
        told = (
            f"Undecided: the mean {metric} drop is {bounds.mean:.4g}, but its 95 % bounds {bounds.lower:.4g} to "
            f"{bounds.upper:.4g} ({seeds}) leave open whether it is within the allowed {decision.allowed_drop:g}"
        )
    if decision.more_pairs is None:
        return f"{told}; the mean is so close to it that no practical number of seeds would decide."
    more = decision.more_pairs
    ask = f"about {more} more seed{'s' if more != 1 else ''} would decide"
    if math.isfinite(seconds_per_pair):
        ask += f" ({format_duration(more * seconds_per_pair)})"
    if command:
        ask += f": {command.format(seeds=bounds.n_pairs + more)}"
    return f"{told}; {ask}."


def format_duration(seconds: float) -> str:
    """Return a duration as a person says it: ``"40 s"``, ``"12 min"``, ``"3.5 h"``."""
    if seconds < 90.0:
        return f"{max(seconds, 1.0):.0f} s"
    if seconds < 5400.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h"


def _margin(spread: float, n_pairs: int, error: float) -> float:
    # Here, because most processes that train never judge: half a second less before their first step.
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types

    return float(stdtrit(n_pairs - 1, 1.0 - error)) * spread / math.sqrt(n_pairs)
