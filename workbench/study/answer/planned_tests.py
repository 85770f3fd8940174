"""Which seeds a candidate is tested on, when its verdict is read, and what the verdict is.

A verdict has two halves: *confirmed* is faster **and** as good, each at 95 %. A bound of 95 % that is looked at three
times is wrong more often than one time in twenty, so every test is planned before it begins: its pairs and its *looks*,
with the error that each of the two halves may spend there. A half that a look has closed stays closed.

The error of 5 % is spent like this. A candidate's first test has a look at half of its pairs (0.5 %) and one at all of
them (3.5 % for the drop, 2.5 % for the speed, whose interval is the usual two-sided one). Where the time runs out
before the first look, that one is taken there. The last 1 % is kept for unplanned tests, of fresh seeds after an open
verdict or of a candidate after one that was not confirmed: each takes half of what is left of it. Candidates are tested
in an order fixed beforehand, each at the full level only while all before it were confirmed, so the error of the whole
family stays within 5 % (a fixed sequence: Maurer, Hothorn and Lehmacher 1995; the halves are added by Bonferroni's
inequality). A test's number of pairs is computed from the standard deviation, not the mean, of its first few, which
costs next to nothing of the 5 % (simulated in the tests).

Pure arithmetic on plain numbers: no torch, no storage, no clock.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.core.metric_scale import MetricScale
from workbench.core.paired_bounds import Decision, TimeRatio, decide, pairs_to_decide
from workbench.core.records import Verdict
from workbench.core.text import format_duration

FIRST_ERROR = 0.035  # of the drop's bound at the last look of a candidate's first test
LARGEST_TIME_ERROR = 0.025  # of each end of the speed-up's interval at any look: the usual two-sided one of 95 %
_HALFWAY_ERROR = 0.005
_RESERVED_ERROR = 0.01


@dataclass(frozen=True, slots=True)
class PlannedTest:
    """Which pairs a test takes and after how many of them it is read; fixed before it begins."""

    first: int  # number of its first pair, counted from 0 over all pairs of the study
    looks: tuple[tuple[int, float], ...]  # pairs so far, and the error of each bound there

    @property
    def n_pairs(self) -> int:
        """Number of pairs in the whole test, up to its last look."""
        return self.looks[-1][0]

    @property
    def end(self) -> int:
        """Number of the first pair after the test's own."""
        return self.first + self.n_pairs


def first_test(n_pairs: int, at_least: int = 2) -> PlannedTest:
    """Return a candidate's first test: a look at half of the pairs (if ``at_least`` or more), and one at all."""
    half = n_pairs // 2
    halfway = ((half, _HALFWAY_ERROR),) if half >= at_least else ()
    return PlannedTest(0, (*halfway, (n_pairs, FIRST_ERROR)))


def read_early(test: PlannedTest, n_pairs: int) -> PlannedTest:
    """Return a first test that is read where time ran out, with the error of the look at half, if none was before."""
    if test.looks[-1][1] != FIRST_ERROR or n_pairs >= test.looks[0][0]:
        return test
    return replace(test, looks=((n_pairs, _HALFWAY_ERROR), test.looks[-1]))


def further_error(n_before: int) -> float:
    """Return the error of an unplanned test, after ``n_before`` others in the same study."""
    return float(_RESERVED_ERROR / 2.0 ** (n_before + 1))


