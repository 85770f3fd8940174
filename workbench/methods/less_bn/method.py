"""LessBN: train with fewer BatchNorms.

In a residual network most BatchNorms can go, because the last one of each branch keeps the size of the activations in
hand. ``match="structure"`` finds them by their roles in the network's graph (``structure_rule.py``),
``match="reference"`` by the chains that MindSpore 2.7 looks for (``batch_norm_patterns.py``).

Differences from MindSpore (python/mindspore/boost/less_batch_normalization.py, 2.7.0): removed modules leave the
parameter list, learned statistics are folded into the convolution before, and eager mode works.

In evaluation a network with learned statistics computes the same but for rounding. Where that cannot be promised, a
BatchNorm stays, with a sentence in the report; where the network can be called, the reduced one is compared with the
original before anything is changed.

The graph comes from a call with ``example_inputs`` on a copy, else from torch.fx, else from a call with noise
(``found_graphs.py``). Where none of them shows it, all BatchNorms stay; what else keeps one is in
``reasons_to_keep.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn

from workbench.core.torch_internals import BatchNorm
from workbench.core.warning import warn
from workbench.core.wrapped_model import unwrapped
from workbench.methods.less_bn.batch_norm_folding import Removal, has_learned_statistics, parts_after, take_out_
from workbench.methods.less_bn.batch_norm_patterns import removable_by_reference
from workbench.methods.less_bn.found_graphs import find_graphs
from workbench.methods.less_bn.full_normalization import FNScope, HeadRule, normalize_heads_
from workbench.methods.less_bn.reasons_to_keep import is_unset, layers_before, read_elsewhere_in, reason_to_keep
from workbench.methods.less_bn.structure_rule import removable_by_structure
from workbench.methods.less_bn.trial import caller, keeping_the_function, noise_call

REPORT_ATTRIBUTE = "less_bn_report"  # on every module of a reduced model, so that a second call changes nothing

Match = Literal["structure", "reference"]


@dataclass(frozen=True)
class LessBNReport:
    """What LessBN did to a model; names are dotted, in registration order."""

    removed: tuple[str, ...]  # BatchNorms that are gone
    kept: tuple[str, ...]  # those that stay
    folded: tuple[str, ...]  # removed ones whose learned statistics were multiplied into the layer before
    reason: str = ""  # why example inputs did not show the graph, or why nothing was removed; empty otherwise
    affine: tuple[str, ...] = ()  # removed ones with statistics that no layer could take: a `ChannelAffine` is there
    heads: tuple[str, ...] = ()  # Linear layers replaced by full normalization
    head_reason: str = ""  # why full normalization, where it was asked for, replaced none
    split: tuple[str, ...] = ()  # removed ones of a subclass with children of its own (an activation), which stay
    #: Those that the rule would remove and that stay, with the sentence that says why.
    left_alone: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def head_note(self) -> str:
        """What became of the head, in one line; empty where there is nothing to say."""
        if self.heads:
            names = ", ".join(f"`{name}`" for name in self.heads)
            return f"{'head' if len(self.heads) == 1 else 'heads'} {names} normalised"
        return f"head not normalised: {self.head_reason}" if self.head_reason else ""

    def notice(self) -> str:
        """Return what the user should know, in one paragraph; empty when everything went as usual."""
        parts = []
        if not self.removed and not self.heads:
            parts.append(f"less_bn had no effect: {self.reason}")
        elif self.removed and self.reason:
            parts.append(f"less_bn goes by the trace: {self.reason}")
        why: dict[str, list[str]] = {}
        for name, sentence in self.left_alone.items():
            why.setdefault(sentence, []).append(name)
        for sentence, names in why.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            parts.append(f"less_bn left {', '.join(names[:3])}{more} alone: {sentence}")
        return "; ".join(parts)


def reduce_batch_norms_(
    model: nn.Module, *, match: Match = "structure", example_inputs: Any = None, head: HeadRule | None = None
) -> LessBNReport:
    """Remove the BatchNorms that the network can spare, in place, and normalise its head if that is asked for.

    Build the optimizer afterwards: parameters disappear, and folding may add biases. In a network whose BatchNorms
    have seen no data the other weights stay as they are; in a trained one the evaluation output stays the same.

    A second call on the same model changes nothing.

    Args:
        model: Network to change.
        match: ``"structure"`` or ``"reference"`` (the choice of MindSpore 2.7), see the module docstring.
        example_inputs: One tensor, a sequence of positional arguments or a mapping of keyword arguments, on the model's
            device; two samples suffice. Or a function that calls the model it is given, and may compute a loss.
        head: Which Linear becomes a full-normalization layer; None leaves all as they are.
    """
    report = _reduce(model, match, example_inputs)
    if head is not None:
        report = _with_head(model, report, head, example_inputs)
    if message := report.notice():
        warn(message)
    return report


class LessBN(nn.Module):
    """Wrap a network whose BatchNorms are reduced and whose head may be normalised.

    The network is changed in place, also one inside ``torch.compile``, which stays compiled. Wrapping the same network
    twice does nothing the second time, and says nothing.

    Args:
        network: Network, or network with loss; whatever the wrapper is called with is passed to it.
        fn_flag: Whether the Linear head becomes a full-normalization layer; a warning says where it does not.
        match: See :func:`reduce_batch_norms_`.
        fn_scope: As ``fn_bias`` and ``criterion``: see `workbench.methods.less_bn.full_normalization.HeadRule`.
        example_inputs: See :func:`reduce_batch_norms_`; they also give the size of a trained head's scores.
    """

    def __init__(
        self,
        network: nn.Module,
        fn_flag: bool = False,
        *,
        match: Match = "structure",
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
                warn(report.head_note)
        if earlier is None and (message := report.notice()):
            warn(message)
        self.report = report
        object.__setattr__(self, REPORT_ATTRIBUTE, report)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network."""
        return self.network(*args, **kwargs)


