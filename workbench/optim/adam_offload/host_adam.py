"""One step of Adam on tensors in host memory, as the CPU's native fused kernel does it best.

Kingma and Ba, "Adam: A Method for Stochastic Optimization", ICLR 2015, arXiv:1412.6980, section 2, last paragraph (the
order of computation that is more efficient), in the form of MindSpore 2.7.0
(``mindspore/python/mindspore/nn/optim/adam.py``, ``AdamOffload``). With weights w, step t = 1, 2, ..., loss scale S::

    g = (gradient + decay * S * w) / S
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    l = learning_rate * sqrt(1 - beta2 ** t) / (1 - beta1 ** t)
    w = w - l * m / (sqrt(v) + eps)              # nesterov: beta1 * m + (1 - beta1) * g in place of m

``torch.optim.Adam`` divides sqrt(v) by sqrt(1 - beta2 ** t) before it adds eps; here eps is not corrected.

Moments may be kept in bfloat16, rounded stochastically: a second moment moves by a thousandth of its value per step
(beta2 = 0.999), less than half of bfloat16's spacing, so that rounding to the nearest would leave it where it is (Gupta
et al., "Deep Learning with Limited Numerical Precision", ICML 2015, arXiv:1502.02551, section 3). To the bits of a
float32 16 random bits are added and the lower 16 bits are cut off. Random numbers for every element and step would cost
more than Adam, so a table holds each 16-bit number once, shuffled, and each piece of memory reads on from a random
place in it: what an element gets is uniform; elements of one piece share a draw, successive steps do not.

A *step group* is what one call takes: parameters of one group that have always been updated together, so that one count
of steps serves all of them. Where some lack a gradient (frozen layers, branches not taken) a group splits for good.
"""

from __future__ import annotations

import math
import time
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from workbench.core import kernels
from workbench.core.torch_internals import fused_adam_
from workbench.optim.adam_offload.given_parameters import is_decayed
from workbench.optim.adam_offload.host_transfer import DENSE_ONLY, Bucket

OptimizerState = dict[Tensor, dict[str, Any]]  # per parameter `step`, `exp_avg`, `exp_avg_sq`

# The kernel of torch corrects the bias itself, by a count of steps that it is given. beta ** inf = 0, so nothing is
# corrected at an endless count: the kernel then computes the last line above, in that order, with the l it is given.
_ENDLESS = torch.tensor(math.inf, device="cpu")
_VALUES = 2**16  # as many as the bits cut off can have; also the largest piece, so that one table serves it
_UPPER_BITS = -(2**16)  # mask


def corrected_rate(learning_rate: float, beta1: float, beta2: float, step: float) -> float:
    """Return l, the learning rate with both bias corrections in it; steps count from 1."""
    return learning_rate * math.sqrt(1.0 - math.pow(beta2, step)) / (1.0 - math.pow(beta1, step))


class AdamNumbers(NamedTuple):
    """The numbers of one step: l, both betas, eps, decay, S, and whether it looks ahead."""

    rate: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float = 0.0
    loss_scale: float = 1.0
    nesterov: bool = False