def further_test(first: int, n_pairs: int, n_before: int) -> PlannedTest:
    """Return an unplanned test: one look, at half of the error left after ``n_before`` others.

    The candidate must not have been judged by its pairs, which begin with number ``first``.
    """
    return PlannedTest(first, ((n_pairs, further_error(n_before)),))


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is known of a candidate: whether it keeps the metric, and how much faster it is."""

    quality: Decision
    time: TimeRatio
    n_pairs: int  # that it was trained on
    missing: int  # that its last test still lacks
    end: int  # number of the first pair after all its tests; 0 when none was planned

    @property
    def verdict(self) -> Verdict:
        """Confirmed: faster and as good; refuted: slower or worse."""
        if self.quality.verdict is Verdict.REFUTED or self.time.high < 1.0:
            return Verdict.REFUTED
        is_confirmed = self.quality.verdict is Verdict.CONFIRMED and self.time.low > 1.0
        return Verdict.CONFIRMED if is_confirmed else Verdict.UNDECIDED


def judge(
    tests: Sequence[tuple[PlannedTest, Sequence[tuple[float, float]]]],
    allowed_drop: float,
    time_at: Callable[[PlannedTest, int, float], TimeRatio],
    untested: TimeRatio,
    *,
    higher_is_better: bool,
    resolution: float | None = None,
) -> Judgement:
    """Judge a candidate by its tests, at their planned looks only.

    For each half the first look that closes it counts, or else the last. A diverged run refutes at once. Each test
    comes with the (O0 metric, candidate metric) of its trained pairs, seed by seed; ``time_at`` returns the ratio of
    times over a test's first pairs, at an error; ``untested`` is the ratio before any look.
    """
    quality: Decision | None = None
    time: TimeRatio | None = None
    options: Any = {"higher_is_better": higher_is_better, "resolution": resolution}
    for test, pairs in tests:
        for n_pairs, error in test.looks:
            if len(pairs) < n_pairs:
                break
            if quality is None or quality.verdict is Verdict.UNDECIDED:
                quality = decide(pairs[:n_pairs], allowed_drop, error=error, **options)
            if time is None or time.is_open:
                time = time_at(test, n_pairs, min(error, LARGEST_TIME_ERROR))
        if any(math.isfinite(a) and not math.isfinite(b) for a, b in pairs):
            quality = decide(pairs, allowed_drop, **options)
    trained = [pair for _, pairs in tests for pair in pairs]
    missing = tests[-1][0].n_pairs - len(tests[-1][1]) if tests else 0
    if quality is None:
        so_far = decide(trained, allowed_drop, **options)
        quality = replace(so_far, verdict=Verdict.UNDECIDED, more_pairs=None, reason="not tested")
    end = max((test.end for test, _ in tests), default=0)
    return Judgement(quality, time or untested, len(trained), missing, end)


def sentence(
    judged: Judgement,
    metric: str,
    *,
    per: str = "per step",
    next_error: float = 0.005,
    seconds_per_pair: float = math.nan,
    command: Callable[[int, float], str] | None = None,
) -> str:
    """Return a judgement in words a person can act on.

    ``per`` is the unit of the speed-up; ``next_error``, the error of a further test, decides how many seeds that would
    take; ``command`` gives what adds pairs: up to so many in all, which takes so many seconds (NaN: unknown).
    """
    quality, time = judged.quality, judged.time
    speed = f"{_faster(time)} {per} ({_interval(time)})"
    kept = _kept(quality, metric, judged.n_pairs)
    if judged.verdict is Verdict.CONFIRMED:
        return f"Confirmed: {speed}, and as good: {kept}."
    if quality.verdict is Verdict.REFUTED:
        return f"Refuted: {kept}."
    if judged.verdict is Verdict.REFUTED:
        return f"Refuted: {speed}."
    is_open = quality.verdict is Verdict.UNDECIDED
    questions = ["whether it is faster"] * time.is_open + [f"whether it keeps the {metric}"] * is_open
    text = f"Undecided {' and '.join(questions)}: {speed}; {kept}."
    if judged.missing:
        n_planned = judged.n_pairs + judged.missing
        return f"{text} {judged.n_pairs} of {n_planned} planned seeds are trained; the same command trains the rest."
    if quality.reason:
        return text  # it was not tested; the reason says why
    fresh = [pairs_to_decide(replace(quality.bounds, error=next_error), quality.allowed_drop)] * is_open
    fresh += [time.more_pairs] * time.is_open
    numbers = [one for one in fresh if one is not None]
    if len(numbers) < len(fresh):
        return f"{text} No practical number of seeds would decide: what was measured lies too close to the limit."
    more = max(numbers)
    against = ", probably against it" if is_open and quality.leaning is Verdict.REFUTED else ""
    ask = f"About {more} fresh seeds would decide{against}"
    if math.isfinite(seconds_per_pair):
        ask += f" ({format_duration(more * seconds_per_pair)})"
    told = "" if command is None else f": `{command(judged.end + more, more * seconds_per_pair)}`"
    return f"{text} {ask}{told}."


def _faster(time: TimeRatio) -> str:
    return "not clearly faster or slower" if time.is_open else "faster" if time.low > 1.0 else "slower"


def _interval(time: TimeRatio) -> str:
    if time.low == 0.0 and math.isinf(time.high):
        return f"{time.ratio:.2f} x, without an interval yet"
    if time.low == time.high:  # it takes steps like O0's, and fewer
        return f"{time.ratio:.2f} x, by its number of steps"
    high = f"{time.high:.2f}" if math.isfinite(time.high) else "any number"
    return f"{time.ratio:.2f} x, 95 % interval {time.low:.2f} to {high}"


def _kept(quality: Decision, metric: str, n_trained: int) -> str:
    if quality.reason:
        return quality.reason
    scale = MetricScale(metric)
    bounds, changed, allowed = quality.bounds, scale.change_text, scale.difference_text(quality.allowed_drop)
    seeds = f"{bounds.n_pairs} paired seed{'s' if bounds.n_pairs != 1 else ''}"
    if bounds.n_pairs < n_trained:
        seeds = f"{bounds.n_pairs} of {n_trained} paired seeds"
    if quality.verdict is Verdict.UNDECIDED:
        ends = f"{changed(bounds.lower)} to {changed(bounds.upper)}"
        return (
            f"the {metric} is {changed(bounds.mean)} on average, but its 95 % bounds, {ends} ({seeds}), leave open "
            f"whether that is within the allowed {allowed}"
        )
    kept = quality.verdict is Verdict.CONFIRMED
    end = bounds.upper if kept else bounds.lower
    if kept and (end <= 0.0 or changed(end) == changed(0.0)):
        return f"the {metric} is at least {changed(end)} (95 % bound, mean {changed(bounds.mean)}, {seeds})"
    bound = f"at {'most' if kept else 'least'} {changed(end)} (95 % bound, mean {changed(bounds.mean)}, {seeds})"
    return f"the {metric} is {bound}, {'within' if kept else 'more than'} the allowed {allowed}"
