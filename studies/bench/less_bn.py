"""Does LessBN cost what a network without those BatchNorms costs?

The base is the network as someone would write it who leaves these BatchNorms out by hand: its blocks have no line for
them. Beside them: no BatchNorm at all, which nothing can be faster than, and all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench import Benchmark, Finding, Request, Sides, contest, fair_clock, require_equal
from workbench.config import BoostConfig
from workbench.training import Boosted, apply

from .nets import Batch, boosted_step, noise, plain_step, residual_net, sgd, twin, weights_of
from .operations import compared_operations, operations_of

Shape = tuple[tuple[int, ...], int, int, int]
"""Channels per stage, blocks per stage, images per step, height and width in pixels."""

_GOAL = 1.02
NETS: Mapping[str, Shape] = MappingProxyType(
    {"ResNet-20 b32": ((16, 32, 64), 3, 32, 32), "wide b16": ((64, 128, 256), 1, 16, 32)}
)


def measure(request: Request, *, nets: Mapping[str, Shape] = NETS) -> list[Finding]:
    """Measure a step with LessBN as a multiple of the same network edited by hand."""
    device = request.chosen_device()
    findings: list[Finding] = []
    for threads in request.each_thread_count():
        for name, (widths, n_blocks, batch, side) in nets.items():
            contestants = _Nets(widths, n_blocks, noise((batch, 3, side, side), device, 4), device)
            what = f"LessBN {name}, {threads}"
            findings += contest(
                what,
                contestants.sides,
                request,
                named="edited by hand",
                repeats=1,
                goal=_GOAL,
                guard=contestants.compare,
                note=contestants.norms(),
                clock=fair_clock(device),
            )
            if findings[-1].verdict != "differs":
                sides = contestants.sides()
                ours, base = operations_of(sides.ours).total(), operations_of(sides.base).total()
                title = f"{what}, operations of torch: ours / edited by hand"
                findings.append(compared_operations(title, ours, base))
    return findings


class _Nets:
    """The network as it was, as it is edited, and without any BatchNorm; equal weights, and their batches."""

    def __init__(self, widths: tuple[int, ...], n_blocks: int, batches: list[Batch], device: torch.device) -> None:
        torch.manual_seed(0)
        self.whole = residual_net(widths, n_blocks).to(device)
        self.edited, self.bare = (_Edited(widths, n_blocks, norms).to(device) for norms in (True, False))
        for net in (self.edited, self.bare):
            net.load_state_dict({key: self.whole.state_dict()[key] for key in net.state_dict()})
        self.batches = batches

    def sides(self) -> Sides:
        whole, edited, bare = (self._plain_step(twin(net)) for net in (self.whole, self.edited, self.bare))
        ours = boosted_step(_boosted(self.whole), self.batches)
        return Sides(ours, edited, peers={"no BatchNorm": bare, "all BatchNorms": whole})

    def norms(self) -> str:
        """Say how many BatchNorms stay."""
        return f"{_norms(_boosted(self.whole).model)} of {_norms(self.whole)} BatchNorms stay"

    def compare(self) -> None:
        """Check that ours computes what the edited network does, before and after a few steps."""
        boosted, edited = _boosted(self.whole), twin(self.edited)
        sides = [boosted_step(boosted, self.batches), self._plain_step(edited)]
        for _ in range(3):
            images, _ = self.batches[0]
            with torch.no_grad():
                require_equal(boosted.model(images), edited(images), "output", rtol=1e-4, atol=1e-5)
            for side in sides:
                side()
        require_equal(weights_of(boosted.model), weights_of(edited), "weights", rtol=1e-4, atol=1e-5)

    def _plain_step(self, net: nn.Module) -> Callable[[], None]:
        return plain_step(net, self.batches, sgd(net.parameters()))


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
        return self.fc(features.mean(dim=(2, 3)))


def _boosted(model: nn.Module) -> Boosted:
    config = BoostConfig.from_dict(
        {
            "boost": {"mode": "manual", "less_bn": True, "grad_freeze": False},
            "less_bn": {"fn_flag": False, "gc_flag": False},
            "amp": {"level": "O0"},
        }
    )
    model = twin(model)
    return apply(config, model, sgd(model.parameters()), level="O1")


BENCHMARK = Benchmark(
    "less_bn",
    "Does LessBN cost what a network without those BatchNorms costs?",
    measure,
    rounds=15,
    place=3,
    shown=("LessBN ResNet-20 b32, 1 thread: ours / edited by hand",),
)
