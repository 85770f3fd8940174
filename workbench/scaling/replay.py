"""Replay: what other loss-scale policies would have done with a recorded run, without training.

A run tells for every step the largest scale at which its gradients would still have been finite, the threshold. A
policy overflows at a step exactly if its scale lies above that step's threshold, so hundreds of policies can be judged
at once. What a replay cannot know is that a skipped update changes the weights, and with them all later thresholds:
its assumption is "same trajectory".

Shared format: ``threshold_scale`` has shape ``[n_steps]``, float64; inf means that no scale overflows, 0 that every
scale does. The rule is `next_scale` in float64; on the device it runs in float32, which is the same for factors that
are powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.scaling.scale_rule import (
    FLOAT32_MAX,
    ScaleState,
    checked_bounds,
    checked_factor,
    checked_init,
    checked_window,
    next_scale,
)

__all__ = ["PolicyKind", "ScalePolicy", "ScaleTrace", "SimulationResult", "simulate"]

PolicyKind = Literal["dynamic", "fixed"]


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """One way to choose the loss scale.

    Args:
        init: Initial scale, >= 1.
        factor: Divisor on overflow, multiplier on growth, > 1; unused by a fixed scale.
        window: Finite steps in a row before the scale grows, >= 1; unused by a fixed scale.
        minimum: Lower bound, in (0, init].
        maximum: Upper bound, >= init; None for float32's own.
        kind: ``"dynamic"`` adapts, ``"fixed"`` keeps ``init`` and only skips.

    Raises:
        TypeError: When a value is of the wrong kind.
        ValueError: When a value is out of its range or ``kind`` is unknown.
    """

    init: float = 2.0**24
    factor: float = 2.0
    window: int = 2000
    minimum: float = 1.0
    maximum: float | None = None
    kind: PolicyKind = "dynamic"

    def __post_init__(self) -> None:
        if self.kind not in {"dynamic", "fixed"}:
            raise ValueError(
                f'`kind` must be "dynamic" or "fixed", got {self.kind!r}; '
                'a run without loss scale is the policy kind="fixed" with init=1'
            )
        # Stored as checked, so that 2 and 2.0 are one policy and numpy numbers become Python's.
        init = checked_init("init", self.init)
        object.__setattr__(self, "init", init)
        object.__setattr__(self, "factor", checked_factor("factor", self.factor))
        object.__setattr__(self, "window", checked_window("window", self.window))
        minimum, maximum = checked_bounds(init, self.minimum, self.maximum)
        object.__setattr__(self, "minimum", minimum)
        object.__setattr__(self, "maximum", maximum)


@dataclass(frozen=True, slots=True)
class ScaleTrace:
    """A scale over time, as the steps where it changes.

    Args:
        n_steps: Length of the trace.
        steps: Step from which each scale is in use, shape ``[n_changes]``; the first is 0.
        scales: The scales, shape ``[n_changes]``.
        overflow_steps: Steps that overflowed, ascending.
    """

    n_steps: int
    steps: NDArray[np.int64]
    scales: NDArray[np.float64]
    overflow_steps: NDArray[np.int64]

    def per_step(self) -> NDArray[np.float64]:
        """Return the scale that each step used, shape ``[n_steps]``."""
        return np.repeat(self.scales, np.diff(self.steps, append=self.n_steps))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What each policy would have done; arrays have shape ``[n_policies]``.

    Args:
        policies: The policies, in the order of the arrays.
        n_steps: Steps of the run.
        overflows: Steps that overflow and are skipped.
        wasted_share: Their share of all steps, in [0, 1].
        final_scale: Scale after the last step.
        mean_log2_scale: Mean of log2 of the scale in use.
        floor_share: Share of steps that ran at the lower bound, in [0, 1].
    """

    policies: tuple[ScalePolicy, ...]
    n_steps: int
    overflows: NDArray[np.int64]
    wasted_share: NDArray[np.float64]
    final_scale: NDArray[np.float64]
    mean_log2_scale: NDArray[np.float64]
    floor_share: NDArray[np.float64]
    _threshold_scale: NDArray[np.float64] = field(repr=False)

    def trace(self, index: int) -> ScaleTrace:
        """Return how the scale of one policy moved; it is simulated again, results keep no traces.

        Args:
            index: Position of the policy.

        Returns:
            Change points and overflow steps.
        """
        recorder = _Recorder()
        _walk(self._threshold_scale, self.policies[index], math.inf, recorder)
        return recorder.trace(self.n_steps)

    def overflow_steps(self, index: int) -> NDArray[np.int64]:
        """Return the steps at which one policy overflows, ascending.

        Args:
            index: Position of the policy.
        """
        return self.trace(index).overflow_steps


