"""Gradient accumulation: several micro-batches make one update.

Over a window of N micro-batches the gradient is the MEAN of theirs, so the learning rate keeps its meaning. It is
accumulated in ``.grad`` itself; there is no second buffer of that size. Behaviour taken from MindSpore 2.7.0,
``mindspore/python/mindspore/boost/grad_accumulation.py``; Goyal et al., "Accurate, Large Minibatch SGD", 2017,
arXiv:1706.02677, section 3 explains why the mean over the large batch is the right normalization.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from workbench.core.step_optimizer import held_parameters
from workbench.methods.accumulation_window import AccumulationWindow
from workbench.methods.parameter_groups import checked_optimizer
from workbench.methods.protocol import Method

__all__ = ["AccumulationMethod", "AccumulationWindow", "GradientAccumulation"]

Loss = TypeVar("Loss")


class AccumulationMethod(Method):
    """Makes the window longer; the training step averages over it."""

    needs_shapes = False

    def n_micro(self) -> int:
        """Return the micro-batches per update."""
        return self.config.grad_accumulation.grad_accumulation_step


class GradientAccumulation:
    """Collect the gradients of several micro-batches and step the optimizer once per window.

    Each call adds grad / N to the parameters' ``.grad``. The N-th call steps the optimizer and clears the gradients.
    What is left over at the end of training changes nothing until :meth:`flush` applies it (upstream drops it).

    Args:
        max_accumulation_step: Micro-batches per update, N; 1 or less updates on every call.
        optimizer: The optimizer to step.

    Example:
        >>> w = torch.nn.Parameter(torch.tensor([1.0]))
        >>> accumulate = GradientAccumulation(2, torch.optim.SGD([w], lr=1.0))
        >>> for g in (0.5, 0.25):
        ...     loss = accumulate(torch.tensor(0.0), [torch.tensor([g])])
        >>> w.item()
        0.625
    """

    def __init__(self, max_accumulation_step: int, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = checked_optimizer("optimizer", optimizer)
        self.window = AccumulationWindow(max_accumulation_step)

    def __call__(self, loss: Loss, grads: Sequence[Tensor | None]) -> Loss:
        """Take the gradients of one micro-batch, update when the window is complete, and return the loss as it is.

        ``grads`` are in the order of the optimizer's parameters, as ``torch.autograd.grad`` returns them (not the
        parameters' own ``.grad``, which holds the sum); None for a parameter without gradient.
        """
        parameters = held_parameters(self.optimizer)
        if len(grads) != len(parameters):
            raise ValueError(f"`grads` must hold one entry per parameter ({len(parameters)}), got {len(grads)}")
        pairs = [(p, g) for p, g in zip(parameters, grads, strict=True) if g is not None]
        if any(g is p.grad for p, g in pairs):
            raise ValueError(
                "`grads` must not be the parameters' own .grad, which accumulates; use torch.autograd.grad"
            )
        if self.window.at_start:
            self.optimizer.zero_grad(set_to_none=True)  # what others left there is no part of this window
        begun = [(p.grad, g) for p, g in pairs if p.grad is not None]
        fresh = [(p, g) for p, g in pairs if p.grad is None]
        if begun:
            torch._foreach_add_([total for total, _ in begun], [g for _, g in begun], alpha=self.window.weight)
        if fresh:
            scaled = torch._foreach_mul([g for _, g in fresh], self.window.weight)
            for (parameter, _), grad in zip(fresh, scaled, strict=True):
                parameter.grad = grad
        if self.window.advance():
            self._update()
        return loss

    def flush(self) -> bool:
        """Apply the micro-batches of an unfinished window as their own mean; return whether there were any."""
        if self.window.at_start:
            return False
        # .grad holds the sum over k micro-batches / N; their mean is N / k times that.
        totals = [p.grad for p in held_parameters(self.optimizer) if p.grad is not None]
        if totals:
            torch._foreach_mul_(totals, self.window.n_steps / self.window.position)
        self.window.reset()
        self._update()
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return ``window`` (see :class:`AccumulationWindow`) and ``gradients`` (so far, None where none)."""
        gradients = [
            None if p.grad is None or self.window.at_start else p.grad.clone() for p in held_parameters(self.optimizer)
        ]
        return {"window": self.window.state_dict(), "gradients": gradients}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue within a window, with the gradients accumulated so far.

        Raises:
            ValueError: When it belongs to another window length or number of parameters.
        """
        parameters, gradients = held_parameters(self.optimizer), state_dict["gradients"]
        if len(gradients) != len(parameters):
            raise ValueError(f"state_dict holds {len(gradients)} gradients, the optimizer {len(parameters)} parameters")
        self.window.load_state_dict(state_dict["window"])
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)

    def _update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
