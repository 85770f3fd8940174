"""Mixed-precision levels: what runs in which number format.

* O0: everything as the model was built.
* O2: autocast with float32 master weights; BatchNorm keeps float32 parameters and statistics.
* O3: the weights themselves are cast, BatchNorm too; no loss scale.

``keep_batchnorm_fp32`` overrides the BatchNorm rule of either level. The levels are those of MindSpore's
``amp_level``; Micikevicius et al., "Mixed Precision Training", ICLR 2018, arXiv:1710.03740, is their source.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adagrad, Adam, NAdam, Optimizer, RAdam, RMSprop

from workbench.core import devices
from workbench.core.batch import mapped
from workbench.core.step_optimizer import held_parameters
from workbench.core.torch_internals import BatchNorm, has_fused_kernel
from workbench.core.warning import warn

_AS_BUILT = nullcontext()
_DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
# In what torch says of operands that do not go together.
_OF_FORMATS = re.compile("Half|BFloat16|mixed dtype|weight dtype")


@dataclass(frozen=True, slots=True)
class Precision:
    """The number formats of one run."""

    level: str  # "O0", "O2" or "O3"; "auto" is resolved before
    dtype: str  # "float16" or "bfloat16"
    device_type: str  # of the model
    keep_batchnorm_fp32: bool | None = None  # None for the level's own rule

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context in which the forward pass runs."""
        if self.level == "O2":
            return torch.autocast(self.device_type, _DTYPES[self.dtype])
        return _WithCastWeights(self.dtype) if self.level == "O3" else _AS_BUILT


class _WithCastWeights:
    """Surrounds a forward pass with cast weights: where the model casts by itself, it computes with both formats."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, RuntimeError | ValueError) and _OF_FORMATS.search(str(error)):
            raise RuntimeError(
                f"`amp.level` O3 casts the weights to {self._dtype}, which does not go with what the model computes "
                f"({str(error).splitlines()[0]}); where it casts by itself, set `amp.level` to O2 or O0"
            ) from error


def slow_bfloat16_sentence(precision: Precision) -> str:
    """Return a sentence if bfloat16 costs time, on a processor without instructions for it; empty otherwise.

    A set-up that was tuned on another machine may ask for it.
    """
    is_asked_of_cpu = precision.level != "O0" and precision.dtype == "bfloat16" and precision.device_type == "cpu"
    if not is_asked_of_cpu or devices.has_fast_bfloat16("cpu"):
        return ""
    return (
        "bfloat16 is slower than float32 on this processor, which has no instructions for it (avx512_bf16 or AMX); if "
        "the configuration was tuned on another machine, tune it on this one or set `amp.level` to O0"
    )


def refuse_impossible(model: nn.Module, precision: Precision) -> None:
    """Raise RuntimeError where this machine cannot compute a model in its precision: torch 2.13's LSTM in float16.

    Few processors have what oneDNN needs for it (avx512_fp16 or AMX), and torch asks none; it fails at the first step.
    An LSTM with projections is computed without oneDNN.
    """
    in_float16 = precision.level == "O2" and precision.dtype == "float16" and precision.device_type == "cpu"
    if not in_float16 or not any(isinstance(one, nn.LSTM) and not one.proj_size for one in model.modules()):
        return
    try:
        with precision.autocast(), torch.enable_grad():
            nn.LSTM(1, 1, device="meta").to_empty(device="cpu")(torch.zeros(1, 1, 1))  # which draws no number
    except RuntimeError as error:
        raise RuntimeError(
            "this processor computes no LSTM in float16; set `amp.dtype` to bfloat16, or `amp.level` to O0"
        ) from error


def cast_model_and_state_(model: nn.Module, optimizer: Optimizer, precision: Precision) -> None:
    """Cast the model's weights, and what an optimizer keeps for them, if it has stepped or begins with a state."""
    formats = [parameter.dtype for parameter in model.parameters()]
    cast_model_(model, precision)
    if optimizer.state and formats != [parameter.dtype for parameter in model.parameters()]:
        # Loading follows the optimizer's own rule: torch's take the weights' format, others keep some state in float32.
        optimizer.load_state_dict(optimizer.state_dict())


def cast_model_(model: nn.Module, precision: Precision) -> None:
    """Cast the model's weights in place as the level asks; a second call changes nothing more.

    Under O3 floating-point inputs are cast to the level's format on entry and outputs back to float32, so that the
    criterion works in float32 and the caller need not know the level.
    """
    dtype = _DTYPES[precision.dtype]
    if precision.level == "O0":
        return
    if precision.level == "O2":
        if precision.keep_batchnorm_fp32 is False:
            _cast_batch_norms_(model, dtype)
        return
    if getattr(model, "_weights_cast_to", None) == dtype:
        return
    (model.half if dtype == torch.float16 else model.bfloat16)()  # `to` would drop the imaginary part of complex ones
    if precision.keep_batchnorm_fp32:
        _cast_batch_norms_(model, torch.float32)
    model.register_forward_pre_hook(partial(_cast_inputs, dtype), with_kwargs=True)  # a lambda cannot be saved with it
    model.register_forward_hook(_cast_output)
    model._weights_cast_to = dtype  # type: ignore[assignment]  # a marker, not a parameter


def avoid_broken_kernel_(optimizer: Optimizer, groups: list[dict[str, Any]]) -> None:
    """Switch off torch's fused SGD in the given groups where its kernel on a CPU does not take the weights correctly.

    A CPU has no synchronisation to avoid, so nothing is lost.
    """
    parameters = [parameter for group in groups for parameter in group["params"]] if isinstance(optimizer, SGD) else []
    if any(one.is_cpu and not has_fused_kernel(one, "_fused_sgd_") for one in parameters):
        for group in groups:
            group["fused"] = False


def warn_of_short_moments(optimizer: Optimizer) -> None:
    """Warn if an optimizer keeps squares of gradients in float16, as it may under O3, where small ones vanish.

    0.001 g**2 is 0 for gradients below 5e-3, and so is eps = 1e-8. A fused kernel, which computes in float32, then sees
    the last gradient alone and makes updates up to 30 times too large; arithmetic in float16 divides by 0.
    """
    keeps_squares = isinstance(optimizer, Adam | NAdam | RAdam | RMSprop | Adagrad)
    if keeps_squares and any(parameter.dtype == torch.float16 for parameter in held_parameters(optimizer)):
        warn(
            f"{type(optimizer).__name__} keeps squares of float16 gradients in float16, where most of them are 0, so "
            "that updates become up to 30 times too large, or infinite; set `amp.level` to O2, `amp.dtype` to "
            "bfloat16, or `optimizer.name` to SGD or adam_offload"
        )


def _cast_batch_norms_(model: nn.Module, dtype: torch.dtype) -> None:
    for norm in (module for module in model.modules() if isinstance(module, BatchNorm)):
        formats = {tensor.dtype for tensor in (*norm.parameters(), *norm.buffers()) if tensor.is_floating_point()}
        if dtype != torch.float32 and formats - {dtype}:  # else float32 inputs, autocast or not, would be refused
            norm.register_forward_pre_hook(partial(_cast_inputs, dtype), with_kwargs=True)
        norm.to(dtype)


def _cast_inputs(dtype: torch.dtype, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    return _cast(args, dtype), _cast(kwargs, dtype)


def _cast_output(module: nn.Module, args: Any, output: Any) -> Any:
    return _cast(output, torch.float32)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return mapped(value, lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)
