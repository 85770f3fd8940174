"""What a network offers to the methods as it stands now."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from workbench.config import BoostConfig, NetworkFacts
from workbench.methods.curriculum.method import Kind, stages_of, why_not_smaller
from workbench.methods.curriculum.section import CurriculumSection
from workbench.methods.less_bn.method import REPORT_ATTRIBUTE, LessBNReport, reduce_batch_norms_
from workbench.methods.parameter_groups import named_trainable_parameters, split_into_chunks
from workbench.methods.protocol import FirstBatch
from workbench.methods.regularization.method import why_no_smoothing

__all__ = ["facts_of", "facts_of_copies", "learning_reasons"]

_MANY = 10**6  # passes of a run in which every stage has some


def facts_of(network: nn.Module, optimizer: Optimizer) -> NetworkFacts:
    """Return what a network offers, reduced already where that is in effect; layers count that the optimizer holds."""
    report: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
    removed, kept = (0, 0) if report is None else (len(report.removed), len(report.kept))
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, parameter in named_trainable_parameters(network) if parameter in held]
    layers = len(split_into_chunks(names))
    return NetworkFacts(removed + kept, removed, layers, layers, removed, layers)


def facts_of_copies(
    new_network: Callable[[], nn.Module],
    new_optimizer: Callable[[nn.Module], Optimizer],
    criterion: Any,
    call: Callable[[nn.Module], None] | None,
) -> NetworkFacts:
    """Return what a network offers before a method has acted, from up to two fresh copies; ``call`` calls one."""
    network = new_network()
    reasons: dict[str, Any] = learning_reasons(network, criterion, call)
    norms = sum(isinstance(module, _BatchNorm) for module in network.modules())
    optimizer = new_optimizer(network)
    built = facts_of(network, optimizer)
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    passed_over = {name for name, parameter in named_trainable_parameters(network) if parameter not in held}

    def reduced(network: nn.Module, match: Literal["reference", "structure"]) -> tuple[int, int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that none is removed is an answer here
            report = reduce_batch_norms_(network, match=match, example_inputs=call)
        names = [name for name, _ in named_trainable_parameters(network) if name not in passed_over]
        return len(report.removed), len(split_into_chunks(names))

    if not norms:
        return replace(built, **reasons)
    removable, left = reduced(network, "structure")
    by_reference, left_by_reference = reduced(new_network(), "reference")
    return NetworkFacts(norms, removable, built.layers, left, by_reference, left_by_reference, **reasons)


def learning_reasons(
    network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None = None
) -> dict[str, str]:
    """Return the reasons among a network's facts: what cannot be done to its labels and inputs.

    Smaller inputs are tried where ``example_inputs`` are a `FirstBatch`, else nothing is said against them: at the
    sizes that ``config`` asks for, or without one at some sizes of both kinds. The network is left as it is.
    """
    reasons = {"no_smoothing": why_no_smoothing(criterion)}
    if not isinstance(example_inputs, FirstBatch):
        return reasons

    def try_(kind: Kind, *sizes: list[float]) -> None:
        reasons[f"no_{kind}"] = why_not_smaller(example_inputs.loss, network, example_inputs.first(), kind, *sizes)

    if config is None:
        try_("resolution")
        try_("sequence")
    elif (section := config.part(CurriculumSection)).kind != "none":
        try_(section.kind, [size for size, _ in stages_of(section, _MANY) if size < 1])
    return reasons
