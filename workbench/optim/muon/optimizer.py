"""Muon: momentum whose matrices are made orthogonal before they are applied; AdamW for what is no hidden matrix.

For a hidden matrix W with gradient G, in pseudocode::

    V = momentum V + (1 - momentum) G
    U = momentum V + (1 - momentum) G           # with Nesterov; else U = V
    O = U with all singular values near 1       # `orthogonal.py`
    W = (1 - lr weight_decay) W - lr sqrt(max(1, rows / columns)) O

Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024, kellerjordan.github.io/posts/muon. The
factor of the rate is his. Moonlight's ``0.2 sqrt(max(rows, columns))`` (arXiv:2502.16982), which makes updates as large
as AdamW's, was tried: at its best rate ``digits-autoencoder`` ended at 0.51 instead of 0.47, the transformer of
``topics-gpt`` at 3.53 instead of 3.51 bits per byte.

Tables of embeddings look like matrices but are lists of rows, and the layer that makes the outputs gains nothing
(Jordan 2024), so both are left to AdamW, with biases, scales, and kernels that are vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.arguments import checked_count, checked_number
from workbench.core.devices import has_fast_bfloat16
from workbench.core.step_optimizer import StepOptimizer, exact_flag, zeros_in
from workbench.core.torch_internals import NORMALIZATIONS, ConvNd
from workbench.optim.muon.orthogonal import Factors, orthogonal_factors
from workbench.optim.plain_adamw import adamw_

_WORTH_BFLOAT16 = 256
"""From this many rows on, a CPU's products gain more from bfloat16 than the conversion costs."""

_LARGE = 1 << 15
"""Elements from which two passes over a matrix take longer than a call."""


