"""What do loss scales per group cost beside one for all, after the backward pass?

Both sides are ours: the tail of a step (finite check, unscaling, Adam, rule) with eight groups, and with one scale.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from workbench.bench.benchmark import Finding, Request
from workbench.bench.contest import Sides, contest, require_equal
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scaling import GroupLossScaling

from .many_tensors import Size, words
from .optimizer_tail import ScaledTail

__all__ = ["measure_group_scale"]

_GOAL = 1.03
_SIZES = ((1_000_000, 64), (20_000_000, 64))
_NEVER = 10**9  # steps: no scale grows
_SCALE = 1.0  # of every group: gradients are unscaled again and again


def measure_group_scale(request: Request, *, sizes: Sequence[Size] = _SIZES, groups: int = 8) -> list[Finding]:
    """Measure the tail with group scales as a multiple of the tail with one.

    Args:
        request: What is asked for.
        sizes: Numbers and tensors of the parameters; tensors must be divisible by the groups.
        groups: Groups.
    """
    found: list[Finding] = []
    device = request.chosen_device()
    for threads in request.each_thread_count():
        for size in sizes:
            found += contest(
                f"group scale, {groups} groups, {words(size)}, {threads}",
                lambda size=size: Sides(  # type: ignore[misc]
                    _grouped_tail(size, groups, device),
                    ScaledTail(list(_blocks(size, groups, device).parameters())),
                ),
                rounds=request.rounds,
                named="one scale",
                goal=_GOAL,
                guard=lambda size=size: _compare(size, groups, device),  # type: ignore[misc]
                device=device,
            )
    return found


class _Block(nn.Module):
    """Some parameters with gradients, in a module of their own."""

    def __init__(self, numbers: int, tensors: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(numbers // tensors) for _ in range(tensors))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what came: only parameters are needed here."""
        return x


def _blocks(size: Size, groups: int, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(*(_Block(size[0] // groups, size[1] // groups) for _ in range(groups))).to(device)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter) * 1e-2
    return model


def _grouped_tail(size: Size, groups: int, device: torch.device) -> ScaledTail:
    model = _blocks(size, groups, device)
    manager = GroupLossScaleManager(_SCALE, [[str(number)] for number in range(groups)], growth_window=_NEVER)
    tail = ScaledTail(list(model.parameters()))
    tail.scaling = GroupLossScaling.from_manager(manager, model)
    return tail


def _compare(size: Size, groups: int, device: torch.device) -> None:
    ours = _grouped_tail(size, groups, device)
    single = ScaledTail(list(_blocks(size, groups, device).parameters()))
    for _ in range(3):
        ours()
        single()
    for number, (one, other) in enumerate(zip(ours.parameters, single.parameters, strict=True)):
        require_equal(one, other, f"parameter {number} after 3 steps", rtol=1e-6, atol=1e-7)
