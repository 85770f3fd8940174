"""LessBN: train with fewer BatchNorms.

A BatchNorm reads its input twice and waits for statistics; in a residual network most of them can go, because the last
one of each branch keeps the size of the activations in hand. :func:`reduce_batch_norms_` removes them for good: the
module becomes ``nn.Identity``. :class:`LessBN` is the wrapper under MindSpore's name, with the full-normalization head.

Which ones go is decided by one of two rules:

* ``match="structure"`` (default): the roles in the network's graph, see
  :mod:`workbench.algorithms.batch_norm_graph`;
* ``match="reference"``: the chains that MindSpore 2.7 looks for, see :mod:`workbench.algorithms.batch_norm_patterns`.

Three differences from MindSpore (python/mindspore/boost/less_batch_normalization.py, 2.7.0). There the removed modules
stay in the parameter list and never change again; here they are gone. There learned statistics are lost; here they are
folded into the convolution before, so a pretrained network keeps the function it has in evaluation. There nothing
happens in eager mode; here it always works.

Models that torch.fx cannot trace
---------------------------------
Their parts are traced one by one, in module order, and the structural rule is applied to each. A part that cannot be
traced either is judged by the order of its layers (execution order if example inputs are given, else registration
order): a module with at least two convolution-BatchNorm pairs in a row that ends with as many channels as it began, or
that has a separate pair from its first to its last width (the shortcut), is taken for a residual block; all pairs but
the last lose their BatchNorm, and so does the shortcut. Depthwise convolutions keep theirs, as does the first
BatchNorm of the model, and never more than two in a row go.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from workbench.algorithms.batch_norm_folding import (
    ChannelAffine,
    affine_of,
    can_fold_into,
    fold_into_,
    has_learned_statistics,
    replace_module_,
)
from workbench.algorithms.batch_norm_graph import LONGEST_RUN, Step, TraceError, read_graph, removable_by_structure
from workbench.algorithms.batch_norm_patterns import removable_by_reference
from workbench.algorithms.full_normalization import FNScope, HeadRule, normalize_heads_

__all__ = ["LessBN", "LessBNReport", "reduce_batch_norms_"]

REPORT_ATTRIBUTE = "less_bn_report"  # on every module of a reduced model, so that a second call changes nothing


@dataclass(frozen=True)
class LessBNReport:
    """What LessBN did to a model.

    Attributes:
        removed: Dotted names of the BatchNorms that are gone, in registration order.
        kept: Those that stay.
        folded: Removed ones whose learned statistics were multiplied into the layer before.
        method: ``"graph"``, or ``"module order"`` if torch.fx could not trace the model.
        reason: Why the method is not the graph, or why nothing was removed; empty otherwise.
        affine: Removed ones that had learned statistics and no layer to fold them into; a trained scale and shift per
            channel (``ChannelAffine``) stands in their place.
        heads: Linear layers replaced by full normalization.
        head_reason: Why full normalization, where it was asked for, replaced none.
    """

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    folded: tuple[str, ...]
    method: Literal["graph", "module order"]
    reason: str = ""
    affine: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    head_reason: str = ""

    @property
    def head_note(self) -> str:
        """What became of the head, in one line; empty where there is nothing to say."""
        if self.heads:
            names = ", ".join(f"`{name}`" for name in self.heads)
            return f"{'head' if len(self.heads) == 1 else 'heads'} {names} normalised"
        return f"head not normalised: {self.head_reason}" if self.head_reason else ""


def reduce_batch_norms_(
    model: nn.Module,
    *,
    match: Literal["structure", "reference"] = "structure",
    example_inputs: Any = None,
    head: HeadRule | None = None,
) -> LessBNReport:
    """Remove the BatchNorms that the network can do without, in place, and normalise its head if that is asked for.

    Build the optimizer afterwards: parameters disappear, and folding may add biases. In a network whose BatchNorms
    have seen no data the other weights stay as they are; in a trained one the evaluation output stays the same.

    Args:
        model: Network to change. Its training mode and its devices do not matter.
        match: ``"structure"`` or ``"reference"`` (the choice of MindSpore 2.7), see the module docstring.
        example_inputs: One tensor, a sequence of positional arguments or a mapping of keyword arguments. Only used,
            for the order of the layers, if torch.fx cannot trace the model, and for the size of a trained head's
            scores.
        head: Which Linear becomes a full-normalization layer; None leaves all as they are.

    Returns:
        What was removed, and how it was found. A second call on the same model changes nothing.

    Raises:
        ValueError: When ``match`` is an unknown word.
    """
    report = _reduce(model, match, example_inputs)
    if head is not None:
        report = _with_head(model, report, head, example_inputs)
    if message := _complaint(report):
        warnings.warn(message, UserWarning, stacklevel=2)
    return report


class LessBN(nn.Module):
    """Wrap a network whose BatchNorms are reduced and whose head may be normalized.

    The network is changed in place. Wrapping the same network twice does nothing the second time, and says nothing.

    Args:
        network: Network, or network with loss; whatever the wrapper is called with is handed on to it.
        fn_flag: Whether the Linear head becomes a full-normalization layer; a warning says where it does not.
        match: See :func:`reduce_batch_norms_`.
        fn_scope: See :func:`workbench.algorithms.full_normalization.replace_heads_`.
        fn_bias: Same.
        criterion: Same.
        example_inputs: See :func:`reduce_batch_norms_`; they also tell the size of a trained head's scores.

    Raises:
        ValueError: When ``match``, or with ``fn_flag`` also ``fn_scope`` or ``fn_bias``, is an unknown word.
    """

    def __init__(
        self,
        network: nn.Module,
        fn_flag: bool = False,
        *,
        match: Literal["structure", "reference"] = "structure",
        fn_scope: FNScope = "head",
        fn_bias: Literal["keep", "drop"] = "keep",
        criterion: Any = None,
        example_inputs: Any = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.training = network.training  # not train(): parts the user put into evaluation stay there
        earlier: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
        report = earlier or _reduce(network, match, example_inputs)
        if fn_flag:
            report = _with_head(network, report, HeadRule(fn_scope, fn_bias, criterion), example_inputs)
            if report.head_reason:
                warnings.warn(report.head_note, UserWarning, stacklevel=2)
        if earlier is None and (message := _complaint(report)):
            warnings.warn(message, UserWarning, stacklevel=2)
        self.report = report
        object.__setattr__(self, REPORT_ATTRIBUTE, report)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network."""
        return self.network(*args, **kwargs)