def adam_step_(
    weights: list[Tensor],
    gradients: list[Tensor],
    first: list[Tensor],
    second: list[Tensor],
    numbers: AdamNumbers,
) -> None:
    """Update weights and moments in place; gradients are left as they are. Call it under ``torch.no_grad``.

    All are dense float32 or float64 tensors on the CPU with the layout of their weight, at which no kernel looks.
    """
    rate, (beta1, beta2), eps, decay, scale, nesterov = numbers
    if decay != 0.0 and (scale != 1.0 or nesterov):
        gradients = list(torch._foreach_add(gradients, weights, alpha=decay * scale))
        decay = 0.0
    if scale != 1.0:
        gradients = list(torch._foreach_div(gradients, scale))
    if nesterov:
        # m' towards g by 1 - beta1 once more is what nesterov puts in the place of m', so the kernel may do that.
        torch._foreach_lerp_(first, gradients, 1.0 - beta1)
        first = [moment.clone() for moment in first]
    counts = [_ENDLESS] * len(weights)
    options: Any = {"lr": rate, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": eps}
    fused_adam_(weights, gradients, first, second, [], counts, **options, amsgrad=False, maximize=False)


class RoundedAdam:
    """Steps of Adam on bfloat16 moments, piece by piece in the cache, with the rounding's own random numbers."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(_VALUES, generator=torch.Generator().manual_seed(0), device="cpu").to(torch.int32)
        self._table = torch.cat([shuffled, shuffled])  # read on past the end
        self._first = torch.empty(_VALUES, device="cpu")
        self._second = torch.empty(_VALUES, device="cpu")

    def step_(
        self,
        weights: Sequence[Tensor],
        gradients: Sequence[Tensor],
        first: Sequence[Tensor],
        second: Sequence[Tensor],
        numbers: AdamNumbers,
    ) -> None:
        """Do what `adam_step_` does, for float32 weights and bfloat16 moments."""
        rate, (beta1, beta2), eps, decay, scale, nesterov = numbers
        lists = None if nesterov or scale != 1.0 else kernels.adam_lists(weights, gradients, first, second)
        if lists is not None:
            pieces = sum(-(-length // _VALUES) for length in lists.lengths)
            places = torch.randint(_VALUES, (2 * pieces,), generator=self.generator, device="cpu")
            settings = kernels.AdamSettings(1.0 - beta1, beta2, 1.0 - beta2, eps, rate, decay)
            kernels.adam_rounded_(lists, settings, table=self._table, places=places, piece=_VALUES)
            return
        for tensors in zip(weights, gradients, first, second, strict=True):
            cut = (torch.split(_in_memory_order(tensor), _VALUES) for tensor in tensors)
            for w_piece, g_piece, m_piece, v_piece in zip(*cut, strict=True):
                n = w_piece.numel()
                one, two = self._first[:n], self._second[:n]
                one.copy_(m_piece)
                two.copy_(v_piece)
                adam_step_([w_piece], [g_piece], [one], [two], numbers)
                for values, target in ((one, m_piece), (two, v_piece)):
                    place = int(torch.randint(_VALUES, (), generator=self.generator, device="cpu"))
                    round_stochastically_(values, self._table[place : place + n], target)


def round_stochastically_(values: Tensor, noise: Tensor, target: Tensor) -> None:
    """Write contiguous float32 values, which change, to bfloat16, each rounded to one of its neighbours at random.

    ``noise`` is int32, uniform in [0, 65536); all three have one shape.
    """
    values.view(torch.int32).add_(noise).bitwise_and_(_UPPER_BITS)
    target.copy_(values)  # exact now


def _in_memory_order(tensor: Tensor) -> Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))


@dataclass(slots=True, eq=False)
class StepGroup:
    """Parameters of one dtype, the options they share, and their optimizer state as lists that a kernel takes."""

    group: dict[str, Any]  # options are read from it at every step
    parameters: list[Tensor]
    is_decayed: bool  # whether the group's weight decay applies to them
    bucket: Bucket | None  # in which they travel to the host; None for those that live there
    steps: Tensor  # taken so far, 0-dimensional, float32; owned by this step group
    first: list[Tensor]  # moments; empty before the first step
    second: list[Tensor]
    strides: list[tuple[int, ...]] = field(init=False)

    def __post_init__(self) -> None:
        self.strides = [parameter.stride() for parameter in self.parameters]

    def part(self, chosen: Sequence[bool]) -> StepGroup:
        """Return the parameters chosen as a step group with a count of its own."""
        lists = self.parameters, self.first, self.second
        parameters, first, second = (list(compress(items, chosen)) for items in lists)
        return StepGroup(self.group, parameters, self.is_decayed, self.bucket, self.steps.clone(), first, second)

    def take_step(self, weights: list[Tensor], gradients: list[Tensor], rounded: RoundedAdam | None) -> float:
        """Update weights, with moments that are ``rounded`` if they are, and return how long that took, seconds."""
        began = time.perf_counter()
        self.steps += 1
        group = self.group
        beta1, beta2 = group["betas"]
        rate = corrected_rate(float(group["lr"]), beta1, beta2, self.steps.item())
        decay = group["weight_decay"] if self.is_decayed else 0.0
        numbers = AdamNumbers(rate, (beta1, beta2), group["eps"], decay, group["loss_scale"], group["use_nesterov"])
        take_step_ = adam_step_ if rounded is None else rounded.step_
        take_step_(weights, gradients, self.first, self.second, numbers)
        return time.perf_counter() - began

    def laid_out(self, gradients: list[Tensor]) -> list[Tensor]:
        """Return gradients laid out as their parameters.

        The kernel goes through memory as if they were. Those of autograd are; those that were assigned to ``.grad``
        need not be, and the result would be silently wrong (torch's fused Adam has this trap).
        """
        if any(gradient.layout != torch.strided for gradient in gradients):
            raise RuntimeError(DENSE_ONLY)
        if list(map(Tensor.stride, gradients)) == self.strides:
            return gradients
        pairs = zip(self.parameters, gradients, strict=True)
        return [torch.empty_like(parameter).copy_(gradient) for parameter, gradient in pairs]

    def share_count(self, state: OptimizerState) -> None:
        """Let the state of every parameter refer to this step group's count."""
        for parameter in self.parameters:
            state[parameter]["step"] = self.steps


def form_step_groups(
    groups: Sequence[dict[str, Any]],
    state: OptimizerState,
    bucket_of: Mapping[Tensor, Bucket],
) -> list[StepGroup]:
    """Divide parameter groups into step groups, of one group, dtype, bucket, decay and count of steps, by bucket.

    State then refers to the shared count.
    """
    formed = []
    for group in groups:
        gathered: dict[Any, list[Tensor]] = {}
        for index, parameter in enumerate(group["params"]):
            steps = float(state[parameter]["step"]) if parameter in state else None
            key = parameter.dtype, bucket_of.get(parameter), is_decayed(group, index), steps
            gathered.setdefault(key, []).append(parameter)
        for (_, bucket, decayed, steps), members in gathered.items():
            held = [] if steps is None else [state[parameter] for parameter in members]
            first, second = [own["exp_avg"] for own in held], [own["exp_avg_sq"] for own in held]
            count = torch.tensor(steps or 0.0, dtype=torch.float32, device="cpu")
            formed.append(StepGroup(group, members, decayed, bucket, count, first, second))
            if held:
                formed[-1].share_count(state)
    return sorted(formed, key=lambda step_group: -1 if step_group.bucket is None else step_group.bucket.number)


def take_gradients(
    step_groups: list[StepGroup], state: OptimizerState, travelling: Container[Tensor]
) -> list[tuple[StepGroup, list[Tensor]]]:
    """Return the step groups that have gradients, with them; one of which only some have is split in place.

    Parameters in ``travelling`` have gradients that may have left the device already; none are listed for these.
    """
    work: list[tuple[StepGroup, list[Tensor]]] = []
    for index in range(len(step_groups)):
        group, gradients = step_groups[index], []
        if group.bucket is None:
            gradients = [gradient for parameter in group.parameters if (gradient := parameter.grad) is not None]
            n_present = len(gradients)
        else:
            n_present = sum(parameter in travelling for parameter in group.parameters)
        if not n_present:
            continue
        if n_present < len(group.parameters):
            there = [p.grad is not None if group.bucket is None else p in travelling for p in group.parameters]
            group, rest = group.part(there), group.part([not flag for flag in there])
            step_groups[index] = group
            step_groups.append(rest)
            for part in (group, rest):
                if part.first:
                    part.share_count(state)
        work.append((group, gradients))
    return work
