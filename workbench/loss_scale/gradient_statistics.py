"""What the trace wants to know of a gradient, computed on the device without synchronisation."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workbench.core import host_values
from workbench.core.sparse_tables import values_of
from workbench.core.torch_internals import flatten_tensors

#: Bins of an exponent histogram: biased float32 exponents 0..255, then one bin for exact zeros. Bin b < 255 holds
#: 2**(b - 127) <= abs(g) < 2**(b - 126), bin 0 the float32 denormals, bin 255 inf and NaN.
EXPONENT_BINS = 257
_ZEROS = 256
_COPIED_ELEMENTS = 1_000_000
_COUNTED_ELEMENTS = 1 << 24  # at once on an accelerator: what float32 counts without loss, at some 200 MB beside it
_LEAST_NORM, _LARGEST_NORM = 1e-15, 1e19  # beyond, squares of elements fall out of float32's range


def tensor_norms_and_maxima(gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return per tensor, of at least one, the L2 norm and the largest absolute value, both float32 of shape ``[n]``.

    A tensor with an inf or NaN element has a norm that is not finite. A complex number counts as two.
    """
    dense = [real_values(gradient) for gradient in gradients]
    # In float32: the norm of a float16 tensor with finite elements may exceed float16. torch refuses to narrow float64.
    wide = torch.float64 if any(g.dtype == torch.float64 for g in dense) else torch.float32
    norms = torch.stack(torch._foreach_norm(dense, 2.0, wide)).float()
    # stack() promotes mixed dtypes itself; a cast per tensor would double the number of calls.
    if not dense[0].is_cpu:
        return norms, torch.stack(torch._foreach_norm(dense, math.inf)).float()
    # max and -max(-g) instead of the inf norm: on a CPU that one is ten times slower (torch 2.13).
    upper = torch.stack(torch._foreach_max(dense)).float()
    lower = torch.stack(torch._foreach_max(torch._foreach_neg(dense))).float()
    return norms, torch.maximum(upper, lower)


def real_values(gradient: Tensor) -> Tensor:
    """Return the values of a gradient, of sparse rows summed, of a complex one as pairs of numbers."""
    values = values_of(gradient)
    return torch.view_as_real(values) if values.is_complex() else values


def norm_and_maximum_of_finite(gradients: Sequence[Tensor]) -> tuple[float, float] | None:
    """Return L2 norm and largest absolute value, float32, of all gradients together, quickly where that is easy.

    None where the host would have to wait for them, anything is not finite or not plain float32, or the squares leave
    the range of float32: then `tensor_norms_and_maxima` says more.
    """
    plain = all(gradient.dtype == torch.float32 and gradient.layout == torch.strided for gradient in gradients)
    n_elements = sum(gradient.numel() for gradient in gradients)
    if not plain or n_elements == 0 or not host_values.reads_without_waiting(*gradients):
        return None
    if n_elements <= _COPIED_ELEMENTS:
        flat = flatten_tensors(list(gradients))
        low, high = torch.aminmax(flat)
        norm, amax = torch.linalg.vector_norm(flat).item(), max(-low.item(), high.item())
    else:
        ends = [torch.aminmax(gradient) for gradient in gradients if gradient.numel()]
        amax = torch.stack([end for pair in ends for end in pair]).abs().max().item()
        norm = torch.stack(torch._foreach_norm(list(gradients))).norm().item()
    # A NaN is neither; zeros are, and so is a norm whose squares did not vanish.
    fits = norm < _LARGEST_NORM and math.isfinite(amax) and (norm > _LEAST_NORM or amax == 0.0)
    return (norm, amax) if fits else None


def exponent_counts(gradients: Sequence[Tensor], device: torch.device | None = None) -> Tensor:
    """Count the binary exponents of all elements of gradients on one device, int64, in the bins of ``EXPONENT_BINS``.

    The counts lie where the gradients do, on ``device`` (None for the CPU) if there are none.
    """
    device = gradients[0].device if gradients else device
    counts = torch.zeros(EXPONENT_BINS, dtype=torch.int64, device=device)
    flats = [real_values(gradient).detach().reshape(-1) for gradient in gradients]
    if len(flats) > 1 and flats[0].is_cpu and sum(map(len, flats)) <= _COPIED_ELEMENTS:
        flats = [torch.cat([flat.float() for flat in flats])]
    for flat in flats:
        for part in (flat,) if flat.is_cpu else torch.split(flat, _COUNTED_ELEMENTS):
            part = part.float()
            # The exponent is read from the bits: exact, and cheaper than a logarithm.
            bins = (part.view(torch.int32) >> 23) & 0xFF
            bins = torch.where(part == 0, _ZEROS, bins)
            if part.is_cpu:
                counts += torch.bincount(bins, minlength=EXPONENT_BINS)
            else:  # bincount would make the host wait, and scatter_add_ lets most elements fight over twenty counts
                counts += torch.histc(bins.to(torch.float32), EXPONENT_BINS, 0, EXPONENT_BINS).long()
    return counts


def group_by_module(model: nn.Module, limit: int = 16) -> dict[str, str]:
    """Return for every parameter a group named after the module it lies in, in forward registration order.

    Groups are the shallowest level of the module tree that has at least four members, so that a heat map per group
    stays legible; deeper modules are merged into their ancestor, and past ``limit`` groups neighbours are merged.
    """
    names = [name for name, _ in model.named_parameters()]
    chosen: list[str] = []
    for depth in range(1, 5):
        chosen = [".".join(name.split(".")[:-1][:depth]) or name for name in names]
        if len(set(chosen)) >= 4:
            break
    distinct = list(dict.fromkeys(chosen))
    if len(distinct) > limit:
        per = -(-len(distinct) // limit)
        for start in range(0, len(distinct), per):
            block = distinct[start : start + per]
            label = block[0] if len(block) == 1 else f"{block[0]} … {block[-1]}"
            chosen = [label if name in block else name for name in chosen]
    return dict(zip(names, chosen, strict=True))
