"""Replay a recorded run under other loss-scale policies, without training.

For every recorded window the largest scale that would not have overflowed is estimated: 65504 / (largest unscaled
gradient computed in float16, ``amp.float16_grad_amax``). The gradients of activations, which may overflow first, are
not recorded; how much larger they are (the *headroom*) is calibrated on the run's own overflows. Observations overrule
estimates: a window that overflowed has a threshold below the scale it used, one that did not has a threshold at least
as large. The policies are then simulated exactly (``loss_scale.simulate``).

The assumption is that a skipped or an additional update changes later gradients little. The stated range covers what it
changes: all thresholds are moved by the error either way, and, for short runs, each on its own at random by as much as
neighbouring windows differ, and once bursts are left out. A policy that skips many updates holds its trajectory up:
after k updates it is where the recording was after k, so it is simulated once more on that slower trajectory. Reruns of
``topics-gpt``, five policies predicted from five recordings each, confirm the range; ``studies/loss_scale_windows`` has
dozens more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from workbench.loss_scale import (
    ExponentTable,
    ScalePolicy,
    ScaleState,
    SimulationResult,
    exponent_table,
    next_scale,
    simulate,
    underflow_share,
)
from workbench.runs import Run

Floats: TypeAlias = NDArray[np.float64]

_FLOAT16_MAX = 65504.0
_FLOAT16_AMAX = "amp.float16_grad_amax"
REPLAY_COLUMNS = ("step", "loss_scale", "overflow", "grad_amax", _FLOAT16_AMAX, "grad_exponents")
"""Columns of a run's steps that a replay looks at."""

