"""Does a whole step with a loss scale cost more than the plain step without one?

A perceptron under Adam: eight wide layers, where the tail of a step is some percent, and a deep narrow one, where the
many small tensors of the tail weigh most. The peer is torch's GradScaler around the same step.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from workbench.bench.benchmark import Finding, Request
from workbench.bench.contest import Sides, contest, require_equal
from workbench.config import BoostConfig
from workbench.training import apply

__all__ = ["NETS", "RATE", "SCALE", "Perceptron", "batch_of", "measure_scaled_step", "network_of"]

RATE = 1e-4
SCALE = 1024.0
_CLASSES = 10
_GUARDED_STEPS = 4


@dataclass(frozen=True, slots=True)
class Perceptron:
    """What is trained.

    Args:
        layers: Hidden layers; each has a weight and a bias.
        width: Their inputs and outputs.
        batch: Samples per step.
        goal: Largest ratio that is good enough.
    """

    layers: int
    width: int
    batch: int
    goal: float | None = None


NETS = (Perceptron(8, 512, 128, 1.01), Perceptron(8, 512, 8, 1.04), Perceptron(104, 64, 32, 1.00))


def measure_scaled_step(request: Request, *, nets: Sequence[Perceptron] = NETS) -> list[Finding]:
    """Measure a step with a dynamic loss scale as a multiple of the unscaled stock step.

    Args:
        request: What is asked for.
        nets: What is trained.
    """
    found: list[Finding] = []
    device = request.chosen_device()
    for threads in request.each_thread_count():
        for net in nets:
            model = network_of(net).to(device)
            inputs, classes = batch_of(net, device)
            found += contest(
                f"scaled step, {net.layers} x {net.width} batch {net.batch}, {threads}",
                lambda model=model, batch=(inputs, classes): _sides(model, batch, request.peers),  # type: ignore[misc]
                rounds=request.rounds,
                named="unscaled step",
                goal=net.goal,
                guard=lambda model=model, batch=(inputs, classes): _compare(model, *batch),  # type: ignore[misc]
                note=f"{len(list(model.parameters()))} tensors, Adam(fused)",
                device=device,
            )
    return found


def network_of(net: Perceptron) -> nn.Module:
    """Return the network, with the weights of seed 0."""
    torch.manual_seed(0)
    layers = [module for _ in range(net.layers) for module in (nn.Linear(net.width, net.width), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(net.width, _CLASSES))


def batch_of(net: Perceptron, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return inputs, shape ``[batch, width]``, and classes, shape ``[batch]``, on a device."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(net.batch, net.width, generator=generator)
    classes = torch.randint(0, _CLASSES, (net.batch,), generator=generator)
    return inputs.to(device), classes.to(device)


def _sides(model: nn.Module, batch: tuple[Tensor, Tensor], peers: bool) -> Sides:
    ours, stock, scaled = (copy.deepcopy(model) for _ in range(3))
    return Sides(
        _boosted_step(ours, *batch),
        _stock_step(stock, *batch),
        peers={"GradScaler": _scaler_step(scaled, *batch)} if peers else {},
    )


def _boosted_step(model: nn.Module, inputs: Tensor, classes: Tensor) -> Callable[[], None]:
    config = BoostConfig.from_dict({"loss_scale": {"kind": "dynamic", "init": SCALE}, "amp": {"level": "O0"}})
    boosted = apply(config, model, Adam(model.parameters(), lr=RATE, fused=True), level="O0")

    def step() -> None:
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(inputs), classes)
        boosted.backward(loss)
        boosted.step()

    return step


def _stock_step(model: nn.Module, inputs: Tensor, classes: Tensor) -> Callable[[], None]:
    optimizer = Adam(model.parameters(), lr=RATE, fused=True)

    def step() -> None:
        F.cross_entropy(model(inputs), classes).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _scaler_step(model: nn.Module, inputs: Tensor, classes: Tensor) -> Callable[[], None]:
    optimizer = Adam(model.parameters(), lr=RATE, fused=True)
    scaler = torch.amp.GradScaler(inputs.device.type, init_scale=SCALE)

    def step() -> None:
        scaler.scale(F.cross_entropy(model(inputs), classes)).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _compare(model: nn.Module, inputs: Tensor, classes: Tensor) -> None:
    ours, stock = copy.deepcopy(model), copy.deepcopy(model)
    our_step, stock_step = _boosted_step(ours, inputs, classes), _stock_step(stock, inputs, classes)
    for _ in range(_GUARDED_STEPS):
        our_step()
        stock_step()
    for (name, one), other in zip(ours.named_parameters(), stock.parameters(), strict=True):
        # A scale that is a power of two changes no digit; sums over threads may.
        require_equal(one, other, name, rtol=1e-5, atol=1e-6)
