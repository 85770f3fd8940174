"""Take BatchNorms out of a network, after having tried on a copy that its function in evaluation stays."""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from workbench.methods.less_bn.batch_norm_folding import (
    ChannelAffine,
    accept_either_form_,
    affine_of,
    fold_into_,
    has_learned_statistics,
    replace_module_,
)
from workbench.methods.less_bn.batch_norm_graph import TraceError, called_apart, tensors_in

__all__ = ["Call", "Removal", "caller", "copy_of", "keeping_the_function", "noise_call", "take_out_"]

LARGEST_CHANGE = 1e-5  # of the largest output in evaluation, compared in float64
LARGEST_CHANGE_ROUNDED = 2e-2  # where it cannot be: an accelerator's convolutions round to TensorFloat-32
NOISE_SIZES = (64, 224, 32, 28, 8)  # pixels along each axis of the invented image; the first that the model takes

Call = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Removal:
    """One BatchNorm that goes.

    Attributes:
        norm: Dotted name.
        layer: Dotted name of the layer that can take up its statistics, or None.
        rest: Children of a subclass that run after the norm and stay.
    """

    norm: str
    layer: str | None
    rest: tuple[str, ...]


def take_out_(
    model: nn.Module, removals: Sequence[Removal], *, keep_function: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Remove BatchNorms, in place, and return which were folded and which became a ChannelAffine.

    Args:
        model: Network.
        removals: What goes.
        keep_function: Also write down the map of BatchNorms that have learned nothing.
    """
    folded: list[str] = []
    affine: list[str] = []
    for removal in removals:
        norm = model.get_submodule(removal.norm)
        assert isinstance(norm, _BatchNorm)
        layer = None if removal.layer is None else model.get_submodule(removal.layer)
        substitute: nn.Module = nn.Identity()
        fold = False
        if has_learned_statistics(norm) or keep_function:
            fold = layer is not None
            (folded if fold else affine).append(removal.norm)
            if not fold:
                scale, shift = affine_of(norm)
                dtype = norm.weight.dtype if norm.affine else torch.get_default_dtype()
                substitute = ChannelAffine(scale.to(dtype), shift.to(dtype))
                substitute.requires_grad_(not norm.affine or norm.weight.requires_grad)  # frozen stays frozen
        substitute.train(norm.training)
        if removal.rest:
            parts = [("norm", substitute), *((name, norm.get_submodule(name)) for name in removal.rest)]
            substitute = nn.Sequential(OrderedDict(parts))
            substitute.training = norm.training  # not train(): the children stay in the mode they are in
        replace_module_(model, norm, substitute)
        accept_either_form_(model, substitute, layer)
        if fold and layer is not None:
            fold_into_(layer, norm)
    return tuple(folded), tuple(affine)


def copy_of(model: nn.Module) -> nn.Module:
    """Return a deep copy.

    Raises:
        TraceError: When the model cannot be copied.
    """
    try:
        return copy.deepcopy(model)
    except Exception as error:  # tensors in mid-graph, handles of the operating system
        raise TraceError(f"{type(model).__name__} cannot be copied: {' '.join(str(error).split())[:200]}") from error


def caller(example_inputs: Any) -> Call:
    """Return what calls a model with the example inputs: a tensor, arguments, keyword arguments, or such a function."""
    if callable(example_inputs):
        given: Call = example_inputs
        return given

    def call(model: nn.Module) -> Any:
        inputs = _fresh(example_inputs)  # the model may change its input
        if isinstance(inputs, Tensor):
            return model(inputs)
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)

    return call


def _fresh(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _fresh(part) for key, part in value.items()}
    return [_fresh(part) for part in value] if type(value) in {list, tuple} else value


def noise_call(model: nn.Module, n_samples: int = 2) -> Call | None:
    """Return a call with a random image (signal, volume, row) that fits the model's first layer; None if none runs."""
    first = next((layer for layer in model.modules() if isinstance(layer, (_ConvNd, nn.Linear))), None)
    if first is None or is_lazy(first.weight):
        return None
    shapes: list[tuple[int, ...]] = [(n_samples, first.in_features)] if isinstance(first, nn.Linear) else []
    if isinstance(first, _ConvNd):
        shapes = [(n_samples, first.in_channels, *(size,) * len(first.kernel_size)) for size in NOISE_SIZES]
    for shape in shapes:
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        call = caller(noise.to(first.weight.device, first.weight.dtype))
        with contextlib.suppress(Exception):  # of the user's forward on an input that does not fit
            model_copy = copy_of(model)
            with called_apart(model_copy):
                call(model_copy)
            return call
    return None


def keeping_the_function(
    model: nn.Module, going: list[Removal], call: Call | None, twin: nn.Module | None
) -> tuple[list[Removal], dict[str, str]]:
    """Try the removals on copies and return those that leave the evaluation output as it is, and why others do not.

    Every BatchNorm is replaced by the fixed map that it is, also one that has learned nothing and will be dropped: what
    is tried here is whether it can be replaced at all. If all together change the output, halves are tried, down to
    single ones.

    Args:
        model: Network; it stays as it is.
        going: What is to be removed.
        call: How to call the network; without it nothing can be tried, and everything is returned.
        twin: A copy that is no longer needed, or None.

    Returns:
        Removals that change no output by more than 1e-5 of the largest one, and name -> sentence of the others.
    """
    if call is None or not going:
        return going, {}
    tried = [removal for removal in going if model.get_submodule(removal.norm).running_mean is not None]
    wide = all(parameter.device.type == "cpu" for parameter in model.parameters())
    twin = twin or copy_of(model)
    try:
        if wide:
            try:
                before = _outputs(twin.double(), call)
            except Exception:  # a type that the model itself chose
                wide, twin = False, copy_of(model)
        if not wide:
            before = _outputs(twin, call)
    except Exception:  # it ran when it was recorded; whatever this is, it is no verdict on the removals
        return going, {}
    limit = LARGEST_CHANGE if wide else LARGEST_CHANGE_ROUNDED
    change, _ = _change_by(tried, twin, before, call)
    if change <= limit:
        return going, {}

    def change_by(removals: Sequence[Removal]) -> tuple[float, str]:
        fresh = copy_of(model).double() if wide else copy_of(model)
        return _change_by(removals, fresh, _outputs(fresh, call), call)

    refused: dict[str, str] = {}
    accepted: list[Removal] = []

    def accept(part: list[Removal]) -> None:
        change, why = change_by([*accepted, *part])
        if change <= limit:
            accepted.extend(part)
        elif len(part) == 1:
            refused[part[0].norm] = why
        else:
            accept(part[: len(part) // 2])
            accept(part[len(part) // 2 :])

    if change_by([])[0] <= limit:  # else it differs from itself, or is not finite: nothing to compare with
        accept(tried)
    return [removal for removal in going if removal.norm not in refused], refused


def _change_by(removals: Sequence[Removal], twin: nn.Module, before: Sequence[Tensor], call: Call) -> tuple[float, str]:
    """Reduce a copy that gave some outputs before; return by how much they change, and the sentence that says so."""
    try:
        take_out_(twin, removals, keep_function=True)
        change = _change(before, _outputs(twin, call))
    except Exception as error:  # of the user's forward on a network it does not expect
        return float("inf"), f"without it the model fails: {' '.join(str(error).split())[:200]}"
    return change, f"without it the evaluation output changes by {change:.1e} of its largest value"


class _Answered(Exception):  # noqa: N818  # no error: it ends a call whose rest is of no interest
    """The model has returned."""


def _outputs(twin: nn.Module, call: Call) -> list[Tensor]:
    """Return the floating-point tensors that a model returns in evaluation; its inputs get its own type."""
    dtype = next((parameter.dtype for parameter in twin.parameters() if parameter.is_floating_point()), torch.float32)
    returned: list[Tensor] = []

    def cast(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.to(dtype) if value.is_floating_point() else value
        if isinstance(value, Mapping):
            return {key: cast(part) for key, part in value.items()}
        return type(value)(cast(part) for part in value) if type(value) in {list, tuple} else value

    def answered(module: nn.Module, args: Any, output: Any) -> None:
        returned.extend(tensors_in(output))
        raise _Answered

    with (
        called_apart(twin),
        twin.register_forward_pre_hook(lambda module, args, kwargs: (cast(args), cast(kwargs)), with_kwargs=True),
        twin.register_forward_hook(answered),
        contextlib.suppress(_Answered),
    ):
        call(twin)
    return [tensor.detach().double().cpu() for tensor in returned if tensor.is_floating_point()]


def _change(before: Sequence[Tensor], after: Sequence[Tensor]) -> float:
    """Return the largest change of an output in units of the largest output; NaN or inf where they do not compare."""
    if [tensor.shape for tensor in before] != [tensor.shape for tensor in after]:
        return float("inf")
    largest = max((float(tensor.abs().max()) for tensor in before if tensor.numel()), default=0.0)
    pairs = [(one, other) for one, other in zip(before, after, strict=True) if one.numel()]
    changes = torch.tensor([float((one - other).abs().max()) for one, other in pairs] or [0.0])
    return float(changes.max()) / (largest or 1.0)
