"""Which layers float16 does not hold: read from the exponents of their gradients in a recorded run."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from workbench.loss_scale import ScalePolicy
from workbench.loss_scale.underflow import exponent_table, underflow_share
from workbench.runs import Run
from workbench.runs.replayed_run import ReplayedRun

_LARGEST_EXPONENT = 16  # 2**16 and above is inf in float16
_OFTEN = 0.05  # a dynamic scale overflows now and then, by its rule, and a few tiny elements are in every gradient


def float32_layers(run: Run, policy: ScalePolicy) -> tuple[str, ...]:
    """Return the layers whose gradients leave float16's range at the scale that a policy has in a recorded run.

    A layer does where it overflows in more than 5 % of the recorded steps, or more than 5 % of its gradient, on
    average over them, is below float16's smallest number. Layers are groups of the recording, in its order.

    Raises:
        ValueError: When the run recorded no gradients.
    """
    replayed = ReplayedRun(run)
    scales = replayed.scales(policy)
    histograms: dict[str, list[dict[str, Any]]] = defaultdict(list)
    used: dict[str, list[float]] = defaultdict(list)
    for scale, cells in zip(scales, run.steps["grad_exponents"], strict=True):
        for cell in cells:
            histograms[cell["group"]].append(cell)
            used[cell["group"]].append(float(scale))
    found = []
    for group, rows in histograms.items():
        at = np.log2(used[group])
        highest = np.array([one["lowest"] + len(one["counts"]) - 1 if one["counts"] else -np.inf for one in rows])
        lost = underflow_share(exponent_table(rows), np.array(used[group]))
        underflow = float(np.nanmean(lost)) if np.isfinite(lost).any() else 0.0
        if np.mean(highest + at >= _LARGEST_EXPONENT) > _OFTEN or underflow > _OFTEN:
            found.append(group)
    return tuple(found)