def _reduce(model: nn.Module, match: str, example_inputs: Any) -> LessBNReport:
    if match not in {"structure", "reference"}:
        raise ValueError(f'`less_bn_match` must be "structure" or "reference", got {match!r}')
    network = unwrapped(model)
    norms = {name: module for name, module in network.named_modules() if isinstance(module, BatchNorm) and name}
    earlier: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
    if earlier is not None:
        return LessBNReport((), tuple(norms), (), "LessBN was already applied to this model")
    report = LessBNReport((), (), (), "the model has no BatchNorm")
    if norms:
        report = _reduce_found(network, norms, match, example_inputs)
    _mark(model, report)
    return report


def _reduce_found(model: nn.Module, norms: Mapping[str, BatchNorm], match: str, example_inputs: Any) -> LessBNReport:
    rests = {name: parts_after(norm) for name, norm in norms.items() if not is_unset(norm)}
    found = find_graphs(model, {name: rest for name, rest in rests.items() if rest}, example_inputs)
    if not found.graphs:
        return LessBNReport((), tuple(norms), (), found.reason)
    steps = found.graphs[0].steps
    chosen = removable_by_structure(steps) if match == "structure" else removable_by_reference(steps)
    before, elsewhere = layers_before(model, found.graphs), read_elsewhere_in(found.graphs)
    reasons = {name: reason_to_keep(norms[name], rests.get(name), model, elsewhere) for name in chosen}
    left_alone = {name: why for name, why in reasons.items() if why}
    names = [name for name in norms if name in chosen and name not in left_alone]
    going = [Removal(name, before.get(name), rests.get(name) or ()) for name in names]
    if example_inputs is not None or any(has_learned_statistics(norms[removal.norm]) for removal in going):
        going, changed = keeping_the_function(model, going, found.call or noise_call(model))
        left_alone |= changed
    folded, affine = take_out_(model, going)
    removed = tuple(removal.norm for removal in going)
    vain = "no BatchNorm has a role in which it can be spared"
    if left_alone:
        vain = "none of the BatchNorms that could be spared can go without changing what the network computes"
    return LessBNReport(
        removed,
        kept=tuple(name for name in norms if name not in removed),
        folded=folded,
        reason=found.reason or ("" if removed else vain),
        affine=affine,
        split=tuple(removal.norm for removal in going if removal.rest),
        left_alone={name: left_alone[name] for name in norms if name in left_alone},
    )


def _with_head(model: nn.Module, report: LessBNReport, rule: HeadRule, example_inputs: Any) -> LessBNReport:
    if rule.scope == "classifier" and not report.removed:
        return report  # the size of the features is as it was, and the report says already that nothing was removed
    network = unwrapped(model)
    found = find_graphs(network, {}, example_inputs)
    trained = bool(report.folded or report.affine)
    call = None
    if trained:
        call = noise_call(network, n_samples=32) if example_inputs is None else caller(example_inputs)
    heads, reason = normalize_heads_(
        network, rule, graphs=found.graphs, trained=trained, call=call, invented=example_inputs is None
    )
    if reason and not found.graphs:
        reason = f"{reason}: {found.reason}"
    report = replace(report, heads=heads or report.heads, head_reason=reason)
    _mark(model, report)
    return report


def _mark(model: nn.Module, report: LessBNReport) -> None:
    for module in model.modules():
        object.__setattr__(module, REPORT_ATTRIBUTE, report)
