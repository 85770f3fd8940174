"""The methods in effect under a plan, acting as one."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from typing import Any, Literal, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from workbench.config import BoostConfig, Plan
from workbench.core.step_optimizer import held_parameters
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.parameter_process import ParameterProcess
from workbench.methods.protocol import Method, Preparation, StepHook
from workbench.methods.registry import METHODS
from workbench.methods.weight_update import PlainUpdate, WeightUpdate

_T = TypeVar("_T")


def prepare_(preparation: Preparation) -> None:
    """Let every method in effect change the model and its optimizer: first those that reshape, then the others."""
    for description in METHODS:
        if description.is_in_effect(preparation.plan):
            description.load()(preparation.plan).reshape(preparation)
    preparation.plan = preparation.look_again(preparation)
    acting = _in_effect(preparation.plan).values()
    split = preparation.plan.config.common.gradient_split_groups
    if split is not None and (preparation.plan.world_size > 1 or any(method.splits_gradients for method in acting)):
        ParameterProcess().assign_parameter_group(held_parameters(preparation.optimizer), list(split))
    for method in acting:
        method.prepare(preparation)


def fitted(plan: Plan, updates: int) -> BoostConfig:
    """Return a plan's configuration as a run of so many updates takes it."""
    return reduce(lambda config, method: method.fitted(config, updates), _in_effect(plan).values(), plan.config)


def fitted_config(config: BoostConfig, level: str, steps: int, world_size: int = 1) -> BoostConfig:
    """Return a configuration as a run of ``steps`` loader batches takes it if methods change the number of passes."""
    plan = config.resolve(level, world_size=world_size)
    methods = MethodsInEffect(plan)
    return config if methods.passes(steps) == steps else fitted(plan, methods.updates(steps))


def _in_effect(plan: Plan) -> dict[str, Method]:
    return {entry.name: entry.load()(plan) for entry in METHODS if entry.is_in_effect(plan)}


class MethodsInEffect:
    """What the methods of a plan (None: none) make of the parts of a run, in acting order, as `Method` says."""

    def __init__(self, plan: Plan | None) -> None:
        self._by_name = {} if plan is None else _in_effect(plan)
        self._acting = tuple(self._by_name.values())

    def refuse(self, model: nn.Module) -> None:
        """Raise RuntimeError, with the first method's reason, where a model as it is wrapped cannot be trained so."""
        for method in self._acting:
            if reason := method.refusal(model):
                raise RuntimeError(reason)

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        """Bring a model that was never trained here into the form that training would have given it."""
        for method in self._acting:
            method.prepare_evaluation(model, example_inputs)

    def criterion(self, criterion: Any) -> Any:
        """Return the criterion to train with."""
        return reduce(lambda given, method: method.criterion(given), self._acting, criterion)

    def compiled(self, model: nn.Module) -> nn.Module:
        """Return the module to call in the model's place."""
        return reduce(lambda given, method: method.compiled(given), self._acting, model)

    def captured(self, model: nn.Module) -> nn.Module | None:
        """Return the module to call in passes that are captured; None where no method captures them."""
        return _last(method.captured(model) for method in self._acting)

    def length(self, n_batches: int) -> float:
        """Return the loader's batches that a run takes which today takes so many."""
        return reduce(lambda length, method: method.length(length), self._acting, float(n_batches))

    def passes(self, n_batches: int) -> int:
        """Return the forward passes of a run that today takes so many batches of the loader, at least one."""
        passes = reduce(lambda passes, method: method.passes(passes), self._acting, self.length(n_batches))
        return max(round(passes), 1)

    def reading(self) -> Literal["as_given", "resident", "prefetch"]:
        """Return how the loader's batches are read, by the first method that cares."""
        asked = (method.reading() for method in self._acting)
        return next((reading for reading in asked if reading != "as_given"), "as_given")

    def loader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return what reads the batches in a DataLoader's place."""
        return reduce(lambda given, method: method.loader(given), self._acting, loader)

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        """Return the batches to train on; the run has so many forward passes."""
        return reduce(lambda given, method: method.batches(given, passes), self._acting, batches)

    @property
    def changes_batches(self) -> bool:
        """Whether a method makes other batches of the loader's."""
        return any(type(method).batches is not Method.batches for method in self._acting)

    @property
    def needs_shapes(self) -> bool:
        """Whether a method has to know the shapes of all parameters before training."""
        return any(method.needs_shapes for method in self._acting)

    @property
    def may_schedule(self) -> bool:
        """Whether a method is of a kind that may have a learning-rate schedule."""
        return any(type(method).scheduler is not Method.scheduler for method in self._acting)

    def scheduler(self, optimizer: Optimizer, updates: int) -> LRScheduler | None:
        """Return the learning-rate schedule of the last method that has one; None leaves it to the task."""
        return _last(method.scheduler(optimizer, updates) for method in self._acting)

    def running(self) -> contextlib.AbstractContextManager[None]:
        """Surround a run, or a part of it that is measured."""
        return _nested(method.running() for method in self._acting)

    def loss_scaling(self, model: nn.Module, device: torch.device) -> LossScaling | None:
        """Return how the last method that cares scales the loss; None when none does."""
        return _last(method.loss_scaling(model, device) for method in self._acting)

    def n_micro(self) -> int:
        """Return the micro-batches per update."""
        return math.prod(method.n_micro() for method in self._acting)

    def updates(self, n_batches: int) -> int:
        """Return the updates of a run over so many batches of the loader."""
        return max(1, self.passes(n_batches) // self.n_micro())

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        """Return what turns gradients into new weights: a method's update, or the optimizer's own step."""
        return _last(method.update(model, optimizer) for method in self._acting) or PlainUpdate()

    def step_hooks(self, model: nn.Module, optimizer: Optimizer) -> Mapping[str, StepHook]:
        """Return what acts in every window, by the method's name."""
        made = {name: method.step_hook(model, optimizer) for name, method in self._by_name.items()}
        return {name: hook for name, hook in made.items() if hook is not None}

    def evaluating(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Surround an evaluation."""
        return _nested(method.evaluating(model) for method in self._acting)


def _last(answers: Iterable[_T | None]) -> _T | None:
    return next((answer for answer in reversed(list(answers)) if answer is not None), None)


@contextlib.contextmanager
def _nested(contexts: Iterable[contextlib.AbstractContextManager[Any]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
