"""Full normalization (FN): a classification head that compares directions only.

The linear head ``x W^T + b`` is replaced by ``m * (l2(x) l2(W)^T [+ b])``, where ``l2`` divides each row by its
Euclidean norm and ``m`` is one trained number: it does not see the size of the last features, which is less controlled
with fewer BatchNorms. Features are ``[..., in_features]``, the weight ``[out_features, in_features]``.

Formula and constants follow mindspore/python/mindspore/boost/less_batch_normalization.py (MindSpore 2.7.0).
Cosine heads of this kind: Gidaris and Komodakis, "Dynamic Few-Shot Visual Learning without Forgetting", CVPR 2018,
arXiv:1804.09458, section 3.2.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized

from workbench.core.arguments import checked_count
from workbench.core.torch_internals import BatchNorm, LossModule, has_forward_hooks
from workbench.methods.less_bn.batch_norm_folding import replace_module_
from workbench.methods.less_bn.network_graph import NetworkGraph, called_apart

FNScope = Literal["classifier", "every_module", "head"]
NEEDS_CRITERION = "without a criterion it is not known to be a classifier; pass `criterion`"

# As upstream: the bound lies inside the square root, so a row shorter than 0.01 is divided by 0.01 and stays short.
MINIMAL_SQUARED_NORM = 1e-4
# As upstream: the backward pass bounds the norm itself by the same number.
MINIMAL_GRADIENT_NORM = 1e-4
_PROBABILITY = 0.95  # of the right class, where classes are separated


def normalize_rows(rows: Tensor) -> Tensor:
    """Divide every row ``[..., features]`` by its Euclidean norm, or by 0.01 if it is shorter.

    ``y = rows / sqrt(max(sum(rows^2), 1e-4))``, with the gradient ``(d - y sum(y d)) / max(norm, 1e-4)``, where ``d``
    is that of ``y``. For rows of norm 0.01 or more this is the derivative.
    """
    # As upstream: for shorter rows the gradient is larger than the derivative, d / 0.01, by up to a factor 100. It
    # drives rows out of the region where they are not normalized, and recorded trainings contain it.
    normalized: Tensor = _NormalizeRows.apply(rows)  # type: ignore[no-untyped-call]  # torch leaves apply untyped
    return normalized


class CommonHeadLastFN(nn.Module):
    """Linear head on normalized features and normalized class vectors, times one trained factor; any bias is inside."""

    is_full_normalization = True

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__()
        self.in_features = checked_count("in_features", in_features)
        self.out_features = checked_count("out_features", out_features)
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.multiplier = nn.Parameter(torch.ones(1))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))  # as nn.Linear; only the direction of a row matters

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores, ``[..., out_features]``, of features; without bias each lies in ``[-m, m]``."""
        return F.linear(normalize_rows(x), normalize_rows(self.weight), self.bias) * self.multiplier

    def extra_repr(self) -> str:
        """Show the sizes as nn.Linear does."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


def smallest_multiplier(classes: int) -> float:
    """Return the smallest factor with which separated classes reach the probability p = 0.95 under softmax.

    Cosines lie in [-1, 1]; without a factor the softmax of 10 classes cannot exceed 0.45 and training has to find the
    factor first. ``m = (C - 1) / C * log((C - 1) p / (1 - p))``; Wang et al., "CosFace: Large Margin Cosine Loss for
    Deep Face Recognition", CVPR 2018, arXiv:1801.09414, equation 6.
    """
    return (classes - 1) / classes * math.log((classes - 1) * _PROBABILITY / (1 - _PROBABILITY))


def is_classification(criterion: Any) -> bool:
    """Return whether a criterion is known to judge scores of exclusive classes: torch's cross entropy."""
    while isinstance(criterion, functools.partial):
        criterion = criterion.func
    return isinstance(criterion, nn.CrossEntropyLoss) or criterion is F.cross_entropy