_SLACK = 0.05  # share of the predicted overflows, at least one, by which the range is wider than repetitions say
# Random repetitions for the range of a short run, whose few overflows scatter; in a long one they average out.
_REPETITIONS, _LONG_RUN = 12, 100_000
_SLOWER_REPETITIONS, _MOST_HELD_UP = 3, 300_000  # policies times windows, a second of work
_TABLE_CELLS = 1_000_000  # policies times steps for which the underflow is computed at once
_MANY_SKIPPED = 0.1  # of all windows; below, what is held up is within what neighbouring windows differ
_ROUNDED = 1e-5  # relative: a hundred changes of a scale in float32, and far less than any factor
_BURST = 11  # windows of a running median, which removes bursts of up to five
_ASSUMPTION = (
    "Assumes the recorded trajectory: weights and batches as recorded, so a skipped or additional update changes no "
    "later gradient (the range allows for it). Values that underflowed at the recorded scale cannot be seen, so record "
    "at a large one."
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The largest loss scale that does not overflow, window by window ``[n]``."""

    steps: NDArray[np.int64]  # micro-batch index at which each window ended
    scale: Floats  # estimated threshold
    headroom_log2: float  # calibrated log2 of how much the overflowing gradients exceed the recorded ones
    error_log2: float  # how far the thresholds may lie off as a whole: what calibration leaves open
    noise_log2: float  # how far each may lie off on its own: the usual difference between neighbouring windows
    misclassified: float  # share of recorded windows whose overflow the thresholds get wrong
    calibrated: bool  # whether the run had overflows to calibrate on
    overflowed: NDArray[np.bool_]  # whether each recorded window overflowed


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What each policy would have done."""

    # One row per policy: its parameters, ``overflows`` with ``overflows_low`` and ``overflows_high``, ``wasted_share``
    # (skipped / windows), ``underflow_share``, ``final_scale``, ``mean_log2_scale``.
    table: pd.DataFrame
    thresholds: Thresholds  # what the prediction rests on
    recorded_overflows: int  # of the recorded run itself
    assumption: str  # in one sentence
    windows: int  # how many were replayed


def estimate_thresholds(run: Run) -> Thresholds:
    """Estimate per window the largest scale that does not overflow; a ValueError when the run recorded too little."""
    steps = run.steps
    windows = steps[steps["grad_amax"].notna() | steps["overflow"]] if len(steps) else steps
    if not len(windows) or not np.isfinite(windows["grad_amax"]).any():
        raise ValueError(f"{run.path}: the run recorded no gradient sizes, so there is nothing to replay")
    overflow = windows["overflow"].to_numpy(dtype=bool).copy()
    scale = windows["loss_scale"].to_numpy(dtype=float).copy()
    if (scale <= 0).any():
        raise ValueError(f"{run.path}: `loss_scale` must be greater than 0, so the run cannot be replayed")
    known = _FLOAT16_AMAX in windows and windows[_FLOAT16_AMAX].notna().any()
    amax = windows[_FLOAT16_AMAX if known else "grad_amax"].to_numpy(dtype=float).copy()
    # What an overflowed gradient would have been is not in the record; the weights did not move, so the next good
    # window's gradient is the best estimate.
    amax[overflow | np.isinf(amax)] = np.nan
    amax = pd.Series(amax).bfill().ffill().to_numpy()
    log_threshold = np.log2(_FLOAT16_MAX) - np.log2(np.maximum(amax, 1e-38))
    clean = log_threshold[~overflow]
    headroom, error, wrong = _calibrate(np.log2(scale) - log_threshold, overflow)
    # Observations overrule the estimate, by more than what rounding does to a scale whose factor is no power of two.
    estimate = np.exp2(log_threshold - headroom)
    below, above = scale * (1 - _ROUNDED), scale * (1 + _ROUNDED)
    estimate = np.where(overflow, np.minimum(estimate, below), np.maximum(estimate, above))
    return Thresholds(
        steps=windows["step"].to_numpy().copy(),
        scale=estimate,
        headroom_log2=headroom,
        error_log2=error,
        noise_log2=float(np.median(np.abs(np.diff(clean)))) if len(clean) > 2 else 0.0,  # whatever a few windows do
        misclassified=wrong,
        calibrated=bool(overflow.any()),
        overflowed=overflow,
    )


def replay(run: Run, policies: Sequence[ScalePolicy], *, thresholds: Thresholds | None = None) -> ReplayResult:
    """Predict what loss-scale policies would have done to a recorded run; hundreds take seconds.

    ``thresholds`` are those of ``estimate_thresholds``, if they are known.
    """
    if not policies:
        raise ValueError("`policies` is empty; name at least one loss-scale policy to replay")
    thresholds = estimate_thresholds(run) if thresholds is None else thresholds
    at, exponents = recorded_exponents(run, thresholds)
    central = simulate(thresholds.scale, policies, at=at)
    counts = _plausible_counts(thresholds, policies, central)
    # Each overflow shifts when the next may come, which no repetition on the recorded trajectory shows.
    slack = np.ceil(_SLACK * central.overflows).astype(np.int64)
    table = pd.DataFrame(
        {
            **policy_columns(policies),
            "minimum": [p.minimum for p in policies],
            "maximum": [math.inf if p.maximum is None else p.maximum for p in policies],
            "overflows": central.overflows,
            "overflows_low": np.maximum(counts.min(axis=0) - slack, 0),
            "overflows_high": np.minimum(counts.max(axis=0) + slack, len(thresholds.steps)),
            "wasted_share": central.wasted_share,
            "underflow_share": mean_underflow(exponents, central.scale_at),
            "final_scale": central.final_scale,
            "mean_log2_scale": central.mean_log2_scale,
        }
    )
    return ReplayResult(table, thresholds, int(run.steps["overflow"].sum()), _ASSUMPTION, len(thresholds.steps))


def policy_columns(policies: Sequence[ScalePolicy]) -> dict[str, list[Any]]:
    """Return the columns that identify policies in a table."""
    return {name: [getattr(policy, name) for policy in policies] for name in ("kind", "init", "factor", "window")}


def _plausible_counts(
    thresholds: Thresholds, policies: Sequence[ScalePolicy], central: SimulationResult
) -> NDArray[np.int64]:
    """Return overflows under thresholds as uncertain as ours, shape ``[repetitions, n_policies]``."""
    shift, scale = 2.0**thresholds.error_log2, thresholds.scale
    n = len(scale)
    rng = np.random.default_rng(0)  # the same run gives the same range
    # One factor at a time: side by side some scale would move on nearly every step, and none could be passed over.
    with np.errstate(over="ignore"):  # those of a damaged run may be huge, or infinite
        varied = [scale * factor for factor in ((1 / shift, shift) if shift != 1.0 else ())]
        if n <= _LONG_RUN:
            varied += [scale * np.exp2(thresholds.noise_log2 * rng.standard_normal(n)) for _ in range(_REPETITIONS)]
            # A burst of large gradients belongs to one trajectory; another may not meet it.
            known = pd.Series(scale)
            calm = known.rolling(_BURST, center=True, min_periods=1).median()  # NaN where all of them are infinite
            varied.append(calm.fillna(known).to_numpy())
    repeated = [simulate(one, policies).overflows for one in varied]
    counts = np.stack([central.overflows, *repeated])
    many = np.flatnonzero(central.wasted_share > _MANY_SKIPPED)
    if not 0 < n * len(many) <= _MOST_HELD_UP:
        return counts
    slower = np.tile(central.overflows, (_SLOWER_REPETITIONS, 1))
    for row in slower:
        noise = thresholds.noise_log2 * rng.standard_normal(n)
        row[many] = _held_up(thresholds, [policies[int(index)] for index in many], np.exp2(noise))
    return np.concatenate([counts, slower])


def _held_up(thresholds: Thresholds, policies: Sequence[ScalePolicy], noise: Floats) -> NDArray[np.int64]:
    """Return the overflows of policies whose trajectory waits while they skip; noise multiplies thresholds ``[n]``."""
    # After k updates the recording stood at the window that made its update k + 1.
    at_update = np.flatnonzero(~thresholds.overflowed)
    limits = thresholds.scale[at_update if len(at_update) else [0]].tolist()
    return np.array([_count(policy, limits, noise.tolist()) for policy in policies], dtype=np.int64)


def _count(policy: ScalePolicy, limits: Sequence[float], noise: Sequence[float]) -> int:
    """Count the overflows of a policy in plain numbers, for which a step costs less than a call of numpy.

    Limits are those of each update, noise, by which they are multiplied, that of each window; one that overflows leaves
    the next one at the same update.
    """
    scale, streak, overflows, updates, last = policy.init, 0, 0, 0, len(limits) - 1
    for factor in noise:
        overflowed = scale > limits[min(updates, last)] * factor
        overflows += overflowed
        updates += not overflowed
        streak += 1
        if policy.kind == "dynamic" and (overflowed or streak >= policy.window):
            scale, streak = next_scale(ScaleState(scale, streak - 1), overflowed, policy).scale, 0
    return overflows


def _calibrate(excess: Floats, overflow: NDArray[np.bool_]) -> tuple[float, float, float]:
    """Find the headroom h (log2) for which ``excess > -h`` best matches the overflows, its error, and what it misses.

    The error is its distance to others that match as well, at most 1; what it misses is a share of the windows.
    """
    if not overflow.any():  # only a bound is known: at these scales nothing overflowed
        return min(0.0, -float(excess.max())), 1.0, 0.0
    order = np.argsort(-excess, kind="stable")
    # Headrooms in (edges[k], edges[k + 1]] call the first k windows of this order overflows.
    edges = np.concatenate([[-np.inf], -excess[order], [np.inf]])
    overflowed = np.concatenate([[0], np.cumsum(overflow[order])])
    k = np.arange(len(excess) + 1)
    wrong = np.where(edges[:-1] < edges[1:], k - 2 * overflowed + overflowed[-1], len(excess) + 1)
    best = np.flatnonzero(wrong == wrong.min())
    low, high = float(edges[best[0]]), float(edges[best[-1] + 1])
    headroom = min(max(0.0, np.nextafter(low, np.inf)), high)
    return headroom, min(max(high - headroom, headroom - low), 1.0), float(wrong.min()) / len(excess)


def recorded_exponents(
    run: Run, thresholds: Thresholds, most: int | None = None
) -> tuple[NDArray[np.int64], ExponentTable]:
    """Return the windows that have histograms, as positions in the thresholds, and one histogram row for each.

    Groups are added up; more than ``most`` windows are thinned evenly.
    """
    filled = np.flatnonzero(run.steps["grad_exponents"].map(len).to_numpy() > 0)
    if most is not None and filled.size > most:
        filled = filled[np.linspace(0, filled.size - 1, most).astype(np.int64)]
    at = np.searchsorted(thresholds.steps, run.steps["step"].to_numpy()[filled])
    known = at < len(thresholds.steps)
    cells = run.steps["grad_exponents"].iloc[filled[known]]
    return at[known], exponent_table(cells.tolist())


def mean_underflow(exponents: ExponentTable, scales: Floats) -> Floats:
    """Return per policy the mean share of gradient elements below float16's smallest number, shape ``[n_policies]``.

    ``scales`` are those of each policy at the windows of the table, ``[n_policies, n_at]``; windows whose gradients are
    all zero do not count.
    """
    total, counted = np.zeros(len(scales)), 0
    at_once = max(1, _TABLE_CELLS // max(1, len(scales)))  # a long run has millions of cells
    for begin in range(0, len(exponents.counts), at_once):
        some = slice(begin, begin + at_once)
        lost = underflow_share(ExponentTable(exponents.lowest, exponents.counts[some]), scales[:, some])
        total += np.nansum(lost, axis=1)
        counted += int((~np.isnan(lost[:1])).sum())
    return total / counted if counted else np.full(len(scales), math.nan)
