"""AdamW for parameters that an optimizer of this package leaves to it: torch's own, fused where the device can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from workbench.core.step_optimizer import zeros_in
from workbench.core.torch_internals import has_fused_kernel


def adamw_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    state: Mapping[Tensor, dict[str, Any]],
    group: Mapping[str, Any],
    found_inf: Tensor | None,
) -> None:
    """Take a step of AdamW with a group's ``lr``, ``betas``, ``weight_decay`` and ``eps``.

    ``state`` gets ``step``, ``exp_avg`` and ``exp_avg_sq``. Nothing changes where ``found_inf``, exactly 0 or 1, is 1.
    """
    fused = all(has_fused_kernel(parameter, "_fused_adamw_") for parameter in parameters)
    if not fused and found_inf is not None and found_inf.item() != 0:
        return  # where there is no kernel that reads the flag the host has to
    adamw(
        list(parameters),
        list(gradients),
        [zeros_in(state[parameter], parameter, "exp_avg") for parameter in parameters],
        [zeros_in(state[parameter], parameter, "exp_avg_sq") for parameter in parameters],
        [],
        [_steps_of(parameter, state[parameter], fused=fused) for parameter in parameters],
        fused=fused,
        foreach=not fused,
        found_inf=found_inf if fused else None,
        amsgrad=False,
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        lr=float(group["lr"]),
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=False,
    )


def _steps_of(parameter: Tensor, state: dict[str, Any], *, fused: bool) -> Tensor:
    device = parameter.device if fused else torch.device("cpu")
    # `to` is for a checkpoint that was loaded elsewhere.
    steps = state["step"].to(device) if "step" in state else torch.zeros((), dtype=torch.float32, device=device)
    state["step"] = steps
    return steps
