"""How much faster is a step where late convolutions are products of matrices, on a CPU?

ResNet-18's shape on made-up images of 32 x 32, as CIFAR-10 has them, in channels_last; in bfloat16 where the processor
has instructions for it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from workbench.bench import Benchmark, Finding, Request, fair_clock, interleaved, ratio_of
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.training.speed import TimedSide

from .nets import image_task, noise, residual_net

_CPU = torch.device("cpu")


def measure(
    request: Request,
    *,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    n_blocks: int = 2,
    batch: int = 32,
    side: int = 32,
) -> list[Finding]:
    """Measure steps with products as multiples of those with the library's convolutions, by format."""
    task = image_task(functools.partial(residual_net, widths, n_blocks), noise((batch, 3, side, side), _CPU, 4))
    formats = {"float32": {}} | (
        {"bfloat16": {"level": "O2", "dtype": "bfloat16"}} if devices.has_fast_bfloat16(_CPU) else {}
    )
    findings = []
    for threads in request.each_thread_count():
        for name, amp in formats.items():
            sides = []
            for convolution in ("library", "matmul"):
                runtime = {"memory_format": "channels_last", "convolution": convolution}
                values: dict[str, Any] = {"boost.mode": "disable_all", "runtime": runtime, "amp": amp}
                made = TimedSide(
                    task, BoostConfig().with_values(values), "O0", device=_CPU, seed=0, at_least=2, before_window=None
                )
                made.clock = fair_clock(_CPU)
                sides.append(made.block)
            library, products = zip(*interleaved(sides, request.rounds), strict=True)
            note = f"{batch} images of {side} x {side}"
            what = f"convolution in {name}, {threads}: products / library"
            findings.append(Finding(what, "x", ratio_of(products, library), note=note))
    return findings


BENCHMARK = Benchmark(
    "convolution", "How much faster is a step with late convolutions as products of matrices?", measure, rounds=9
)
