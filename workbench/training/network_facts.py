"""Measure on a fresh copy of a task's network what the methods will find there, without training it.

Plans resolved with these facts say what acts (``workbench.config.facts``): a study draws nothing that would change
nothing, and a panel says why a switch is idle.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from workbench.config import NetworkFacts
from workbench.core.wrapped_model import unwrapped
from workbench.methods.facts import facts_of_copies
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
        return facts_of_copies(lambda: _without_weights(task), task.new_optimizer, task.loss, None)
    with kept_generators(cpu):
        first = FirstBatchOfTask(task, 0, cpu)
        return facts_of_copies(lambda: unwrapped(task.new_model()), task.new_optimizer, task.loss, first)


def _without_weights(task: Task) -> nn.Module:
    with torch.device("meta"):
        network = unwrapped(task.new_model())
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.reset_parameters()  # a method may ask whether it has learned anything
    return network
