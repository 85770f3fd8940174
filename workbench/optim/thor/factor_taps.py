"""Hooks that hand a layer's inputs and output gradients on, only while they are wanted.

A tap is put on a module for the steps that refresh its factors and taken off again, so that the other steps cost
nothing. It rides on the ordinary passes: the forward hook hangs a hook on the output tensor, and the backward pass
calls that with the gradient. The input it needs is the one that autograd keeps for the weight's gradient anyway, and
goes with the graph; a forward pass that no backward pass follows leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["Tap"]

Receiver = Callable[[Tensor, Tensor], None]


class Tap:
    """One module's tap.

    A copy or pickle of it is dead: a copied module shall not report to the original's optimizer, and the copy of an
    optimizer puts up taps of its own.

    Args:
        module: A module with a parameter ``weight``.
        receive: Called in the backward pass with the input and the gradient of the output, both detached.
    """

    def __init__(self, module: nn.Module, receive: Receiver) -> None:
        self._receive: Receiver | None = receive
        _remove_dead(module)
        self._handle: RemovableHandle | None = module.register_forward_hook(self, with_kwargs=True)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Hang a hook on the output of a forward pass that will train the module's weight."""
        if self._receive is None or not torch.is_grad_enabled():
            return
        if not isinstance(output, Tensor) or not output.requires_grad or not module.weight.requires_grad:
            return
        inputs = args[0] if args else kwargs["input"]
        output.register_hook(_Arrival(self, inputs.detach()))  # type: ignore[no-untyped-call]  # torch has no types there

    def deliver(self, inputs: Tensor, gradient: Tensor) -> None:
        """Hand on what the backward pass brought, unless the tap was taken off in between."""
        if self._receive is not None:
            with torch.no_grad(), torch.autocast(gradient.device.type, enabled=False):
                self._receive(inputs, gradient.detach())

    def remove(self) -> None:
        """Take the tap off."""
        if self._handle is not None:
            self._handle.remove()
        self._receive = self._handle = None

    @property
    def is_dead(self) -> bool:
        """Whether it hands on nothing any more."""
        return self._receive is None

    def __getstate__(self) -> dict[str, Any]:
        return {"_receive": None, "_handle": None}


class _Arrival:
    """The hook on an output: it waits for the gradient with the input in hand."""

    def __init__(self, tap: Tap, inputs: Tensor) -> None:
        self.tap, self.inputs = tap, inputs

    def __call__(self, gradient: Tensor) -> None:
        self.tap.deliver(self.inputs, gradient)


def _remove_dead(module: nn.Module) -> None:
    """Take off what copying or unpickling a module left behind; torch has no public way to list hooks."""
    for key, hook in list(module._forward_hooks.items()):
        if isinstance(hook, Tap) and hook.is_dead:
            del module._forward_hooks[key]
            module._forward_hooks_with_kwargs.pop(key, None)
