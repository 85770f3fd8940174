"""Whether the host may look at tensors without waiting for a device: on a CPU, where reading costs nothing."""

from __future__ import annotations

import torch
from torch import Tensor


def reads_without_waiting(*tensors: Tensor) -> bool:
    """Return whether all tensors lie in host memory; under ``torch.compile`` reading would break the graph: False."""
    return all(tensor.is_cpu for tensor in tensors) and not torch.compiler.is_compiling()
