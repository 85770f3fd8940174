"""Does LessBN cost what a network without those BatchNorms costs?

The base is the network as someone would write it who leaves these BatchNorms out by hand: its blocks have no line for
them. Beside them: no BatchNorm at all, which nothing can be faster than, and all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import (
    Side,
    Sides,
    contest,
    require_same,
)
from workbench.bench.rounds import fair_clock
from workbench.config import BoostConfig
from workbench.training import Boosted, apply

from .image_nets import (
    Batch,
    copies,
    image_batches,
    residual_net,
    sgd,
    train_once,
)

__all__ = ["NETS", "measure_less_bn"]

GOAL = 1.02
_GUARDED_STEPS = 3

NETS = {
    "ResNet-20 b32": ((16, 32, 64), 3, 32, 32),
    "wide b16": ((64, 128, 256), 1, 16, 32),
}
"""By name: channels per stage, blocks per stage, images per step, height and width in pixels."""


def measure_less_bn(
    request: Request, *, nets: Mapping[str, tuple[tuple[int, ...], int, int, int]] | None = None
) -> list[Finding]:
    """Measure a step with LessBN as a multiple of the same network edited by hand.

    Args:
        request: Rounds, peers, device, threads.
        nets: Networks, see ``NETS``, which None means.

    Returns:
        For every network ours, the limit without any BatchNorm and the network as it was, over the edited one.
    """
    device = request.chosen_device()
    findings: list[Finding] = []
    for threads in request.each_thread_count():
        for name, (widths, n_blocks, batch, side) in (NETS if nets is None else nets).items():
            nets_of = _Nets.made(widths, n_blocks, image_batches(batch, side, device), device)
            findings += contest(
                f"LessBN {name}, {threads}",
                nets_of.sides,
                named="edited by hand",
                rounds=request.rounds,
                repeats=1,
                device=device,
                goal=GOAL,
                guard=nets_of.compare,
                note=nets_of.norms(),
                clock=fair_clock(device),
                counted=True,
            )
    return findings


@dataclass(frozen=True, slots=True)
class _Nets:
    """The network as it was, as it is edited, and without any BatchNorm; equal weights, and their batches."""

    whole: nn.Module
    edited: nn.Module
    bare: nn.Module
    batches: list[Batch]

    @classmethod
    def made(cls, widths: tuple[int, ...], n_blocks: int, batches: list[Batch], device: torch.device) -> _Nets:
        torch.manual_seed(0)
        whole = residual_net(widths, n_blocks).to(device)
        edited, bare = (_Edited(widths, n_blocks, last).to(device) for last in (True, False))
        for net in (edited, bare):
            net.load_state_dict({key: whole.state_dict()[key] for key in net.state_dict()})
        return cls(whole, edited, bare, batches)

    def sides(self) -> Sides:
        whole, edited, bare = (
            _plain_step(copies(net, 1)[0], self.batches) for net in (self.whole, self.edited, self.bare)
        )
        ours = _boosted_step(_boosted(self.whole), self.batches)
        return Sides(ours, edited, peers={"no BatchNorm": bare, "all BatchNorms": whole})

    def norms(self) -> str:
        """Say how many BatchNorms stay."""
        return f"{_norms(_boosted(self.whole).model)} of {_norms(self.whole)} BatchNorms stay"

    def compare(self) -> None:
        """See that ours computes what the edited network does, before and after a few steps."""
        boosted = _boosted(self.whole)
        (twin,) = copies(self.edited, 1)
        sides: list[Callable[[], object]] = [_boosted_step(boosted, self.batches), _plain_step(twin, self.batches)]
        for _ in range(_GUARDED_STEPS):
            images, _ = self.batches[0]
            with torch.no_grad():
                outputs = [[("output", net(images))] for net in (boosted.model, twin)]
            require_same(*outputs, rtol=1e-4, atol=1e-5)
            for side in sides:
                side()
        require_same(boosted.model.named_parameters(), twin.named_parameters(), rtol=1e-4, atol=1e-5)


def _norms(model: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


class _EditedBlock(nn.Module):
    def __init__(self, n_in: int, n_out: int, stride: int, last_norm: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out) if last_norm else None
        self.downsample = None
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(nn.Conv2d(n_in, n_out, kernel_size=1, stride=stride, bias=False))

    def forward(self, features: Tensor) -> Tensor:
        main: Tensor = self.conv2(F.relu(self.conv1(features)))
        if self.bn2 is not None:
            main = self.bn2(main)
        return F.relu(main + (features if self.downsample is None else self.downsample(features)))


class _Edited(nn.Module):
    """The residual network without the BatchNorms inside of its blocks and shortcuts, or without any."""

    def __init__(self, widths: Sequence[int], n_blocks: int, norms: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, widths[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0]) if norms else None
        stages, n_in = [], widths[0]
        for index, width in enumerate(widths):
            blocks = []
            for block in range(n_blocks):
                blocks.append(_EditedBlock(n_in, width, 2 if index > 0 and block == 0 else 1, norms))
                n_in = width
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(n_in, 10)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.conv1(images)
        if self.bn1 is not None:
            features = self.bn1(features)
        features = self.layers(F.relu(features))
        return self.fc(features.mean(dim=(2, 3)))  # type: ignore[no-any-return]  # nn.Module calls are Any


def _boosted(model: nn.Module) -> Boosted:
    config = BoostConfig.from_dict(
        {
            "boost": {"mode": "manual", "less_bn": True, "grad_freeze": False},
            "less_bn": {"fn_flag": False, "gc_flag": False},
            "amp": {"level": "O0"},
        }
    )
    (model,) = copies(model, 1)
    return apply(config, model, sgd(model.parameters()), level="O1")


def _boosted_step(boosted: Boosted, batches: list[Batch]) -> Side:
    stream = cycle(batches)

    def step() -> None:
        images, classes = next(stream)
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(images), classes)
        boosted.backward(loss)
        boosted.step()

    return step


def _plain_step(model: nn.Module, batches: list[Batch]) -> Side:
    optimizer, stream = sgd(model.parameters()), cycle(batches)
    return lambda: train_once(model, optimizer, next(stream))


BENCHMARK = Benchmark(
    "less_bn",
    "Does LessBN cost what a network without those BatchNorms costs?",
    measure_less_bn,
    rounds=15,
    quick=False,
    place=3,
)
