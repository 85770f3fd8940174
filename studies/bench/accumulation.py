"""Does accumulation over micro-batches cost more than letting gradients add up in ``.grad``?

A perceptron on small micro-batches, so that what is done per parameter weighs. The peer keeps the sum in buffers of its
own, as frameworks do whose gradients are values.
"""

from __future__ import annotations

import gc

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import Sides, contest, require_same
from workbench.bench.rounds import Estimate, fair_clock
from workbench.config import BoostConfig
from workbench.training import Boosted, apply

from .image_nets import copies, sgd

__all__ = ["measure_accumulation"]

GOAL = 1.0
BYTES_GOAL = 1.01
_CLASSES = 10
_GUARDED_WINDOWS = 2


def measure_accumulation(
    request: Request, *, width: int = 512, depth: int = 8, micro_batches: int = 4, batch: int = 16, repeats: int = 3
) -> list[Finding]:
    """Measure an update from several micro-batches as a multiple of the plain loop's.

    Args:
        request: Rounds, peers, device, threads.
        width: Inputs and outputs of a layer.
        depth: Layers.
        micro_batches: Micro-batches per update.
        batch: Samples per micro-batch.
        repeats: Updates in a turn.

    Returns:
        Ours and the peer over the plain loop, and the bytes that lie around before the last micro-batch likewise.
    """
    device = request.chosen_device()
    torch.manual_seed(0)
    layers = [module for _ in range(depth) for module in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(width, _CLASSES)).to(device)
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(batch, width, generator=generator).to(device),
            torch.randint(0, _CLASSES, (batch,), generator=generator).to(device),
        )
        for _ in range(micro_batches)
    ]
    findings: list[Finding] = []

    def sides() -> Sides:
        ours, native, buffered = (side(model, batches) for side in (_Boosted, _Native, _Buffered))
        return Sides(ours.window, native.window, peers={"separate buffers": buffered.window})

    for threads in request.each_thread_count():
        findings += contest(
            f"accumulation {micro_batches} x {batch}, {threads}",
            sides,
            named="native .grad",
            rounds=request.rounds,
            repeats=repeats,
            device=device,
            goal=GOAL,
            guard=lambda: _compare(model, batches),
            note=f"perceptron {depth} x {width}",
            clock=fair_clock(device),
            counted=True,
        )
    held = [_held_bytes(side(model, batches)) for side in (_Boosted, _Native)]
    ratio = held[0] / held[1]
    note = f"{held[0] / _bytes(model):.2f} times the parameters, gradients among it"
    title = "accumulation, bytes inside a window: ours / native .grad"
    return [*findings, Finding(title, "x", Estimate(ratio, ratio, ratio, 1), BYTES_GOAL, note)]


Batches = list[tuple[Tensor, Tensor]]


class _Native:
    """The plain loop: gradients add up where the backward pass leaves them."""

    def __init__(self, model: nn.Module, batches: Batches) -> None:
        (self.model,) = copies(model, 1)
        self.optimizer: Optimizer = sgd(self.model.parameters())
        self.batches = batches

    def micro_batch(self, index: int) -> None:
        """Do one micro-batch, and the update after the last one."""
        inputs, classes = self.batches[index]
        (F.cross_entropy(self.model(inputs), classes) / len(self.batches)).backward()  # type: ignore[no-untyped-call]
        if index + 1 == len(self.batches):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def window(self) -> None:
        """Do all micro-batches of an update."""
        for index in range(len(self.batches)):
            self.micro_batch(index)


class _Buffered(_Native):
    """The sum lies in buffers beside the gradients."""

    def __init__(self, model: nn.Module, batches: Batches) -> None:
        super().__init__(model, batches)
        self.sums = [torch.zeros_like(parameter) for parameter in self.model.parameters()]

    def micro_batch(self, index: int) -> None:
        """Do one micro-batch, and the update after the last one."""
        inputs, classes = self.batches[index]
        F.cross_entropy(self.model(inputs), classes).backward()  # type: ignore[no-untyped-call]
        parameters = list(self.model.parameters())
        with torch.no_grad():
            for total, parameter in zip(self.sums, parameters, strict=True):
                assert parameter.grad is not None
                total.add_(parameter.grad, alpha=1 / len(self.batches))
                parameter.grad = None
            if index + 1 == len(self.batches):
                for total, parameter in zip(self.sums, parameters, strict=True):
                    parameter.grad = total
                self.optimizer.step()
                for total, parameter in zip(self.sums, parameters, strict=True):
                    parameter.grad = None
                    total.zero_()


class _Boosted(_Native):
    """Ours."""

    def __init__(self, model: nn.Module, batches: Batches) -> None:
        super().__init__(model, batches)
        config = BoostConfig.from_dict(
            {
                "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "grad_accumulation": True},
                "grad_accumulation": {"grad_accumulation_step": len(batches)},
                "amp": {"level": "O0"},
            }
        )
        self.boosted: Boosted = apply(config, self.model, self.optimizer, level="O1")

    def micro_batch(self, index: int) -> None:
        """Do one micro-batch, and the update after the last one."""
        inputs, classes = self.batches[index]
        with self.boosted.autocast():
            loss = F.cross_entropy(self.boosted.model(inputs), classes)
        self.boosted.backward(loss)
        self.boosted.step()


def _compare(model: nn.Module, batches: Batches) -> None:
    ours, native = _Boosted(model, batches), _Native(model, batches)
    for _ in range(_GUARDED_WINDOWS):
        ours.window()
        native.window()
    require_same(ours.model.named_parameters(), native.model.named_parameters(), rtol=1e-6, atol=1e-7)


def _held_bytes(side: _Native) -> int:
    """Return how many bytes a window has taken and not given back before its last micro-batch.

    Counted are tensors that Python can see, each storage once, but for those without memory that torch.compile may have
    left behind in this process.
    """
    side.window()  # optimizer state and what else stays for good
    before = _visible_bytes(side.model)
    for index in range(len(side.batches) - 1):
        side.micro_batch(index)
    return _visible_bytes(side.model) - before


def _visible_bytes(model: nn.Module) -> int:
    from torch._subclasses import FakeTensor  # takes half a second, which nothing else here needs
    from torch._subclasses.functional_tensor import FunctionalTensor

    gc.collect()
    seen = [value for value in gc.get_objects() if issubclass(type(value), Tensor)]
    seen += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    real = [value for value in seen if not isinstance(value, FakeTensor | FunctionalTensor)]
    storages = [value.untyped_storage() for value in real if value.layout == torch.strided]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _bytes(model: nn.Module) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


BENCHMARK = Benchmark(
    "accumulation",
    "Does accumulation over micro-batches cost more than letting gradients add up in `.grad`?",
    measure_accumulation,
    rounds=25,
    place=4,
)
