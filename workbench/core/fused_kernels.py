"""Which parameters torch's fused kernels take."""

from __future__ import annotations

import torch
from torch import Tensor

from workbench.core.torch_internals import has_kernel


def has_fused_kernel(parameter: Tensor, operator: str) -> bool:
    """Return whether a fused kernel (``"_fused_sgd_"``, ``"_fused_adamw_"``) updates this parameter, and correctly."""
    if parameter.device.type == "cpu":
        short = (torch.float16, torch.bfloat16)
        # torch 2.13: that of SGD leaves half of every vector of 16-bit weights as it was (37 equal ones, for example).
        known = (torch.float32, torch.float64, *(() if operator == "_fused_sgd_" else short))
        return parameter.dtype in known
    return parameter.is_floating_point() and has_kernel(parameter.device.type, operator)
