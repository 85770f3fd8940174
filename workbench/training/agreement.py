"""Does a choice that should change the time alone change the numbers?

Losses and a gradient are compared with the baseline's at the weights that a run begins with. Not along a run: on
`digits-resnet` a nudge of the weights by 1e-7 changes the loss by 1 % within fifteen steps, on `digits-lenet` a
gradient of the wrong sign by 1e-4 only. Dropout layers are off: under channels_last or a compiler they drop other
elements, with the same seed. What a model or a loss draws by itself, such as noise in the shape of its images, cannot
be switched off; what the baseline differs by from itself with other draws (``redraw``) is then no sign of anything.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from workbench.config import BoostConfig
from workbench.core.own_generators import kept_generators
from workbench.core.torch_internals import BatchNorm
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale.gradient_statistics import real_values
from workbench.tasks import Task
from workbench.tasks.batches import mixed_seed
from workbench.training.pass_graphs import PASSES_BEFORE
from workbench.training.setup import Prepared, prepare, seed_everything

TOLERANCES = {"float32": 1e-3, "float16": 5e-2, "bfloat16": 5e-2}
"""Relative difference of losses that rounding explains, by the format in which the forward pass computes."""

GRADIENT_TOLERANCES = {"float32": 2e-2, "float16": 0.5, "bfloat16": 0.5}
"""The same of whole gradients: length of the difference over length of the baseline's.

Measured on `digits-resnet`: channels_last 3e-6, compiled 4e-3 (an activation within rounding of zero falls on the other
side of ReLU), bfloat16 0.3; there a mistake is found only in much of the gradient.
"""


_LUCK = 3.0  # how many times as far apart as two draws of the baseline's another draw may be


def first_losses(
    task: Task,
    config: BoostConfig,
    level: str,
    seed: int,
    device: torch.device,
    n: int = 20,
    before_batch: Callable[[], None] = lambda: None,
    redraw: bool = False,
) -> list[float]:
    """Return the losses of the first n batches, without dropout, at the weights that a run begins with.

    An exception from ``before_batch`` ends it between two batches. With ``redraw`` the random numbers are others.
    """
    losses = []
    with _begun(task, config, level, seed, device, redraw) as prepared:
        for batch in islice(prepared.batches(seed), n):
            before_batch()
            if prepared.boosted.replay_pass(prepared.task.compute_loss, batch):
                losses.append(prepared.boosted.forget_pass())
            else:
                losses.append(_loss(prepared, batch).detach().clone())  # out of a CUDA graph's memory
        return [float(loss) for loss in losses]


def first_gradient(
    task: Task, config: BoostConfig, level: str, seed: int, device: torch.device, redraw: bool = False
) -> Tensor:
    """Return the unscaled gradient of the first batch's loss at the weights that a run begins with, float32 ``[n]``.

    A complex number counts as two. Without dropout. With ``redraw`` the random numbers are others.
    """
    with _begun(task, config, level, seed, device, redraw) as prepared:
        boosted, batch = prepared.boosted, next(iter(prepared.batches(seed)))
        boosted.loss_scaling.set(torch.ones_like(boosted.loss_scale))  # its first value may overflow, rightly
        carried = 1.0  # by the gradients
        for passes_left in reversed(range(PASSES_BEFORE + 1)):  # the last is a replay
            with kept_generators(device):
                is_replayed = boosted.replay_pass(prepared.task.compute_loss, batch)
            if not is_replayed:
                _loss(prepared, batch).float().backward()  # type: ignore[no-untyped-call]
                break
            if passes_left:
                boosted.forget_pass()
            else:
                carried = 1.0 / boosted.window.n_steps
        gradients = [p.grad for p in unwrapped(boosted.model).parameters() if p.grad is not None]
        parts = [real_values(gradient.detach().to_dense()).cpu().float().reshape(-1) for gradient in gradients]
        return torch.cat(parts) / carried


@contextlib.contextmanager
def _begun(
    task: Task, config: BoostConfig, level: str, seed: int, device: torch.device, redraw: bool
) -> Iterator[Prepared]:
    with kept_generators(device):
        prepared = prepare(task, config, level=level, seed=seed, device=device, steps=10_000)
        if redraw:
            seed_everything(mixed_seed(seed, 1))
        _end_dropout_(unwrapped(prepared.boosted.model))
        with prepared.boosted.methods.running():
            yield prepared
        prepared.boosted.finish()


def _end_dropout_(model: nn.Module) -> None:
    """Put the layers that may drop something into evaluation mode: all without parts of their own, and attention.

    Batch norms go on with the batch's statistics, and modules made of others may return something else in training.
    """
    for module in model.modules():
        is_layer = isinstance(module, nn.MultiheadAttention) or next(module.children(), None) is None
        if isinstance(module, nn.RNNBase):
            module.dropout = 0.0  # cuDNN has no backward pass of theirs in evaluation mode
        elif is_layer and not isinstance(module, BatchNorm):
            module.training = False


def _loss(prepared: Prepared, batch: object) -> Tensor:
    with prepared.boosted.autocast():
        return prepared.task.compute_loss(prepared.boosted.model, batch)


def agrees(losses: Sequence[float], baseline_losses: Sequence[float], dtype: str, redrawn: Sequence[float] = ()) -> str:
    """Return why losses are not the baseline's within rounding; empty where they are.

    A difference is relative to the baseline's loss of that batch, or to the mean of its losses if that is larger: a
    loss near zero has no relative accuracy. ``dtype`` is the format of the coarser of both forward passes; ``redrawn``
    are the baseline's losses with other random numbers.

    Example:
        >>> agrees([2.3, 1.8], [2.3, 1.9], "float32")
        'the loss of batch 1 is 1.8, the baseline has 1.9: 4.8 % apart, where float32 may be 0.1 %'
    """
    if not losses or len(losses) != len(baseline_losses):
        raise ValueError(f"as many losses as the baseline's are needed, got {len(losses)} and {len(baseline_losses)}")
    mean = sum(map(abs, baseline_losses)) / len(baseline_losses)

    def apart(mine: float, wanted: float) -> float:
        return abs(mine - wanted) / max(abs(wanted), mean) if mine != wanted else 0.0

    luck = max((apart(*both) for both in zip(redrawn, baseline_losses, strict=False)), default=0.0)
    tolerance = max(TOLERANCES[dtype], _LUCK * luck)
    for batch, (mine, wanted) in enumerate(zip(losses, baseline_losses, strict=True)):
        difference = apart(mine, wanted)
        if not math.isfinite(mine) or not difference <= tolerance:
            return (
                f"the loss of batch {batch} is {mine:.6g}, the baseline has {wanted:.6g}: "
                f"{100 * difference:.2g} % apart, where {dtype} may be {100 * tolerance:g} %"
            )
    return ""


def gradient_agrees(gradient: Tensor, baseline_gradient: Tensor, dtype: str, redrawn: Tensor | None = None) -> str:
    """Return why a gradient from `first_gradient` is not the baseline's within rounding; empty where it is."""
    length = float(baseline_gradient.norm())
    luck = 0.0 if redrawn is None else float((redrawn - baseline_gradient).norm()) / (length or 1.0)
    tolerance = max(GRADIENT_TOLERANCES[dtype], _LUCK * luck)
    difference = float((gradient - baseline_gradient).norm())
    if difference <= tolerance * length:  # false where either is NaN
        return ""
    return (
        f"the gradient of the first batch differs from the baseline's by {100 * difference / (length or 1.0):.2g} % of "
        f"its length, where {dtype} may by {100 * tolerance:g} %"
    )
