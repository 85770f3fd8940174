"""How long does Adam on the host take beside torch's fused Adam?

``AdamOffload`` on weights that live on the CPU, the same gradients step after step. DeepSpeed's and torchao's Adam are
peers where they are installed.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence

import torch
from torch import nn
from torch.optim import Adam

from workbench.bench import Benchmark, Finding, Request, Side, Sides, contest, is_installed, require_equal
from workbench.optim.adam_offload.optimizer import AdamOffload

from .tensors import SIZES, Size, flat_adam, parameters_with_gradients, words

_RATE = 1e-4
_EPS = 1e-15  # eps is not bias-corrected in ours: it has to be too small to be seen for results to be the same
_GOALS, _SHORT_GOAL = (0.64, 0.30, 0.96), 0.75
_GUARDED_STEPS = 5
_CPU = torch.device("cpu")

Make = Callable[[list[nn.Parameter]], Side]
"""Returns an optimizer's step on parameters."""


def measure(
    request: Request, *, sizes: Sequence[Size] = SIZES, goals: Sequence[float | None] = _GOALS
) -> list[Finding]:
    """Measure a step of AdamOffload on the CPU as a multiple of ``torch.optim.Adam(fused=True)``'s, one goal per size.

    For each size float32 moments, with the limit (the kernel on one flat tensor) and the peers, and bfloat16 moments.
    """
    request = dataclasses.replace(request, device=_CPU)
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for size, goal in zip(sizes, goals, strict=True):

            def sides(size: Size = size) -> Sides:
                _, limit = flat_adam(size, _CPU, _RATE, _EPS)
                peers = {"DeepSpeed": ("deepspeed", _deepspeed), "torchao": ("torchao", _torchao)}
                there = {
                    name: _stepper(size, make) if is_installed(package) else None
                    for name, (package, make) in peers.items()
                }
                return Sides(_stepper(size, _ours), _stepper(size, _stock), limit, there if request.peers else {})

            found += contest(
                f"host Adam, {words(size)}, {threads}",
                sides,
                request,
                named="Adam(fused)",
                goal=goal,
                guard=lambda size=size: _compare(size, _ours, 1e-6),
                note="limit: the kernel on one flat tensor",
            )
            found += contest(
                f"host Adam, bfloat16 moments, {words(size)}, {threads}",
                lambda size=size: Sides(_stepper(size, _ours_short), _stepper(size, _stock)),
                request,
                named="Adam(fused)",
                goal=_SHORT_GOAL,
                guard=lambda size=size: _compare(size, _ours_short, 4e-2),
                note="half the memory of moments",
            )
    return found


def _stepper(size: Size, make: Make) -> Side:
    return make(parameters_with_gradients(size, _CPU))


def _ours(parameters: list[nn.Parameter]) -> Side:
    return AdamOffload(parameters, learning_rate=_RATE, eps=_EPS).step


def _ours_short(parameters: list[nn.Parameter]) -> Side:
    return AdamOffload(parameters, learning_rate=_RATE, eps=_EPS, moments_dtype=torch.bfloat16).step


def _stock(parameters: list[nn.Parameter]) -> Side:
    return Adam(parameters, lr=_RATE, eps=_EPS, fused=True).step


def _deepspeed(parameters: list[nn.Parameter]) -> Side:
    kind = importlib.import_module("deepspeed.ops.adam").DeepSpeedCPUAdam
    return kind(parameters, lr=_RATE, eps=_EPS, adamw_mode=False).step


def _torchao(parameters: list[nn.Parameter]) -> Side:
    # Its low-precision Adam with the widest moments that it has on a CPU; its offloading needs a GPU.
    return importlib.import_module("torchao.optim").Adam8bit(parameters, lr=_RATE, eps=_EPS).step


def _compare(size: Size, make: Make, share: float) -> None:
    """Check that both move every weight alike, within a share of the way (bfloat16 keeps 8 digits of a moment)."""
    start, ours, stock = (parameters_with_gradients(size, _CPU) for _ in range(3))
    our_step, stock_step = make(ours), _stock(stock)
    for _ in range(_GUARDED_STEPS):
        our_step()
        stock_step()
    for number, (begin, one, other) in enumerate(zip(start, ours, stock, strict=True)):
        atol = share * _GUARDED_STEPS * _RATE + 1e-6  # the last digit of a weight of some units
        require_equal(one - begin, other - begin, f"way of parameter {number} in 5 steps", rtol=0.0, atol=atol)


BENCHMARK = Benchmark("adam", "How fast is Adam on the host?", measure, rounds=15, place=8)
