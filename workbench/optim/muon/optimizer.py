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
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.optim.adamw import adamw

from workbench.core.arguments import checked_count, checked_number
from workbench.core.devices import has_fast_bfloat16
from workbench.core.fused_kernels import has_fused_kernel
from workbench.core.step_optimizer import StepOptimizer, exact_flag, zeros_in
from workbench.optim.muon.orthogonal import orthogonalised

_NORMALIZATIONS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, _NormBase)

_WORTH_BFLOAT16 = 256
"""Rows from which a CPU's products gain more in bfloat16 than converting costs."""


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
            raise ValueError("a group with `matrices` holds a parameter with less than two rows or columns")

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
                self._move_others(group, trained, gradients, found_inf)

    def _move_matrices(
        self, group: dict[str, Any], trained: list[Tensor], gradients: list[Tensor], found_inf: Tensor | None
    ) -> None:
        rate, momentum = float(group["lr"]), group["momentum"]
        buffers = [zeros_in(self.state[parameter], parameter, "momentum_buffer") for parameter in trained]
        keeps: float | Tensor = 1.0 - rate * group["weight_decay"]
        if found_inf is not None:  # a momentum that meets itself stays as it is, to the bit
            skips = found_inf != 0
            gradients = [torch.where(skips, *pair) for pair in zip(buffers, gradients, strict=True)]
            keeps = torch.where(skips, 1.0, keeps)
        torch._foreach_lerp_(buffers, gradients, 1.0 - momentum)
        updates = list(torch._foreach_lerp(gradients, buffers, momentum)) if group["nesterov"] else buffers
        if group["weight_decay"]:
            torch._foreach_mul_(trained, keeps)
        for places in _of_one_shape(updates):
            steps = _orthogonal([updates[place] for place in places], group["ns_steps"])
            if found_inf is not None:
                steps = [step.masked_fill(skips, 0.0) for step in steps]
            moved = [trained[place] for place in places]
            rows_per_column = len(moved[0]) ** 2 / moved[0].numel()
            torch._foreach_add_(moved, steps, alpha=-rate * math.sqrt(max(1.0, rows_per_column)))

    def _move_others(
        self, group: dict[str, Any], trained: list[Tensor], gradients: list[Tensor], found_inf: Tensor | None
    ) -> None:
        fused = all(has_fused_kernel(parameter, "_fused_adamw_") for parameter in trained)
        if not fused and found_inf is not None and found_inf.item() != 0:
            return  # where there is no kernel that reads the flag the host has to
        first = [zeros_in(self.state[parameter], parameter, "exp_avg") for parameter in trained]
        second = [zeros_in(self.state[parameter], parameter, "exp_avg_sq") for parameter in trained]
        adamw(
            trained,
            gradients,
            first,
            second,
            [],
            [self._steps_of(parameter, fused=fused) for parameter in trained],
            fused=fused,
            foreach=not fused,
            found_inf=found_inf if fused else None,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=float(group["lr"]),
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _steps_of(self, parameter: Tensor, *, fused: bool) -> Tensor:
        state, device = self.state[parameter], parameter.device if fused else torch.device("cpu")
        # `to` is for a checkpoint that was loaded elsewhere.
        steps = state["step"].to(device) if "step" in state else torch.zeros((), dtype=torch.float32, device=device)
        state["step"] = steps
        return cast("Tensor", steps)

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
        names = group.get("param_names", [None] * len(held))
        for matrices in (True, False):
            tensors = [one[1] if isinstance(one, tuple) else one for one in held]
            chosen = [place for place, one in enumerate(tensors) if is_matrix(one) is matrices]
            if chosen:
                part = {**group, "params": [held[place] for place in chosen], "matrices": matrices}
                if "param_names" in group:
                    part["param_names"] = [names[place] for place in chosen]
                found.append(part)
    if not found:
        raise ValueError("Muon got no parameter to train")
    return found


def _of_one_shape(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Return the places of tensors that can be made orthogonal together."""
    found: dict[tuple[Any, ...], list[int]] = {}
    for place, one in enumerate(tensors):
        found.setdefault((one.shape, one.device, one.dtype), []).append(place)
    return list(found.values())


def _orthogonal(updates: Sequence[Tensor], steps: int) -> list[Tensor]:
    """Return tensors of one shape, made orthogonal as matrices.

    Columns are taken in the order in which they lie in memory: singular values do not depend on it.
    """
    shape = updates[0].shape
    is_last = [one.dim() == 4 and one.is_contiguous(memory_format=torch.channels_last) for one in updates]
    matrices = torch.stack(
        [(one.permute(0, 2, 3, 1) if last else one).flatten(1) for one, last in zip(updates, is_last, strict=True)]
    )
    is_tall = matrices.shape[1] > matrices.shape[2]
    if is_tall:
        matrices = matrices.mT
    made = orthogonalised(matrices.to(_number_format(matrices)), steps).to(matrices.dtype)
    if is_tall:
        made = made.mT
    return [
        one.reshape(shape[0], *shape[2:], shape[1]).permute(0, 3, 1, 2) if last else one.reshape(shape)
        for one, last in zip(made.unbind(), is_last, strict=True)
    ]


def _number_format(matrices: Tensor) -> torch.dtype:
    if matrices.dtype == torch.float64:
        return torch.float64
    is_worth_it = not matrices.is_cpu or min(matrices.shape[1:]) >= _WORTH_BFLOAT16
    return torch.bfloat16 if is_worth_it and has_fast_bfloat16(matrices.device) else torch.float32


def is_matrix(parameter: Tensor) -> bool:
    """Return whether a parameter, its trailing axes taken together, has at least two rows and columns.

    A kernel ``[out, in, height, width]`` counts as ``[out, in * height * width]``.
    """
    return parameter.dim() >= 2 and parameter.shape[0] > 1 and parameter[0].numel() > 1


def parameter_groups(network: nn.Module) -> list[dict[str, Any]]:
    """Split a network's parameters into hidden matrices and the rest.

    Hidden matrices are weights of linear, convolutional, recurrent and attention layers, and of modules of the user's
    own whose parameter is called "weight..."; not those of normalizations, of modules whose class is named after
    embeddings, of convolutions in groups, of the last linear or convolutional layer in the order of registration, and
    nothing that is tied to one of these. Parameters that do not require gradients are taken along: they may later.

    Returns:
        At most two groups of named parameters with the option ``matrices``, true in the first; empty ones are left out.
    """
    layers = [module for module in network.modules() if isinstance(module, nn.Linear | _ConvNd)]
    outputs = set(layers[-1:])
    hidden: set[nn.Parameter] = set()
    others: set[nn.Parameter] = set()
    for module in network.modules():
        is_embedding = "embedding" in type(module).__name__.lower()
        fits = not (is_embedding or module in outputs or isinstance(module, _NORMALIZATIONS))
        for name, parameter in module.named_parameters(recurse=False):
            is_hidden = fits and "weight" in name and is_matrix(parameter) and getattr(module, "groups", 1) == 1
            (hidden if is_hidden else others).add(parameter)
    named = list(network.named_parameters())
    matrices = [(name, one) for name, one in named if one in hidden and one not in others]
    rest = [(name, one) for name, one in named if one in others]
    split = ({"params": matrices, "matrices": True}, {"params": rest, "matrices": False})
    return [group for group in split if group["params"]]
