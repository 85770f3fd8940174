"""Replay a recorded run under other loss-scale policies, without training.

For every recorded window the largest scale that would not have overflowed is estimated from the largest unscaled
gradient: a scaled gradient overflows float16 beyond 65504. The gradients that overflow first may be those of
activations, which are not recorded; how much larger they are than the recorded parameter gradients (the *headroom*) is
calibrated on the run's own overflows. The policies are then simulated exactly (``scaling.replay``).

The assumption is that the trajectory stays the same: a skipped or an additional update changes later gradients a
little, which the prediction ignores. The stated range covers that by repeating the simulation with the thresholds
moved by the calibration error, and reruns confirm it (``tests/experiments/test_replay.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.records import ExponentCounts
from workbench.scaling import ScalePolicy, SimulationResult, exponent_table, simulate, underflow_share
from workbench.telemetry import Run

__all__ = ["ReplayResult", "Thresholds", "estimate_thresholds", "replay"]

_FLOAT16_MAX = 65504.0
_ASSUMPTION = (
    "Assumes the recorded trajectory: weights and batches as recorded, so a skipped or additional update changes no "
    "later gradient."
)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The largest loss scale that does not overflow, window by window.

    Args:
        steps: Micro-batch index at which each window ended, shape ``[n]``.
        scale: Estimated threshold, shape ``[n]`` (dimensionless).
        headroom_log2: Calibrated log2 of how much the overflowing gradients exceed the recorded ones.
        error_log2: Half-width of the calibration in log2.
        misclassified: Share of recorded windows whose overflow the thresholds get wrong.
        calibrated: Whether the run had overflows to calibrate on.
    """

    steps: np.ndarray
    scale: np.ndarray
    headroom_log2: float
    error_log2: float
    misclassified: float
    calibrated: bool


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What each policy would have done.

    Args:
        table: One row per policy: its parameters, ``overflows`` with ``overflows_low`` and ``overflows_high``,
            ``wasted_share`` (skipped / windows), ``underflow_share``, ``final_scale``, ``mean_log2_scale``.
        thresholds: What the prediction rests on.
        recorded_overflows: Overflows of the recorded run itself.
        assumption: The assumption in one sentence.
        windows: Number of windows replayed.
    """

    table: pd.DataFrame
    thresholds: Thresholds
    recorded_overflows: int
    assumption: str
    windows: int


def estimate_thresholds(run: Run) -> Thresholds:
    """Estimate per window the largest scale that does not overflow.

    Args:
        run: A recorded run with ``grad_amax``.

    Raises:
        ValueError: When the run recorded no gradients, or used no loss scale to calibrate with.
    """
    steps = run.steps
    windows = steps[steps["grad_amax"].notna() | steps["overflow"]] if len(steps) else steps
    if not len(windows) or not windows["grad_amax"].notna().any():
        raise ValueError(f"{run.path}: the run recorded no gradient sizes, so there is nothing to replay")
    overflow = windows["overflow"].to_numpy(dtype=bool).copy()
    scale = windows["loss_scale"].to_numpy(dtype=float).copy()
    amax = windows["grad_amax"].to_numpy(dtype=float).copy()
    # What an overflowed gradient would have been is not in the record; the weights did not move, so the next good
    # window's gradient is the best estimate.
    amax[overflow] = np.nan
    amax = pd.Series(amax).bfill().ffill().to_numpy().copy()
    log_threshold = np.log2(_FLOAT16_MAX) - np.log2(np.maximum(amax, 1e-38))
    excess = np.log2(scale) - log_threshold  # > -headroom means overflow
    headroom, error, wrong = _calibrate(excess, overflow)
    noise = float(np.std(np.diff(log_threshold))) if len(log_threshold) > 2 else 0.0
    return Thresholds(
        steps=windows["step"].to_numpy().copy(),
        scale=np.exp2(log_threshold - headroom),
        headroom_log2=headroom,
        error_log2=max(error, min(noise, 1.0)),
        misclassified=wrong,
        calibrated=bool(overflow.any()),
    )


def replay(run: Run, policies: Sequence[ScalePolicy]) -> ReplayResult:
    """Predict what loss-scale policies would have done to a recorded run.

    Args:
        run: The recorded run.
        policies: Policies to judge; hundreds cost seconds.

    Returns:
        One row per policy, with the range that the calibration error gives.

    Raises:
        ValueError: When there is nothing to replay or no policy was given.
    """
    if not policies:
        raise ValueError("`policies` is empty; name at least one loss-scale policy to replay")
    thresholds = estimate_thresholds(run)
    central = simulate(thresholds.scale, policies)
    shift = 2.0**thresholds.error_log2
    many = simulate(thresholds.scale / shift, policies)
    few = simulate(thresholds.scale * shift, policies)
    counts = np.stack([central.overflows, many.overflows, few.overflows])
    table = pd.DataFrame(
        {
            "kind": [p.kind for p in policies],
            "init": [p.init for p in policies],
            "factor": [p.factor for p in policies],
            "window": [p.window for p in policies],
            "minimum": [p.minimum for p in policies],
            "maximum": [math.inf if p.maximum is None else p.maximum for p in policies],
            "overflows": central.overflows,
            "overflows_low": counts.min(axis=0),
            "overflows_high": counts.max(axis=0),
            "wasted_share": central.wasted_share,
            "underflow_share": _underflow(run, thresholds, central),
            "final_scale": central.final_scale,
            "mean_log2_scale": central.mean_log2_scale,
        }
    )
    return ReplayResult(table, thresholds, int(run.steps["overflow"].sum()), _ASSUMPTION, len(thresholds.steps))


def _calibrate(excess: np.ndarray, overflow: np.ndarray) -> tuple[float, float, float]:
    """Find the headroom h (log2) for which ``excess > -h`` best matches the recorded overflows.

    Returns:
        The middle of the best interval, its half-width, and the share of windows it gets wrong.
    """
    if not overflow.any():
        return 0.0, 1.0, 0.0  # only a bound is known: nothing overflowed
    cuts = np.unique(np.concatenate([-excess, -excess + 1e-9]))
    order = np.argsort(excess)
    sorted_excess, sorted_overflow = excess[order], overflow[order]
    total = overflow.sum()
    # For a cut c the windows with excess > c are called overflows.
    index = np.searchsorted(sorted_excess, -cuts, side="right")
    overflows_below = np.concatenate([[0], np.cumsum(sorted_overflow)])[index]
    good_above = (len(excess) - index) - (total - overflows_below)
    wrong = overflows_below + good_above
    best = cuts[wrong == wrong.min()]
    low, high = float(best.min()), float(best.max())
    # The truth lies between the neighbouring observations; half their distance is what calibration cannot know.
    below = -sorted_excess[-sorted_excess < low]
    gap = low - float(below.max()) if len(below) else 0.0
    middle = (low + high) / 2
    return middle, max((high - low) / 2, min(gap, 1.0) / 2), float(wrong.min()) / len(excess)


def _underflow(run: Run, thresholds: Thresholds, simulation: SimulationResult) -> np.ndarray:
    """Return per policy the mean share of gradient elements below float16's smallest number; NaN without histograms."""
    recorded = run.steps[run.steps["grad_exponents"].map(len) > 0]
    rows = np.searchsorted(thresholds.steps, recorded["step"].to_numpy())
    known = rows < len(thresholds.steps)
    histograms = [
        [ExponentCounts(**histogram) for histogram in histograms]
        for histograms, use in zip(recorded["grad_exponents"], known, strict=True)
        if use
    ]
    if not histograms:
        return np.full(len(simulation.policies), math.nan)
    table = exponent_table(histograms)
    scales = []
    for index in range(len(simulation.policies)):
        trace = simulation.trace(index)
        scales.append(trace.scales[np.searchsorted(trace.steps, rows[known], side="right") - 1])
    share: np.ndarray = np.nanmean(underflow_share(table, np.stack(scales)).lost, axis=1)
    return share
