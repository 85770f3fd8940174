"""Does Adam on the host slow a training on an accelerator?

A transformer encoder under bfloat16 autocast, with a batch large enough that gradients and weights may travel while it
computes. The base keeps Adam and its moments on the device; torchao's offloading is a peer where it is installed.
Without an accelerator there is nothing to measure, and that is said.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from workbench.bench import Benchmark, Estimate, Finding, Request, interleaved, is_installed, ratio_of, timed
from workbench.core import devices
from workbench.optim.adam_offload.optimizer import AdamOffload

_RATE = 1e-4
_EPS = 1e-15  # eps is not bias-corrected in ours: it has to be too small to be seen for results to be the same
# Beside Adam on the device there is no goal: gradients leave, the host computes and weights return between two forward
# passes, and 1e9 float32 weights take 0.3 s to 0.6 s of that by the speed of links and memory alone (arithmetic, not
# measured). Only an update that lags a step behind could hide them, and that is another optimizer.
_GOAL, _GOAL_BESIDE_TORCHAO = None, 0.92
_GUARDED_STEPS, _SHARE_OF_THE_WAY = 3, 0.02


@dataclass(frozen=True, slots=True)
class Encoder:
    """What is trained, some billion parameters as it stands; a width is a multiple of 64, the width of a head."""

    layers: int = 20
    width: int = 2048
    batch: int = 32
    tokens: int = 512


_SMALL = Encoder(2, 64, 4, 16)  # for the comparison of results


def measure(request: Request) -> list[Finding]:
    """Measure a step of a transformer with its Adam on the host as a multiple of one with Adam on the device."""
    if request.chosen_device().type == "cpu":
        note = "needs an accelerator; has not run on one"
        return [Finding("AdamOffload, transformer: ours / Adam on the device", "x", None, _GOAL, note, "absent")]
    return measure_encoder(request, Encoder())


def measure_encoder(request: Request, encoder: Encoder) -> list[Finding]:
    """Measure on whatever device, and tell the bytes of our optimizer's state there."""
    device = request.chosen_device()
    difference = _difference(device)
    if difference > _SHARE_OF_THE_WAY:
        note = f"after {_GUARDED_STEPS} steps weights differ by {difference:.2g} of the way they went"
        return [Finding("AdamOffload, transformer: ours / Adam on the device", "x", None, _GOAL, note, "differs")]
    with_torchao = request.peers and device.type != "cpu" and is_installed("torchao")
    makes = [_ours, _on_device, _ours_leaving_early, *([_torchao] if with_torchao else [])]
    sides = [_Training(encoder, make, device) for make in makes]
    ours, base, early, *peers = zip(*interleaved([timed(side) for side in sides], request.rounds), strict=True)
    size = sum(weight.numel() for weight in sides[0].weights)
    what = f"AdamOffload, transformer of {size:,}, batch {encoder.batch} x {encoder.tokens}"
    found = [Finding(f"{what}: ours / Adam on the device", "x", ratio_of(ours, base), _GOAL)]
    title = f"{what}: ours with offload_gradients / Adam on the device"
    found.append(Finding(title, "x", ratio_of(early, base), _GOAL))
    if peers:  # its gradients leave during the backward pass as well
        found.append(Finding(f"{what}: ours / torchao", "x", ratio_of(early, peers[0]), _GOAL_BESIDE_TORCHAO))
    elif request.peers:
        found.append(Finding(f"{what}: ours / torchao", "x", None, _GOAL_BESIDE_TORCHAO, "not installed", "absent"))
    state = [value for one in sides[0].optimizer.state.values() for value in one.values() if isinstance(value, Tensor)]
    share = sum(tensor.nbytes for tensor in state if tensor.device.type == device.type) / (4 * size)
    title = f"{what}: optimizer state on the device / weights"
    return [*found, Finding(title, "x", Estimate.exact(share), 0.0, "bytes, counted")]


class _Training:
    """A transformer with one batch and an optimizer; called, it does a step and waits for its end."""

    def __init__(self, encoder: Encoder, make: Callable[[list[nn.Parameter]], Optimizer], device: torch.device) -> None:
        torch.manual_seed(0)
        heads = max(1, encoder.width // 64)
        layer = nn.TransformerEncoderLayer(
            encoder.width, heads, 4 * encoder.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.network = nn.TransformerEncoder(layer, encoder.layers, enable_nested_tensor=False).to(device)
        self.inputs = torch.randn(encoder.batch, encoder.tokens, encoder.width, device=device)
        self.targets = torch.randn_like(self.inputs)
        self.weights = list(self.network.parameters())
        self.optimizer = make(self.weights)
        self.device = device

    def __call__(self) -> None:
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = nn.functional.mse_loss(self.network(self.inputs).float(), self.targets)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        devices.synchronize(self.device)


def _ours(weights: list[nn.Parameter]) -> Optimizer:
    return AdamOffload(weights, learning_rate=_RATE, eps=_EPS)


def _ours_leaving_early(weights: list[nn.Parameter]) -> Optimizer:
    return AdamOffload(weights, learning_rate=_RATE, eps=_EPS, offload_gradients=True)


def _on_device(weights: list[nn.Parameter]) -> Optimizer:
    return Adam(weights, lr=_RATE, eps=_EPS, fused=True)


def _torchao(weights: list[nn.Parameter]) -> Optimizer:
    kind = importlib.import_module("torchao.optim").CPUOffloadOptimizer
    return kind(weights, Adam, fused=True, lr=_RATE, eps=_EPS)


def _difference(device: torch.device) -> float:
    """Return by how much our weights differ from the base's after some steps, as a share of the way they went."""
    ours, base = (_Training(_SMALL, make, device) for make in (_ours, _on_device))
    start = [weight.detach().clone() for weight in base.weights]
    for _ in range(_GUARDED_STEPS):
        ours()
        base()

    def apart(ones: list[Tensor]) -> float:
        return max(float((one - other).abs().mean()) for one, other in zip(ones, base.weights, strict=True))

    with torch.no_grad():
        return apart(ours.weights) / apart(start)


BENCHMARK = Benchmark(
    "offload",
    "Does Adam on the host slow a training on an accelerator?",
    measure,
    rounds=7,
    place=9,
    group="accelerator",
)