class Muon(StepOptimizer):
    """Muon for hidden matrices, AdamW for all other parameters, as one optimizer.

    Parameter groups are of two kinds, distinguished by their option ``matrices``: those of hidden matrices have ``lr``,
    ``momentum``, ``nesterov``, ``ns_steps``; the others ``lr`` (which begins at ``aux_lr``), ``betas`` and ``eps``; all
    have ``weight_decay``. A learning-rate scheduler scales the ``lr`` of both kinds. Kernels of convolutions are
    matrices ``[out, in * height * width]``. Matrices of one shape are made orthogonal together, in float32, or bfloat16
    where the device multiplies it faster. Unlike torch's own it takes convolutions and the rest of the network,
    batches equal shapes, and needs fewer iterations.

    Args:
        params: The network, whose hidden matrices are found (`parameter_groups`); or parameters, named parameters or
            parameter groups. One without ``matrices`` is split by shape, embeddings and output layers included.
        lr: Rate of hidden matrices: the size of the steps, as gradients' sizes do not count. >= 0.
        aux_lr: AdamW's rate, >= 0.
        momentum: Share of the past in the momentum, in [0, 1).
        weight_decay: Decoupled decay, >= 0; each step takes away ``lr * weight_decay`` of a weight.
        nesterov: Whether the momentum is Nesterov's.
        ns_steps: Newton-Schulz iterations, >= 1: polynomials per update, see ``orthogonal.py``.
        betas: AdamW's decay rates of first and second moments, in [0, 1).
        eps: Added to AdamW's denominator, > 0.

    Raises:
        ValueError: When a number is out of range, a group asks for matrices and holds something else, or there is
            nothing to train.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        >>> optimizer = Muon(net, lr=0.02, aux_lr=0.01)
        >>> [(group["matrices"], group["lr"], len(group["params"])) for group in optimizer.param_groups]
        [(True, 0.02, 2), (False, 0.01, 4)]
    """

    #: `torch.amp.GradScaler` hands `found_inf` and `grad_scale` over instead of waiting for the device.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: nn.Module | Iterable[Any],
        lr: float = 0.03,
        aux_lr: float = 0.005,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        nesterov: bool = True,
        ns_steps: int = 3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
    ) -> None:
        self._aux_rate = checked_number("aux_lr", aux_lr)
        options = {
            "lr": checked_number("lr", lr),
            "momentum": checked_number("momentum", momentum, below=1.0),
            "weight_decay": checked_number("weight_decay", weight_decay),
            "nesterov": bool(nesterov),
            "ns_steps": checked_count("ns_steps", ns_steps),
            "betas": tuple(checked_number("betas", beta, below=1.0) for beta in betas),
            "eps": checked_number("eps", eps, above=0.0),
        }
        super().__init__(parameter_groups(params) if isinstance(params, nn.Module) else _by_kind(params), options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; without ``matrices`` it must hold parameters of one kind, or this is a ValueError."""
        parts = _by_kind([param_group])
        if len(parts) != 1:
            raise ValueError("a group must hold either matrices or other parameters, got both; add them as two groups")
        group = parts[0]
        if not group["matrices"]:
            group.setdefault("lr", self._aux_rate)
        super().add_param_group(group)
        added = self.param_groups[-1]
        if added["matrices"] and not all(is_matrix(one) for one in added["params"]):
            self.param_groups.pop()
            raise ValueError("a group with `matrices` holds a parameter that is complex or no matrix")

    def over_groups(self, groups: Sequence[dict[str, Any]]) -> Muon:
        """Return an optimizer with these arguments over other groups; ``aux_lr`` is no option of a group."""
        return Muon(groups, aux_lr=self._aux_rate, **self.defaults)

    def _step(self) -> None:
        found_inf = None if self.found_inf is None else exact_flag(self.found_inf)
        carried = self.carried_scale
        for group in self.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in trained]
            if any(gradient.is_sparse for gradient in gradients):
                raise RuntimeError("Muon takes dense gradients only; build the embedding with sparse=False")
            if not trained:
                continue
            if carried is not None:
                gradients = list(torch._foreach_mul(gradients, carried.double().reciprocal().to(carried.dtype)))
            if group["matrices"]:
                self._move_matrices(group, trained, gradients, found_inf)
            else:
                adamw_(trained, gradients, self.state, group, found_inf)

    def _move_matrices(
        self, group: dict[str, Any], trained: list[Tensor], gradients: list[Tensor], found_inf: Tensor | None
    ) -> None:
        rate, momentum = float(group["lr"]), group["momentum"]
        buffers = [zeros_in(self.state[parameter], parameter, "momentum_buffer") for parameter in trained]
        kept = 1.0 - rate * group["weight_decay"]
        keeps: float | Tensor = kept
        if found_inf is not None:  # a momentum that meets itself stays as it is, to the bit
            skips = found_inf != 0
            gradients = [torch.where(skips, *pair) for pair in zip(buffers, gradients, strict=True)]
            keeps = torch.where(skips, 1.0, kept)
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        batches = _batches_of(trained)
        for batch in batches:
            for update, place in zip(batch.updates, batch.places, strict=True):
                if group["nesterov"]:
                    torch.lerp(gradients[place], buffers[place], momentum, out=update)
                else:
                    update.copy_(buffers[place])
        for batch, factors in _orthogonal(batches, group["ns_steps"], may_look=found_inf is None):
            moved = [trained[place] for place in batch.places]
            length = -rate * math.sqrt(max(1.0, batch.matrices.shape[1] / batch.matrices.shape[2]))
            if found_inf is None and _adds_as_it_goes(moved, factors.left.dtype):
                for parameter, left, right in zip(moved, factors.left, factors.right, strict=True):
                    matrix = _as_matrix(parameter)
                    (matrix.mT if batch.is_tall else matrix).addmm_(left, right, beta=kept, alpha=length)
                continue
            if group["weight_decay"]:
                torch._foreach_mul_(moved, keeps)
            made = factors.product()
            batch.matrices.copy_(made.mT if batch.is_tall else made)
            if found_inf is not None:
                batch.matrices.masked_fill_(skips, 0.0)
            torch._foreach_add_(moved, batch.updates, alpha=length)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_aux_rate": self._aux_rate}


def _by_kind(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Return parameter groups that all say whether they are matrices."""
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    found: list[dict[str, Any]] = []
    for group in groups:
        if "matrices" in group:
            found.append(group)
            continue
        held = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        kinds = [is_matrix(one[1] if isinstance(one, tuple) else one) for one in held]
        lists = {"params": held} | {key: group[key] for key in ("param_names",) if key in group}
        for matrices in (True, False):
            chosen = [kind is matrices for kind in kinds]
            if any(chosen):
                parts = {key: list(compress(values, chosen)) for key, values in lists.items()}
                found.append({**group, **parts, "matrices": matrices})
    if not found:
        raise ValueError("Muon got no parameter to train")
    return found


@dataclass(slots=True)
class _Batch:
    """Room for the updates of parameters of one shape and layout."""

    places: list[int]
    updates: list[Tensor]  # laid out as the parameters
    matrices: Tensor  # the same memory, [parameters, rows, columns]

    @property
    def is_tall(self) -> bool:
        """Whether the matrices have more rows than columns."""
        return self.matrices.shape[1] > self.matrices.shape[2]


def _batches_of(parameters: Sequence[Tensor]) -> list[_Batch]:
    alike: dict[tuple[Any, ...], list[int]] = {}
    for place, one in enumerate(parameters):
        alike.setdefault((one.shape, one.device, one.dtype, _is_channels_last(one)), []).append(place)
    batches = []
    for (shape, *_, is_last), places in alike.items():
        order = [0, 2, 3, 1] if is_last else list(range(len(shape)))
        room = parameters[places[0]].new_empty([len(places), *(shape[axis] for axis in order)])
        laid_out = room.permute(0, 1, 4, 2, 3) if is_last else room
        batches.append(_Batch(places, list(laid_out.unbind()), room.flatten(2)))
    return batches


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)


