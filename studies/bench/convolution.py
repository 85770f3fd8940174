"""How much faster is a step whose convolutions are computed by their shapes, on a CPU?

ResNet-18's shape, whose late layers have many channels over few positions, and blocks with depthwise convolutions of
5 x 5 places, as EfficientNet has them; made-up images of 32 x 32 in channels_last, in bfloat16 as well where the
processor has instructions for it.
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from workbench.bench import Benchmark, Finding, Request, fair_clock, interleaved, ratio_of
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.training.speed import TimedSide

from .nets import CLASSES, image_task, noise, residual_net

_CPU = torch.device("cpu")
_FORMATS: dict[str, dict[str, str]] = {"float32": {}, "bfloat16": {"level": "O2", "dtype": "bfloat16"}}


class Inverted(nn.Module):
    """An inverted residual block: wide, a depthwise convolution, narrow (Sandler et al., arXiv:1801.04381)."""

    def __init__(self, wide_in: int, out: int, stride: int) -> None:
        super().__init__()
        hidden = 4 * wide_in
        self.is_residual = stride == 1
        self.layers = nn.Sequential(
            *(nn.Conv2d(wide_in, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.ReLU()),
            *(nn.Conv2d(hidden, hidden, 5, stride, 2, groups=hidden, bias=False), nn.BatchNorm2d(hidden), nn.ReLU()),
            *(nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return images, of half the height and width where the stride is 2."""
        output: Tensor = self.layers(x)
        return x + output if self.is_residual else output


def depthwise_net(widths: tuple[int, ...]) -> nn.Sequential:
    """Return a network for colour images with two blocks for each of these numbers of channels but the first."""
    blocks = [
        block for before, wide in pairwise(widths) for block in (Inverted(before, wide, 2), Inverted(wide, wide, 1))
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)]
    return nn.Sequential(nn.Conv2d(3, widths[0], 3, padding=1), nn.ReLU(), *blocks, *head)


def measure(
    request: Request,
    *,
    widths: tuple[int, ...] = (64, 128, 256, 512),
    n_blocks: int = 2,
    depthwise: tuple[int, ...] = (16, 24, 40, 80),
    batch: int = 32,
    side: int = 32,
) -> list[Finding]:
    """Measure steps with convolutions by shape as multiples of those with the library's, by network and format."""
    images = noise((batch, 3, side, side), _CPU, 4)
    networks = {
        "residual": functools.partial(residual_net, widths, n_blocks),
        "depthwise": functools.partial(depthwise_net, depthwise),
    }
    names = [name for name in _FORMATS if name == "float32" or devices.has_fast_bfloat16(_CPU)]
    findings = []
    for threads in request.each_thread_count():
        for network, make in networks.items():
            sides = []
            for name in names:
                for convolution in ("library", "by_shape"):
                    runtime = {"memory_format": "channels_last", "convolution": convolution}
                    values: dict[str, Any] = {"boost.mode": "disable_all", "runtime": runtime, "amp": _FORMATS[name]}
                    config = BoostConfig().with_values(values)
                    made = TimedSide(
                        image_task(make, images), config, "O0", device=_CPU, seed=0, at_least=2, before_window=None
                    )
                    made.clock = fair_clock(_CPU)
                    sides.append(made.block)
            times = list(zip(*interleaved(sides, request.rounds), strict=True))
            for name, library, by_shape in zip(names, times[::2], times[1::2], strict=True):
                note = (
                    f"{batch} images of {side} x {side}; by shape {ratio_of(by_shape, times[0]).value:.2f} of float32's"
                )
                what = f"convolution, {network} in {name}, {threads}: by shape / library"
                findings.append(Finding(what, "x", ratio_of(by_shape, library), note=note))
    return findings


BENCHMARK = Benchmark(
    "convolution", "How much faster is a step whose convolutions are computed by their shapes?", measure, rounds=9
)
