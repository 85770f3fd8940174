"""Replay: what other loss-scale policies would have done with a recorded run, without training.

A run records for every step the largest scale at which its gradients would still have been finite, the threshold. A
policy overflows at a step exactly if its scale lies above that step's threshold, so hundreds of policies can be judged
at once. What a replay cannot know is that a skipped update changes the weights, and with them all later thresholds:
its assumption is "same trajectory".

Shared format: ``threshold_scale`` has shape ``[n_steps]``, float64; inf means that no scale overflows, 0 that every
scale does. The rule is `next_scales` in float64; on the device it runs in float32, which is the same for factors that
are powers of two.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.arguments import checked_number
from workbench.loss_scale.rule import checked_bounds, checked_init, checked_window, next_scales

PolicyKind = Literal["dynamic", "fixed"]


@dataclass(frozen=True, slots=True)
class ScalePolicy:
    """One way to choose the loss scale.

    Args:
        init: Initial scale, > 0.
        factor: Divisor on overflow, multiplier on growth, > 1; unused by a fixed scale.
        window: Finite steps in a row before the scale grows, >= 1; unused by a fixed scale.
        minimum: Lower bound, in (0, init].
        maximum: Upper bound, >= init; None for float32's own.
        kind: ``"dynamic"`` adapts, ``"fixed"`` keeps ``init`` and only skips.
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
        init = checked_init("init", self.init, above=0.0)
        bounds = checked_bounds(init, self.minimum, self.maximum)
        factor, window = checked_number("factor", self.factor, above=1.0), checked_window("window", self.window)
        # So that 2 and 2.0 are one policy and numpy numbers become Python's.
        names = ("init", "factor", "window", "minimum", "maximum")
        for name, value in zip(names, (init, factor, window, *bounds), strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class ScaleTrace:
    """A scale over time: the steps from which each scale is in use (the first is 0), and those that overflowed."""

    n_steps: int
    steps: NDArray[np.int64]
    scales: NDArray[np.float64]
    overflow_steps: NDArray[np.int64]

    def per_step(self) -> NDArray[np.float64]:
        """Return the scale that each step used, shape ``[n_steps]``."""
        return np.repeat(self.scales, np.diff(self.steps, append=self.n_steps))


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What each policy would have done, shape ``[n_policies]``; ``scale_at`` ``[n_policies, n_at]`` at steps asked for.

    Overflows are steps that are skipped, ``wasted_share`` is their share of all steps.
    """

    policies: tuple[ScalePolicy, ...]
    n_steps: int
    overflows: NDArray[np.int64]
    wasted_share: NDArray[np.float64]
    final_scale: NDArray[np.float64]
    mean_log2_scale: NDArray[np.float64]
    scale_at: NDArray[np.float64]
    _threshold_scale: NDArray[np.float64] = field(repr=False)

    def trace(self, index: int) -> ScaleTrace:
        """Return how the scale of the policy at a position moved; it is simulated again, results keep no traces."""
        return trace_scale(self._threshold_scale, self.policies[index])


def trace_scale(threshold: NDArray[np.float64], policy: ScalePolicy) -> ScaleTrace:
    """Return how the scale of one policy moves over thresholds as `simulate` takes them."""
    n_steps, steps, scales, overflow_steps = len(threshold), [0], [policy.init], []
    if policy.kind == "fixed":
        overflow_steps = np.flatnonzero(threshold < policy.init).tolist()
    else:
        for stretch in _stretches(threshold, [policy]):
            if stretch.overflowed[0]:
                overflow_steps.append(stretch.stop - 1)
            if stretch.following[0] != scales[-1] and stretch.stop < n_steps:
                steps.append(stretch.stop)
                scales.append(float(stretch.following[0]))
    as_steps = [np.array(found, dtype=np.int64) for found in (steps, overflow_steps)]
    return ScaleTrace(n_steps, as_steps[0], np.array(scales), as_steps[1])


def simulate(
    threshold_scale: ArrayLike, policies: Iterable[ScalePolicy], *, at: ArrayLike | None = None
) -> SimulationResult:
    """Run loss-scale policies over a recorded run, side by side.

    Steps on which no scale can move are taken together: what costs time is how often a policy overflows or grows.

    Args:
        threshold_scale: Largest scale that does not overflow per step, shape ``[n_steps]``, in [0, inf].
        policies: Any number of policies.
        at: Steps at which the scale in use is wanted, integers in [0, n_steps), any order; None for none.

    Raises:
        ValueError: When the thresholds are no vector, negative or NaN, or a step lies outside the run.

    Example:
        >>> result = simulate([8.0, 8.0, 4.0, 8.0], [ScalePolicy(init=8.0, window=2)], at=[1, 2])
        >>> result.overflows, result.scale_at, result.trace(0).per_step()
        (array([1]), array([[ 8., 16.]]), array([ 8.,  8., 16.,  8.]))
    """
    threshold = np.ascontiguousarray(threshold_scale, dtype=np.float64)
    if threshold.ndim != 1 or not np.all(threshold >= 0.0):
        raise ValueError(
            "`threshold_scale` must be a vector of numbers in [0, inf] without NaN; "
            "use 0 for a step that overflows at every scale and inf for one that never does"
        )
    n_steps, chosen = len(threshold), tuple(policies)
    wanted = _checked_steps(at, n_steps)
    order = np.argsort(wanted)
    ascending = wanted[order].tolist()

    # What a scale that never moves would give, to begin with.
    initial = np.array([policy.init for policy in chosen])
    final_scale, scale_at = initial.copy(), np.repeat(initial[:, np.newaxis], len(wanted), axis=1)
    overflows = np.array([np.count_nonzero(threshold < policy.init) for policy in chosen], dtype=np.int64)
    log2_sum = n_steps * np.log2(initial)

    moving = np.flatnonzero([policy.kind == "dynamic" for policy in chosen])
    if len(moving) and n_steps:
        looked = 0
        hits, log2 = np.zeros((2, len(moving)))
        for stretch in _stretches(threshold, [chosen[index] for index in moving]):
            hits += stretch.overflowed
            log2 += (stretch.stop - stretch.start) * np.log2(stretch.scales)
            first, looked = looked, bisect_left(ascending, stretch.stop, looked)
            if first < looked:
                scale_at[np.ix_(moving, order[first:looked])] = stretch.scales[:, np.newaxis]
        final_scale[moving], overflows[moving], log2_sum[moving] = stretch.following, hits, log2
    wasted, mean = overflows / max(n_steps, 1), log2_sum / n_steps if n_steps else np.log2(initial)
    return SimulationResult(chosen, n_steps, overflows, wasted, final_scale, mean, scale_at, threshold)


def _checked_steps(at: ArrayLike | None, n_steps: int) -> NDArray[np.int64]:
    steps = np.asarray([] if at is None else at)
    if not steps.size:
        return np.zeros(0, dtype=np.int64)
    if steps.ndim != 1 or steps.dtype.kind not in "iu" or steps.min() < 0 or steps.max() >= n_steps:
        raise ValueError(f"`at` must be a vector of integer steps in [0, {n_steps}), the steps of the run; got {at!r}")
    return steps.astype(np.int64)


class _Stretch(NamedTuple):
    """Steps [start, stop) on which no scale moves before the end of the last; arrays have shape ``[n_policies]``."""

    start: int
    stop: int
    scales: NDArray[np.float64]
    overflowed: NDArray[np.bool_]  # whether the last step did; no other does
    following: NDArray[np.float64]  # scales after the last step


def _stretches(threshold: NDArray[np.float64], policies: Sequence[ScalePolicy]) -> Iterator[_Stretch]:
    """Run dynamic policies side by side, from one step on which a scale may move to the next."""
    n_steps = len(threshold)
    scales = np.array([policy.init for policy in policies])
    factor = np.array([policy.factor for policy in policies])
    # A window that is longer than the run never ends, however long it is.
    window = np.array([min(policy.window, n_steps + 1) for policy in policies])
    minimum = np.array([policy.minimum for policy in policies])
    maximum = np.array([math.inf if policy.maximum is None else policy.maximum for policy in policies])
    finite_steps, step = np.zeros_like(window), 0
    while step < n_steps:
        due = min(step + int((window - finite_steps).min()), n_steps) - 1
        last = _first_below(threshold, step, due, scales.max())
        overflowed = scales > threshold[last]
        finite_steps = finite_steps + (last + 1 - step)
        following, restarted = next_scales(
            scales, finite_steps, overflowed, factor=factor, window=window, minimum=minimum, maximum=maximum
        )
        yield _Stretch(step, last + 1, scales, overflowed, following)
        finite_steps[restarted] = 0
        scales, step = following, last + 1


def _first_below(threshold: NDArray[np.float64], start: int, stop: int, scale: float) -> int:
    """Return the first step in [start, stop) that overflows at a scale, ``stop`` if there is none."""
    size = 64  # most are near; the pieces grow, so that a far one costs a pass and no more
    while start < stop:
        hits = threshold[start : min(start + size, stop)] < scale
        first = int(hits.argmax())
        if hits[first]:
            return start + first
        start += len(hits)
        size *= 8
    return stop