def simulate(threshold_scale: ArrayLike, policies: Iterable[ScalePolicy]) -> SimulationResult:
    """Run loss-scale policies over a recorded run.

    Two ways that give the same result, chosen by cost. A policy with a long window has few events, so it jumps from
    event to event (its next overflow or growth, whichever comes first). Policies with short windows have an event
    every few steps; they march through all steps side by side, one numpy row per step.

    Args:
        threshold_scale: Largest scale that does not overflow per step, shape ``[n_steps]``, in [0, inf].
        policies: Any number of policies.

    Returns:
        Counts and shares per policy.

    Raises:
        ValueError: When the thresholds are no vector, negative or NaN.

    Example:
        >>> result = simulate([8.0, 8.0, 4.0, 8.0], [ScalePolicy(init=8.0, window=2)])
        >>> result.overflows, result.trace(0).per_step()
        (array([1]), array([ 8.,  8., 16.,  8.]))
    """
    threshold = np.ascontiguousarray(threshold_scale, dtype=np.float64)
    if threshold.ndim != 1 or not np.all(threshold >= 0.0):
        raise ValueError(
            "`threshold_scale` must be a vector of numbers in [0, inf] without NaN; "
            "use 0 for a step that overflows at every scale and inf for one that never does"
        )
    chosen = tuple(policies)
    totals = np.zeros((4, len(chosen)))
    marching = _short_windows(chosen, len(threshold))
    for index, policy in enumerate(chosen):
        if index in marching:
            continue
        walked = _walk(threshold, policy, _event_budget(policy, len(threshold)))
        if walked is None:  # far more overflows than the window lets expect
            marching.add(index)
        else:
            totals[:, index] = walked
    if marching:
        together = sorted(marching)
        totals[:, together] = _march(threshold, [chosen[index] for index in together])
    overflows, final_scale, log2_sum, floor_steps = totals
    n_steps = max(len(threshold), 1)
    initial = np.log2([policy.init for policy in chosen]) if chosen else np.zeros(0)
    return SimulationResult(
        policies=chosen,
        n_steps=len(threshold),
        overflows=overflows.astype(np.int64),
        wasted_share=overflows / n_steps,
        final_scale=final_scale,
        mean_log2_scale=log2_sum / n_steps if len(threshold) else initial,
        floor_share=floor_steps / n_steps,
        _threshold_scale=threshold,
    )


# Measured on one core: an event of `_walk` takes about 3 microseconds, a step of `_march` 4 plus 0.01 per policy.
# They only decide which of two equal ways is taken.
_EVENT_COST, _ROW_COST, _LANE_COST = 3.0, 4.0, 0.01
_ROWS_PER_BLOCK = 1024


