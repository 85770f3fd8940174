"""Measure on a fresh copy of a task's network what the methods will find there, without training it.

Plans resolved with these facts say what acts (``workbench.config.facts``): a study draws nothing that would change
nothing, and a panel says why a switch is idle.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.config import NetworkFacts
from workbench.core.wrapped_model import unwrapped
from workbench.methods.facts import learning_reasons
from workbench.methods.less_bn.method import reduce_batch_norms_
from workbench.methods.parameter_groups import named_trainable_parameters, split_into_chunks
from workbench.tasks import Task
from workbench.training.setup import FirstBatchOfTask, kept_generators

__all__ = ["network_facts"]


def network_facts(task: Task, *, with_weights: bool = True) -> NetworkFacts:
    """Return what a task's network offers, from up to two copies of it on the CPU; random generators are put back.

    Without weights nothing is drawn, so that another thread may train meanwhile, and it is quick; but not every model
    can be built so, and none is called: of one that torch.fx cannot trace less is known.

    Raises:
        TaskError: When the task's own functions do not return a model and an optimizer.
    """
    cpu = torch.device("cpu")
    if not with_weights:
        return _facts(task, lambda: _without_weights(task), None)
    with kept_generators(cpu):
        return _facts(task, lambda: unwrapped(task.new_model()), FirstBatchOfTask(task, 0, cpu))


def _facts(task: Task, new_network: Callable[[], nn.Module], call: FirstBatchOfTask | None) -> NetworkFacts:
    network = new_network()
    reasons = learning_reasons(network, task.loss, call)
    held = {parameter for group in task.new_optimizer(network).param_groups for parameter in group["params"]}
    names = [name for name, parameter in named_trainable_parameters(network) if parameter in held]
    norms = sum(isinstance(module, _BatchNorm) for module in network.modules())
    layers = len(split_into_chunks(names))
    if not norms:
        return NetworkFacts(0, 0, layers, layers, 0, layers, **reasons)
    passed_over = {name for name, _ in named_trainable_parameters(network)} - set(names)
    removable, left = _reduced(network, "structure", passed_over, call)
    removable_by_reference, left_by_reference = _reduced(new_network(), "reference", passed_over, call)
    return NetworkFacts(norms, removable, layers, left, removable_by_reference, left_by_reference, **reasons)


def _reduced(
    network: nn.Module,
    match: Literal["reference", "structure"],
    passed_over: set[str],
    call: Callable[[nn.Module], None] | None,
) -> tuple[int, int]:
    """Return how many BatchNorms LessBN removes, and how many layers are left then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it removes none is an answer here
        report = reduce_batch_norms_(network, match=match, example_inputs=call)
    names = [name for name, _ in named_trainable_parameters(network) if name not in passed_over]
    return len(report.removed), len(split_into_chunks(names))


def _without_weights(task: Task) -> nn.Module:
    with torch.device("meta"):
        network = unwrapped(task.new_model())
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.reset_parameters()  # LessBN asks whether it has learned anything
    return network
