"""How much faster than O0 are O1 and exported configurations on networks of an accelerator's size?

The shape of ResNet-50 in channels_last and a transformer, both in float16 under a dynamic loss scale; only their speed
is asked about. Each kind of step that a freezing schedule has is timed beside O0's and weighted as the schedule does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from workbench.bench import Benchmark, Finding, Request, interleaved, ratio_of
from workbench.config import BoostConfig
from workbench.tasks import Task
from workbench.training.speed import TimedSide

from .levels import exported_configs
from .nets import RESNET_50, Text

_SCALED = {"amp.level": "O2", "loss_scale.kind": "dynamic"}
_IN_FLOAT16 = BoostConfig().with_values(_SCALED)
_IN_FLOAT32 = BoostConfig().with_values({"amp.level": "O0"})


def measure(request: Request) -> list[Finding]:
    """Measure steps of O1 and of exported configurations as multiples of O0's, on an accelerator."""
    if request.chosen_device().type == "cpu":
        note = "needs an accelerator; has not run on one"
        return [Finding("ResNet-50 shape and transformer: O1 / O0", "x", None, None, note, "absent")]
    return measure_tasks(request, [RESNET_50.task(), Text().task()])


def measure_tasks(request: Request, tasks: Sequence[Task], *, studies: Path = Path("studies")) -> list[Finding]:
    """Measure on whatever device: for every task float32, O1 and what was exported, the fastest first, over O0."""
    exported = exported_configs(studies)
    found: list[Finding] = []
    for task in tasks:
        configs = [(_IN_FLOAT16, "O0"), (_IN_FLOAT32, "O0"), (_IN_FLOAT16, "O1")]
        configs += [(one.config.with_values(_SCALED), one.level) for one in exported]
        device = request.chosen_device()
        sides = [
            TimedSide(task, config, level, device=device, seed=0, at_least=5, before_window=None)
            for config, level in configs
        ]
        base, *others = zip(*interleaved([side.block for side in sides], request.rounds), strict=True)
        plain, o1, *candidates = [ratio_of(times, base) for times in others]
        note = f"{1e3 * float(np.median(base)):.1f} ms per step under O0"
        if torch.backends.cudnn.allow_tf32:
            note += "; convolutions of float32 in TF32, as torch has it"
        found.append(Finding(f"{task.name}: float32 / O0 in float16", "x", plain, note=note))
        found.append(Finding(f"{task.name}: O1 / O0", "x", o1, note=_effect(sides[2])))
        named = sorted(zip(candidates, exported, sides[3:], strict=True), key=lambda one: one[0].value)
        for ratio, one, side in named:
            found.append(Finding(f"{task.name}: exported by {one.study} / O0", "x", ratio, note=_effect(side)))
        if not exported:
            found.append(Finding(f"{task.name}: exported / O0", "x", None, None, "no study has exported any", "absent"))
    return found


def _effect(side: TimedSide) -> str:
    plan = side.boosted.plan
    return "" if plan is None else f"in effect: {plan.summary()}"


BENCHMARK = Benchmark(
    "large_levels",
    "How much faster than O0 are O1 and what the studies have exported, on networks of an accelerator's size?",
    measure,
    rounds=7,
    place=10,
    group="accelerator",
)
