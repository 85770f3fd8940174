"""Optimizers whose step costs the rows of a table that a batch touched, not the table.

A lookup in a table of embeddings ``[n_rows, dim]`` gives a sparse gradient for few of its rows
(`workbench.optim.embeddings`). The optimizers here read and write only those rows, of the table and of their own state.
A row's state does not move while the row rests, so a row that is seen k times is where a dense optimizer would have
brought it in k steps of its own:

* `RowWiseAdagrad` keeps one number per row, the sum of mean squares s. With g the row's gradient and d its width::

      s = s + sum(g * g) / d
      w = w - lr * g / (sqrt(s) + eps)

* `RowWiseAdam` keeps two moments per weight and a count t per row; the formula is that of ``torch.optim.Adam`` with
  the row's own t. (``torch.optim.SparseAdam`` corrects the bias by the steps of the whole table, so that the first
  step of a row that appears late is up to ``(1 - beta1) / sqrt(1 - beta2)`` = 3.2 times too long.)

Parameters with dense gradients beside the table are trained by torch's fused Adam, in both. Give tables and dense
parameters groups of their own where they need different rates.

One mark on a parameter is understood, and may be missing: ``fresh_rows``, a bool tensor ``[n_rows]`` that is True where
a row was given to a new owner. The row's state starts afresh with its next gradient, which clears the mark.

References:
    Duchi et al., "Adaptive Subgradient Methods for Online Learning and Stochastic Optimization", JMLR 2011, figure 1;
    one accumulator per row: Mudigere et al., "Software-Hardware Co-design for Fast and Scalable Training of Deep
    Learning Recommendation Models", ISCA 2022, arXiv:2104.05158, section 4.1.3; Kingma and Ba, "Adam: A Method for
    Stochastic Optimization", ICLR 2015, arXiv:1412.6980, algorithm 1.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, Literal, cast

import torch
from torch import Tensor

from workbench.core import host_values
from workbench.core.arguments import checked_number
from workbench.core.step_optimizer import StepOptimizer, exact_flag, held_parameters
from workbench.optim.plain_adamw import adamw_


def merge_rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows of a sparse gradient ``[n_rows, ...]``, int64 ``[k]``, and the sums of what came for each.

    On the CPU every row occurs once. Elsewhere the host would have to wait for their number: the result is as long as
    the gradient, and what is left over repeats its first row with the same values, which is the same when written.
    """
    rows, values = gradient._indices()[0], gradient._values()
    if gradient.is_coalesced():
        return rows, values
    if host_values.reads_without_waiting(rows):
        found, position = torch.unique(rows, return_inverse=True)
        return found, values.new_zeros(len(found), *values.shape[1:]).index_add_(0, position, values)
    return _merge_without_waiting(rows, values)


