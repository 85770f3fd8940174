"""Is a candidate faster than O0, and as good? Paired bounds, verdicts and what it would take to decide.

A *pair* is one seed: O0 and the candidate trained on the same split with the same seed. The *drop* of a pair is how
far the candidate's metric lies on the wrong side of O0's (positive = worse), so subtracting within the pair removes
what the seed does to both. The mean drop is bounded by Student's t, as for any paired comparison; so is the mean
logarithm of the ratio of the two times, which gives the speed-up and its interval (`time_ratio`).

A verdict says both: *confirmed* is faster and as good, each at 95 %.

How many pairs a test takes is fixed before it begins (`planned_pairs`), from the standard deviation of a few pilot
pairs, so that a candidate as good as O0 is confirmed four times in five. The error of 5 % is spent on planned looks
only: 0.5 % at half of the pairs, 3.5 % at all of them. The remaining 1 % is kept for what was not planned: every
further test, of fresh seeds after an open verdict or of the next candidate after a refuted one, takes half of what is
left of it (`further_test`). Candidates are tested in an order fixed beforehand, each next one at the full level only
while all before it were confirmed, so the error of the whole family stays below 5 % (a fixed sequence: Maurer, Hothorn
and Lehmacher 1995; the halves are added by Bonferroni's inequality).

Pure arithmetic on plain numbers: no torch, no storage, no clock.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.records import Verdict

__all__ = [
    "FINAL_ERROR",
    "Decision",
    "DropBounds",
    "PlannedTest",
    "TimeRatio",
    "decidable_drop",
    "decide",
    "first_test",
    "format_duration",
    "further_test",
    "judge_test",
    "paired_drop_bounds",
    "paired_drops",
    "pairs_to_decide",
    "planned_pairs",
    "smallest_gap",
    "time_ratio",
    "verdict_of",
    "verdict_sentence",
]

FINAL_ERROR = 0.035
"""Error that the last look of a candidate's first test may spend; together with the look at half and what is kept for
further tests it makes 0.05."""

_HALFWAY_ERROR = 0.005
_RESERVED_ERROR = 0.01

_POWER = 0.8
"""Probability with which a test should confirm a candidate whose true drop is 0 (Cohen's convention)."""

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
    """Whether a candidate keeps the metric after some pairs, and what it would take to decide if that is open.

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


@dataclass(frozen=True, slots=True)
class TimeRatio:
    """O0's time / the candidate's with its 95 % interval; larger is faster.

    Args:
        ratio: Point estimate, the geometric mean over the pairs.
        low: Lower end of the interval; 0 when nothing bounds it.
        high: Upper end; inf when nothing bounds it.
        more_pairs: Fresh pairs whose interval would probably leave 1 out; 0 when this one does, None when no practical
            number would do.
    """

    ratio: float
    low: float
    high: float
    more_pairs: int | None = 0


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """Which pairs a test takes and at what points it is judged; fixed before the first of them is trained.

    Args:
        first: Number of its first pair, counted from 0 over all pairs of the study.
        looks: Pairs so far and the error of each bound there, in the order of the looks.
    """

    first: int
    looks: tuple[tuple[int, float], ...]

    @property
    def n_pairs(self) -> int:
        """Pairs at the last look."""
        return self.looks[-1][0]


def first_test(n_pairs: int) -> PlannedTest:
    """Return a candidate's first test: a look at half of the pairs, where that is at least two, and one at all."""
    _check_pairs(n_pairs)
    half = n_pairs // 2
    halfway = ((half, _HALFWAY_ERROR),) if half >= 2 else ()
    return PlannedTest(0, (*halfway, (n_pairs, FINAL_ERROR)))


def further_test(first: int, n_pairs: int, n_before: int) -> PlannedTest:
    """Return a test that was not planned: one look, at half of the error that is left for such tests.

    Args:
        first: Number of its first pair. A candidate that was tested before gets pairs it has not been judged by.
        n_pairs: Pairs.
        n_before: Such tests before it in the same study, at least 0.
    """
    _check_pairs(n_pairs)
    return PlannedTest(first, ((n_pairs, _RESERVED_ERROR / 2.0 ** (n_before + 1)),))


def _check_pairs(n_pairs: int) -> None:
    if n_pairs < 2:
        raise ValueError(f"a paired comparison needs at least 2 seeds, got {n_pairs}")


def planned_pairs(spread: float, allowed_drop: float, *, at_least: int, at_most: int) -> int:
    """Return how many pairs confirm a candidate without any drop with probability 0.8.

    Args:
        spread: Standard deviation of one pair's drop, from pilot pairs, in the metric's unit.
        allowed_drop: Drop that is allowed, in the metric's unit.
        at_least: Smallest number, at least 2.
        at_most: Largest number; also what an allowed drop of 0 takes, which no number decides.
    """
    _check_pairs(at_least)
    for n_pairs in range(at_least, at_most):
        if decidable_drop(spread, n_pairs) <= allowed_drop:
            return n_pairs
    return max(at_least, at_most)


def decidable_drop(spread: float, n_pairs: int, *, error: float = FINAL_ERROR) -> float:
    """Return the smallest allowed drop that a test of so many pairs can decide.

    Decide means: confirm a candidate whose true drop is 0 with probability 0.8, ``(t(1 - error) + t(0.8)) s / sqrt(n)``
    with n - 1 degrees of freedom; a little on the safe side of the exact noncentral t.

    Args:
        spread: Standard deviation of one pair's drop, in the metric's unit.
        n_pairs: Pairs, at least 2.
        error: Error of the last look, in (0, 0.5).
    """
    return _margin(spread, n_pairs, error) + _margin(spread, n_pairs, 1.0 - _POWER)


def time_ratio(
    times: Sequence[tuple[float, float]], step_time: tuple[float, float, float], *, warm_up: float = 0.0
) -> TimeRatio:
    """Return how much sooner the candidate gets where O0 gets, with the 95 % interval.

    Each pair gives ``log(a / (w + r b))``, with a and b the steps that O0 and the candidate take, r the time of the
    candidate's step relative to O0's and w the warm-up. The interval of their mean (Student's t, two-sided) and what
    the interval of r does to it are independent, so their half-widths are added in quadrature. Without pairs the ratio
    is that of the steps' times.

    Args:
        times: Per pair the steps of O0 and of the candidate, in steps of their own, each greater than 0.
        step_time: r with the ends of its 95 % interval.
        warm_up: Steps of O0 before the candidate's first one.
    """
    ratio, low, high = step_time
    if not times:
        return _with_outlook(-math.log(ratio), 0.0, math.log(ratio / low), math.log(high / ratio), 0)

    def mean_logarithm(r: float) -> float:
        return math.fsum(math.log(a / (warm_up + r * b)) for a, b in times) / len(times)

    mean = mean_logarithm(ratio)
    spread = math.inf
    if len(times) > 1:
        spread = float(np.std([math.log(a / (warm_up + ratio * b)) for a, b in times], ddof=1))
    return _with_outlook(mean, spread, mean_logarithm(low) - mean, mean - mean_logarithm(high), len(times))


def _with_outlook(mean: float, spread: float, up: float, down: float, n_pairs: int) -> TimeRatio:
    """Build the interval around a mean logarithm, and say how many more pairs would take 1 out of it."""
    by_pairs = _margin(spread, n_pairs, 0.025) if n_pairs > 1 else (0.0 if n_pairs == 0 else math.inf)
    low, high = mean - math.hypot(by_pairs, down), mean + math.hypot(by_pairs, up)
    more: int | None = 0
    if low <= 0.0 <= high:
        of_steps = down if mean > 0.0 else up
        room = mean * mean - of_steps * of_steps
        needed = math.inf if room <= 0.0 or n_pairs < 2 else (2.0 * spread) ** 2 / room
        more = None if needed > _FAR else max(math.ceil(needed), 2)
    return TimeRatio(math.exp(mean), math.exp(low), math.exp(high) if high < 700.0 else math.inf, more)


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
    error: float = 0.05,
    resolution: float | None = None,
) -> Decision:
    """Judge by its pairs at one look whether a candidate keeps the metric.

    Args:
        pairs: (O0 metric, candidate metric), one per seed; a diverged candidate has a NaN metric.
        allowed_drop: Drop that is allowed, in the metric's unit, at least 0.
        higher_is_better: Direction of the metric.
        error: Probability of a wrong verdict at this look, in (0, 0.5).
        resolution: Smallest step of the metric; None takes the smallest gap between the metrics seen.

    Returns:
        Confirmed when the upper bound lies within the allowed drop, refuted when the lower bound lies above it or a
        run of the candidate diverged, undecided otherwise. Pairs whose O0 run diverged say nothing and are left out.

    Raises:
        ValueError: When ``allowed_drop`` is not a number of at least 0.
    """
    if not allowed_drop >= 0.0:
        raise ValueError(f"`allowed_drop` must be at least 0, got {allowed_drop}")
    usable = [(a, b) for a, b in pairs if math.isfinite(a)]
    diverged = sum(not math.isfinite(b) for _, b in usable)
    finite = [(a, b) for a, b in usable if math.isfinite(b)]
    step = smallest_gap(value for pair in finite for value in pair) if resolution is None else resolution
    drops = paired_drops(finite, higher_is_better=higher_is_better)
    bounds = paired_drop_bounds(drops, error=error, resolution=step)
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


