"""Call copies of a network: on the user's example inputs or on noise, and to try removals before they are made."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from workbench.core.batch import mapped, tensors_of
from workbench.core.torch_internals import ConvNd
from workbench.methods.less_bn.batch_norm_folding import Removal, take_out_
from workbench.methods.less_bn.network_graph import TraceError, called_apart, in_one_line

LARGEST_CHANGE = 1e-5  # of the largest output in evaluation, compared in float64
LARGEST_CHANGE_ROUNDED = 2e-2  # where it cannot be: an accelerator's convolutions round to TensorFloat-32
NOISE_SIZES = (64, 224, 32, 28, 8)  # pixels along each axis of the invented image; the first that the model takes

Call = Callable[[nn.Module], Any]


def copy_of(model: nn.Module) -> nn.Module:
    """Return a deep copy; a TraceError when the model cannot be copied."""
    try:
        return copy.deepcopy(model)
    except Exception as error:  # tensors in mid-graph, handles of the operating system
        raise TraceError(f"{type(model).__name__} cannot be copied: {in_one_line(error)}") from error


def caller(example_inputs: Any) -> Call:
    """Return a function that calls a model with one tensor, positional arguments or keyword arguments."""
    if callable(example_inputs):
        given: Call = example_inputs
        return given

    def call(model: nn.Module) -> Any:
        inputs = mapped(example_inputs, lambda tensor: tensor.detach().clone())  # the model may change its input
        if isinstance(inputs, Tensor):
            return model(inputs)
        return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)

    return call


def noise_call(model: nn.Module, n_samples: int = 2) -> Call | None:
    """Return a call with a random image (signal, volume, row) that fits the model's first layer; None if none runs."""
    first = next((layer for layer in model.modules() if isinstance(layer, (ConvNd, nn.Linear))), None)
    if first is None or is_lazy(first.weight):
        return None
    shapes: list[tuple[int, ...]] = [(n_samples, first.in_features)] if isinstance(first, nn.Linear) else []
    if isinstance(first, ConvNd):
        shapes = [(n_samples, first.in_channels, *(size,) * len(first.kernel_size)) for size in NOISE_SIZES]
    for shape in shapes:
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        call = caller(noise.to(first.weight.device, first.weight.dtype))
        with contextlib.suppress(Exception):  # of the user's forward on an input that does not fit
            twin = copy_of(model)
            with called_apart(twin):
                call(twin)
            return call
    return None


def keeping_the_function(
    model: nn.Module, going: list[Removal], call: Call | None
) -> tuple[list[Removal], dict[str, str]]:
    """Try removals on copies: return those that keep the evaluation output, and name -> why not of the others.

    Every BatchNorm is replaced by the fixed map that it is, also one that has learned nothing and will be dropped. If
    all together change the output, halves are tried, down to single ones; without a call all go untried.
    """
    if call is None or not going:
        return going, {}
    tried = [removal for removal in going if model.get_submodule(removal.norm).running_mean is not None]
    wide = all(parameter.device.type == "cpu" for parameter in model.parameters())
    try:
        try:
            change, _ = _change_by(tried, model, call, wide=wide)
        except Exception:  # a type that the model itself chose
            wide = False
            change, _ = _change_by(tried, model, call, wide=False)
    except Exception:  # it ran when it was recorded; whatever this is, it is no verdict on the removals
        return going, {}
    limit = LARGEST_CHANGE if wide else LARGEST_CHANGE_ROUNDED
    if change <= limit or not _change_by([], model, call, wide=wide)[0] <= limit:
        return going, {}  # in the second case it differs from itself, or is not finite: nothing to compare with
    refused: dict[str, str] = {}
    accepted: list[Removal] = []

    def accept(part: list[Removal]) -> None:
        change, why = _change_by([*accepted, *part], model, call, wide=wide)
        if change <= limit:
            accepted.extend(part)
        elif len(part) == 1:
            refused[part[0].norm] = why
        else:
            accept(part[: len(part) // 2])
            accept(part[len(part) // 2 :])

    accept(tried)
    return [removal for removal in going if removal.norm not in refused], refused


def _change_by(removals: Sequence[Removal], model: nn.Module, call: Call, *, wide: bool) -> tuple[float, str]:
    """Reduce a copy; return by how much its outputs change, in units of the largest, and the sentence that says so."""
    twin = copy_of(model).double() if wide else copy_of(model)
    before = _outputs(twin, call)
    try:
        take_out_(twin, removals, keep_function=True)
        after = _outputs(twin, call)
    except Exception as error:  # of the user's forward on a network it does not expect
        return float("inf"), f"without it the model fails: {in_one_line(error)}"
    change = float("inf")
    if [tensor.shape for tensor in before] == [tensor.shape for tensor in after]:
        largest = max((float(tensor.abs().max()) for tensor in before if tensor.numel()), default=0.0)
        pairs = [(one, other) for one, other in zip(before, after, strict=True) if one.numel()]
        changes = torch.tensor([float((one - other).abs().max()) for one, other in pairs] or [0.0])
        change = float(changes.max()) / (largest or 1.0)  # torch's maximum hands on NaN
    return change, f"without it the evaluation output changes by {change:.1e} of its largest value"


class _Answered(Exception):  # noqa: N818  # no error: it ends a call whose rest is of no interest
    """The model has returned."""


def _outputs(twin: nn.Module, call: Call) -> list[Tensor]:
    """Return the floating-point tensors that a model returns in evaluation; its inputs get its own type."""
    dtype = next((parameter.dtype for parameter in twin.parameters() if parameter.is_floating_point()), torch.float32)
    returned: list[Tensor] = []

    def cast(module: nn.Module, *given: Any) -> Any:
        return mapped(given, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def answered(module: nn.Module, args: Any, output: Any) -> None:
        returned.extend(tensors_of(output))
        raise _Answered

    with (
        called_apart(twin),
        twin.register_forward_pre_hook(cast, with_kwargs=True),
        twin.register_forward_hook(answered),
        contextlib.suppress(_Answered),
    ):
        call(twin)
    return [tensor.detach().double().cpu() for tensor in returned if tensor.is_floating_point()]