def _reduce(model: nn.Module, match: str, example_inputs: Any) -> LessBNReport:
    if match not in {"structure", "reference"}:
        raise ValueError(f'`less_bn_match` must be "structure" or "reference", got {match!r}')
    norms = {name: module for name, module in model.named_modules() if isinstance(module, _BatchNorm) and name}
    if getattr(model, REPORT_ATTRIBUTE, None) is not None:
        earlier: LessBNReport = getattr(model, REPORT_ATTRIBUTE)
        return LessBNReport((), tuple(norms), (), earlier.method, "LessBN was already applied to this model")
    if not norms:
        report = LessBNReport((), (), (), "graph", "the model has no BatchNorm")
        _mark(model, report)
        return report
    method: Literal["graph", "module order"] = "graph"
    reason = ""
    before: dict[str, nn.Module]
    try:
        steps = read_graph(model)
    except TraceError as error:
        method, reason = "module order", str(error)
        chosen, before, order_note = _by_module_order(model, example_inputs)
        reason += order_note
    else:
        chosen = removable_by_structure(steps) if match == "structure" else removable_by_reference(steps)
        before = _layers_before(steps)
    removed: list[str] = []
    folded: list[str] = []
    affine: list[str] = []
    for name, norm in norms.items():
        if name not in chosen or not _may_go(norm):
            continue
        removed.append(name)
        substitute: nn.Module = nn.Identity()
        if has_learned_statistics(norm):
            layer = before.get(name)
            if layer is not None and can_fold_into(layer, norm):
                fold_into_(layer, norm)
                folded.append(name)
            else:
                scale, shift = affine_of(norm)
                dtype = norm.weight.dtype if norm.affine else torch.get_default_dtype()
                substitute = ChannelAffine(scale.to(dtype), shift.to(dtype))
                substitute.requires_grad_(not norm.affine or norm.weight.requires_grad)  # frozen stays frozen
                affine.append(name)
        replace_module_(model, norm, substitute.train(norm.training))
    kept = tuple(name for name in norms if name not in removed)
    if not removed and not reason:
        reason = "no BatchNorm has a role in which it can be spared"
    report = LessBNReport(tuple(removed), kept, tuple(folded), method, reason, tuple(affine))
    _mark(model, report)
    return report


