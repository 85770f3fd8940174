"""The methods in effect under a plan, acting as one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from workbench.config import BoostConfig, Plan
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.parameter_process import ParameterProcess
from workbench.methods.protocol import Method, Preparation, StepHook
from workbench.methods.registry import METHODS
from workbench.methods.weight_update import PlainUpdate, WeightUpdate

__all__ = ["MethodsInEffect", "fitted", "prepare_"]


def prepare_(preparation: Preparation) -> None:
    """Let every method in effect change the model and its optimizer: first those that reshape, then the others.

    Args:
        preparation: Changed in place. What a method finds out on the way may put later ones out of effect.

    Raises:
        ConfigError: When a method finds that the configuration does not fit the network.
    """
    for description in METHODS:
        kind = description.load()
        if kind.is_in_effect(preparation.plan):
            kind(preparation.plan).reshape(preparation)
    preparation.plan = preparation.look_again(preparation)
    acting = _in_effect(preparation.plan).values()
    split = preparation.plan.config.common.gradient_split_groups
    if split is not None and (preparation.plan.world_size > 1 or any(method.splits_gradients for method in acting)):
        trained = [parameter for group in preparation.optimizer.param_groups for parameter in group["params"]]
        ParameterProcess().assign_parameter_group(trained, list(split))
    for method in acting:
        method.prepare(preparation)


def fitted(plan: Plan, updates: int) -> BoostConfig:
    """Return a plan's configuration as a run of so many updates takes it."""
    config = plan.config
    for method in _in_effect(plan).values():
        config = method.fitted(config, updates)
    return config


def _in_effect(plan: Plan) -> dict[str, Method]:
    loaded = {description.name: description.load() for description in METHODS}
    return {name: method(plan) for name, method in loaded.items() if method.is_in_effect(plan)}


class MethodsInEffect:
    """What the methods of a plan make of the parts of a run, in acting order.

    Args:
        plan: What is in effect; None for nothing.
    """

    def __init__(self, plan: Plan | None) -> None:
        self._methods = {} if plan is None else _in_effect(plan)

    def refuse(self, model: nn.Module) -> None:
        """Raise where a model, wrapped or compiled as it is, cannot be trained so.

        Raises:
            RuntimeError: With the first method's reason.
        """
        for acting in self._methods.values():
            if reason := acting.refusal(model):
                raise RuntimeError(reason)

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        """Bring a model that was never trained here into the form that training would have given it."""
        for acting in self._methods.values():
            acting.prepare_evaluation(model, example_inputs)

    def criterion(self, criterion: Any) -> Any:
        """Return the criterion to train with."""
        for acting in self._methods.values():
            criterion = acting.criterion(criterion)
        return criterion

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the module to call in the model's place."""
        for acting in self._methods.values():
            model = acting.compiled(model)
        return model

    def length(self, n_batches: int) -> float:
        """Return the loader's batches that a run takes which today takes so many."""
        length = float(n_batches)
        for acting in self._methods.values():
            length = acting.length(length)
        return length

    def passes(self, n_batches: int) -> int:
        """Return the forward passes of a run that today takes so many batches of the loader, at least one."""
        passes = self.length(n_batches)
        for acting in self._methods.values():
            passes = acting.passes(passes)
        return max(round(passes), 1)

    def reading(self) -> Literal["as_given", "resident", "prefetch"]:
        """Return how the loader's batches are read, by the first method that cares."""
        asked = (acting.reading() for acting in self._methods.values())
        return next((reading for reading in asked if reading != "as_given"), "as_given")

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Return the batches to train on; the run has so many forward passes."""
        for acting in self._methods.values():
            batches = acting.batches(batches, passes)
        return batches

    @property
    def changes_batches(self) -> bool:
        """Whether a method makes other batches of the loader's."""
        return any(type(acting).batches is not Method.batches for acting in self._methods.values())

    @property
    def may_schedule(self) -> bool:
        """Whether a method is of a kind that may have a learning-rate schedule."""
        return any(type(acting).scheduler is not Method.scheduler for acting in self._methods.values())

    def scheduler(self, optimizer: Optimizer, updates: int) -> LRScheduler | None:
        """Return the learning-rate schedule of the last method that has one; None leaves it to the task."""
        scheduler = None
        for acting in self._methods.values():
            scheduler = acting.scheduler(optimizer, updates) or scheduler
        return scheduler

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Surround a run, or a part of it that is measured."""
        with contextlib.ExitStack() as stack:
            for acting in self._methods.values():
                stack.enter_context(acting.running())
            yield

    def loss_scaling(self, model: nn.Module, device: torch.device) -> LossScaling | None:
        """Return how the last method that cares scales the loss; None when none does."""
        scaling = None
        for acting in self._methods.values():
            scaling = acting.loss_scaling(model, device) or scaling
        return scaling

    def n_micro(self) -> int:
        """Return the micro-batches per update."""
        n = 1
        for acting in self._methods.values():
            n *= acting.n_micro()
        return n

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return what turns gradients into new weights: a method's update, or the optimizer's own step."""
        update: WeightUpdate | None = None
        for acting in self._methods.values():
            update = acting.update(model, optimizer) or update
        return update or PlainUpdate()

    def step_hooks(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, StepHook]:
        """Return what acts in every window, by the method's name."""
        made = {name: acting.step_hook(model, optimizer) for name, acting in self._methods.items()}
        return {name: hook for name, hook in made.items() if hook is not None}

    @contextlib.contextmanager
    def evaluating(self, model: nn.Module) -> Iterator[None]:
        """Surround an evaluation."""
        with contextlib.ExitStack() as stack:
            for acting in self._methods.values():
                stack.enter_context(acting.evaluating(model))
            yield
