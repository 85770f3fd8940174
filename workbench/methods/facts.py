"""What a network offers to the methods as it stands now."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from workbench.config import NetworkFacts
from workbench.methods.less_bn.method import REPORT_ATTRIBUTE, LessBNReport
from workbench.methods.parameter_groups import named_trainable_parameters, split_into_chunks

__all__ = ["facts_of"]


def facts_of(network: nn.Module, optimizer: Optimizer) -> NetworkFacts:
    """Return what a network offers, its BatchNorms reduced already where that is in effect.

    Args:
        network: The network.
        optimizer: Layers count whose parameters it holds.
    """
    report: LessBNReport | None = getattr(network, REPORT_ATTRIBUTE, None)
    removed, kept = (0, 0) if report is None else (len(report.removed), len(report.kept))
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    names = [name for name, parameter in named_trainable_parameters(network) if parameter in held]
    layers = len(split_into_chunks(names))
    return NetworkFacts(removed + kept, removed, layers, layers, removed, layers)