def _with_head(model: nn.Module, report: LessBNReport, rule: HeadRule, example_inputs: Any) -> LessBNReport:
    if rule.scope == "classifier" and not report.removed:
        return report  # the size of the features is as it was, and that nothing was removed is said already
    trained = bool(report.folded or report.affine)
    heads, reason = normalize_heads_(model, rule, trained=trained, example_inputs=example_inputs)
    report = replace(report, heads=heads or report.heads, head_reason=reason)
    _mark(model, report)
    return report


def _complaint(report: LessBNReport) -> str:
    if not report.removed and report.heads:
        return ""  # it had an effect, and the report says which
    if not report.removed:
        return f"less_bn had no effect: {report.reason}"
    if report.method != "graph":
        return f"less_bn goes by module order: {report.reason}"
    return ""


def _mark(model: nn.Module, report: LessBNReport) -> None:
    for module in model.modules():
        object.__setattr__(module, REPORT_ATTRIBUTE, report)


def _may_go(norm: _BatchNorm) -> bool:
    if any(is_lazy(tensor) for tensor in (norm.weight, norm.running_mean) if tensor is not None):
        return False
    if norm.running_mean is not None or not norm.affine:
        return True
    # Without running statistics it normalizes by the batch in evaluation too: learned scales would be lost.
    return bool((norm.weight == 1).all() and (norm.bias == 0).all())


def _layers_before(steps: Sequence[Step]) -> dict[str, nn.Module]:
    """For each BatchNorm, the layer whose output it alone reads, where both are called exactly once."""
    users: dict[int, int] = {}
    module_calls: dict[int, int] = {}
    tensors: dict[int, set[int]] = {}
    for step in steps:
        for source in step.inputs:
            users[id(source)] = users.get(id(source), 0) + 1
        if step.module is not None:
            module_calls[id(step.module)] = module_calls.get(id(step.module), 0) + 1
            for parameter in step.module.parameters(recurse=False):
                tensors.setdefault(id(parameter), set()).add(id(step.module))
    before: dict[str, nn.Module] = {}
    for step in steps:
        if step.kind != "bn" or step.module is None:
            continue
        source = step.inputs[0]
        layer = source.module
        if layer is None or users[id(source)] != 1 or module_calls[id(step.module)] != 1:
            continue
        shared = any(len(tensors[id(parameter)]) > 1 for parameter in layer.parameters(recurse=False))
        if module_calls[id(layer)] == 1 and not shared:
            before[step.name] = layer
    return before


# Module order: what is left when the graph is out of reach.


def _by_module_order(model: nn.Module, example_inputs: Any) -> tuple[tuple[str, ...], dict[str, nn.Module], str]:
    """Return removable names, the layer to fold each into, and a remark on the order used."""
    leaves = {
        name: module for name, module in model.named_modules() if isinstance(module, (_BatchNorm, _ConvNd, nn.Linear))
    }
    note = "; registration order is used"
    if example_inputs is not None:
        executed, failure = _execution_order(model, leaves, example_inputs)
        if executed is None:
            note = f"; registration order is used, as the example inputs did not run: {failure}"
        else:
            leaves = {name: leaves[name] for name in executed}
            note = "; execution order of the example inputs is used"
    chosen: list[str] = []
    before: dict[str, nn.Module] = {}
    first_norm = next((name for name, module in leaves.items() if isinstance(module, _BatchNorm)), None)

    def visit(prefix: str, part: nn.Module) -> None:
        inside = [name for name in leaves if name.startswith(f"{prefix}.")] if prefix else list(leaves)
        if not any(isinstance(leaves[name], _BatchNorm) for name in inside) or prefix in leaves:
            return
        later = first_norm not in inside
        try:
            steps = read_graph(part) if prefix else None
        except TraceError:
            steps = None
        if steps is not None:
            found = [f"{prefix}.{name}" for name in removable_by_structure(steps, input_is_normalized=later)]
            chosen.extend(name for name in found if name in leaves)
            before.update({f"{prefix}.{name}": layer for name, layer in _layers_before(steps).items()})
            return
        children = [(f"{prefix}.{name}" if prefix else name, child) for name, child in part.named_children()]
        if prefix and not isinstance(part, (nn.Sequential, nn.ModuleList, nn.ModuleDict)):
            pairs = _pairs(inside, leaves)
            own = [pair for pair in pairs if _owner(part, prefix, pair.norm) in {"", "Sequential"}]
            if len(own) == len(pairs) and len(pairs) >= 2:
                # No folding here: nothing proves that the BatchNorm is the only reader of the convolution.
                chosen.extend(pair.norm for pair in _block_norms(pairs, first_norm))
                return
        for name, child in children:
            visit(name, child)

    visit("", model)
    return tuple(chosen), before, note


