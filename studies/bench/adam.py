"""How long does Adam on the host take beside torch's fused Adam?

``AdamOffload`` on weights that live on the CPU, the same gradients step after step. DeepSpeed's and torchao's Adam are
peers where they are installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Adam

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import (
    Side,
    Sides,
    contest,
    is_installed,
    require_equal,
)
from workbench.optim.adam_offload.optimizer import AdamOffload

from .many_tensors import (
    Size,
    flat_tensors,
    parameters_with_gradients,
    words,
)

__all__ = ["measure_host_adam"]

_RATE = 1e-4
_EPS = 1e-15  # eps is not bias-corrected in ours: it has to be too small to be seen for results to be the same
_SIZES = ((1_000_000, 60), (1_000_000, 400), (20_000_000, 60))
_GOALS = (0.64, 0.30, 0.96)
_SHORT_GOAL = 0.75
_GUARDED_STEPS = 5

_CPU = torch.device("cpu")


def measure_host_adam(
    request: Request, *, sizes: Sequence[Size] = _SIZES, goals: Sequence[float | None] = _GOALS
) -> list[Finding]:
    """Measure a step of AdamOffload on the CPU as a multiple of ``torch.optim.Adam(fused=True)``'s.

    Args:
        request: What is asked for; the device is the CPU whatever it says.
        sizes: Numbers and tensors of the parameters.
        goals: One per size.

    Returns:
        For each size float32 moments, with the limit (the kernel on one flat tensor) and the peers, and bfloat16
        moments.
    """
    found: list[Finding] = []
    for threads in Request(request.rounds, request.peers, _CPU, request.threads).each_thread_count():
        for size, goal in zip(sizes, goals, strict=True):
            found += contest(
                f"host Adam, {words(size)}, {threads}",
                lambda size=size: Sides(  # type: ignore[misc]
                    _stepper(size, _ours),
                    _stepper(size, _stock),
                    _flat_step(size),
                    _peers(size) if request.peers else {},
                ),
                rounds=request.rounds,
                named="Adam(fused)",
                goal=goal,
                guard=lambda size=size: _compare(size, _ours, 1e-6),  # type: ignore[misc]
                note="limit: the kernel on one flat tensor",
            )
            found += contest(
                f"host Adam, bfloat16 moments, {words(size)}, {threads}",
                lambda size=size: Sides(_stepper(size, _ours_short), _stepper(size, _stock)),  # type: ignore[misc]
                rounds=request.rounds,
                named="Adam(fused)",
                goal=_SHORT_GOAL,
                guard=lambda size=size: _compare(size, _ours_short, 4e-2),  # type: ignore[misc]
                note="half the memory of moments",
            )
    return found


def _ours(parameters: list[nn.Parameter]) -> Side:
    return AdamOffload(parameters, learning_rate=_RATE, eps=_EPS).step


def _ours_short(parameters: list[nn.Parameter]) -> Side:
    return AdamOffload(parameters, learning_rate=_RATE, eps=_EPS, moments_dtype=torch.bfloat16).step


def _stock(parameters: list[nn.Parameter]) -> Side:
    return Adam(parameters, lr=_RATE, eps=_EPS, fused=True).step


def _stepper(size: Size, make: Callable[[list[nn.Parameter]], Side]) -> Side:
    return make(parameters_with_gradients(size, _CPU))


def _peers(size: Size) -> dict[str, Side | None]:
    return {
        "DeepSpeed": _stepper(size, _deepspeed) if is_installed("deepspeed") else None,
        "torchao": _stepper(size, _torchao) if is_installed("torchao") else None,
    }


def _deepspeed(parameters: list[nn.Parameter]) -> Side:
    kind = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam
    step: Side = kind(parameters, lr=_RATE, eps=_EPS, adamw_mode=False).step
    return step


def _torchao(parameters: list[nn.Parameter]) -> Side:
    # Its low-precision Adam with the widest moments that it has on a CPU; its offloading needs a GPU.
    step: Side = importlib.import_module("torchao.optim").Adam8bit(parameters, lr=_RATE, eps=_EPS).step
    return step


def _flat_step(size: Size) -> Side:
    weights, gradient, first, second = flat_tensors(size, _CPU)
    steps = torch.zeros(())

    def step() -> None:
        steps.add_(1)
        torch._fused_adam_(
            [weights],
            [gradient],
            [first],
            [second],
            [],
            [steps],
            lr=_RATE,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=_EPS,
            amsgrad=False,
            maximize=False,
        )

    return step


def _compare(size: Size, make: Callable[[list[nn.Parameter]], Side], share: float) -> None:
    """See that both move every weight alike, within a share of the way (bfloat16 keeps 8 digits of a moment)."""
    start, ours, stock = (parameters_with_gradients(size, _CPU) for _ in range(3))
    our_step, stock_step = make(ours), _stock(stock)
    for _ in range(_GUARDED_STEPS):
        our_step()
        stock_step()
    for number, (begin, one, other) in enumerate(zip(start, ours, stock, strict=True)):
        atol = share * _GUARDED_STEPS * _RATE + 1e-6  # the last digit of a weight of some units
        require_equal(one - begin, other - begin, f"way of parameter {number} in 5 steps", rtol=0.0, atol=atol)


BENCHMARK = Benchmark(
    "adam",
    "How fast is Adam on the host?",
    measure_host_adam,
    rounds=15,
    quick=False,
    place=8,
)
