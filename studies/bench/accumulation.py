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

from workbench.bench import Benchmark, Estimate, Finding, Request, Sides, contest, fair_clock, require_equal
from workbench.config import BoostConfig
from workbench.training import Boosted, apply

from .nets import CLASSES, Batch, noise, perceptron, sgd, twin, weights_of
from .operations import compared_operations, operations_of

_GOAL, _BYTES_GOAL = 1.0, 1.01


def measure(
    request: Request, *, width: int = 512, depth: int = 8, micro_batches: int = 4, batch: int = 16, repeats: int = 3
) -> list[Finding]:
    """Measure an update from several micro-batches as a multiple of the plain loop's, and the bytes held before it."""
    device = request.chosen_device()
    model = perceptron([width] * (depth + 1) + [CLASSES]).to(device)
    batches = noise((batch, width), device, micro_batches)
    findings: list[Finding] = []

    def sides() -> Sides:
        ours, native, buffered = (side(model, batches) for side in (_Boosted, _Native, _Buffered))
        return Sides(ours.window, native.window, peers={"separate buffers": buffered.window})

    def guard() -> None:
        ours, native = _Boosted(model, batches), _Native(model, batches)
        for _ in range(2):
            ours.window()
            native.window()
        require_equal(weights_of(ours.model), weights_of(native.model), "weights", rtol=1e-6, atol=1e-7)

    for threads in request.each_thread_count():
        what = f"accumulation {micro_batches} x {batch}, {threads}"
        findings += contest(
            what,
            sides,
            request,
            named="native .grad",
            repeats=repeats,
            goal=_GOAL,
            guard=guard,
            note=f"perceptron {depth} x {width}",
            clock=fair_clock(device),
        )
        if findings[-1].verdict != "differs":
            ours, base = (operations_of(side(model, batches).window).total() for side in (_Boosted, _Native))
            title = f"{what}, operations of torch: ours / native .grad"
            findings.append(compared_operations(title, ours, base))
    held, native = (_held_bytes(side(model, batches)) for side in (_Boosted, _Native))
    weights = sum(parameter.nbytes for parameter in model.parameters())
    note = f"{held / weights:.2f} times the parameters, gradients among it"
    title = "accumulation, bytes inside a window: ours / native .grad"
    return [*findings, Finding(title, "x", Estimate.exact(held / native), _BYTES_GOAL, note)]


class _Native:
    """The plain loop: gradients add up where the backward pass leaves them."""

    def __init__(self, model: nn.Module, batches: list[Batch]) -> None:
        self.model = twin(model)
        self.optimizer: Optimizer = sgd(self.model.parameters())
        self.batches = batches

    def micro_batch(self, index: int) -> None:
        """Do one micro-batch, and the update after the last one."""
        inputs, classes = self.batches[index]
        (F.cross_entropy(self.model(inputs), classes) / len(self.batches)).backward()
        if index + 1 == len(self.batches):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)

    def window(self) -> None:
        """Do all micro-batches of an update."""
        for index in range(len(self.batches)):
            self.micro_batch(index)


class _Buffered(_Native):
    """The sum lies in buffers beside the gradients."""

    def __init__(self, model: nn.Module, batches: list[Batch]) -> None:
        super().__init__(model, batches)
        self.sums = [torch.zeros_like(parameter) for parameter in self.model.parameters()]

    def micro_batch(self, index: int) -> None:
        inputs, classes = self.batches[index]
        F.cross_entropy(self.model(inputs), classes).backward()
        sums = list(zip(self.sums, self.model.parameters(), strict=True))
        with torch.no_grad():
            for total, parameter in sums:
                total.add_(parameter.grad, alpha=1 / len(self.batches))
                parameter.grad = None
            if index + 1 == len(self.batches):
                for total, parameter in sums:
                    parameter.grad = total
                self.optimizer.step()
                for total, parameter in sums:
                    parameter.grad = None
                    total.zero_()


class _Boosted(_Native):
    """Ours."""

    def __init__(self, model: nn.Module, batches: list[Batch]) -> None:
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
        inputs, classes = self.batches[index]
        with self.boosted.autocast():
            loss = F.cross_entropy(self.boosted.model(inputs), classes)
        self.boosted.backward(loss)
        self.boosted.step()


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


BENCHMARK = Benchmark(
    "accumulation",
    "Does accumulation over micro-batches cost more than letting gradients add up in `.grad`?",
    measure,
    rounds=25,
    place=4,
    quick=True,
    shown=("accumulation 4 x 16, 1 thread: ours / native .grad",),
)