@dataclass(frozen=True)
class _Pair:
    conv: str
    norm: str
    layer: _ConvNd


def _pairs(names: Sequence[str], leaves: Mapping[str, nn.Module]) -> list[_Pair]:
    """Convolutions directly followed by a BatchNorm of their width."""
    pairs = []
    for first, second in pairwise(names):
        conv, norm = leaves[first], leaves[second]
        if isinstance(conv, _ConvNd) and isinstance(norm, _BatchNorm) and conv.out_channels == norm.num_features:
            pairs.append(_Pair(first, second, conv))
    return pairs


def _owner(part: nn.Module, prefix: str, leaf: str) -> str:
    """Return "" for a direct child, "Sequential" for one in nested Sequentials, else the class between."""
    parents = leaf[len(prefix) + 1 :].split(".")[:-1]
    module = part
    for name in parents:
        module = module.get_submodule(name)
        if not isinstance(module, nn.Sequential):
            return type(module).__name__
    return "Sequential" if parents else ""


def _block_norms(pairs: Sequence[_Pair], first_norm: str | None) -> list[_Pair]:
    """Pairs of one block that lose their BatchNorm; empty if nothing speaks for a residual addition."""

    def parent(pair: _Pair) -> str:
        return pair.norm.rpartition(".")[0]

    # A shortcut may be registered first; the main branch is where most of the pairs are.
    home = Counter(parent(pair) for pair in pairs).most_common(1)[0][0]
    pairs = sorted(pairs, key=lambda pair: parent(pair) != home)
    main = [pairs[0]]
    shortcuts: list[_Pair] = []
    for pair in pairs[1:]:
        starts_again = pair.layer.in_channels == pairs[0].layer.in_channels
        if parent(pair) != parent(main[0]) and starts_again and len(main) >= 2:
            shortcuts.append(pair)
        elif pair.layer.in_channels == main[-1].layer.out_channels:
            main.append(pair)
        else:
            shortcuts.append(pair)
    last = main[-1].layer
    shortcuts = [pair for pair in shortcuts if pair.layer.out_channels == last.out_channels]
    keeps_shape = main[0].layer.in_channels == last.out_channels and all(
        stride == 1 for pair in main for stride in pair.layer.stride
    )
    if len(main) < 2 or not (keeps_shape or len(shortcuts) == 1):
        return []
    chosen: list[_Pair] = []
    run = 0
    for pair in reversed(main[:-1]):
        depthwise = pair.layer.groups > 1 and pair.layer.groups == pair.layer.in_channels
        if depthwise or pair.norm == first_norm or run >= LONGEST_RUN:
            run = 0
            continue
        run += 1
        chosen.insert(0, pair)
    return chosen + (shortcuts if len(shortcuts) == 1 else [])


def _execution_order(
    model: nn.Module, leaves: Mapping[str, nn.Module], example_inputs: Any
) -> tuple[list[str] | None, str]:
    """Run the model once in evaluation and note which leaf is called when; every module is left as it was."""
    names = {id(module): name for name, module in leaves.items()}
    order: list[str] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        order.append(names[id(module)])

    handles = [module.register_forward_hook(note) for module in leaves.values()]
    modes = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.no_grad():
            if isinstance(example_inputs, Tensor):
                model(example_inputs)
            elif isinstance(example_inputs, Mapping):
                model(**example_inputs)
            else:
                model(*example_inputs)
    except Exception as error:  # the user's model on the user's input: report it, then go on without
        return None, " ".join(str(error).split())[:200] or type(error).__name__
    finally:
        for handle in handles:
            handle.remove()
        for module, training in modes.items():
            module.training = training
    return list(dict.fromkeys(order)), ""
