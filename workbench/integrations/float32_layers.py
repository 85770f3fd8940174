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
    seen: dict[str, list[tuple[float, dict[str, Any]]]] = defaultdict(list)  # scales and histograms, by layer
    for scale, cells in zip(ReplayedRun(run).scales(policy), run.steps["grad_exponents"], strict=True):
        for cell in cells:
            seen[cell["group"]].append((float(scale), cell))
    found = []
    for group, pairs in seen.items():
        scales, rows = np.array([scale for scale, _ in pairs]), [cell for _, cell in pairs]
        highest = np.array([one["lowest"] + len(one["counts"]) - 1 if one["counts"] else -np.inf for one in rows])
        lost = underflow_share(exponent_table(rows), scales)
        underflow = float(np.nanmean(lost)) if np.isfinite(lost).any() else 0.0
        if np.mean(highest + np.log2(scales) >= _LARGEST_EXPONENT) > _OFTEN or underflow > _OFTEN:
            found.append(group)
    return tuple(found)