@dataclass(frozen=True)
class HeadRule:
    """Which Linear layers become full-normalization layers.

    ``"head"`` replaces the Linear that alone feeds the output and shares its weight with no other layer;
    ``"classifier"`` does so if the criterion, too, is known to be a classification. ``"every_module"`` does as
    MindSpore does: in every module that has Linear children, the one registered last. MindSpore registers the new layer
    of a sequential cell without using it; here it is really used, so the output of such a network changes.
    """

    scope: FNScope = "head"
    bias: Literal["keep", "drop"] = "keep"  # of the Linear; MindSpore drops it
    criterion: Any = None  # what judges the output, where the model does not end in it; None if that is not known

    def __post_init__(self) -> None:
        """Check the words."""
        if self.scope not in get_args(FNScope):
            raise ValueError(f'`fn_scope` must be "classifier", "every_module" or "head", got {self.scope!r}')
        if self.bias not in {"keep", "drop"}:
            raise ValueError(f'`fn_bias` must be "keep" or "drop", got {self.bias!r}')


def normalize_heads_(
    model: nn.Module,
    rule: HeadRule,
    *,
    graphs: Sequence[NetworkGraph],
    trained: bool = False,
    call: Callable[[nn.Module], Any] | None = None,
    invented: bool = False,
) -> tuple[tuple[str, ...], str]:
    """Replace linear layers by full-normalization layers with copies of their weights; return names, or why none.

    The first factor is MindSpore's 1; with scope ``"classifier"``, and for a trained network, it is
    :func:`smallest_multiplier`. Where ``call`` gives the length of a trained head's features, the factor is the mean of
    it times that of the class vectors, and its scores keep their size; if its inputs are ``invented`` noise, BatchNorms
    work with its statistics.
    """
    scope, keep_bias = rule.scope, rule.bias == "keep"
    if any(getattr(module, "is_full_normalization", False) for module in model.modules()):
        return (), ""
    if scope == "every_module":
        heads = _last_of_every_module(model)
        for linear in heads.values():
            replace_module_(model, linear, _from_linear(linear, keep_bias=keep_bias))
        return tuple(heads), "" if heads else "the model has no Linear below it"
    head = _output_layer(model, graphs)
    if isinstance(head, str):
        return (), head
    if scope == "classifier" and (reason := _why_no_classifier(head, rule.criterion)):
        return (), reason
    multiplier = 1.0
    if scope == "classifier" or trained:
        multiplier = smallest_multiplier(max(2, head.layer.out_features))
    if trained and call is not None:
        multiplier = _size_of_scores(model, head.name, call, invented=invented) or multiplier
    replace_module_(model, head.layer, _from_linear(head.layer, keep_bias=keep_bias, multiplier=multiplier))
    return (head.name,), ""


class _NormalizeRows(torch.autograd.Function):
    """Row normalization with MindSpore's gradient (L2NormalizeGrad, MindSpore 2.7.0 on a CPU)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> Tensor:
        wide, squared_norm = _widened(rows)
        return (wide * squared_norm.clamp_min(MINIMAL_SQUARED_NORM).rsqrt()).to(rows.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Tensor:
        rows: Tensor = ctx.saved_tensors[0]
        wide, squared_norm = _widened(rows)
        grad = grad_outputs[0].to(wide.dtype)
        unit = wide * squared_norm.clamp_min(MINIMAL_SQUARED_NORM).rsqrt()
        norm = squared_norm.sqrt().clamp_min(MINIMAL_GRADIENT_NORM)
        tangential: Tensor = grad - unit * (unit * grad).sum(dim=-1, keepdim=True)
        return (tangential / norm).to(rows.dtype)


def _widened(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows and their squared norms in float32 at least: squares of float16 values overflow above 256."""
    wide = rows.to(torch.promote_types(rows.dtype, torch.float32))
    return wide, wide.square().sum(dim=-1, keepdim=True)


def _from_linear(linear: nn.Linear, *, keep_bias: bool, multiplier: float = 1.0) -> CommonHeadLastFN:
    layer = CommonHeadLastFN(linear.in_features, linear.out_features, bias=keep_bias and linear.bias is not None)
    layer.to(device=linear.weight.device, dtype=linear.weight.dtype)
    with torch.no_grad():
        layer.weight.copy_(linear.weight)
        layer.multiplier.fill_(multiplier)
        if layer.bias is not None:
            layer.bias.copy_(linear.bias / multiplier)  # the factor stands outside, and the bias keeps its size
            layer.bias.requires_grad_(linear.bias.requires_grad)
    # What the user froze stays frozen, and a head with frozen directions gets no trained factor either.
    layer.weight.requires_grad_(linear.weight.requires_grad)
    layer.multiplier.requires_grad_(linear.weight.requires_grad)
    return layer.train(linear.training)