def _as_matrix(tensor: Tensor) -> Tensor:
    """Return a tensor as a matrix whose columns lie as in memory: singular values do not depend on their order."""
    return (tensor.permute(0, 2, 3, 1) if _is_channels_last(tensor) else tensor).flatten(1)


def _orthogonal(batches: Sequence[_Batch], steps: int, *, may_look: bool) -> Iterator[tuple[_Batch, Factors]]:
    """Yield every batch with its matrices, transposed where they are tall, made orthogonal."""
    alike: dict[tuple[Any, ...], list[_Batch]] = {}
    for batch in batches:
        key = min(batch.matrices.shape[1:]), batch.matrices.device, batch.matrices.dtype
        alike.setdefault(key, []).append(batch)
    for members in alike.values():
        number_format = _number_format(members[0].matrices)
        wide = [one.matrices.mT if one.is_tall else one.matrices for one in members]
        made = orthogonal_factors([one.to(number_format) for one in wide], steps, may_look=may_look)
        yield from zip(members, made, strict=True)


def _adds_as_it_goes(parameters: Sequence[Tensor], dtype: torch.dtype) -> bool:
    """Return whether a product of matrices is added to each parameter as it is computed, without room of its own.

    On a CPU this saves two passes over large matrices. Small ones, and accelerators, are better served by few calls.
    """
    first = parameters[0]
    fits = first.is_cpu and first.dtype == dtype and first.numel() >= _LARGE
    return fits and all(_as_matrix(one).data_ptr() == one.data_ptr() for one in parameters)


def _number_format(matrices: Tensor) -> torch.dtype:
    if matrices.dtype == torch.float64:
        return torch.float64
    is_worth_it = not matrices.is_cpu or min(matrices.shape[1:]) >= _WORTH_BFLOAT16
    return torch.bfloat16 if is_worth_it and has_fast_bfloat16(matrices.device) else torch.float32


def is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter is real and has, its trailing axes taken together, at least two rows and columns.

    A kernel ``[out, in, height, width]`` counts as ``[out, in * height * width]``.
    """
    return parameter.dim() >= 2 and parameter.shape[0] > 1 and parameter[0].numel() > 1 and not parameter.is_complex()


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Split a network's parameters into hidden matrices and the rest.

    Hidden matrices are weights of linear, convolutional, recurrent and attention layers, and of modules of the user's
    own whose parameter is called "weight..."; not those of normalizations, of modules whose class is named after
    embeddings, of convolutions in groups, of the last linear or convolutional layer in the order of registration, and
    nothing that is tied to one of these. Parameters that do not require gradients are taken along: they may later.

    There are at most two groups of named parameters with the option ``matrices``, true in the first; no empty ones.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | ConvNd)]
    outputs = set(layers[-1:])
    hidden: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for module in network.modules():
        is_embedding = "embedding" in type(module).__name__.lower()
        fits = not (is_embedding or module in outputs or isinstance(module, NORMALIZATIONS))
        for name, parameter in module.named_parameters(recurse=False):
            is_hidden = fits and "weight" in name and is_matrix(parameter) and getattr(module, "groups", 1) == 1
            (hidden if is_hidden else others).add(parameter)
    named = list(network.named_parameters())
    matrices = [(name, one) for name, one in named if one in hidden and one not in others]
    rest = [(name, one) for name, one in named if one in others]
    split = ({"params": matrices, "matrices": True}, {"params": rest, "matrices": False})
    return [group for group in split if group["params"]]
