"""What does a loss scale cost beside torch's GradScaler, and beside none?

Three contests. What comes after the backward pass: the finite check, the unscaling, Adam and the rule of the scale,
on the same gradients again and again under a scale of 1, or they would shrink from call to call; the guard lets both
sides unscale fresh gradients, skip an overflow and go on. The whole step of a perceptron under Adam beside the plain
step: eight wide layers, where the tail is some percent, and a deep narrow one, where its many small tensors weigh
most. The tail with a scale per group beside the tail with one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from workbench.bench import Benchmark, Finding, Request, Side, Sides, contest, require_equal
from workbench.config import BoostConfig
from workbench.loss_scale import DynamicLossScaleUpdateCell
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scaling import GroupLossScaling
from workbench.methods.weight_update import CompleteWindow, PlainUpdate
from workbench.training import apply

from .nets import CLASSES, Batch, boosted_step, noise, perceptron, plain_step, twin, weights_of
from .tensors import SIZES, Size, flat_adam, parameters_with_gradients, words

RATE, SCALE = 1e-4, 1024.0
_NEVER = 10**9  # steps: the scale of a measured tail does not grow
_TAIL_GOALS, _GROUP_GOAL = (0.53, 0.25, 0.87), 1.03
_GROUP_SIZES = ((1_000_000, 64), (20_000_000, 64))


def measure(request: Request) -> list[Finding]:
    """Measure the tail of a step, the whole step, and scales per group."""
    return [*measure_tail(request), *measure_scaled_step(request), *measure_group_scale(request)]


def measure_tail(
    request: Request, *, sizes: Sequence[Size] = SIZES, goals: Sequence[float | None] = _TAIL_GOALS
) -> list[Finding]:
    """Measure the tail of a scaled step as a multiple of GradScaler's with fused Adam; one goal per size."""
    device = request.chosen_device()
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for size, goal in zip(sizes, goals, strict=True):

            def sides(size: Size = size) -> Sides:
                ours, stock = (parameters_with_gradients(size, device) for _ in range(2))
                return Sides(ScaledTail(ours), _StockTail(stock), _flat_tail(size, device))

            found += contest(
                f"scaled tail, {words(size)}, {threads}",
                sides,
                request,
                named="GradScaler + Adam(fused)",
                goal=goal,
                guard=lambda size=size: _compare_tails(size, device),
                note="limit: the same kernels on one flat tensor",
            )
    return found


class ScaledTail:
    """Our tail, as `workbench.training.Boosted` does it at the end of a window."""

    def __init__(self, parameters: list[nn.Parameter], scale: float = 1.0, window: int = _NEVER) -> None:
        device = parameters[0].device
        self.parameters = parameters
        self.optimizer = Adam(parameters, lr=RATE, fused=True)
        cell = DynamicLossScaleUpdateCell(scale, 2, window)
        self.scaling = LossScaling(scale, cell, drop_overflow_update=True, device=device)
        self._update = PlainUpdate()
        self._found_inf, self._loss = torch.zeros((), device=device), torch.zeros((), device=device)
        self._one = torch.ones((), device=device)

    def __call__(self) -> None:
        """Unscale, check, step unless there was an overflow, move the scale."""
        self._found_inf.zero_()
        self.scaling.unscale_(self.parameters, self._found_inf)
        overflow = self._found_inf > 0
        self._update(
            CompleteWindow(0, self.optimizer, self._loss, self._found_inf, self._one, None, None, self.scaling.scale_of)
        )
        self.scaling.after_window(overflow)