def judge_test(
    test: PlannedTest,
    pairs: Sequence[tuple[float, float]],
    allowed_drop: float,
    *,
    higher_is_better: bool,
    resolution: float | None = None,
) -> Decision:
    """Judge a test by the pairs it has so far, at its planned looks only.

    Args:
        test: The test.
        pairs: Its (O0 metric, candidate metric), in the order of its seeds.
        allowed_drop: See `decide`.
        higher_is_better: See `decide`.
        resolution: See `decide`.

    Returns:
        The verdict of the first look that is not open; before the last look an open one that says what is missing. A
        diverged run refutes at once.
    """
    options: dict[str, Any] = {"higher_is_better": higher_is_better, "resolution": resolution}
    pairs = pairs[: test.n_pairs]
    for n_pairs, error in test.looks:
        if len(pairs) >= n_pairs:
            decision = decide(pairs[:n_pairs], allowed_drop, error=error, **options)
            if decision.verdict is not Verdict.UNDECIDED:
                return decision
    decision = decide(pairs, allowed_drop, error=test.looks[-1][1], **options)
    missing = test.n_pairs - len(pairs)
    if missing == 0:
        # More would be a further test, of fresh pairs alone.
        alone = pairs_to_decide(replace(decision.bounds, error=_RESERVED_ERROR / 2.0), allowed_drop)
        is_open = decision.verdict is Verdict.UNDECIDED
        return replace(decision, more_pairs=alone) if is_open and not decision.reason else decision
    if decision.reason and decision.verdict is Verdict.REFUTED:
        return decision
    reason = f"{len(pairs)} of {test.n_pairs} planned seeds are trained"
    return replace(decision, verdict=Verdict.UNDECIDED, more_pairs=missing, reason=reason)