def _merge_without_waiting(rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Merge on a device whose answers would have to be waited for: nothing here depends on how many rows differ."""
    if len(rows) == 0:
        return rows, values
    ordered, order = rows.sort()
    begins = torch.ones_like(ordered, dtype=torch.bool)
    begins[1:] = ordered[1:] != ordered[:-1]
    segment = begins.cumsum(0) - 1
    sums = torch.zeros_like(values).index_add_(0, segment, values.index_select(0, order))
    found = torch.zeros_like(ordered).scatter_(0, segment, ordered)
    counted = torch.arange(len(rows), device=rows.device)
    taken = torch.where(counted <= segment[-1], counted, 0)
    return found.index_select(0, taken), sums.index_select(0, taken)


class _RowWiseOptimizer(StepOptimizer):
    """What both have in common: which gradient is treated how, skipped steps, state that survives."""

    #: Names of the tensors with an entry per row, and what it is: a number or a count per row, or a row of numbers.
    _row_state: dict[str, Literal["number", "count", "row"]]

    @abstractmethod
    def _update_rows(
        self, weights: Tensor, gradients: Tensor, old: list[Tensor], group: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return new weights and new state, in the order of ``_row_state``; may overwrite what is given."""

    def _first_values(self, group: dict[str, Any]) -> dict[str, float]:
        """Return what the state of a row begins with, where that is not 0."""
        return {}

    def __init__(self, params: Any, defaults: dict[str, Any]) -> None:
        _check_hyper_parameters(defaults)
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, its values checked like those of the constructor."""
        _check_hyper_parameters(param_group)
        super().add_param_group(param_group)

    def _step(self) -> None:
        skip = self.found_inf
        if skip is not None and host_values.reads_without_waiting(skip):
            if skip.item() != 0:
                return
            skip = None
        flag = None if skip is None else exact_flag(skip)
        for group in self.param_groups:
            dense: list[Tensor] = []
            for parameter in group["params"]:
                if (gradient := parameter.grad) is None:
                    continue
                if gradient.is_sparse:
                    self._step_rows(parameter, gradient, group, skip)
                elif (state := self.state[parameter]) and "step" not in state:
                    raise TypeError("a gradient must stay sparse or dense, got a dense one where it was sparse before")
                else:
                    dense.append(parameter)
            if dense:
                adamw_(dense, [cast("Tensor", parameter.grad) for parameter in dense], self.state, group, flag)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        super().load_state_dict(state_dict)
        # torch gives loaded state the dtype of its parameter, but a table's is float32 beside bfloat16.
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        for number, parameter in zip(numbers, held_parameters(self), strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):
                    is_own = name in self._row_state or name == "step"
                    dtype = value.dtype if is_own else parameter.dtype
                    self.state[parameter][name] = value.detach().to(parameter.device, dtype, copy=True)

    def _step_rows(self, table: Tensor, gradient: Tensor, group: dict[str, Any], skip: Tensor | None) -> None:
        state = self.state[table]
        if not state:
            if gradient.sparse_dim() != 1:
                raise TypeError(
                    f"a sparse gradient must be sparse by rows only, got {gradient.sparse_dim()} sparse dimensions"
                )
            # A sum of squares in bfloat16 stops growing after 256 equal terms.
            wide, first = torch.promote_types(table.dtype, torch.float32), self._first_values(group)
            for name, kind in self._row_state.items():
                shape = table.shape if kind == "row" else table.shape[:1]
                dtype = torch.int32 if kind == "count" else wide
                state[name] = torch.full(shape, first.get(name, 0), dtype=dtype, device=table.device)
        elif "exp_avg" in state and "step" in state:
            raise TypeError("a gradient must stay sparse or dense, got a sparse one where it was dense before")
        rows, values = merge_rows(gradient)
        if len(rows) == 0:
            return
        before = old = [state[name].index_select(0, rows) for name in self._row_state]
        fresh: Tensor | None = getattr(table, "fresh_rows", None)
        begun = _new_owners(fresh, rows)
        if begun is not None:
            first = self._first_values(group)
            named = zip(self._row_state, before, strict=True)
            old = [part.masked_fill(_over_rows(begun, part), first.get(name, 0.0)) for name, part in named]
        weights = given = table.index_select(0, rows)
        if skip is not None:  # what was there before may be put back
            given, old = weights.clone(), [part.clone() for part in old]
        new_weights, after = self._update_rows(given, values.to(weights.dtype), old, group)
        targets = [table, *(state[name] for name in self._row_state)]
        for target, new, former in zip(targets, [new_weights, *after], [weights, *before], strict=True):
            target.index_copy_(0, rows, new if skip is None else torch.where(skip.reshape(()) != 0, former, new))
        if begun is not None:
            still = torch.zeros_like(begun) if skip is None else begun & (skip.reshape(()) != 0)
            cast("Tensor", fresh).index_copy_(0, rows, still)


class RowWiseAdagrad(_RowWiseOptimizer):
    """Adagrad with one accumulator per row for tables, fused Adam for the rest.

    Args:
        params: Parameters, pairs (name, parameter) or groups, as for any torch optimizer.
        lr: Learning rate, >= 0.
        betas: Decay rates of Adam's moments (dense parameters), in [0, 1).
        eps: Added to the denominators, > 0.
        weight_decay: Decoupled decay, >= 0: weights shrink by ``lr * weight_decay`` of themselves, of a table the rows
            that are touched.
        initial_accumulator: What s begins with, >= 0. The very first step of a row moves each weight by about ``lr``
            when it is 0; a larger value holds rare rows back.
    """

    _row_state = {"sum": "number"}  # noqa: RUF012  # never changed

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.05,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        initial_accumulator: float = 0.0,
    ) -> None:
        options = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "initial_accumulator": initial_accumulator})

    def _first_values(self, group: dict[str, Any]) -> dict[str, float]:
        return {"sum": group["initial_accumulator"]}

    def _update_rows(
        self, weights: Tensor, gradients: Tensor, old: list[Tensor], group: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor]]:
        learning_rate = float(group["lr"])
        wide = gradients.to(old[0].dtype).flatten(1)
        total = torch.linalg.vecdot(wide, wide).div_(wide.shape[1]).add_(old[0])
        denominator = _over_rows(total.sqrt().add_(group["eps"]).to(weights.dtype), weights)
        kept = _decayed(weights, group)
        return torch.addcdiv(kept, gradients, denominator, value=-learning_rate), [total]


class RowWiseAdam(_RowWiseOptimizer):
    """Adam that moves, of a table, only the rows with a gradient; fused Adam for the rest.

    Args:
        params: Parameters, pairs (name, parameter) or groups, as for any torch optimizer.
        lr: Learning rate, >= 0.
        betas: Decay rates of the moments, in [0, 1).
        eps: Added to the denominators, > 0.
        weight_decay: Decoupled decay, >= 0: weights shrink by ``lr * weight_decay`` of themselves, of a table the rows
            that are touched.
    """

    _row_state = {"row_steps": "count", "row_exp_avg": "row", "row_exp_avg_sq": "row"}  # noqa: RUF012  # never changed

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def _update_rows(
        self, weights: Tensor, gradients: Tensor, old: list[Tensor], group: dict[str, Any]
    ) -> tuple[Tensor, list[Tensor]]:
        (beta1, beta2), learning_rate = group["betas"], float(group["lr"])
        steps, first, second = old
        steps = steps.add_(1)
        wide = gradients.to(first.dtype)
        first = first.lerp_(wide, 1.0 - beta1)
        second = second.mul_(beta2).addcmul_(wide, wide, value=1.0 - beta2)
        count = _over_rows(steps.to(first.dtype), weights)
        correction = _one_minus_power(beta2, count).sqrt_()
        rate = correction.div(_one_minus_power(beta1, count)).mul_(learning_rate)
        update = (first * rate).div_(correction.mul_(group["eps"]).add(second.sqrt()))
        return _decayed(weights, group).sub_(update.to(weights.dtype)), [steps, first, second]


def _over_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Return one value per row in a shape that meets whole rows."""
    return values.view(-1, *[1] * (rows.ndim - 1))


def _one_minus_power(base: float, count: Tensor) -> Tensor:
    """Return ``1 - base ** count`` with nearly all its digits: near 1 the power itself has lost half of them."""
    if base == 0.0:
        return torch.ones_like(count)
    return torch.expm1(count * math.log(base)).neg_()


def _new_owners(fresh: Tensor | None, rows: Tensor) -> Tensor | None:
    """Return which of the rows have a new owner, bool ``[k]``; None when none has (where asking costs nothing)."""
    if fresh is None:
        return None
    begun = fresh.index_select(0, rows)
    return begun if not host_values.reads_without_waiting(begun) or bool(begun.any()) else None


def _decayed(weights: Tensor, group: dict[str, Any]) -> Tensor:
    decay = float(group["lr"]) * group["weight_decay"]
    return weights * (1.0 - decay) if decay != 0.0 else weights


def _check_hyper_parameters(values: dict[str, Any]) -> None:
    for name in {"lr", "weight_decay", "initial_accumulator"} & values.keys():
        checked_number(name, float(values[name]))
    if "eps" in values:
        checked_number("eps", values["eps"], above=0.0)
    for beta in values.get("betas", ()):
        checked_number("betas", beta, below=1.0)
