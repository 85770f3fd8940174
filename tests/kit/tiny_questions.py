"""The questions of the bench that measure on any device, by name, at sizes too small to mean anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from workbench.bench import Finding, Request
from workbench.bench.questions import (
    accumulation,
    convolution,
    dim_reduce,
    freeze,
    less_bn,
    levels,
    loss_scale,
    online,
    pca,
    thor,
    trace,
)

__all__ = ["LEVELS", "MEASURES", "NET"]

NET = loss_scale.Perceptron(1, 8, 4, 1e9)
LEVELS: dict[str, Any] = {"widths": (4,), "n_blocks": 1, "batch": 2, "side": 8, "steps": 1}
FREEZE: dict[str, Any] = {
    "widths": (4,),
    "n_blocks": 2,
    "batch": 2,
    "side": 4,
    "groups": 2,
    "steps": 3,
    "types": (1, 0),
}

MEASURES: dict[str, Callable[[Request], Sequence[Finding]]] = {
    "levels": partial(levels.measure, **LEVELS, studies=Path("none")),
    "freeze": partial(freeze.measure, **FREEZE, shares=(0.5,)),
    "less_bn": partial(less_bn.measure, nets={"small": ((4, 8), 1, 4, 8)}),
    "convolution": partial(convolution.measure, widths=(4,), n_blocks=1, depthwise=(2, 4), batch=2, side=8),
    "accumulation": partial(accumulation.measure, width=8, depth=1, micro_batches=3, batch=2),
    "trace": partial(trace.measure, task="digits-lenet", steps=2),
    "scaled tail": partial(loss_scale.measure_tail, sizes=((64, 4),), goals=(1e9,)),
    "scaled step": partial(loss_scale.measure_scaled_step, nets=(NET,)),
    "group scales": partial(loss_scale.measure_group_scale, sizes=((64, 4),), groups=2),
    "pca": partial(pca.measure, snapshots=6, weights=3000, components=3),
    "dim_reduce": partial(dim_reduce.measure, widths=(8, 16, 4), components=3, batches=(4,)),
    "thor": partial(thor.measure, image=8, images=2, width=16, rows=4, frequencies=(2,)),
    "online": partial(online.measure, rows=200, dim=4, records=4, ids=3),
}
