"""Dimension reduction: quasi-Newton steps where past weights moved, momentum everywhere else.

The components P ``[k, n_weights]`` of recorded weights span a small space in which training happens mostly. There the
inverse Hessian B ``[k, k]`` is learned by the BFGS formula and every step is tried on the same batch, with rho^0,
rho^1, ... times its length, until the loss falls enough (Armijo's rule). What the components do not reach of the
gradient is followed with plain momentum:

    g_k = P g                       the gradient in the subspace
    d_k = - B g_k                   the direction; s = rho^m d_k the step
    loss(w + P^T s) < loss(w) + sigma g_k . s
    r   = gamma r + g - P^T g_k     the residual's momentum
    w   = w - alpha r + P^T s

Li, Tan, Huang, Tao, Liu, Huang, "Low Dimensional Trajectory Hypothesis is True: DNNs Can Be Trained in Tiny Subspaces",
IEEE TPAMI 2022, doi:10.1109/TPAMI.2022.3178101, arXiv:2103.11154 (the algorithm P-BFGS). Behaviour taken from MindSpore
2.7.0 (``mindspore.boost.DimReduce``), which ``arithmetic="reference"`` with two trials repeats, its accidents included:
with scaled gradients the residual mixes scaled and unscaled ones, losses of several ranks are floored, components that
the number of ranks does not divide are lost, and trials move BatchNorm statistics. ``"corrected"`` has none of these.

Vectors over the weights are flat: parameters in the order given, each row by row.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, distributed, nn

from workbench.core.arguments import checked_count, checked_number
from workbench.core.step_optimizer import held_parameters
from workbench.methods.dim_reduce.components import Arithmetic, component_rows, fitting_components

LEAST_CURVATURE = 1e-20  # y . s above which B is updated; as upstream
# Columns per product on a CPU, where two rows at once may take as long over the whole width as one after the other.
_COLUMNS = 1 << 16
NO_FLOAT64 = {"mps", "npu"}  # device types without (fast) double precision
_STATE = ("inverse_hessian", "previous_step", "previous_gradient", "momentum")


def flat_vector(
    tensors: Sequence[Tensor | None], like: Sequence[Tensor], dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """Return tensors, of the shapes of ``like``, as one flat vector of a precision; None stands for zeros."""
    parts = [
        (torch.zeros_like(shape) if tensor is None else tensor).detach().reshape(-1).to(dtype)
        for tensor, shape in zip(tensors, like, strict=True)
    ]
    return torch.cat(parts, out=out)


def updated_curvature(inverse_hessian: Tensor, gradient_change: Tensor, step: Tensor) -> Tensor:
    """Return the BFGS update of the inverse Hessian B: t^T B t + s s^T / q with t = 1 - y s^T / q and q = y . s.

    Of the change of the gradient y and the step s; where q does not exceed 1e-20 B is returned as it was, without
    waiting for the device. Nocedal and Wright, "Numerical Optimization", 2nd edition 2006, equation 6.17.
    """
    q = gradient_change @ step
    enough: Tensor = q > LEAST_CURVATURE
    safe = torch.where(enough, q, torch.ones_like(q))
    t = torch.eye(len(step), dtype=step.dtype, device=step.device) - torch.outer(gradient_change, step) / safe
    return torch.where(enough, t.T @ inverse_hessian @ t + torch.outer(step, step) / safe, inverse_hessian)


def sufficient_decrease(new_loss: Tensor, loss: Tensor, slope: Tensor, rho: float, sigma: float) -> Tensor:
    """Return whether a trial of the share rho of a step is accepted: new loss < loss + sigma rho slope; NaN is not."""
    accepted: Tensor = new_loss < loss + sigma * rho * slope
    return accepted


@dataclass(frozen=True)
class DimReduceStep:
    """What one step did."""

    found: bool  # whether a trial was accepted
    rho: float  # share of the whole quasi-Newton step that was taken; 0.0 when no trial was accepted
    trials: int  # how many times the network was evaluated
    loss: Tensor  # before the step, the mean over ranks
    slope: Tensor  # g_k . d_k
    gradient: Tensor  # g_k, [k]
    direction: Tensor  # d_k, [k]


class DimReduce:
    """Steps a network by quasi-Newton in the space of its PCA components, and by momentum outside of it.

    Each trial costs one forward pass on the batch and one host synchronisation. Memory apart from the components: the
    momentum, and during a step (on a CPU always) a copy of the weights and three more vectors of their size. Call it
    with finite gradients: what overflowed is skipped by the training step, before.

    Args:
        network: Returns the scalar loss when called with ``*inputs``. Its buffers (BatchNorm statistics) are as after
            the gradient's own forward pass when a step is done: trials leave no trace.
        optimizer: Applies the finished step, so that its hooks and counters see it: ``torch.optim.SGD`` with a
            learning rate of 1 and nothing else. None subtracts the step directly.
        weight: Trained parameters, in the order of the components' columns, all on one device.
        pca_mat_local: Components held by this rank, ``[rows, n_weights]``, see :func:`component_rows`.
        n_components: All components, k, over all ranks.
        rho: Factor from one trial to the next, in (0, 1).
        gamma: Momentum of the residual, in [0, 1).
        alpha: Learning rate of the residual, at least 0.
        sigma: Share of the promised decrease that a trial must show, in [0, 1).
        rank: This rank.
        rank_size: Number of ranks; more than one needs ``torch.distributed``. Gradients come in already reduced, and
            every rank takes part in every step.
        line_search_trials: Trials per step before the quasi-Newton part is given up for that step. The reference's 2
            stall where the first steps are too long by more than rho.
        arithmetic: ``"corrected"``, or ``"reference"`` for the upstream accidents the module lists.
        process_group: Ranks to sum over; None is all.

    Raises:
        ValueError: When the components do not fit the weights or the rank or are not finite, or the optimizer would
            change the step.
        RuntimeError: When there are several ranks and ``torch.distributed`` is not initialised.

    Example:
        >>> import numpy as np
        >>> w = nn.Parameter(torch.tensor([3.0, 1.0]))
        >>> class Bowl(nn.Module):
        ...     def forward(self):
        ...         return (w**2).sum() / 2
        >>> step = DimReduce(Bowl(), None, [w], np.array([[1.0, 0.0]], np.float32), 1, 0.55, 0.9, 0.1, 0.4, 0, 1)
        >>> loss = Bowl()()
        >>> _ = step(loss, torch.autograd.grad(loss, [w]), [w], None)
        >>> [round(value, 3) for value in w.tolist()], step.last_step.rho
        ([0.0, 0.9], 1.0)
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        weight: Sequence[nn.Parameter],
        pca_mat_local: NDArray[Any] | Tensor,
        n_components: int,
        rho: float,
        gamma: float,
        alpha: float,
        sigma: float,
        rank: int,
        rank_size: int,
        *,
        line_search_trials: int = 8,
        arithmetic: Arithmetic = "corrected",
        process_group: distributed.ProcessGroup | None = None,
    ) -> None:
        if not isinstance(network, nn.Module):
            raise TypeError(f"`network` must be a torch.nn.Module that returns the loss, got {type(network).__name__}")
        for name, count in (("n_components", n_components), ("line_search_trials", line_search_trials)):
            checked_count(name, count, kind="an integer")
        if arithmetic not in ("corrected", "reference"):
            raise ValueError(f'`arithmetic` must be "corrected" or "reference", got {arithmetic!r}')
        self.network, self.optimizer = network, optimizer
        self.weight: list[Tensor] = list(weight)
        self.n_components, self.rank, self.rank_size = n_components, rank, rank_size
        self.rho, self.alpha = checked_number("rho", rho, above=0.0, below=1.0), checked_number("alpha", alpha)
        self.gamma, self.sigma = checked_number("gamma", gamma, below=1.0), checked_number("sigma", sigma, below=1.0)
        self.line_search_trials, self.arithmetic, self.process_group = line_search_trials, arithmetic, process_group
        self.rows = component_rows(n_components, rank, rank_size, arithmetic)
        place = n_components, rank, rank_size
        self.components = fitting_components(pca_mat_local, self.rows, self.weight, *place)
        if optimizer is not None:
            _check_optimizer(optimizer, self.weight)
        if rank_size > 1 and not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError(
                f"{rank_size} ranks need torch.distributed; call torch.distributed.init_process_group() first"
            )
        device, dtype = self.components.device, self.components.dtype
        # In float32 B loses positive definiteness by rounding once its condition passes 1e7, as it does within 120
        # steps of a LeNet on the digits; k x k numbers may well be wide. As upstream with "reference".
        wide = arithmetic == "corrected" and device.type not in NO_FLOAT64
        state: dict[str, Any] = {"dtype": torch.float64 if wide else dtype, "device": device}
        self.inverse_hessian = torch.eye(n_components, **state)
        self.previous_step = torch.zeros(n_components, **state)
        self.previous_gradient = torch.zeros(n_components, **state)
        self.momentum = torch.zeros(self.components.shape[1], dtype=dtype, device=device)
        self.initialised = False  # whether there is a gradient to compare with
        self.last_step: DimReduceStep | None = None
        self._vectors: Tensor | None = None

    def __call__(
        self,
        loss: Tensor,
        old_grad: Sequence[Tensor | None],
        weight: Sequence[Tensor] | None,
        weight_clone: Sequence[Tensor] | None,
        *inputs: Any,
        loss_scale: float | Tensor = 1.0,
    ) -> Tensor:
        """Take one step with the reference's arguments, see `step`, and return the loss.

        ``weight`` are those of the constructor, or None; ``weight_clone`` copies of them to bring up to date, or None;
        ``inputs`` what the network takes to compute its loss on the same batch.
        """
        if weight is not None and [id(tensor) for tensor in weight] != [id(tensor) for tensor in self.weight]:
            raise ValueError("`weight` must be the parameters that DimReduce was made with; make a new one for others")
        self.step(loss, old_grad, lambda: self.network(*inputs), loss_scale=loss_scale)
        if weight_clone is not None:
            with torch.no_grad():
                for clone, parameter in zip(weight_clone, self.weight, strict=True):
                    clone.copy_(parameter)
        return loss

    @torch.no_grad()
    def step(
        self,
        loss: Tensor,
        grads: Sequence[Tensor | None],
        evaluate: Callable[[], Tensor],
        *,
        loss_scale: float | Tensor = 1.0,
    ) -> DimReduceStep:
        """Take one step and return what it did, also kept as ``last_step``.

        Args:
            loss: Loss of the batch, not scaled.
            grads: Gradients in the order of the weights, multiplied by ``loss_scale``; None counts as zeros.
            evaluate: Computes the batch's loss at the weights as they are; called without gradients, once per trial.
            loss_scale: What the gradients were multiplied by.

        Raises:
            ValueError: When the number of gradients is not that of the weights.
        """
        if len(grads) != len(self.weight):
            raise ValueError(f"there must be one gradient per weight ({len(self.weight)}), got {len(grads)}")
        vectors = self._working_vectors()
        given = flat_vector(grads, self.weight, self.components.dtype, out=vectors[2])
        is_scaled = isinstance(loss_scale, Tensor) or loss_scale != 1.0
        if not is_scaled:
            gradient = given
        elif self.arithmetic == "reference":  # which needs both
            gradient = given / loss_scale
        else:
            gradient = given = given.div_(loss_scale)
        gradient_k = self._project(gradient).to(self.inverse_hessian.dtype)
        curvature = self.inverse_hessian
        if self.initialised:
            curvature = updated_curvature(curvature, gradient_k - self.previous_gradient, self.previous_step)
        direction_k = -(curvature @ gradient_k)
        direction, projection = self._carry_back(direction_k, gradient_k, out=vectors[:2])
        start = self._start(vectors[3])
        try:
            taken = self._search_line(loss.detach(), gradient_k, direction_k, start, direction, evaluate)
            # As upstream: a failed search also forgets this step's curvature and gradient, the next one compares with
            # the last gradient from which a step was taken.
            if taken.found:
                self.inverse_hessian, self.previous_gradient = curvature, gradient_k
                self.previous_step = taken.rho * direction_k
            self.initialised = True
            # As upstream with "reference": the residual of the gradient as given, less the projection of the unscaled
            # one. In place, since vectors of this length are what a step waits for.
            outside = given if self.arithmetic == "reference" else gradient
            torch.add(outside, self.momentum, alpha=self.gamma, out=self.momentum).sub_(projection)
            change = torch.mul(self.momentum, self.alpha, out=projection).sub_(direction, alpha=taken.rho)
            self._subtract(start, change)
        except BaseException:  # an interrupt, too: a trial must not stay in the weights
            torch._foreach_copy_(self.weight, start)
            raise
        self.last_step = taken
        return taken

    def condition(self) -> float:
        """Return the condition number of B, inf when it has lost positive definiteness; a host synchronisation."""
        values = torch.linalg.eigvalsh(self.inverse_hessian.cpu().double())
        return float(values[-1] / values[0]) if values[0] > 0 else math.inf

    def state_dict(self) -> dict[str, Any]:
        """Return copies of what a step depends on apart from weights, components and hyper-parameters.

        ``inverse_hessian`` B ``[k, k]``, ``previous_step`` s ``[k]``, ``previous_gradient`` g_k of the last accepted
        step ``[k]``, ``momentum`` of the residual ``[n_weights]``, ``initialised`` whether there was a step.
        """
        return {**{name: getattr(self, name).clone() for name in _STATE}, "initialised": self.initialised}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue exactly where :meth:`state_dict` was taken.

        Raises:
            ValueError: When it belongs to another number of components or weights.
        """
        for name in _STATE:
            found, wanted = state_dict[name].shape, getattr(self, name).shape
            if found != wanted:
                raise ValueError(
                    f"state_dict must be of the same components and weights: {name} has shape {tuple(found)} there, "
                    f"{tuple(wanted)} here"
                )
        for name in _STATE:
            setattr(self, name, state_dict[name].to(getattr(self, name), copy=True))
        self.initialised = bool(state_dict["initialised"])

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_vectors": None}

    def __deepcopy__(self, memo: dict[int, Any]) -> DimReduce:
        # Components never change and may be as large as several networks; a process group cannot be copied.
        memo |= {id(shared): shared for shared in (self.components, self.process_group)}
        twin = object.__new__(DimReduce)
        memo[id(self)] = twin
        vars(twin).update(copy.deepcopy(self.__getstate__(), memo))
        return twin

    def _search_line(
        self,
        loss: Tensor,
        gradient_k: Tensor,
        direction_k: Tensor,
        start: list[Tensor],
        direction: Tensor,
        evaluate: Callable[[], Tensor],
    ) -> DimReduceStep:
        """Try shorter and shorter steps; the weights stay at the last trial."""
        loss, slope = self._mean_loss(loss), gradient_k @ direction_k
        parts = self._shaped(direction)
        # As upstream with "reference": trials run in training mode and move BatchNorm statistics.
        buffers = list(self.network.buffers()) if self.arithmetic == "corrected" else []
        before = [buffer.clone() for buffer in buffers]
        rho = 1.0
        try:
            for trial in range(1, self.line_search_trials + 1):
                for parameter, value, part in zip(self.weight, start, parts, strict=True):
                    if parameter.dtype == part.dtype:
                        torch.add(value, part, alpha=rho, out=parameter)
                    else:
                        parameter.copy_(value + rho * part)
                if sufficient_decrease(self._mean_loss(evaluate().detach()), loss, slope, rho, self.sigma):
                    return DimReduceStep(True, rho, trial, loss, slope, gradient_k, direction_k)
                rho *= self.rho
            return DimReduceStep(False, 0.0, self.line_search_trials, loss, slope, gradient_k, direction_k)
        finally:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.copy_(value)

    def _working_vectors(self) -> Tensor:
        """Return room for direction, projection, gradient and the weights from which trials start."""
        if self._vectors is not None:
            return self._vectors
        vectors = self.components.new_empty(4, self.components.shape[1])
        if self.components.is_cpu:  # an accelerator's allocator keeps them itself, and lends them out between steps
            self._vectors = vectors
        return vectors

    def _start(self, room: Tensor) -> list[Tensor]:
        """Return copies of the weights as they are, in ``room`` where its dtype is theirs."""
        copies = [
            part if part.dtype == parameter.dtype else torch.empty_like(parameter)
            for parameter, part in zip(self.weight, self._shaped(room), strict=True)
        ]
        torch._foreach_copy_(copies, self.weight)
        return copies

    def _subtract(self, start: list[Tensor], change: Tensor) -> None:
        """Bring the weights to where the line search started, less the change."""
        parts = self._shaped(change)
        if self.optimizer is None:
            for parameter, value, part in zip(self.weight, start, parts, strict=True):
                torch.sub(value, part, out=parameter)
            return
        torch._foreach_copy_(self.weight, start)
        kept = [parameter.grad for parameter in self.weight]
        for parameter, part in zip(self.weight, parts, strict=True):
            parameter.grad = part.to(parameter.dtype)
        try:
            self.optimizer.step()
        finally:
            for parameter, grad in zip(self.weight, kept, strict=True):
                parameter.grad = grad

    def _project(self, vector: Tensor) -> Tensor:
        """Return P vector ``[k]``: every rank its rows, summed into place."""
        whole = vector.new_zeros(self.n_components)
        whole[self.rows] = self.components @ vector
        return self._sum_over_ranks(whole)

    def _carry_back(self, one: Tensor, other: Tensor, out: Tensor) -> Tensor:
        """Return P^T of two vectors of coefficients in ``out``, ``[2, n_weights]``; the components are read once."""
        rows = torch.stack([one, other])[:, self.rows].to(self.components.dtype)
        n_weights = self.components.shape[1]
        width = _COLUMNS if rows.is_cpu else n_weights
        for begin in range(0, n_weights, width):
            columns = slice(begin, begin + width)
            torch.mm(rows, self.components[:, columns], out=out[:, columns])
        return self._sum_over_ranks(out)

    def _sum_over_ranks(self, tensor: Tensor) -> Tensor:
        if self.rank_size > 1:
            distributed.all_reduce(tensor, group=self.process_group)
        return tensor

    def _mean_loss(self, loss: Tensor) -> Tensor:
        """Return the mean over ranks of a scalar loss; as upstream with "reference", by floor division."""
        if self.rank_size == 1:
            return loss
        mean = self._sum_over_ranks(loss.clone()) / self.rank_size
        return mean.floor() if self.arithmetic == "reference" else mean

    def _shaped(self, vector: Tensor) -> list[Tensor]:
        parts = torch.split(vector, [parameter.numel() for parameter in self.weight])
        return [part.view(parameter.shape) for part, parameter in zip(parts, self.weight, strict=True)]


def _check_optimizer(optimizer: torch.optim.Optimizer, weight: Sequence[Tensor]) -> None:
    options = ("momentum", "weight_decay", "dampening")
    plain = isinstance(optimizer, torch.optim.SGD) and all(
        group["lr"] == 1 and not any(group[name] for name in options) and not group["maximize"]
        for group in optimizer.param_groups
    )
    if not plain:
        raise ValueError(
            "`optimizer` must apply the step as it is: torch.optim.SGD with lr=1, without momentum and weight decay; "
            f"got {type(optimizer).__name__}; pass that or None"
        )
    held = set(held_parameters(optimizer))
    missing = sum(parameter not in held for parameter in weight)
    if missing:
        raise ValueError(f"`optimizer` must hold every weight that is trained, it lacks {missing} of {len(weight)}")
