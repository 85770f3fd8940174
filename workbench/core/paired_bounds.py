"""Is a candidate as good as O0, and is it faster? Paired bounds of both, and what it would take to decide.

A *pair* is O0 and the candidate trained on the same split with the same seed. The *drop* of a pair is how far the
candidate's metric lies on the wrong side of O0's (positive = worse). The mean drop is bounded by Student's t
(`decide`), the ratio of the two times by order statistics (`time_ratio`): a candidate that never reaches its target on
a seed has no time there, and a median bears that. When to look at them is in `workbench.study.answer.planned_tests`.
"""

from __future__ import annotations

import bisect
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.records import Verdict

_POWER = 0.8  # with which a test should confirm a candidate whose true drop is 0 (Cohen's convention)
_FAR = 10_000  # pairs from which on a comparison counts as undecidable in practice


@dataclass(frozen=True, slots=True)
class DropBounds:
    """Mean paired drop in the metric's unit (positive = worse than O0) with its one-sided bounds."""

    mean: float
    lower: float  # with fewer than two pairs both bounds are infinite
    upper: float
    spread: float  # standard deviation of one pair's drop; NaN with fewer than two pairs
    n_pairs: int
    error: float  # probability, in (0, 0.5), that one of the bounds misses the true mean


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a candidate keeps the metric after some pairs, and what it would take to decide if that is open."""

    verdict: Verdict
    bounds: DropBounds
    allowed_drop: float
    more_pairs: int | None  # would probably decide it: 0 when decided, None when no practical number would
    leaning: Verdict  # where an open verdict would then fall
    reason: str = ""  # where it is not the bounds: a diverged run, too few pairs


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """O0's time / the candidate's, the median over pairs, with an interval of 95 % or more; larger is faster.

    The ratio is 0 when most pairs never reach the target; ends that nothing bounds are 0 and inf.
    """

    ratio: float
    low: float
    high: float
    more_pairs: int | None = 0  # whose interval would probably leave 1 out: 0 when this does, None when none would

    @property
    def is_open(self) -> bool:
        """Whether the interval holds 1: neither faster nor slower is shown."""
        return not (self.low > 1.0 or self.high < 1.0)


def planned_pairs(spread: float, allowed_drop: float, *, error: float, at_least: int, at_most: int) -> int:
    """Return how many pairs, within bounds, confirm a candidate without any drop with probability 0.8.

    An allowed drop of 0, which no number decides, takes ``at_most``.
    """
    fewest = _fewest(range(at_least, at_most), lambda n: decidable_drop(spread, n, error=error), allowed_drop)
    return max(at_least, at_most) if fewest is None else fewest


def decidable_drop(spread: float, n_pairs: int, *, error: float) -> float:
    """Return the smallest allowed drop under which ``n_pairs``, at least 2, confirm a true drop of 0 with chance 0.8.

    ``(t(1 - error) + t(0.8)) s / sqrt(n)``, n - 1 degrees of freedom: a little above that of the exact noncentral t.
    """
    return _margin(spread, n_pairs, error) + _margin(spread, n_pairs, 1.0 - _POWER)


def fewest_pairs_for_a_ratio(error: float) -> int:
    """Return the fewest pairs from which `time_ratio` gives an interval whose ends miss with probability ``error``."""
    return math.ceil(-math.log2(error))


def time_ratio(
    times: Sequence[tuple[float, float]],
    step_time: tuple[float, float, float],
    *,
    warm_up: float = 0.0,
    error: float = 0.025,
) -> TimeRatio:
    """Return how much sooner the candidate gets as far as O0, with an interval whose ends each miss with ``error``.

    Each of the ``times`` gives ``log(a / (w + r b))``: a and b are the steps that O0 and the candidate take (inf where
    it does not arrive), r is the candidate's ``step_time`` relative to O0's, given with the ends of its 95 % interval,
    and w the warm-up in steps of O0. The interval of their median is bounded by the k-th smallest and the k-th largest,
    k the largest with ``P(Binomial(n, 1/2) < k) <= error``, which needs no distribution (Hahn and Meeker, "Statistical
    Intervals", 1991, section 5.2). The interval of r is independent of it, so the half-widths are added in quadrature.
    Without pairs the ratio is that of the steps' times.
    """
    ratio, low, high = step_time
    if not times:
        return _around(-math.log(ratio), 0.0, 0.0, math.log(ratio / low), math.log(high / ratio))

    def logarithms(r: float) -> list[float]:
        values = (a / (warm_up + r * b) for a, b in times)
        return sorted(math.log(value) if value > 0.0 else -math.inf for value in values)

    values = logarithms(ratio)
    middle = statistics.median(values)
    k, tail = 0, 0.0
    while k < len(values) and (tail := tail + math.comb(len(values), k) / 2.0 ** len(values)) <= error:
        k += 1
    if middle == -math.inf:
        return TimeRatio(0.0, 0.0, math.exp(values[-k]) if k else math.inf, None)
    below, above = (middle - values[k - 1], values[-k] - middle) if k else (math.inf, math.inf)
    finite = [value for value in values if value > -math.inf]
    spread = float(np.std(finite, ddof=1)) if len(finite) > 1 else math.inf
    up, down = statistics.median(logarithms(low)) - middle, middle - statistics.median(logarithms(high))
    return _around(middle, below, above, up, down, spread)


def run_time_ratio(pairs: Sequence[tuple[float, float]], *, error: float) -> TimeRatio:
    """Return how much faster a candidate's whole runs are, from pairs of seconds, O0's first, that were run in turn.

    It is the geometric mean of the ratios with its t interval on logarithms; fewer than two pairs bound nothing.
    """
    logs = [math.log(baseline / candidate) for baseline, candidate in pairs if baseline > 0.0 and candidate > 0.0]
    if len(logs) < 2:
        return TimeRatio(math.exp(sum(logs) / max(len(logs), 1)), 0.0, math.inf, None)
    middle, spread = statistics.fmean(logs), statistics.stdev(logs)
    margin = _margin(spread, len(logs), error)
    low, high = math.exp(middle - margin), math.exp(middle + margin)
    if low > 1.0 or high < 1.0:
        return TimeRatio(math.exp(middle), low, high)
    more = _fewest(range(len(logs), 1001), lambda n: _margin(spread, n, error), abs(middle))
    return TimeRatio(math.exp(middle), low, high, more)


def _around(middle: float, below: float, above: float, up: float, down: float, spread: float = math.nan) -> TimeRatio:
    """Build the interval around a logarithm, with the number of fresh pairs that would take 1 out of it."""
    low, high = middle - math.hypot(below, down), middle + math.hypot(above, up)
    more: int | None = 0
    if low <= 0.0 <= high:
        of_steps = down if middle > 0.0 else up
        room = middle * middle - of_steps * of_steps
        # A median's standard error is 1.25 of a mean's; below six pairs it has no 95 % interval at all.
        needed = (1.25 * 2.0 * spread) ** 2 / room if room > 0.0 else math.inf
        more = max(math.ceil(needed), 6) if needed <= _FAR else None
    return TimeRatio(math.exp(middle), math.exp(low), math.exp(high) if high < 700.0 else math.inf, more)


def paired_drops(pairs: Sequence[tuple[float, float]], *, higher_is_better: bool) -> list[float]:
    """Return how far the candidate lies on the wrong side of O0, pair by pair; positive = worse."""
    sign = 1.0 if higher_is_better else -1.0
    return [sign * (baseline - candidate) for baseline, candidate in pairs]


def paired_drop_bounds(drops: Sequence[float], *, error: float = 0.05, resolution: float = 0.0) -> DropBounds:
    """Bound the mean of paired drops from both sides, each with probability ``1 - error``.

    ``mean -+ t(1 - error, n - 1) * s / sqrt(n)``. When a metric moves in steps of a ``resolution``, five equal pairs
    would give s = 0; it is never taken below the spread of the rounding itself, ``resolution / sqrt(12)``.
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
    """Return how many pairs in all would decide, if mean and spread stayed; None when no practical number would."""
    distance = abs(allowed_drop - bounds.mean)
    if bounds.n_pairs < 2 or not distance > 0.0:
        return None
    return _fewest(range(2, _FAR), lambda n: _margin(bounds.spread, n, bounds.error), distance)


def smallest_gap(values: Iterable[float]) -> float:
    """Return the smallest step between metrics that were seen, by more than rounding; 0 when there is none."""
    finite = sorted(value for value in values if math.isfinite(value))
    # Metrics that differ only by rounding are one value: an accuracy 0.9 computed in two ways has no step of 1e-17. By
    # the two values' own size, since a loss of a run that went wrong may be 1e24.
    gaps = [b - a for a, b in itertools.pairwise(finite) if b - a > 1e-9 * max(abs(a), abs(b))]
    return min(gaps, default=0.0)


def decide(
    pairs: Sequence[tuple[float, float]],
    allowed_drop: float,
    *,
    higher_is_better: bool,
    error: float = 0.05,
    resolution: float | None = None,
) -> Decision:
    """Judge by its pairs (O0 metric, candidate metric) at one look whether a candidate keeps the metric.

    Confirmed when the upper bound lies within the allowed drop, refuted when the lower bound lies above it or a run of
    the candidate diverged, undecided otherwise. Pairs whose O0 run diverged say nothing and are left out. Without a
    ``resolution`` the smallest gap between the metrics seen is taken.
    """
    if not allowed_drop >= 0.0:
        raise ValueError(f"`allowed_drop` must be at least 0, got {allowed_drop}")
    usable = [(a, b) for a, b in pairs if math.isfinite(a)]
    diverged = sum(not math.isfinite(b) for _, b in usable)
    finite = [(a, b) for a, b in usable if math.isfinite(b)]
    step = smallest_gap(value for pair in finite for value in pair) if resolution is None else resolution
    drops = paired_drops(finite, higher_is_better=higher_is_better)
    bounds = paired_drop_bounds(drops, error=error, resolution=step)
    if bounds.n_pairs < 2 and not diverged:
        reason = f"only {bounds.n_pairs} of the at least 2 pairs a bound needs"
        return Decision(Verdict.UNDECIDED, bounds, allowed_drop, 2 - bounds.n_pairs, Verdict.UNDECIDED, reason)
    if diverged or bounds.lower > allowed_drop:
        reason = f"{diverged} of {len(usable)} runs diverged" if diverged else ""
        return Decision(Verdict.REFUTED, bounds, allowed_drop, 0, Verdict.REFUTED, reason)
    if bounds.upper <= allowed_drop:
        return Decision(Verdict.CONFIRMED, bounds, allowed_drop, 0, Verdict.CONFIRMED)
    leaning = Verdict.CONFIRMED if bounds.mean < allowed_drop else Verdict.REFUTED
    total = pairs_to_decide(bounds, allowed_drop)
    more = None if total is None else max(total - bounds.n_pairs, 1)
    return Decision(Verdict.UNDECIDED, bounds, allowed_drop, more, leaning)


def _fewest(pairs: range, margin: Callable[[int], float], room: float) -> int | None:
    """Return the first number of pairs whose margin, which shrinks with every pair, fits; None when none does."""
    place = bisect.bisect_left(pairs, True, key=lambda n: margin(n) <= room)
    return pairs[place] if place < len(pairs) else None


def _margin(spread: float, n_pairs: int, error: float) -> float:
    # Here, because most processes that train never judge: half a second less before their first step.
    from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types

    return float(stdtrit(n_pairs - 1, 1.0 - error)) * spread / math.sqrt(n_pairs)
