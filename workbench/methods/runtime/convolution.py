"""Convolutions on a CPU in the way that is fastest for their shapes, where its library's usual one is slow.

*Late layers.* oneDNN, which torch 2.13 calls, reorders weights and gradients in every pass. With few positions for
the channels that takes longer than the arithmetic, most of all for the weight gradient. As products of matrices with
the patches that the kernel sees (*im2col*; Chellapilla, Puri and Simard, High Performance Convolutional Neural Networks
for Document Processing, 2006) the three passes take down to a seventh of the time. Elsewhere the library is faster,
since patches take as many times the memory of the images as a kernel has places. Shapes decide, in each call.

*Depthwise convolutions*, and those with two channels in a group, are computed in float32 under bfloat16 where they are
strided, dilated or 5 x 5 and larger: there the backward passes of oneDNN's bfloat16 take many times as long.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_input


class Limits(NamedTuple):
    """Where products of matrices are faster; `LIMITS` as ``studies/bench/convolution_shapes.py`` measured on a Xeon."""

    kernel: int  # smallest number of weights
    work: int  # smallest number of multiplications in a pass, which has to pay for the overhead of our Python
    whole: float  # largest number of positions (over a batch) per output channel for all three passes
    gradient: float  # the same for the weight gradient alone


LIMITS: Mapping[torch.dtype, Limits] = {
    torch.bfloat16: Limits(1 << 15, 1 << 23, whole=2.0, gradient=8.0),
    torch.float32: Limits(1 << 19, 0, whole=2.0, gradient=2.0),
}
_FEW_CHANNELS, _LARGE_KERNEL = 2, 5  # channels of a group, and height or width


class FasterConv2d(nn.Conv2d):
    """A convolution over images that is computed in the fastest way for its shapes; a Conv2d in all else."""

    limits: Mapping[torch.dtype, Limits] = LIMITS  # by the format in which it computes

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution of images ``[n, in_channels, height, width]``, within rounding."""
        is_recorded = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
        if not input.is_cpu or is_recorded:
            return super().forward(input)
        dtype, limits = _computed_in(input), self.limits.get(_computed_in(input))
        if dtype == torch.bfloat16 and self.weight.dtype == torch.float32 and _is_slow_in_bfloat16(self):
            with torch.autocast("cpu", enabled=False):
                return super().forward(input.float()).to(dtype)
        is_plain = self.groups == 1 and dtype == _computed_in(self.weight)
        if limits is None or not is_plain or not _is_within(self, input, limits):
            return super().forward(input)
        x, weight, bias = (None if one is None else one.to(dtype) for one in (input, self.weight, self.bias))
        whole = _positions(self, input) <= limits.whole * self.out_channels
        output: Tensor = _Convolution.apply(x, weight, bias, self.stride, self.padding, whole)  # type: ignore[no-untyped-call]
        return output


def use_faster_convolutions_(model: nn.Module) -> bool:
    """Let a model's convolutions be computed in the fastest way for their shapes; return whether there is a choice.

    Their class is replaced, as torch's ``parametrize`` does it: parameters, hooks and references stay valid.
    """
    possible = [*filter(_is_possible, model.modules())]
    for convolution in possible:
        convolution.__class__ = FasterConv2d
    return bool(possible)