class _Recorder:
    """Keeps the change points and overflows of one walk."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.scales: list[float] = []
        self.overflow_ranges: list[tuple[int, int]] = []

    def use(self, step: int, scale: float) -> None:
        if not self.scales or scale != self.scales[-1]:
            self.steps.append(step)
            self.scales.append(scale)

    def trace(self, n_steps: int) -> ScaleTrace:
        ranges = [np.arange(first, last, dtype=np.int64) for first, last in self.overflow_ranges]
        return ScaleTrace(
            n_steps=n_steps,
            steps=np.array(self.steps, dtype=np.int64),
            scales=np.array(self.scales, dtype=np.float64),
            overflow_steps=np.concatenate(ranges) if ranges else np.zeros(0, dtype=np.int64),
        )


def _walk(
    threshold: NDArray[np.float64], policy: ScalePolicy, max_events: float, recorder: _Recorder | None = None
) -> tuple[float, float, float, float] | None:
    """Jump from event to event; return overflows, final scale, sum of log2, steps at the floor; None over budget."""
    if policy.kind == "fixed":
        return _hold(threshold, policy, recorder)
    n_steps, window = len(threshold), policy.window
    step, scale = 0, policy.init
    overflows = floor_steps = events = 0
    log2_sum = 0.0
    lowered_from: dict[float, float] = {}
    grown_from: dict[float, float] = {}
    while step < n_steps:
        if recorder is not None:
            recorder.use(step, scale)
        events += 1
        if events > max_events:
            return None
        if scale not in grown_from:
            lowered_from[scale] = next_scale(ScaleState(scale), True, policy).scale
            grown_from[scale] = next_scale(ScaleState(scale, window - 1), False, policy).scale
        lowered, grown = lowered_from[scale], grown_from[scale]
        # Growth that changes nothing needs no stop: whatever the streak, the next overflow forgets it.
        horizon = n_steps if grown == scale else min(step + window, n_steps)
        hit = _first(threshold, step, horizon, scale, overflowing=True)
        following, used = horizon, scale
        if hit < horizon:
            # On the floor a whole run of overflows is one event.
            following = hit + 1
            if lowered == scale:
                following = _first(threshold, following, n_steps, scale, overflowing=False)
            overflows += following - hit
            scale = lowered
            if recorder is not None:
                recorder.overflow_ranges.append((hit, following))
        elif horizon == step + window:
            scale = grown
        log2_sum += (following - step) * math.log2(used)
        if used <= policy.minimum:
            floor_steps += following - step
        step = following
    if recorder is not None and not recorder.scales:
        recorder.use(0, scale)
    return float(overflows), scale, log2_sum, float(floor_steps)


def _hold(
    threshold: NDArray[np.float64], policy: ScalePolicy, recorder: _Recorder | None
) -> tuple[float, float, float, float]:
    hits = np.flatnonzero(threshold < policy.init)
    if recorder is not None:
        recorder.use(0, policy.init)
        recorder.overflow_ranges.extend((int(hit), int(hit) + 1) for hit in hits)
    n_steps = len(threshold)
    at_floor = n_steps if policy.init <= policy.minimum else 0
    return float(len(hits)), policy.init, n_steps * math.log2(policy.init), float(at_floor)


def _first(threshold: NDArray[np.float64], start: int, stop: int, scale: float, *, overflowing: bool) -> int:
    """Return the first step in [start, stop) that overflows at ``scale`` (or does not), ``stop`` if there is none."""
    size = 64  # most events are near; the pieces grow, so that a far one costs a pass and no more
    while start < stop:
        piece = threshold[start : min(start + size, stop)]
        found = piece < scale if overflowing else piece >= scale
        position = int(found.argmax())
        if found[position]:
            return start + position
        start += len(piece)
        size *= 8
    return stop


def _march(threshold: NDArray[np.float64], policies: Sequence[ScalePolicy]) -> NDArray[np.float64]:
    """Take all steps, the policies side by side; return the four totals of `_walk`, shape ``[4, n_policies]``.

    With some hundred policies a numpy call costs its overhead and no more, so what counts is the number of calls per
    step. (``np.minimum`` and ``np.maximum`` cost five times a comparison with a masked copy; numbers as operands cost
    twice an array of shape ``[1]``.)
    """
    scale = np.array([policy.init for policy in policies])
    factor = np.array([policy.factor for policy in policies])
    minimum = np.array([policy.minimum for policy in policies])
    maximum = np.array([math.inf if policy.maximum is None else policy.maximum for policy in policies])
    lowest_top = min(FLOAT32_MAX, maximum.min())
    window = np.array([policy.window for policy in policies], dtype=np.int64)
    left = window.copy()  # finite steps until growth
    zero, one = np.zeros(1, dtype=np.int64), np.ones(1, dtype=np.int64)
    grown, lowered = np.empty_like(scale), np.empty_like(scale)
    due, beyond = np.empty(len(scale), dtype=bool), np.empty(len(scale), dtype=bool)
    totals = np.zeros((4, len(scale)))
    used = np.empty((_ROWS_PER_BLOCK, len(scale)))
    overflowed = np.empty(used.shape, dtype=bool)
    for start in range(0, len(threshold), _ROWS_PER_BLOCK):
        limits = threshold[start : start + _ROWS_PER_BLOCK, np.newaxis]
        # A scale grows only from a value that was at most some limit, and falls only from one that was above some
        # limit. So within the block it stays between these, and where they are inside the bounds nobody need ask.
        near_top = max(scale.max(), limits.max()) * factor.max() > lowest_top
        near_floor = min(scale.min(), limits.min()) / factor.max() < minimum.max()
        for limit, row, over in zip(limits, used, overflowed, strict=False):
            row[:] = scale
            np.greater(scale, limit, over)
            np.subtract(left, one, left)
            np.equal(left, zero, due)
            np.multiply(scale, factor, grown)
            np.divide(scale, factor, lowered)
            if near_top:
                np.greater(grown, maximum, beyond)
                np.copyto(grown, maximum, where=beyond)
                np.greater(grown, FLOAT32_MAX, beyond)
                np.copyto(grown, scale, where=beyond)
            if near_floor:
                np.less(lowered, minimum, beyond)
                np.copyto(lowered, minimum, where=beyond)
            np.copyto(scale, grown, where=due)
            np.copyto(scale, lowered, where=over)  # last: an overflow forbids the growth that was due
            np.logical_or(due, over, due)
            np.copyto(left, window, where=due)
        filled = slice(0, len(limits))
        totals[0] += overflowed[filled].sum(axis=0)
        totals[2] += np.log2(used[filled]).sum(axis=0)
        totals[3] += (used[filled] <= minimum).sum(axis=0)
    totals[1] = scale
    return totals


def _expected_events(policy: ScalePolicy, n_steps: int) -> float:
    # One growth per window, and one overflow for it in the long run.
    return 2.0 * n_steps / (policy.window + 1)


def _event_budget(policy: ScalePolicy, n_steps: int) -> float:
    return math.inf if policy.kind == "fixed" else 4.0 * _expected_events(policy, n_steps) + 1000.0


def _short_windows(policies: Sequence[ScalePolicy], n_steps: int) -> set[int]:
    """Return the policies for which marching is cheaper than walking; empty when they are too few to pay for it."""
    costs = {
        index: _EVENT_COST * _expected_events(policy, n_steps)
        for index, policy in enumerate(policies)
        if policy.kind == "dynamic"
    }
    short = {index for index, cost in costs.items() if cost > _LANE_COST * n_steps}
    return short if sum(costs[index] for index in short) > _ROW_COST * n_steps else set()