class _StockTail:
    def __init__(self, parameters: list[nn.Parameter], scale: float = 1.0, window: int = _NEVER) -> None:
        device = parameters[0].device
        self.parameters = parameters
        self.optimizer = Adam(parameters, lr=RATE, fused=True)
        self.scaler = torch.amp.GradScaler(device.type, init_scale=scale, growth_interval=window)
        self.scaler.scale(torch.zeros((), device=device))  # it makes its scale when it is first used

    def __call__(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()


def _flat_tail(size: Size, device: torch.device) -> Side:
    gradient, step = flat_adam(size, device, RATE, eps=1e-8)
    one, found_inf = torch.ones((), device=device), torch.zeros((), device=device)

    def tail() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_([gradient], found_inf, one)
        step(found_inf=found_inf)

    return tail


def _compare_tails(size: Size, device: torch.device) -> None:
    ours = ScaledTail(parameters_with_gradients(size, device), SCALE, 2)
    stock = _StockTail(parameters_with_gradients(size, device), SCALE, 2)
    for step in range(5):
        fresh = parameters_with_gradients(size, device, seed=step)
        for side in (ours, stock):
            factor = side.scaling.scale if isinstance(side, ScaledTail) else side.scaler.get_scale()
            for parameter, source in zip(side.parameters, fresh, strict=True):
                parameter.grad = source.grad * factor
            if step == 3:
                side.parameters[-1].grad[-1] = math.inf
            side()
    for number, (one, other) in enumerate(zip(ours.parameters, stock.parameters, strict=True)):
        require_equal(one, other, f"parameter {number} after 5 steps", rtol=1e-6, atol=1e-7)
    require_equal(ours.scaling.scale, torch.tensor(stock.scaler.get_scale()), "loss scale", rtol=0.0, atol=0.0)


@dataclass(frozen=True, slots=True)
class Perceptron:
    """What is trained: hidden layers, each with a weight and a bias, their inputs and outputs, and samples per step."""

    layers: int
    width: int
    batch: int
    goal: float | None = None

    def network(self) -> nn.Module:
        """Return the network, with the weights of seed 0."""
        return perceptron([self.width] * (self.layers + 1) + [CLASSES])

    def samples(self, device: torch.device) -> list[Batch]:
        """Return its one batch."""
        return noise((self.batch, self.width), device)


NETS = (Perceptron(8, 512, 128, 1.01), Perceptron(8, 512, 8, 1.04), Perceptron(104, 64, 32, 1.00))


def measure_scaled_step(request: Request, *, nets: Sequence[Perceptron] = NETS) -> list[Finding]:
    """Measure a step with a dynamic loss scale as a multiple of the unscaled stock step."""
    device = request.chosen_device()
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for net in nets:
            model, batches = net.network().to(device), net.samples(device)

            def sides(model: nn.Module = model, batches: list[Batch] = batches) -> Sides:
                ours, stock, scaled = (
                    make(twin(model), batches) for make in (scaled_step, unscaled_step, grad_scaler_step)
                )
                return Sides(ours, stock, peers={"GradScaler": scaled} if request.peers else {})

            def guard(model: nn.Module = model, batches: list[Batch] = batches) -> None:
                ours, stock = twin(model), twin(model)
                our_step, stock_step = scaled_step(ours, batches), unscaled_step(stock, batches)
                for _ in range(4):
                    our_step()
                    stock_step()
                # A scale that is a power of two changes no digit; sums over threads may.
                require_equal(weights_of(ours), weights_of(stock), "weights", rtol=1e-5, atol=1e-6)

            found += contest(
                f"scaled step, {net.layers} x {net.width} batch {net.batch}, {threads}",
                sides,
                request,
                named="unscaled step",
                goal=net.goal,
                guard=guard,
                note=f"{len(list(model.parameters()))} tensors, Adam(fused)",
            )
    return found


def scaled_step(model: nn.Module, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return our step with a dynamic loss scale."""
    config = BoostConfig.from_dict({"loss_scale": {"kind": "dynamic", "init": SCALE}, "amp": {"level": "O0"}})
    return boosted_step(apply(config, model, _adam(model), level="O0"), batches)


def unscaled_step(model: nn.Module, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return the stock step without a scale."""
    return plain_step(model, batches, _adam(model))


def grad_scaler_step(model: nn.Module, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return the stock step under torch's GradScaler."""
    ((inputs, classes),) = batches
    optimizer, scaler = _adam(model), torch.amp.GradScaler(inputs.device.type, init_scale=SCALE)

    def step() -> None:
        scaler.scale(F.cross_entropy(model(inputs), classes)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    return step


def _adam(model: nn.Module) -> Adam:
    return Adam(model.parameters(), lr=RATE, fused=True)


def measure_group_scale(request: Request, *, sizes: Sequence[Size] = _GROUP_SIZES, groups: int = 8) -> list[Finding]:
    """Measure the tail with group scales as a multiple of the tail with one; groups must divide the tensors."""
    device = request.chosen_device()
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for size in sizes:

            def tails(size: Size = size) -> tuple[ScaledTail, ScaledTail]:
                grouped, single = (_blocks(size, groups, device) for _ in range(2))
                names = [[str(number)] for number in range(groups)]
                manager = GroupLossScaleManager(1.0, names, growth_window=_NEVER)
                ours = ScaledTail(list(grouped.parameters()))
                ours.scaling = GroupLossScaling.from_manager(manager, grouped)
                return ours, ScaledTail(list(single.parameters()))

            def guard(tails: Callable[[], tuple[ScaledTail, ScaledTail]] = tails) -> None:
                ours, single = tails()
                for _ in range(3):
                    ours()
                    single()
                for number, (one, other) in enumerate(zip(ours.parameters, single.parameters, strict=True)):
                    require_equal(one, other, f"parameter {number} after 3 steps", rtol=1e-6, atol=1e-7)

            found += contest(
                f"group scale, {groups} groups, {words(size)}, {threads}",
                lambda tails=tails: Sides(*tails()),
                request,
                named="one scale",
                goal=_GROUP_GOAL,
                guard=guard,
            )
    return found


class _Block(nn.Module):
    """Some parameters in a module of their own."""

    def __init__(self, numbers: int, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(numbers // tensors) for _ in range(tensors))

    def forward(self, x: Tensor) -> Tensor:
        return x  # only parameters are needed


def _blocks(size: Size, groups: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(_Block(size[0] // groups, size[1] // groups) for _ in range(groups))).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-2
    return model


BENCHMARK = Benchmark(
    "loss_scale",
    "What does a loss scale cost beside torch's GradScaler, and beside none?",
    measure,
    rounds=15,
    place=7,
    shown=("scaled step, 104 x 64 batch 32, 1 thread: ours / unscaled step",),
)
