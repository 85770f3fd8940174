"""Take BatchNorms out of a network without changing what the network computes in evaluation.

In evaluation a BatchNorm is a fixed affine map of each channel c,

    y_c = s_c * x_c + t_c,   s_c = gamma_c / sqrt(var_c + eps),   t_c = beta_c - s_c * mean_c,

so behind a convolution it can be multiplied into the weight (``W_c <- s_c W_c``, ``b_c <- s_c b_c + t_c``). A BatchNorm
that has seen no data is simply dropped. Subclasses of torch's layers may do more: a BatchNorm that runs its children
after the norm (timm's) is split by :func:`parts_after`, and nothing is folded into other convolutions.

Jacob et al., "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only Inference",
CVPR 2018, arXiv:1712.05877, section 3.2.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import UninitializedParameter

from workbench.core.own_generators import cpu_generator
from workbench.core.torch_internals import (
    BatchNorm,
    ConvTransposeNd,
    children_by_name,
    pass_hooks,
)
from workbench.core.warning import warn

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_PLAIN_LAYERS = (*_CONVOLUTIONS, nn.Linear)
_PLAIN_NORMS = (nn.BatchNorm2d, nn.SyncBatchNorm)  # the other dimensions share the forward of the first


class ChannelAffine(nn.Module):
    """Multiplies each channel by a number and adds one, in the place of a BatchNorm that no convolution can take up."""

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


def has_learned_statistics(norm: BatchNorm) -> bool:
    """Whether the running statistics have moved from their start (mean 0, variance 1, no batch seen)."""
    if norm.num_batches_tracked is not None and int(norm.num_batches_tracked) > 0:
        return True
    if norm.running_mean is None or norm.running_var is None:
        return False
    return bool((norm.running_mean != 0).any() or (norm.running_var != 1).any())


def affine_of(norm: BatchNorm) -> tuple[Tensor, Tensor]:
    """Return the scale and shift that a BatchNorm with statistics applies in evaluation: float64, ``[channels]``."""
    if norm.running_mean is None or norm.running_var is None:
        raise ValueError("a BatchNorm without running statistics has no fixed map; keep it or give it statistics")
    mean, variance = norm.running_mean.double(), norm.running_var.double()
    scale = (variance + norm.eps).rsqrt()
    shift = torch.zeros_like(mean)
    if norm.affine:
        scale = scale * norm.weight.detach().double()
        shift = norm.bias.detach().double()
    return scale, shift - scale * mean


def can_fold_into(layer: nn.Module, norm: BatchNorm) -> bool:
    """Whether the layer computes as torch's own and its weight, of the BatchNorm's width, is a plain parameter."""
    if not isinstance(layer, _PLAIN_LAYERS) or not _computes_as(layer, _PLAIN_LAYERS):
        return False
    # A parametrized or weight-normed layer has no such entry.
    weight = dict(layer.named_parameters(recurse=False)).get("weight")
    if weight is None or isinstance(weight, UninitializedParameter):
        return False
    channels = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    return bool(channels == norm.num_features)


def fold_into_(layer: nn.Module, norm: BatchNorm) -> None:
    """Multiply the evaluation map of a BatchNorm into the layer before it, in place; a bias is added if missing."""
    if not can_fold_into(layer, norm):
        raise ValueError(f"cannot fold a BatchNorm of {norm.num_features} channels into {type(layer).__name__}")
    target = cast("nn.Conv2d", layer)  # any of the accepted classes; all have weight and bias
    scale, shift = affine_of(norm)
    weight = target.weight.detach().double()
    if isinstance(layer, ConvTransposeNd):
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
            trains = target.weight.requires_grad and _trains(norm)
            target.bias = nn.Parameter(bias.to(target.weight.dtype), requires_grad=trains)


def _trains(norm: BatchNorm) -> bool:
    """Return whether what takes the place of a BatchNorm may be trained: frozen stays frozen."""
    return not norm.affine or bool(norm.weight.requires_grad)


def parts_after(norm: BatchNorm) -> tuple[str, ...] | None:
    """Return the names of the children that a BatchNorm runs after the norm; None when it is not that simple.

    Empty for torch's own BatchNorm. A copy of a subclass is tried on random input, in evaluation and in training: its
    children in order, behind the plain norm, must give the same.
    """
    if _computes_as(norm, _PLAIN_NORMS):
        return ()
    if _is_altered(norm):
        return None
    try:
        own = copy.deepcopy(norm).cpu().float()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            cpu_generator().manual_seed(0)
            for tensor in (own.weight, own.bias, own.running_mean, own.running_var):
                if tensor is not None:
                    tensor.copy_(torch.rand_like(tensor) + 0.5)
            axes = next((n for n, cls in ((3, nn.BatchNorm1d), (5, nn.BatchNorm3d)) if isinstance(norm, cls)), 4)
            x = 2 * torch.randn(3, norm.num_features, *(4,) * (axes - 2))
            alike = all(_is_norm_then_children(own, x, training) for training in (False, True))
    except Exception:  # a foreign forward may raise anything
        return None
    # An Identity (dropout of rate 0, no activation) need not be kept.
    names = tuple(name for name, child in norm.named_children() if not isinstance(child, nn.Identity))
    return names if alike else None


def _is_norm_then_children(norm: BatchNorm, x: Tensor, training: bool) -> bool:
    for module in norm.modules():
        module.training = training
    plain = copy.deepcopy(norm)
    cpu_generator().manual_seed(1)  # dropout draws the same mask twice
    result = norm(x.clone())
    cpu_generator().manual_seed(1)
    by_batch = training or plain.running_mean is None
    expected = F.batch_norm(
        x, plain.running_mean, plain.running_var, plain.weight, plain.bias, by_batch, plain.momentum or 0.0, plain.eps
    )
    for child in plain.children():
        expected = child(expected)
    same_shape = isinstance(result, Tensor) and result.shape == expected.shape
    return same_shape and torch.allclose(result, expected, 1e-4, 1e-5)


def _computes_as(module: nn.Module, classes: tuple[type[nn.Module], ...]) -> bool:
    """Whether a call of the module does what one of torch's classes does, and nothing else."""
    kind = type(module)
    own = kind.forward, getattr(kind, "_conv_forward", None), kind.__call__
    torchs = ((cls.forward, getattr(cls, "_conv_forward", None), nn.Module.__call__) for cls in classes)
    return own in torchs and not _is_altered(module)


