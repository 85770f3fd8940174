"""What a network offers to the methods as it stands now, asked of each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.optim import Optimizer

from workbench.config import BoostConfig, NetworkFacts
from workbench.core.step_optimizer import held_parameters
from workbench.methods.parameter_groups import named_trainable_parameters, split_into_chunks
from workbench.methods.registry import METHODS


def facts_of(network: nn.Module, optimizer: Optimizer) -> NetworkFacts:
    """Return what a network offers, after any reduction in effect; only layers that the optimizer holds are counted."""
    held = set(held_parameters(optimizer))
    names = [name for name, parameter in named_trainable_parameters(network) if parameter in held]
    layers = len(split_into_chunks(names))
    counts = {"batch_norms": 0, "removable": 0, "removable_by_reference": 0}
    counts |= dict.fromkeys(("layers", "layers_left", "layers_left_by_reference"), layers)
    for description in METHODS:
        counts |= description.load().counts(network)
    return NetworkFacts.from_dict(counts)


def facts_of_copies(
    new_network: Callable[[], nn.Module],
    new_optimizer: Callable[[nn.Module], Optimizer],
    criterion: Any,
    call: Callable[[nn.Module], None] | None,
) -> NetworkFacts:
    """Return what a network offers before a method has acted, found on fresh copies; ``call`` calls one."""
    network = new_network()
    reasons: dict[str, Any] = learning_reasons(network, criterion, call)
    optimizer = new_optimizer(network)
    facts = facts_of(network, optimizer)
    held = set(held_parameters(optimizer))
    untrained = {name for name, parameter in named_trainable_parameters(network) if parameter not in held}
    counts: dict[str, Any] = {}
    for description in METHODS:
        counts |= description.load().foreseen(network, new_network, untrained, call)
    return replace(facts, **counts, **reasons)


def learning_reasons(
    network: nn.Module, criterion: Any, example_inputs: Any, config: BoostConfig | None = None
) -> dict[str, str]:
    """Return what cannot be done to labels and inputs, as `Method.reasons` says."""
    reasons: dict[str, str] = {}
    for description in METHODS:
        reasons |= description.load().reasons(network, criterion, example_inputs, config)
    return reasons
