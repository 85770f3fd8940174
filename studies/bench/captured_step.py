"""Does a whole step fit into a CUDA graph, and what does a replay save?

Forward pass, scaled backward pass, check for overflow, update or skip, and the rule of the loss scale are captured once
and replayed without Python. Before anything is timed, replays train beside steps, through an overflow that both have to
skip, and weights and loss scales are compared.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.optim import Adam

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import Sides, contest, require_equal
from workbench.config import BoostConfig
from workbench.training import Boosted, apply

from .scaled_step import Perceptron, batch_of, network_of

__all__ = ["Capture", "measure_captured_step", "measure_captured_step_on"]

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a step and returns what does its operations again, on the same memory, which it keeps, and without Python."""

_NET = Perceptron(16, 256, 64)  # small layers: to launch their operations costs more than to do them
_GUARDED_STEPS = 6
_WARM_UP = 3
_CONFIG = BoostConfig().with_values(
    {"amp.level": "O2", "loss_scale.kind": "dynamic", "loss_scale.init": 1024.0, "loss_scale.window": 2}
)


def measure_captured_step(request: Request) -> list[Finding]:
    """Measure a replay of a captured step as a multiple of the step.

    Args:
        request: What is asked for.
    """
    device = request.chosen_device()
    if device.type != "cuda":
        note = "needs CUDA; has not run there"
        return [Finding("step in a CUDA graph / step", "x", None, None, note, "absent")]
    with torch.cuda.device(device), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*capturable=True.*")  # of the steps that are not captured, torch says
        return measure_captured_step_on(device, request, _NET, _captured_by_cuda)


def measure_captured_step_on(
    device: torch.device, request: Request, shape: Perceptron, capture: Capture
) -> list[Finding]:
    """Measure on a given device, with a given way to capture.

    Args:
        device: Where to train.
        request: Rounds.
        shape: What is trained.
        capture: How a step is captured.
    """
    return contest(
        f"step in a CUDA graph, {shape.layers} x {shape.width} batch {shape.batch}",
        lambda: Sides(
            capture(_Training(shape, device, capturable=True).step), _Training(shape, device, capturable=False).step
        ),
        rounds=request.rounds,
        named="step",
        guard=lambda: _compare(shape, device, capture),
        note="float16 under a dynamic loss scale, Adam(fused), capturable in the graph only",
        device=device,
    )


class _Training:
    """A network, its optimizer and one batch that stays where it is."""

    def __init__(self, shape: Perceptron, device: torch.device, *, capturable: bool) -> None:
        network = network_of(shape).to(device)
        self.inputs, self.classes = batch_of(shape, device)
        optimizer = Adam(network.parameters(), lr=1e-3, fused=True, capturable=capturable)
        self.boosted: Boosted = apply(_CONFIG, network, optimizer, level="O0")

    def step(self) -> None:
        boosted = self.boosted
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(self.inputs), self.classes)
        boosted.backward(loss)
        boosted.step()

    def state(self) -> list[tuple[str, Tensor]]:
        named = [(name, weight.detach().clone()) for name, weight in self.boosted.model.named_parameters()]
        return [*named, ("loss scale", self.boosted.loss_scale.clone())]


def _compare(shape: Perceptron, device: torch.device, capture: Capture) -> None:
    """See that replays do what steps do, also where a step overflows."""
    stepped, replayed = (_Training(shape, device, capturable=True) for _ in range(2))
    for _ in range(_WARM_UP):
        stepped.step()
    again = capture(replayed.step)
    healthy = stepped.inputs.clone()
    for number in range(_GUARDED_STEPS):
        overflows = number == _GUARDED_STEPS // 2
        for one in (stepped, replayed):
            one.inputs.copy_(torch.full_like(healthy, torch.inf) if overflows else healthy)
        stepped.step()
        again()
        for (name, ours), (_, theirs) in zip(replayed.state(), stepped.state(), strict=True):
            require_equal(ours, theirs, f"{name} after {number + 1} replays", rtol=1e-3, atol=1e-5)


@dataclass(frozen=True, slots=True)
class _Captured:
    """A replay, and the step it is of: a graph does not own the weights and the state that it writes to."""

    replay: Callable[[], None]
    step: Callable[[], None]

    def __call__(self) -> None:
        self.replay()


def _captured_by_cuda(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step on CUDA, after some on a stream of its own, which make what is made once."""
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types there
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return _Captured(graph.replay, step)


BENCHMARK = Benchmark(
    "captured_step",
    "Does a whole step fit into a CUDA graph, and what does a replay save?",
    measure_captured_step,
    rounds=15,
    quick=False,
    group="accelerator",
    place=12,
)
