"""Full normalization (FN): a classification head that compares directions only.

The linear head ``x W^T + b`` is replaced by ``m * (l2(x) l2(W)^T [+ b])``. ``l2`` divides each row by its Euclidean
norm and ``m`` is one trained number. With fewer BatchNorms in a network the size of the last features is less
controlled; the normalized head does not see that size.

Formula and constants follow mindspore/python/mindspore/boost/less_batch_normalization.py (MindSpore 2.7.0), where the
layer is called CommonHeadLastFN. Row formats: features ``[..., in_features]``, weight ``[out_features, in_features]``.
Cosine heads of this kind: Gidaris and Komodakis, "Dynamic Few-Shot Visual Learning without Forgetting", CVPR 2018,
arXiv:1804.09458, section 3.2.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from workbench.algorithms.batch_norm_folding import replace_module_

__all__ = ["MINIMAL_SQUARED_NORM", "CommonHeadLastFN", "normalize_rows", "replace_heads_"]

# As upstream: the bound lies inside the square root, so a row shorter than 0.01 is divided by 0.01 and stays short.
MINIMAL_SQUARED_NORM = 1e-4
# As upstream: the backward pass bounds the norm itself by the same number.
MINIMAL_GRADIENT_NORM = 1e-4


def normalize_rows(rows: Tensor) -> Tensor:
    """Divide every row by its Euclidean norm, or by 0.01 if it is shorter.

    Args:
        rows: Shape ``[..., features]``, any floating type.

    Returns:
        ``y = rows / sqrt(max(sum(rows^2), 1e-4))``, in the type of ``rows``; a row of zeros stays zero. The gradient
        is ``(d - y sum(y d)) / max(norm, 1e-4)`` with ``d`` the gradient of ``y``. For rows of norm 0.01 or more this
        is the derivative.
    """
    # As upstream: for shorter rows the gradient is larger than the derivative, d / 0.01, by up to a factor 100. It
    # drives rows out of the region where they are not normalized, and recorded trainings contain it.
    normalized: Tensor = _NormalizeRows.apply(rows)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return normalized


class CommonHeadLastFN(nn.Module):
    """Linear head on normalized features and normalized class vectors, times one trained factor.

    Args:
        in_features: Number of features of a row.
        out_features: Number of classes.
        bias: Whether a bias is added before the multiplication.

    Raises:
        ValueError: When a size is below 1.
    """

    is_full_normalization = True

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        for name, size in (("in_features", in_features), ("out_features", out_features)):
            if not size >= 1:
                raise ValueError(f"`{name}` must be at least 1, got {size}")
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.multiplier = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear; only the direction of a row matters

    def forward(self, x: Tensor) -> Tensor:
        """Return the class scores.

        Args:
            x: Features, shape ``[..., in_features]``.

        Returns:
            Scores, shape ``[..., out_features]``; without bias each lies in ``[-m, m]``.
        """
        return F.linear(normalize_rows(x), normalize_rows(self.weight), self.bias) * self.multiplier

    def extra_repr(self) -> str:
        """Show the sizes as nn.Linear does."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def replace_heads_(
    model: nn.Module,
    scope: Literal["head", "every_module"] = "head",
    bias: Literal["keep", "drop"] = "keep",
) -> tuple[str, ...]:
    """Replace linear layers by full-normalization layers with the same weights.

    The new layers own new parameters (copies), so build the optimizer afterwards. A model that already holds such a
    layer is left alone, and so is a model that is itself a Linear. A weight tied to another layer is no longer tied.

    Args:
        model: Network to change in place.
        scope: ``"head"`` replaces the classification layer only: the Linear that runs last, or the one registered
            last if torch.fx cannot trace the model. ``"every_module"`` does as MindSpore does: in every module that
            has Linear children, the one registered last. MindSpore registers the new layer of a sequential cell
            without using it; here it is really used, so the output of such a network changes.
        bias: ``"keep"`` copies the bias of the Linear, ``"drop"`` omits it, as MindSpore does.

    Returns:
        Dotted names of the replaced layers, in registration order; empty if there was nothing to replace.

    Raises:
        ValueError: When ``scope`` or ``bias`` is an unknown word.
    """
    if scope not in {"head", "every_module"}:
        raise ValueError(f'`fn_scope` must be "head" or "every_module", got {scope!r}')
    if bias not in {"keep", "drop"}:
        raise ValueError(f'`fn_bias` must be "keep" or "drop", got {bias!r}')
    if any(getattr(module, "is_full_normalization", False) for module in model.modules()):
        return ()
    heads = _last_of_every_module(model) if scope == "every_module" else _classification_layer(model)
    if not heads:
        warnings.warn("full normalization had no effect: the model has no Linear below it", UserWarning, stacklevel=2)
        return ()
    for linear in heads.values():
        replace_module_(model, linear, _from_linear(linear, keep_bias=bias == "keep"))
    return tuple(heads)