def verdict_of(quality: Decision, time: TimeRatio) -> Verdict:
    """Return the verdict on a candidate: confirmed is faster and as good, refuted is slower or worse."""
    if quality.verdict is Verdict.REFUTED or time.high < 1.0:
        return Verdict.REFUTED
    is_confirmed = quality.verdict is Verdict.CONFIRMED and time.low > 1.0
    return Verdict.CONFIRMED if is_confirmed else Verdict.UNDECIDED


def verdict_sentence(
    quality: Decision,
    time: TimeRatio,
    metric: str,
    *,
    per: str = "per step",
    seconds_per_pair: float = math.nan,
    command: str = "",
) -> str:
    """Say a verdict in words a person can act on.

    Args:
        quality: Whether the candidate keeps the metric.
        time: How much faster it is.
        metric: Name of the metric.
        per: What the time is of: ``"per step"`` or ``"to the target"``.
        seconds_per_pair: What one more pair takes; NaN leaves the time out.
        command: Command that adds pairs, with ``{seeds}`` where their total number goes; empty leaves it out.

    Returns:
        Sentences, the first of which begins with the verdict.
    """
    verdict = verdict_of(quality, time)
    bounds = quality.bounds
    seeds = f"{bounds.n_pairs} paired seed{'s' if bounds.n_pairs != 1 else ''}"
    interval = f"{time.ratio:.2f} x, 95 % interval {time.low:.2f} to {_number(time.high)}"
    if time.low > 1.0:
        speed = f"faster {per} ({interval})"
    elif time.high < 1.0:
        speed = f"slower {per} ({interval})"
    else:
        speed = f"not clearly faster or slower {per} ({interval})"
    allowed = f"the allowed {quality.allowed_drop:g}"
    if quality.verdict is Verdict.CONFIRMED:
        kept = f"the {metric} drop is at most {bounds.upper:.4g} (95 % bound, mean {bounds.mean:.4g}, {seeds}), "
        kept += f"within {allowed}"
    elif quality.verdict is Verdict.REFUTED and quality.reason:
        kept = quality.reason
    elif quality.verdict is Verdict.REFUTED:
        kept = f"the {metric} drop is at least {bounds.lower:.4g} (95 % bound, mean {bounds.mean:.4g}, {seeds}), "
        kept += f"more than {allowed}"
    elif quality.reason:
        kept = f"{quality.reason}, so nothing is known of its {metric} yet" if bounds.n_pairs < 2 else quality.reason
    else:
        kept = f"the mean {metric} drop is {bounds.mean:.4g}, but its 95 % bounds {bounds.lower:.4g} to "
        kept += f"{bounds.upper:.4g} ({seeds}) leave open whether it is within {allowed}"
    if verdict is Verdict.CONFIRMED:
        return f"Confirmed: {speed}, and as good: {kept}."
    if verdict is Verdict.REFUTED:
        return f"Refuted: {kept if quality.verdict is Verdict.REFUTED else f'{speed}; {kept}'}."
    open_questions = [
        question
        for question, is_open in (
            ("whether it is faster", time.low <= 1.0),
            (f"whether it keeps the {metric}", quality.verdict is Verdict.UNDECIDED),
        )
        if is_open
    ]
    told = f"Undecided {' and '.join(open_questions)}: {speed}; {kept}"
    return f"{told}. {_outlook(quality, time, bounds.n_pairs, seconds_per_pair, command)}"


def _outlook(quality: Decision, time: TimeRatio, n_pairs: int, seconds_per_pair: float, command: str) -> str:
    """Say what it would take to decide."""
    asked = [quality.more_pairs] if quality.verdict is Verdict.UNDECIDED else []
    asked += [time.more_pairs] if time.low <= 1.0 else []
    numbers = [one for one in asked if one is not None]
    if len(numbers) < len(asked):
        return "No practical number of seeds would decide: what is measured lies too close to the limit."
    more = max(numbers)
    ask = f"About {more} more seed{'s' if more != 1 else ''} would decide"
    if math.isfinite(seconds_per_pair):
        ask += f" ({format_duration(more * seconds_per_pair)})"
    if command:
        ask += f": {command.format(seeds=n_pairs + more)}"
    return f"{ask}."


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "unknown"


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
