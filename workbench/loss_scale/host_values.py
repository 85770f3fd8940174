"""Whether the host may look at tensors without waiting for a device.

On an accelerator a rule over a few numbers is a handful of asynchronous kernels. On a CPU each of these
operations costs the host more than the whole rule in plain numbers, and reading costs nothing.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def reads_without_waiting(*tensors: Tensor) -> bool:
    """Return whether all tensors lie in host memory; under ``torch.compile`` reading would break the graph: False."""
    return all(tensor.is_cpu for tensor in tensors) and not torch.compiler.is_compiling()


def float32(value: float) -> float:
    """Return a number rounded to float32, inf where it is too large.

    For one sum, product or quotient of float32 numbers this is what float32 gives: a double has over twice its digits.
    """
    return ctypes.c_float(value).value
