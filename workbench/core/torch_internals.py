"""What this package uses of torch that has no public name, in one file: a new version of torch is checked here first.

Not here: ``torch._foreach_*`` and ``Tensor._indices``, which torch documents ("Foreach Operations", "Sparse tensors").
The few names used elsewhere are listed, with their reasons, in ``tests/architecture/test_private_names.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.modules.module as torch_module
import torch.optim.optimizer as torch_optimizer
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorm
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd as ConvNd
from torch.nn.modules.conv import _ConvTransposeNd as ConvTransposeNd
from torch.nn.modules.loss import _Loss as LossModule
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

__all__ = ["NORMALIZATIONS", "BatchNorm", "ConvNd", "ConvTransposeNd", "LossModule"]  # a user may derive from these

NORMALIZATIONS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)

# Kernels that torch's own fused optimizers, GradScaler and DistributedDataParallel call by these names.
fused_adam_ = torch._fused_adam_
fused_adamw_ = torch._fused_adamw_
check_and_unscale_ = torch._amp_foreach_non_finite_check_and_unscale_
flatten_tensors: Callable[[list[Tensor]], Tensor] = torch._C._nn.flatten_dense_tensors


#: Where ``torch.compile`` keeps the module that it wraps; it is part of the names in its state dict.
COMPILED = "_orig_mod"


@functools.cache
def has_kernel(device_type: str, operator: str) -> bool:
    """Return whether a device has its own kernel for an operator; some fall back on the CPU for what they lack."""
    key = "PrivateUse1" if device_type == torch._C._get_privateuse1_backend_name() else device_type.upper()
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key))


def has_fused_kernel(parameter: Tensor, operator: str) -> bool:
    """Return whether a fused kernel (``"_fused_sgd_"``, ``"_fused_adamw_"``) updates this parameter, and correctly."""
    if has_gaps(parameter):
        return False
    if parameter.device.type == "cpu":
        short = (torch.float16, torch.bfloat16)
        # torch 2.13: that of SGD leaves half of every vector of 16-bit weights as it was (37 equal ones, for example).
        known = (torch.float32, torch.float64, *(() if operator == "_fused_sgd_" else short))
        return parameter.dtype in known
    return parameter.is_floating_point() and has_kernel(parameter.device.type, operator)


def has_gaps(tensor: Tensor) -> bool:
    """Return whether a tensor's elements are not contiguous in memory in any order, as in a slice of columns.

    Fused kernels assume dense memory and would write into the gaps.
    """
    return not is_lazy(tensor) and dense_strides(tensor) != tensor.stride()


def dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor if it covers memory without gaps (channels_last included), else of a copy."""
    return torch.empty_like(tensor, device="meta").stride()


def version_of(tensor: Tensor) -> int:
    """Return how often a tensor was written in place."""
    return tensor._version


# Hooks can be registered and removed, but not listed. The names of an optimizer's exist since torch 2.0.


def has_step_hooks(optimizer: Optimizer) -> bool:
    """Return whether anything is hooked to the step of an optimizer, or of all."""
    return bool(
        optimizer._optimizer_step_pre_hooks
        or optimizer._optimizer_step_post_hooks
        or torch_optimizer._global_optimizer_pre_hooks
        or torch_optimizer._global_optimizer_post_hooks
    )


def step_hooks(optimizer: Optimizer) -> tuple[list[Callable[..., Any]], list[Callable[..., Any]]]:
    """Return the hooks that run before and after each step of an optimizer, in their order."""
    return list(optimizer._optimizer_step_pre_hooks.values()), list(optimizer._optimizer_step_post_hooks.values())


def register_step_hook(optimizers: Sequence[Optimizer], hook: Callable[..., Any], *, before: bool) -> RemovableHandle:
    """Register a hook before or after the step of each of several optimizers; the handle removes it from all."""
    first, *others = [one._optimizer_step_pre_hooks if before else one._optimizer_step_post_hooks for one in optimizers]
    handle = RemovableHandle(first, extra_dict=others)
    for hooks in (first, *others):
        hooks[handle.id] = hook
    return handle


def has_forward_hooks(module: nn.Module) -> bool:
    """Return whether anything is hooked to a module's forward pass."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def pass_hooks(module: nn.Module) -> list[Mapping[int, Any]]:
    """Return the registers of what is hooked to a module's passes, which stay the same ones."""
    return [module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks]


def global_pass_hooks() -> list[Mapping[int, Any]]:
    """Return the registers of what is hooked to the passes of all modules."""
    return [
        torch_module._global_forward_hooks,
        torch_module._global_forward_pre_hooks,
        torch_module._global_backward_hooks,
        torch_module._global_backward_pre_hooks,
    ]


def registers_of(module: nn.Module) -> tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Return the registers of a module's own children, parameters and buffers, which stay the same ones."""
    return module._modules, module._parameters, module._buffers


def has_gradient_hooks(parameter: Tensor) -> bool:
    """Return whether anything is hooked to a parameter's gradient."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def remove_forward_hooks(module: nn.Module, which: Callable[[Any], bool]) -> None:
    """Remove hooks whose handles are gone, as in a copied module."""
    for key in [key for key, hook in module._forward_hooks.items() if which(hook)]:
        del module._forward_hooks[key]
        module._forward_hooks_with_kwargs.pop(key, None)


def end_failed_capture(device: torch.device, pool: tuple[int, int]) -> None:
    """Let CUDA's allocator serve other streams again after a capture that failed to end."""
    torch._C._cuda_endAllocateToPool(device.index, pool)


# Marks by which torch's schedulers and its GradScaler recognise things.


def mark_stepped(optimizer: Optimizer) -> None:
    """Let schedulers see that the optimizer took a step; they would warn that it came after theirs."""
    optimizer._opt_called = True  # type: ignore[attr-defined]


def is_wrapped_by_scheduler(step: Any) -> bool:
    """Return whether an optimizer's ``step`` is the wrapper that a scheduler puts around it."""
    return hasattr(step, "_wrapped_by_lr_sched")


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Return whether an optimizer's step reads ``found_inf`` itself; a copy of a fused one has lost the mark."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def children_by_name(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return a module's children; unlike ``named_children``, one that is registered under two names is there twice."""
    return [(name, child) for name, child in module._modules.items() if child is not None]