class _OutputLayer(NamedTuple):
    """The Linear that alone feeds the output, and the criterion behind it where the model ends in one."""

    name: str
    layer: nn.Linear
    criterion: nn.Module | None


def _output_layer(model: nn.Module, graphs: Sequence[NetworkGraph]) -> _OutputLayer | str:
    """Return the Linear that alone feeds the output in all graphs, or why there is none that may be replaced."""
    found = [_output_layer_in(model, graph) for graph in graphs]
    reason = "" if found else "what feeds the output is not known"
    return next((one for one in found if isinstance(one, str)), reason) or found[-1]


def _output_layer_in(model: nn.Module, graph: NetworkGraph) -> _OutputLayer | str:
    feeding = graph.steps[-1].inputs
    criterion = feeding[0].module if len(feeding) == 1 and isinstance(feeding[0].module, LossModule) else None
    if criterion is not None:
        feeding = feeding[0].inputs[:1]
    if len(feeding) != 1:
        return f"{len(feeding)} layers feed the output" if feeding else "no layer feeds the output"
    (last,) = feeding
    if not isinstance(last.module, nn.Linear):
        what = "an operation" if last.module is None else f"`{last.name}` ({type(last.module).__name__})"
        return f"the output comes from {what}, not from a Linear"
    if not last.name:
        return "the model has no Linear below it"
    layer = model.get_submodule(last.name)  # the graph may be that of a copy
    is_plain = type(layer).forward is nn.Linear.forward and not has_forward_hooks(layer)
    if not isinstance(layer, nn.Linear) or not is_plain or is_parametrized(layer) or is_lazy(layer.weight):
        return f"`{last.name}` is not a plain Linear"
    if sum(step.name == last.name for step in graph.steps) > 1:
        return f"`{last.name}` is called more than once"
    own = set(layer.parameters())
    others = (module for module in model.modules() if module is not layer)
    is_shared = any(parameter in own for module in others for parameter in module.parameters(recurse=False))
    if is_shared or f"{last.name}.weight" in graph.read_elsewhere:
        return f"`{last.name}` shares its weight with another layer"
    return _OutputLayer(last.name, layer, criterion)


def _why_no_classifier(head: _OutputLayer, given: Any) -> str:
    criterion = given if head.criterion is None else head.criterion
    if criterion is None:
        return NEEDS_CRITERION
    if not is_classification(criterion):
        name = getattr(criterion, "__name__", type(criterion).__name__)
        return f"{name} is not known to be a classification"
    return f"`{head.name}` has a single output" if head.layer.out_features < 2 else ""


def _size_of_scores(model: nn.Module, name: str, call: Callable[[nn.Module], Any], *, invented: bool) -> float:
    """Return mean length of a layer's features times that of its class vectors, by a call of a copy; 0 if it fails."""
    lengths: list[Tensor] = []

    def measure(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        lengths.append(inputs[0].flatten(0, -2).double().norm(dim=-1))

    try:
        twin = copy.deepcopy(model)
        layer = twin.get_submodule(name)
        layer.register_forward_pre_hook(measure)
        with called_apart(twin):
            for module in twin.modules():
                module.training = invented and isinstance(module, BatchNorm)
            call(twin)
        size = float(torch.cat(lengths).mean() * layer.get_parameter("weight").double().norm(dim=-1).mean())
    except Exception:  # the user's model on the user's input: go on without
        return 0.0
    return size if math.isfinite(size) else 0.0


def _last_of_every_module(model: nn.Module) -> dict[str, nn.Linear]:
    heads: dict[str, nn.Linear] = {}
    # These read the weights of their Linear children themselves; the encoder layer in evaluation.
    readers = [m for m in model.modules() if isinstance(m, nn.MultiheadAttention | nn.TransformerEncoderLayer)]
    inside_readers = {id(child) for reader in readers for child in reader.modules()}
    for prefix, parent in model.named_modules():
        linears = [name for name, child in parent.named_children() if isinstance(child, nn.Linear)]
        if linears and id(parent) not in inside_readers:
            name = f"{prefix}.{linears[-1]}" if prefix else linears[-1]
            heads[name] = cast("nn.Linear", model.get_submodule(name))
    return heads
