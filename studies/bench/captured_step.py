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
from torch.optim import Adam

from workbench.bench import Benchmark, Finding, Request, Sides, contest, require_equal
from workbench.config import BoostConfig
from workbench.training import apply

from .loss_scale import Perceptron
from .nets import boosted_step, weights_of

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Takes a step and returns what does its operations again, on the same memory, which it keeps, and without Python."""

_NET = Perceptron(16, 256, 64)  # small layers: to launch their operations costs more than to do them
_GUARDED_STEPS, _WARM_UP = 6, 3
_CONFIG = BoostConfig().with_values(
    {"amp.level": "O2", "loss_scale.kind": "dynamic", "loss_scale.init": 1024.0, "loss_scale.window": 2}
)


def measure(request: Request) -> list[Finding]:
    """Measure a replay of a captured step as a multiple of the step, on CUDA."""
    device = request.chosen_device()
    if device.type != "cuda":
        note = "needs CUDA; has not run there"
        return [Finding("step in a CUDA graph / step", "x", None, None, note, "absent")]
    with torch.cuda.device(device), warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*capturable=True.*")  # of the steps that are not captured, torch says
        return measure_capture(request, _NET, _captured_by_cuda)


def measure_capture(request: Request, shape: Perceptron, capture: Capture) -> list[Finding]:
    """Measure on whatever device, with a given way to capture."""
    device = request.chosen_device()

    def sides() -> Sides:
        replayed, stepped = (Training(shape, device, capturable=capturable) for capturable in (True, False))
        return Sides(capture(replayed.step), stepped.step)

    return contest(
        f"step in a CUDA graph, {shape.layers} x {shape.width} batch {shape.batch}",
        sides,
        request,
        named="step",
        guard=lambda: _compare(shape, device, capture),
        note="float16 under a dynamic loss scale, Adam(fused), capturable in the graph only",
    )


class Training:
    """A network, its optimizer and one batch that stays where it is."""

    def __init__(self, shape: Perceptron, device: torch.device, *, capturable: bool) -> None:
        network = shape.network().to(device)
        batches = shape.samples(device)
        self.inputs = batches[0][0]
        optimizer = Adam(network.parameters(), lr=1e-3, fused=True, capturable=capturable)
        self.boosted = apply(_CONFIG, network, optimizer, level="O0")
        self._step = boosted_step(self.boosted, batches)

    def step(self) -> None:
        """Do a step."""
        self._step()

    def state(self) -> dict[str, Tensor]:
        """Return weights and loss scale."""
        return {**weights_of(self.boosted.model), "loss scale": self.boosted.loss_scale}


def _compare(shape: Perceptron, device: torch.device, capture: Capture) -> None:
    """Check that replays do what steps do, also where a step overflows."""
    stepped, replayed = (Training(shape, device, capturable=True) for _ in range(2))
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
        what = f"state after {number + 1} replays"
        require_equal(replayed.state(), stepped.state(), what, rtol=1e-3, atol=1e-5)


@dataclass(frozen=True, slots=True)
class Captured:
    """A replay, and the step it is of: a graph does not own the weights and the state that it writes to."""

    replay: Callable[[], None]
    step: Callable[[], None]

    def __call__(self) -> None:
        """Do the step's operations again."""
        self.replay()


def _captured_by_cuda(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step on CUDA, after some on a stream of its own, which make what is made once."""
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return Captured(graph.replay, step)


BENCHMARK = Benchmark(
    "captured_step",
    "Does a whole step fit into a CUDA graph, and what does a replay save?",
    measure,
    rounds=15,
    place=12,
    group="accelerator",
)