class _NormalizeRows(torch.autograd.Function):
    """Row normalization with MindSpore's gradient (L2NormalizeGrad, MindSpore 2.7.0 on a CPU)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        # Squares of float16 values overflow above 256, so the sum is taken in float32 at least.
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        squared_norm = wide.square().sum(dim=-1, keepdim=True)
        return (wide * squared_norm.clamp_min(MINIMAL_SQUARED_NORM).rsqrt()).to(rows.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        rows: Tensor = ctx.saved_tensors[0]
        wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
        grad = grad_outputs[0].to(wide.dtype)
        squared_norm = wide.square().sum(dim=-1, keepdim=True)
        unit = wide * squared_norm.clamp_min(MINIMAL_SQUARED_NORM).rsqrt()
        norm = squared_norm.sqrt().clamp_min(MINIMAL_GRADIENT_NORM)
        tangential: Tensor = grad - unit * (unit * grad).sum(dim=-1, keepdim=True)
        return (tangential / norm).to(rows.dtype)


def _from_linear(linear: nn.Linear, *, keep_bias: bool) -> CommonHeadLastFN:
    layer = CommonHeadLastFN(linear.in_features, linear.out_features, bias=keep_bias and linear.bias is not None)
    layer.to(device=linear.weight.device, dtype=linear.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(linear.weight)
        if layer.bias is not None:
            layer.bias.copy_(linear.bias)
            layer.bias.requires_grad_(linear.bias.requires_grad)
    # What the user froze stays frozen, and a head with frozen directions gets no trained factor either.
    layer.weight.requires_grad_(linear.weight.requires_grad)
    layer.multiplier.requires_grad_(linear.weight.requires_grad)
    return layer.train(linear.training)


def _parents(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules whose Linear children are called as modules.

    MultiheadAttention and its transformer layers read the weights of their Linear children themselves.
    """
    inside_attention: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inside_attention.update(id(child) for child in module.modules())
        if id(module) not in inside_attention:
            yield name, module


def _last_of_every_module(model: nn.Module) -> dict[str, nn.Linear]:
    heads: dict[str, nn.Linear] = {}
    for prefix, parent in _parents(model):
        linears = {name: child for name, child in parent.named_children() if isinstance(child, nn.Linear)}
        if linears:
            name = list(linears)[-1]
            heads[f"{prefix}.{name}" if prefix else name] = linears[name]
    return heads


def _classification_layer(model: nn.Module) -> dict[str, nn.Linear]:
    candidates = {
        f"{prefix}.{name}" if prefix else name: child
        for prefix, parent in _parents(model)
        for name, child in parent.named_children()
        if isinstance(child, nn.Linear)
    }
    if not candidates:
        return {}
    name = _last_executed(model, candidates) or list(candidates)[-1]
    return {name: candidates[name]}


def _last_executed(model: nn.Module, candidates: dict[str, nn.Linear]) -> str | None:
    try:
        graph = _LinearTracer().trace(model)
    except Exception:  # whatever the user's forward does with a symbolic tensor; registration order is the fallback
        return None
    by_module = {id(linear): name for name, linear in candidates.items()}
    modules = dict(model.named_modules(remove_duplicate=False))
    executed = [by_module.get(id(modules[str(node.target)])) for node in graph.nodes if node.op == "call_module"]
    return next((name for name in reversed(executed) if name is not None), None)


class _LinearTracer(fx.Tracer):
    """Tracer that also keeps a user's own subclass of Linear as one node."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, nn.Linear) or super().is_leaf_module(m, module_qualified_name)