def _is_altered(module: nn.Module) -> bool:
    """Whether hooks, a parametrization or a forward of the instance's own take part in a call of the module."""
    return any(pass_hooks(module)) or hasattr(module, "parametrizations") or "forward" in module.__dict__


# In a network


@dataclass(frozen=True)
class Removal:
    """One BatchNorm that goes; names are dotted."""

    norm: str
    layer: str | None  # that can take up its statistics
    rest: tuple[str, ...]  # children of a subclass that run after the norm and stay


def take_out_(
    model: nn.Module, removals: Sequence[Removal], *, keep_function: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove BatchNorms, in place; return which were folded and which became a ChannelAffine."""
    folded: list[str] = []
    affine: list[str] = []
    for removal in removals:
        norm = model.get_submodule(removal.norm)
        assert isinstance(norm, BatchNorm)
        layer = None if removal.layer is None else model.get_submodule(removal.layer)
        keeps_map = keep_function or has_learned_statistics(norm)
        substitute: nn.Module = nn.Identity()
        if keeps_map and layer is None:
            scale, shift = affine_of(norm)
            dtype = norm.weight.dtype if norm.affine else torch.get_default_dtype()
            substitute = ChannelAffine(scale.to(dtype), shift.to(dtype))
            substitute.requires_grad_(_trains(norm))
            affine.append(removal.norm)
        substitute.train(norm.training)
        if removal.rest:
            parts = [("norm", substitute), *((name, norm.get_submodule(name)) for name in removal.rest)]
            substitute = nn.Sequential(OrderedDict(parts))
            substitute.training = norm.training  # not train(): the children stay in the mode they are in
        replace_module_(model, norm, substitute)
        _accept_either_form_(model, substitute, layer)
        if keeps_map and layer is not None:
            fold_into_(layer, norm)
            folded.append(removal.norm)
    return tuple(folded), tuple(affine)


def replace_module_(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put ``new`` wherever ``old`` is registered below ``model``, under whatever names."""
    for parent in list(model.modules()):
        for name, child in children_by_name(parent):
            if child is old:
                setattr(parent, name, new)


def _accept_either_form_(model: nn.Module, substitute: nn.Module, layer: nn.Module | None) -> None:
    """Let the weights of a network whose BatchNorm had learned load where it had not, and the other way round.

    What a file has and the network lacks is added, as a parameter that trains if the layer's weight does; what the
    network has and the file lacks is set to where it changes nothing.
    """
    inside = ".norm" if isinstance(substitute, nn.Sequential) else ""
    for parent in model.modules():
        for name, child in children_by_name(parent):
            if child is substitute:
                hook = partial(_load_affine, child=name + inside)
                # torch leaves this public method untyped
                parent.register_load_state_dict_pre_hook(hook)  # type: ignore[no-untyped-call]
    if layer is not None and layer.bias is None:
        layer.register_load_state_dict_pre_hook(_load_bias)


def _load_affine(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any, child: str) -> None:
    scale, shift = (state_dict.get(f"{prefix}{child}.{name}") for name in ("scale", "shift"))
    present = module.get_submodule(child)
    if isinstance(present, ChannelAffine) and scale is None and shift is None:
        state_dict[f"{prefix}{child}.scale"] = torch.ones_like(present.scale)
        state_dict[f"{prefix}{child}.shift"] = torch.zeros_like(present.shift)
    elif type(present) is nn.Identity and scale is not None and shift is not None:
        like = next(module.parameters(), scale)
        affine = ChannelAffine(scale.to(like.device, like.dtype), shift.to(like.device, like.dtype))
        module.set_submodule(child, affine.train(present.training))
        _warn_of_added(f"{prefix}{child}.scale and shift", affine)


def _load_bias(layer: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    target = cast("nn.Conv2d", layer)
    key, weight = f"{prefix}bias", target.weight
    if target.bias is not None and f"{prefix}weight" in state_dict:
        state_dict.setdefault(key, torch.zeros_like(target.bias))
    elif target.bias is None and key in state_dict:
        zeros = torch.zeros_like(state_dict[key], dtype=weight.dtype, device=weight.device)
        target.bias = nn.Parameter(zeros, requires_grad=weight.requires_grad)
        _warn_of_added(key, layer)


def _warn_of_added(name: str, layer: nn.Module) -> None:
    if layer.training:
        warn(
            f"the loaded weights add {name}, which this network did not have; an optimizer made before does not train "
            "it. To continue training, give apply() a network whose BatchNorms have statistics, as the first time"
        )
