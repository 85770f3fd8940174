"""Memory formats, and settings of the whole process that are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core import devices
from workbench.core.batch import mapped

__all__ = [
    "channels_last_",
    "convolution_beyond_memory",
    "cudnn_benchmark",
    "in_channels_last",
    "matmul_precision",
    "threads",
]


def channels_last_(model: nn.Module) -> bool:
    """Let a model's 4-D parameters and buffers keep the channels of a pixel together, in place.

    Args:
        model: Any; what is not 4-D stays as it is, and so do all values.

    Returns:
        Whether there was anything to change.
    """
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave the keyword out
    return any(parameter.ndim == 4 for parameter in model.parameters())


def in_channels_last(batch: Any) -> Any:
    """Return a batch whose 4-D floating-point tensors keep the channels of a pixel together.

    Args:
        batch: A tensor, or tuples, lists, named tuples and mappings of tensors; the rest stays as it is.
    """
    return mapped(batch, _channels_last)


def _channels_last(tensor: Tensor) -> Tensor:
    is_image = tensor.ndim == 4 and tensor.is_floating_point()
    return tensor.contiguous(memory_format=torch.channels_last) if is_image else tensor


def convolution_beyond_memory(model: nn.Module) -> str:
    """Return the name of a convolution that would write beyond its memory in channels_last on a CPU; empty if none.

    The gradient of a 1 x 1 kernel with a stride and fewer input channels than a vector holds (8 of AVX2, 16 of AVX-512,
    which we could not try) overwrites the heap there: ``jit_1x1:avx2`` of oneDNN in torch 2.13, float32, found with
    glibc's ``MALLOC_CHECK_=3`` over 1,700 shapes. Compiled graphs lay convolutions out so by themselves.

    Args:
        model: On a CPU.
    """
    convolutions = ((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    return next((name for name, found in convolutions if _writes_beyond(found)), "")


def _writes_beyond(found: nn.Conv2d) -> bool:
    is_strided_point = set(found.kernel_size) == {1} and max(found.stride) > 1
    return is_strided_point and found.groups == 1 and 1 < found.in_channels < _VECTOR


_VECTOR = 16


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Let CPU operations use so many threads meanwhile."""
    before = torch.get_num_threads()
    devices.use_threads(number)
    try:
        yield
    finally:
        devices.use_threads(before)


@contextlib.contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Let float32 matrices be multiplied so meanwhile: ``"highest"``, ``"high"`` or ``"medium"``."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def cudnn_benchmark() -> Iterator[None]:
    """Let cuDNN try its convolutions for each shape meanwhile."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
