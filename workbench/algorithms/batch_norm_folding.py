"""Take a BatchNorm out of a network without changing what the network computes in evaluation.

In evaluation a BatchNorm is a fixed affine map of each channel c,

    y_c = s_c * x_c + t_c,   s_c = gamma_c / sqrt(var_c + eps),   t_c = beta_c - s_c * mean_c,

so behind a convolution it can be multiplied into the weight (``W_c <- s_c W_c``, ``b_c <- s_c b_c + t_c``). A BatchNorm
that has seen no data has nothing to keep and is simply dropped.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, arXiv:1712.05877, section 3.2.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import UninitializedParameter

__all__ = ["ChannelAffine", "affine_of", "can_fold_into", "fold_into_", "has_learned_statistics", "replace_module_"]


class ChannelAffine(nn.Module):
    """Multiply each channel by a number and add a number, both trained.

    Stands where a BatchNorm with learned statistics was that no convolution can take up.

    Args:
        scale: Factor per channel, shape ``[channels]``.
        shift: Summand per channel, shape ``[channels]``.
    """

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(scale.detach().clone())
        self.shift = nn.Parameter(shift.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Return ``scale * x + shift`` along axis 1 of ``x``, shape ``[batch, channels, ...]``."""
        shape = (1, -1) + (1,) * (x.dim() - 2)
        return x * self.scale.view(shape) + self.shift.view(shape)

    def extra_repr(self) -> str:
        """Show the number of channels."""
        return f"channels={self.scale.numel()}"


def has_learned_statistics(norm: _BatchNorm) -> bool:
    """Whether the running statistics have moved from their start (mean 0, variance 1, no batch seen).

    Scale and shift alone do not count: a network initialised with random scales has learned nothing yet, and only
    statistics that were measured describe the channels that come in.
    """
    if norm.num_batches_tracked is not None and int(norm.num_batches_tracked) > 0:
        return True
    if norm.running_mean is None or norm.running_var is None:
        return False
    return bool((norm.running_mean != 0).any() or (norm.running_var != 1).any())


def affine_of(norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return scale and shift of the map that the BatchNorm is in evaluation.

    Args:
        norm: BatchNorm with running statistics.

    Returns:
        Two float64 tensors of shape ``[channels]``.

    Raises:
        ValueError: When the BatchNorm keeps no running statistics.
    """
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a BatchNorm without running statistics has no fixed map; keep it or give it statistics")
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    scale = (variance + norm.eps).rsqrt()
    shift = torch.zeros_like(mean)
    if norm.affine:
        scale = scale * norm.weight.detach().double()
        shift = norm.bias.detach().double()
    return scale, shift - scale * mean


def can_fold_into(layer: nn.Module, norm: _BatchNorm) -> bool:
    """Whether the layer's weight and bias are plain tensors of the BatchNorm's width that may be changed."""
    if not isinstance(layer, (_ConvNd, nn.Linear)):
        return False
    weight = layer._parameters.get("weight")  # a parametrized or weight-normed layer has no such entry
    if weight is None or isinstance(weight, UninitializedParameter):
        return False
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return bool(channels == norm.num_features)


def fold_into_(layer: nn.Module, norm: _BatchNorm) -> None:
    """Multiply the evaluation map of a BatchNorm into the layer before it, in place; a bias is added if missing.

    Args:
        layer: Convolution, transposed convolution or Linear whose output only this BatchNorm reads.
        norm: BatchNorm with running statistics.

    Raises:
        ValueError: When the layer cannot take it up, see :func:`can_fold_into`.
    """
    if not can_fold_into(layer, norm):
        raise ValueError(f"cannot fold a BatchNorm of {norm.num_features} channels into {type(layer).__name__}")
    target = cast("nn.Conv2d", layer)  # any of the accepted classes; all have weight and bias
    scale, shift = affine_of(norm)
    weight = target.weight.detach().double()
    if isinstance(layer, _ConvTransposeNd):
        # Weight [in, out / groups, ...]: the rows of group g feed the output channels of group g.
        grouped = weight.view(layer.groups, -1, *weight.shape[1:])
        factor = scale.view(layer.groups, 1, -1, *(1,) * (weight.dim() - 2))
        folded = (grouped * factor).view_as(weight)
    else:
        folded = weight * scale.view(-1, *(1,) * (weight.dim() - 1))
    bias = shift if target.bias is None else target.bias.detach().double() * scale + shift
    with torch.no_grad():
        target.weight.copy_(folded)
        if target.bias is not None:
            target.bias.copy_(bias)
        else:
            target.bias = nn.Parameter(bias.to(target.weight.dtype), requires_grad=target.weight.requires_grad)


def replace_module_(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` is registered below ``model``, under whatever names."""
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if child is old:
                setattr(parent, name, new)
