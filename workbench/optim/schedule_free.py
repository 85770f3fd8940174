"""Schedule-Free AdamW: averaging in place of a learning-rate schedule.

Three sequences of weights, of which the network holds one at a time (t = 1, 2, ...; x and z begin at the network's)::

    y = (1 - beta1) z + beta1 x                         # where gradients are taken: while training
    v = beta2 v + (1 - beta2) g^2
    rate = lr sqrt(1 - beta2^t) min(1, t / warmup_steps)
    z = z - rate (g / (sqrt(v) + eps) + weight_decay y)
    x = (1 - c) x + c z,  c = rate^2 / sum of rate^2    # what is evaluated and kept

Defazio, Yang, Mehta, Mishchenko, Khaled and Cutkosky, "The Road Less Scheduled", NeurIPS 2024, arXiv:2405.15682,
algorithm 1. Only y and z are kept while training: x follows from them. Put into the last line, y itself becomes
``(1 - c) y + c z - rate (1 - beta1 (1 - c)) u`` with z before the step, ``u = g / (sqrt(v) + eps) + weight_decay y``.
t counts a parameter's own steps: one that rests for a while (frozen) goes on as if nothing had been.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from workbench.core.arguments import checked_count, checked_number
from workbench.core.step_optimizer import loss_of, zeros_in


class ScheduleFreeAdamW(Optimizer):
    """AdamW whose weights are averaged, so that no schedule has to end where training does.

    Call ``train()`` before training and ``eval()`` before evaluating, saving or exporting the network; a new optimizer
    trains. BatchNorm's running statistics belong to the weights of training: after ``eval()`` estimate them again by
    some forward passes in training mode. Evaluating changes no bit of what follows, for which a copy of the weights of
    training is kept meanwhile.

    The rate is constant but for the warm-up; a scheduler may still change it.

    Args:
        params: Parameters, named parameters or parameter groups.
        lr: Rate, >= 0; larger ones than AdamW's under a schedule are usual.
        betas: beta1, the share of the average in the weights that are trained, in (0, 1); and the decay rate of the
            second moment, in [0, 1).
        eps: Added to the denominator, > 0.
        weight_decay: Decoupled decay at the weights of training, >= 0.
        warmup_steps: Steps in which the rate rises from 0, >= 0.

    Example:
        >>> weight = torch.nn.Parameter(torch.tensor([4.0]))
        >>> optimizer = ScheduleFreeAdamW([weight], lr=0.2)
        >>> for _ in range(200):
        ...     weight.square().sum().backward()
        ...     optimizer.step()
        ...     optimizer.zero_grad()
        >>> optimizer.eval()
        >>> abs(weight.item()) < 0.1
        True
    """

    #: It needs no falling rate, so a run leaves out the task's schedule.
    takes_schedule = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        first = checked_number("betas", betas[0], above=0.0, below=1.0)
        options = {
            "lr": checked_number("lr", lr),
            "betas": (first, checked_number("betas", betas[1], below=1.0)),
            "eps": checked_number("eps", eps, above=0.0),
            "weight_decay": checked_number("weight_decay", weight_decay),
            "warmup_steps": checked_count("warmup_steps", warmup_steps, 0),
            "training": True,
        }
        super().__init__(params, options)

    @torch.no_grad()
    def eval(self) -> None:
        """Put the averaged weights into the network; nothing happens where they are."""
        for group in self.param_groups:
            if group["training"]:
                group["training"] = False
                beyond = 1.0 - 1.0 / group["betas"][0]
                for parameter in group["params"]:
                    state = self.state[parameter]
                    if "z" in state:
                        state["y"] = parameter.clone(memory_format=torch.preserve_format)
                        parameter.lerp_(state["z"], beyond)

    @torch.no_grad()
    def train(self) -> None:
        """Put the weights of training back into the network, to the bit; nothing happens where they are."""
        for group in self.param_groups:
            if not group["training"]:
                group["training"] = True
                for parameter in group["params"]:
                    weights = self.state[parameter].pop("y", None)
                    if weights is not None:
                        parameter.copy_(weights)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        A RuntimeError says that the averaged weights are in the network, or that a gradient is sparse.
        """
        if not all(group["training"] for group in self.param_groups):
            raise RuntimeError("the averaged weights are in the network; call train() of the optimizer before a step")
        loss = loss_of(closure)
        for group in self.param_groups:
            alike: dict[tuple[int, float], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    alike.setdefault((state.get("step", 0), state.get("sum_of_squares", 0.0)), []).append(parameter)
            for (steps, total), weights in alike.items():  # several only where some have rested
                self._update(group, weights, steps + 1, total)
        return loss

    def _update(self, group: dict[str, Any], weights: list[Tensor], step: int, total: float) -> None:
        gradients = [_real(weight.grad) for weight in weights if weight.grad is not None]  # all have one
        if any(gradient.is_sparse for gradient in gradients):
            raise RuntimeError("ScheduleFreeAdamW takes dense gradients only; build the embedding with sparse=False")
        beta1, beta2 = group["betas"]
        warmed = min(1.0, step / group["warmup_steps"]) if group["warmup_steps"] else 1.0
        rate = float(group["lr"]) * math.sqrt(1.0 - beta2**step) * warmed
        total += rate * rate
        share = rate * rate / total if total else 0.0
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if "z" not in state:
                state["z"] = weight.clone(memory_format=torch.preserve_format)
            state.update(step=step, sum_of_squares=total)
        iterates = [_real(state["z"]) for state in states]
        moments = [_real(zeros_in(state, weight, "exp_avg_sq")) for weight, state in zip(weights, states, strict=True)]
        weights = list(map(_real, weights))
        torch._foreach_mul_(moments, beta2)
        torch._foreach_addcmul_(moments, gradients, gradients, 1.0 - beta2)
        denominators = torch._foreach_sqrt(moments)
        torch._foreach_add_(denominators, group["eps"])
        updates = torch._foreach_div(gradients, denominators)
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        torch._foreach_lerp_(weights, iterates, share)
        torch._foreach_add_(weights, updates, alpha=-rate * (1.0 - beta1 * (1.0 - share)))
        torch._foreach_add_(iterates, updates, alpha=-rate)


def _real(tensor: Tensor) -> Tensor:
    """Return a tensor, or of a complex one its view as pairs of numbers, each trained by itself."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