@contextlib.contextmanager
def found_by_passes(model: nn.Module) -> Iterator[set[nn.Conv2d]]:
    """Yield a set of the convolutions that may be faster by shape; the passes within the block fill it."""
    found = set[nn.Conv2d]()

    def look(module: nn.Conv2d, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        images = inputs[0] if inputs else named.get("input")
        if isinstance(images, Tensor) and images.is_cpu:
            is_product = module.groups == 1 and any(_is_within(module, images, one) for one in LIMITS.values())
            if is_product or _is_slow_in_bfloat16(module):
                found.add(module)

    with contextlib.ExitStack() as hooks:
        for module in filter(_is_possible, model.modules()):
            hooks.enter_context(module.register_forward_pre_hook(look, with_kwargs=True))
        yield found


def _is_possible(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    if type(module) is not nn.Conv2d:
        return False
    is_plain = module.groups == 1 and set(module.dilation) == {1}
    return _is_slow_in_bfloat16(module) or (
        is_plain and module.padding_mode == "zeros" and not isinstance(module.padding, str)
    )


def _is_slow_in_bfloat16(convolution: nn.Conv2d) -> bool:
    if convolution.groups == 1 or convolution.in_channels // convolution.groups > _FEW_CHANNELS:
        return False
    return max(convolution.kernel_size) >= _LARGE_KERNEL or max(*convolution.stride, *convolution.dilation) > 1


def _is_within(convolution: nn.Conv2d, images: Tensor, limits: Limits) -> bool:
    numbers = convolution.weight.numel()
    if images.ndim != 4 or numbers < limits.kernel:
        return False
    positions = _positions(convolution, images)
    return positions * numbers >= limits.work and 0 < positions <= limits.gradient * convolution.out_channels


def _computed_in(tensor: Tensor) -> torch.dtype:
    """Return the format in which a convolution takes a tensor."""
    if torch.is_autocast_enabled("cpu") and tensor.is_floating_point() and tensor.dtype != torch.float64:
        return torch.get_autocast_dtype("cpu")
    return tensor.dtype


def _positions(convolution: nn.Conv2d, images: Tensor) -> int:
    """Return how many positions the output has, over all images."""
    assert not isinstance(convolution.padding, str)  # those are left to the library
    sizes = zip(images.shape[2:], convolution.padding, convolution.kernel_size, convolution.stride, strict=True)
    return len(images) * math.prod(max((size + 2 * pad - kernel) // step + 1, 0) for size, pad, kernel, step in sizes)


class _Convolution(torch.autograd.Function):
    """The three passes; ``whole`` says whether all are products, or the weight gradient alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, whole: bool) -> Tensor:
        if not whole:
            return F.conv2d(x, weight, bias, stride, padding)
        patches, shape = _patches(x, weight.shape[2:], stride, padding)
        kernels = weight.permute(2, 3, 1, 0).reshape(-1, len(weight))
        rows = patches @ kernels if bias is None else torch.addmm(bias, patches, kernels)
        # A copy: torch forbids in-place changes, such as ReLU(inplace=True), to a view returned by a Function.
        return rows.view(*shape, -1).permute(0, 3, 1, 2).clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.stride, ctx.padding, ctx.whole = inputs
        ctx.has_bias = bias is not None
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with torch.autocast("cpu", enabled=False):  # as the library's, it computes in the formats of the forward pass
            return _gradients(ctx, grad)

    @staticmethod
    def jvp(ctx: Any, of_x: Tensor | None, of_weight: Tensor | None, of_bias: Tensor | None, *_: Any) -> Tensor:
        x, weight = ctx.saved_tensors
        of_x = torch.zeros_like(x) if of_x is None else of_x
        of_weight = torch.zeros_like(weight) if of_weight is None else of_weight
        moved = F.conv2d(of_x, weight, of_bias, ctx.stride, ctx.padding)
        return moved + F.conv2d(x, of_weight, None, ctx.stride, ctx.padding)


def _gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    rows = grad.permute(0, 2, 3, 1).reshape(-1, len(weight))
    of_x = of_weight = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = _gradient_of_input(ctx, grad, x, weight)
    if ctx.needs_input_grad[1]:
        patches, _ = _patches(x, weight.shape[2:], ctx.stride, ctx.padding)
        of_weight = (rows.t() @ patches).view(len(weight), *weight.shape[2:], -1).permute(0, 3, 1, 2)
    if ctx.has_bias and ctx.needs_input_grad[2]:
        of_bias = rows.sum(0)
    return of_x, of_weight, of_bias, None, None, None


def _gradient_of_input(ctx: Any, grad: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return the gradient of the images; for a stride of 1 a convolution of the output's with the turned kernel."""
    inside = [kernel - 1 - pad for kernel, pad in zip(weight.shape[2:], ctx.padding, strict=True)]
    if ctx.whole and set(ctx.stride) == {1} and min(inside) >= 0:
        patches, shape = _patches(grad, weight.shape[2:], ctx.stride, inside)
        turned = weight.flip(2, 3).permute(2, 3, 0, 1).reshape(-1, weight.shape[1])
        return (patches @ turned).view(*shape, -1).permute(0, 3, 1, 2)
    found: Tensor = conv2d_input(x.shape, weight, grad, ctx.stride, ctx.padding)  # type: ignore[no-untyped-call]
    return found


def _patches(x: Tensor, kernel: Any, stride: Any, padding: Any) -> tuple[Tensor, torch.Size]:
    """Return what the kernel sees, ``[positions, area * channels]``, and the positions by dimension."""
    rows = F.pad(x.permute(0, 2, 3, 1), (0, 0, padding[1], padding[1], padding[0], padding[0]))
    seen = rows.unfold(1, kernel[0], stride[0]).unfold(2, kernel[1], stride[1]).permute(0, 1, 2, 4, 5, 3)
    return seen.reshape(seen.shape[:3].numel(), -1), seen.shape[:3]
