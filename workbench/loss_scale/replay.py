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

from workbench.loss_scale.rule import (
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

    def at(self, steps: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the scales that some steps used.

        Args:
            steps: Steps of the trace, any shape.

        Returns:
            The scales, in the shape of ``steps``.
        """
        used: NDArray[np.float64] = self.scales[np.searchsorted(self.steps, steps, side="right") - 1]
        return used


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
        scale_at: Scales in use at the steps that were asked for, shape ``[n_policies, n_at]``.
    """

    policies: tuple[ScalePolicy, ...]
    n_steps: int
    overflows: NDArray[np.int64]
    wasted_share: NDArray[np.float64]
    final_scale: NDArray[np.float64]
    mean_log2_scale: NDArray[np.float64]
    floor_share: NDArray[np.float64]
    scale_at: NDArray[np.float64]
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


def simulate(
    threshold_scale: ArrayLike, policies: Iterable[ScalePolicy], *, at: ArrayLike | None = None
) -> SimulationResult:
    """Run loss-scale policies over a recorded run.

    Two ways that give the same result, chosen by cost. A policy with a long window has few events, so it jumps from
    event to event (its next overflow or growth, whichever comes first). Policies with short windows have an event
    every few steps; they march through the steps side by side, and through several parts of the run at once.

    Args:
        threshold_scale: Largest scale that does not overflow per step, shape ``[n_steps]``, in [0, inf].
        policies: Any number of policies.
        at: Steps at which the scale in use is wanted, integers in [0, n_steps), any order; None for none.

    Returns:
        Counts and shares per policy.

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
    wanted = _checked_steps(at, len(threshold))
    chosen = tuple(policies)
    totals = np.zeros((4, len(chosen)))
    scale_at = np.empty((len(chosen), len(wanted)))
    marching, known = _short_windows(chosen, len(threshold)), _Overflows(threshold)
    for index, policy in enumerate(chosen):
        if index in marching:
            continue
        recorder = _Recorder() if len(wanted) else None
        walked = _walk(threshold, policy, _event_budget(policy, len(threshold)), recorder, known)
        if walked is None:  # far more overflows than the window lets expect
            marching.add(index)
            continue
        totals[:, index] = walked
        if recorder is not None:
            scale_at[index] = recorder.trace(len(threshold)).at(wanted)
    if marching:
        together = sorted(marching)
        totals[:, together], scale_at[together] = _march(threshold, [chosen[index] for index in together], wanted)
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
        scale_at=scale_at,
        _threshold_scale=threshold,
    )


def _checked_steps(at: ArrayLike | None, n_steps: int) -> NDArray[np.int64]:
    steps = np.asarray([] if at is None else at)
    if not steps.size:
        return np.zeros(0, dtype=np.int64)
    if steps.ndim != 1 or steps.dtype.kind not in "iu" or steps.min() < 0 or steps.max() >= n_steps:
        raise ValueError(f"`at` must be a vector of integer steps in [0, {n_steps}), the steps of the run; got {at!r}")
    return steps.astype(np.int64)


# Measured on one core, microseconds: an event of `_walk`; a row of `_march`, and each lane in it; how often a row is
# marched, with guesses and second tries. They only decide which of two equal ways is taken.
_EVENT_COST, _ROW_COST, _LANE_COST, _TIMES_MARCHED = 0.3, 20.0, 0.03, 2.5
# A table costs what searching some times costs, and takes four bytes per step.
_SEARCHES_PER_TABLE, _STEPS_PER_SEARCH, _MOST_TABLES = 8, 400, 40
_ROWS_PER_BLOCK = 64  # at most 255, which an uint8 can count; a multiple of 8, see `_sum_log2`
_LANES = 2048  # enough to hide the overhead of a numpy call, few enough for the second-level cache
_HOPEFUL_PASSES = 3
_SHORTEST_PART = 2000  # steps; shorter parts save nothing


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


class _Overflows:
    """Where the next overflow at a scale is.

    Most scales are asked once or twice; those around which a policy settles are asked thousands of times, by every
    policy that reaches them, and get a table with the answer for every step.

    Args:
        threshold: Largest scale that does not overflow per step, shape ``[n_steps]``.
    """

    def __init__(self, threshold: NDArray[np.float64]) -> None:
        self._threshold = threshold
        self._asked: dict[float, int] = {}
        self._tables: dict[float, memoryview] = {}
        self._patience = _SEARCHES_PER_TABLE + len(threshold) // _STEPS_PER_SEARCH

    def table(self, scale: float) -> memoryview | None:
        """Return for every step the first one from there on that overflows, ``n_steps`` for none; None without one."""
        return self._tables.get(scale)

    def first(self, start: int, stop: int, scale: float) -> int:
        """Return the first step in [start, stop) that overflows at ``scale``, ``stop`` if there is none."""
        asked = self._asked[scale] = self._asked.get(scale, 0) + 1
        if asked > self._patience and len(self._tables) < _MOST_TABLES:
            self._tables[scale] = _next_steps(self._threshold < scale)
        return _first(self._threshold, start, stop, scale, overflowing=True)


def _next_steps(overflows: NDArray[np.bool_]) -> memoryview:
    """Return for every step the first one from there on that overflows; the number of steps where none does."""
    n_steps = len(overflows)
    kind = np.int32 if n_steps < 2**31 else np.int64
    own = np.where(overflows, np.arange(n_steps, dtype=kind), kind(n_steps))
    # A view of memory gives Python numbers at a third of what an array takes for its own.
    return np.ascontiguousarray(np.minimum.accumulate(own[::-1])[::-1]).data


def _walk(
    threshold: NDArray[np.float64],
    policy: ScalePolicy,
    max_events: float,
    recorder: _Recorder | None = None,
    known: _Overflows | None = None,
) -> tuple[float, float, float, float] | None:
    """Jump from event to event; return overflows, final scale, sum of log2, steps at the floor; None over budget."""
    if policy.kind == "fixed":
        return _hold(threshold, policy, recorder)
    n_steps, window, minimum = len(threshold), policy.window, policy.minimum
    overflowing = known if known is not None else _Overflows(threshold)
    step, scale = 0, policy.init
    overflows = floor_steps = events = 0
    log2_sum = 0.0
    moves: dict[float, tuple[float, float, float, memoryview | None]] = {}
    while step < n_steps:
        if recorder is not None:
            recorder.use(step, scale)
        events += 1
        if events > max_events:
            return None
        if scale not in moves:
            lowered = next_scale(ScaleState(scale), True, policy).scale
            grown = next_scale(ScaleState(scale, window - 1), False, policy).scale
            moves[scale] = lowered, grown, math.log2(scale), overflowing.table(scale)
        lowered, grown, log2, table = moves[scale]
        # Growth that changes nothing needs no stop: whatever the streak, the next overflow forgets it.
        horizon = step + window
        if horizon > n_steps or grown == scale:
            horizon = n_steps
        if table is not None:
            hit = table[step]
        else:
            hit = overflowing.first(step, horizon, scale)
            if overflowing.table(scale) is not None:
                del moves[scale]  # to be made again with its table
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
        log2_sum += (following - step) * log2
        if used <= minimum:
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


class _Rules:
    """The numbers of some policies as arrays of shape ``[n_policies]``, or of shape ``[n_lanes]`` after `of`."""

    def __init__(
        self,
        factor: NDArray[np.float64],
        window: NDArray[np.int32],
        minimum: NDArray[np.float64],
        maximum: NDArray[np.float64],
    ) -> None:
        self.factor, self.window, self.minimum, self.maximum = factor, window, minimum, maximum

    @classmethod
    def of_policies(cls, policies: Sequence[ScalePolicy], n_steps: int) -> _Rules:
        return cls(
            np.array([policy.factor for policy in policies]),
            # A window that is longer than the run never ends, however long it is.
            np.array([min(policy.window, n_steps + 1) for policy in policies], dtype=np.int32),
            np.array([policy.minimum for policy in policies]),
            np.array([math.inf if policy.maximum is None else policy.maximum for policy in policies]),
        )

    def of(self, policy: NDArray[np.intp]) -> _Rules:
        return _Rules(self.factor[policy], self.window[policy], self.minimum[policy], self.maximum[policy])

    def may_grow(self, scale: NDArray[np.float64]) -> NDArray[np.bool_]:
        grown = np.minimum(scale * self.factor, self.maximum)
        may: NDArray[np.bool_] = (grown <= FLOAT32_MAX) & (grown != scale)
        return may


def _march(
    threshold: NDArray[np.float64], policies: Sequence[ScalePolicy], at: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Take all steps, policies and parts of the run side by side; return the totals of `_walk` and the scales ``at``.

    The run is cut into equal parts. The state in which a part starts is what the part before it ends in, so it is
    guessed first, and every part whose guess turns out wrong is marched again. Few are: trajectories of one policy
    from different states meet soon, as they do at a step that overflows both from the same scale. In the worst case
    all parts are marched one after the other, so the result is exact whatever was guessed. (Factors that are no powers
    of two come near it: what they reach depends in its last bit on the way, and only equal bits count as met.)

    Returns:
        Totals of shape ``[4, n_policies]`` and scales of shape ``[n_policies, n_at]``.
    """
    n_steps, n_policies = len(threshold), len(policies)
    rules = _Rules.of_policies(policies, n_steps)
    n_parts = _number_of_parts(n_steps, n_policies, int(rules.window.max()))
    head, length = n_steps % n_parts, n_steps // n_parts
    scale_at = np.empty((n_policies, len(at)))
    watch = _Watch(at, scale_at, head, length, n_parts)
    all_policies = np.arange(n_policies)

    scale, left = np.array([policy.init for policy in policies]), rules.window.copy()
    sums = np.zeros((3, n_parts, n_policies))
    in_head = _advance(threshold[:head, np.newaxis], np.zeros_like(all_policies), rules, scale, left, watch.head())

    limits = np.ascontiguousarray(threshold[head:].reshape(n_parts, length).T)
    starts = np.empty((n_parts, n_policies)), np.empty((n_parts, n_policies), dtype=np.int32)
    starts[0][0], starts[1][0] = scale, left
    if n_parts > 1:
        warm_up = length // 2
        first_steps = head + warm_up + length * np.arange(n_parts - 1)
        starts[0][1:], starts[1][1:] = _guess_starts(limits[warm_up:, :-1], first_steps, policies, rules)
    ends = np.empty_like(starts[0]), np.empty_like(starts[1])
    part, policy = np.divmod(np.arange(n_parts * n_policies), n_policies)
    passes = 0
    while len(part):
        scale, left = starts[0][part, policy], starts[1][part, policy]
        seen = watch.parts(part, policy)
        sums[:, part, policy] = _advance(limits, part, rules.of(policy), scale, left, seen)
        ends[0][part, policy], ends[1][part, policy] = scale, left
        # At its ceiling a scale forgets its streak, whatever that was, before it can matter.
        other = (starts[0][1:] != ends[0][:-1]) | ((starts[1][1:] != ends[1][:-1]) & rules.may_grow(ends[0][:-1]))
        part, policy = np.nonzero(other)
        passes += 1
        if passes > _HOPEFUL_PASSES:  # they do not meet, so behind a policy's first wrong part all would be wrong again
            _, firsts = np.unique(policy, return_index=True)
            part, policy = part[firsts], policy[firsts]
        starts[0][part + 1, policy], starts[1][part + 1, policy] = ends[0][part, policy], ends[1][part, policy]
        part += 1
    overflows, log2_sum, floor_steps = sums.sum(axis=1) + in_head
    return np.stack([overflows, ends[0][-1], log2_sum, floor_steps]), scale_at


def _number_of_parts(n_steps: int, n_policies: int, longest_window: int) -> int:
    # Trajectories meet after some windows, so the parts must be many windows long.
    shortest = max(_SHORTEST_PART, 20 * longest_window)
    return max(1, min(_LANES // n_policies, n_steps // shortest))


def _guess_starts(
    limits: NDArray[np.float64], first_steps: NDArray[np.int64], policies: Sequence[ScalePolicy], rules: _Rules
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """March through the ends of all parts, from scales that fit them, and return the states after it.

    Args:
        limits: Thresholds of the last steps of each part, shape ``[n_rows, n_parts]``.
        first_steps: Step of the first row in each part, shape ``[n_parts]``.
        policies: The policies.
        rules: The same as arrays.

    Returns:
        Scales and steps until growth, both of shape ``[n_parts, n_policies]``.
    """
    n_parts, n_policies = limits.shape[1], len(policies)
    typical = np.median(limits[:_ROWS_PER_BLOCK], axis=0)
    fitting = np.empty((n_parts, n_policies))
    for index, rule in enumerate(policies):
        ladder = _ladder(rule)
        rung = np.maximum(np.searchsorted(ladder, typical, side="right") - 1, 0)
        if rule.window == 1 and len(ladder) > 1:
            # Up or down at every step: on even steps only every other rung is possible, and the others never meet it.
            wrong = (rung - np.searchsorted(ladder, rule.init) - first_steps) % 2 == 1
            rung = np.where(wrong, np.abs(rung - 1), rung)
        fitting[:, index] = ladder[rung]
    part, policy = np.divmod(np.arange(n_parts * n_policies), n_policies)
    scale, lanes = fitting.ravel(), rules.of(policy)
    left = lanes.window.copy()
    _advance(limits, part, lanes, scale, left, None)
    return scale.reshape(n_parts, n_policies), left.reshape(n_parts, n_policies)


def _ladder(policy: ScalePolicy, rungs: int = 150) -> NDArray[np.float64]:
    """Return scales that the policy can reach from its initial one, ascending; only the nearest if there are many.

    They are made by the rule itself: two trajectories meet only where their scales agree to the last bit.
    """
    down, up = [policy.init], [policy.init]
    for _ in range(rungs):
        down.append(next_scale(ScaleState(down[-1]), True, policy).scale)
        up.append(next_scale(ScaleState(up[-1], policy.window - 1), False, policy).scale)
    return np.unique(down + up)


@dataclass(slots=True)
class _Seen:
    """Where `_advance` looks for scales, and where it puts them.

    Args:
        rows: Rows of interest, ascending, shape ``[n]``.
        parts: Part of the run of each.
        columns: Column of ``out`` of each.
        lane: Lane of a policy in a part, -1 for none, shape ``[n_parts, n_policies]``.
        out: Receives the scales, shape ``[n_policies, n_at]``.
    """

    rows: NDArray[np.int64]
    parts: NDArray[np.int64]
    columns: NDArray[np.intp]
    lane: NDArray[np.intp]
    out: NDArray[np.float64]

    def look(self, used: NDArray[np.float64], first_row: int) -> None:
        low, high = np.searchsorted(self.rows, [first_row, first_row + len(used)])
        if low == high:
            return
        lane = self.lane[self.parts[low:high]]
        which, policy = np.nonzero(lane >= 0)
        rows, columns = self.rows[low:high] - first_row, self.columns[low:high]
        self.out[policy, columns[which]] = used[rows[which], lane[which, policy]]


class _Watch:
    """Steps whose scales are wanted, sorted into the head of the run and its parts."""

    def __init__(self, at: NDArray[np.int64], out: NDArray[np.float64], head: int, length: int, n_parts: int) -> None:
        self._at, self._out, self._head, self._length, self._n_parts = at, out, head, length, n_parts

    def head(self) -> _Seen | None:
        columns = np.flatnonzero(self._at < self._head)
        return self._seen(columns, self._at[columns], np.zeros_like(columns), np.arange(len(self._out))[np.newaxis])

    def parts(self, part: NDArray[np.intp], policy: NDArray[np.intp]) -> _Seen | None:
        columns = np.flatnonzero(self._at >= self._head)
        parts, rows = np.divmod(self._at[columns] - self._head, max(self._length, 1))
        lane = np.full((self._n_parts, len(self._out)), -1)
        lane[part, policy] = np.arange(len(part))
        return self._seen(columns, rows, parts, lane)

    def _seen(
        self, columns: NDArray[np.intp], rows: NDArray[np.int64], parts: NDArray[np.int64], lane: NDArray[np.intp]
    ) -> _Seen | None:
        order = np.argsort(rows, kind="stable")
        return _Seen(rows[order], parts[order], columns[order], lane, self._out) if len(order) else None


def _advance(
    limits: NDArray[np.float64],
    part: NDArray[np.intp],
    rules: _Rules,
    scale: NDArray[np.float64],
    left: NDArray[np.int32],
    seen: _Seen | None,
) -> NDArray[np.float64]:
    """Take all rows of ``limits``, every lane (a policy in a part of the run) beside the others.

    With some hundred lanes a numpy call costs its overhead and no more, so what counts is the number of calls per
    row. (``np.minimum`` and ``np.maximum`` cost five times a comparison with a masked copy; numbers as operands cost
    twice an array of shape ``[1]``.)

    Args:
        limits: Thresholds, shape ``[n_rows, n_parts]``.
        part: Part of each lane, shape ``[n_lanes]``.
        rules: Policy of each lane.
        scale: Scale of each lane; replaced by the one after the last row.
        left: Finite steps until growth of each lane; replaced as well.
        seen: Which scales to keep.

    Returns:
        Overflows, sum of log2 of the scale, steps at the floor, shape ``[3, n_lanes]``.
    """
    factor, window, minimum, maximum = rules.factor, rules.window, rules.minimum, rules.maximum
    lowest_top = min(FLOAT32_MAX, maximum.min())
    zero, one = np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.int32)
    grown, lowered = np.empty_like(scale), np.empty_like(scale)
    due, beyond = np.empty(len(scale), dtype=bool), np.empty(len(scale), dtype=bool)
    sums = np.zeros((3, len(scale)))
    used = np.empty((_ROWS_PER_BLOCK, len(scale)))
    overflowed = np.empty(used.shape, dtype=bool)
    for start in range(0, len(limits), _ROWS_PER_BLOCK):
        block = limits[start : start + _ROWS_PER_BLOCK]
        # A scale grows only from a value that was at most some limit, and falls only from one that was above some
        # limit. So within the block it stays between these, and where they are inside the bounds nobody need ask.
        near_top = max(scale.max(), block.max()) * factor.max() > lowest_top
        near_floor = min(scale.min(), block.min()) / factor.max() <= minimum.max()
        for limit, row, over in zip(block[:, part], used, overflowed, strict=False):
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
        n_rows = len(block)
        sums[0] += overflowed[:n_rows].view(np.uint8).sum(axis=0, dtype=np.uint8)
        sums[1] += _sum_log2(used, n_rows, minimum)
        if near_floor:
            sums[2] += (used[:n_rows] <= minimum).view(np.uint8).sum(axis=0, dtype=np.uint8)
        if seen is not None:
            seen.look(used[:n_rows], start)
    return sums


def _sum_log2(used: NDArray[np.float64], n_rows: int, minimum: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum of log2 over the first rows, shape ``[n_lanes]``; the rest of ``used`` is overwritten."""
    if minimum.min() < 2.0**-100:
        logarithms: NDArray[np.float64] = np.log2(used[:n_rows])
    else:  # a product of eight scales stays in float64, and a logarithm costs as much as ten products
        used[n_rows:] = 1.0
        logarithms = np.log2(used.reshape(-1, 8, used.shape[1]).prod(axis=1))
    summed: NDArray[np.float64] = logarithms.sum(axis=0)
    return summed


def _expected_events(policy: ScalePolicy, n_steps: int) -> float:
    # One growth per window, and one overflow for it in the long run.
    return 2.0 * n_steps / (policy.window + 1)


def _event_budget(policy: ScalePolicy, n_steps: int) -> float:
    return math.inf if policy.kind == "fixed" else 4.0 * _expected_events(policy, n_steps) + 1000.0


def _short_windows(policies: Sequence[ScalePolicy], n_steps: int) -> set[int]:
    """Return the policies that march, such that marching them and walking the others costs least."""
    dynamic = [index for index, policy in enumerate(policies) if policy.kind == "dynamic"]
    by_window = sorted(dynamic, key=lambda index: policies[index].window)
    walking = [_EVENT_COST * _expected_events(policies[index], n_steps) for index in by_window]
    costs = [sum(walking)]
    for count, index in enumerate(by_window, start=1):
        longest = min(policies[index].window, n_steps + 1)
        costs.append(costs[0] - sum(walking[:count]) + _march_cost(n_steps, count, longest))
    return set(by_window[: costs.index(min(costs))])


def _march_cost(n_steps: int, n_policies: int, longest_window: int) -> float:
    n_parts = _number_of_parts(n_steps, n_policies, longest_window)
    times = _TIMES_MARCHED if n_parts > 1 else 1.0
    return times * n_steps / n_parts * (_ROW_COST + _LANE_COST * n_parts * n_policies)
