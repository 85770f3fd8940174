"""Boost a user's own training loop: five changed lines, any model, any torch optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.in_effect import MethodsInEffect, fitted
from workbench.training.auto_boost import AutoBoost, read_config
from workbench.training.boosted import Boosted
from workbench.training.configured_optimizer import configured_optimizer
from workbench.training.course import changes_length, has_schedule
from workbench.training.precision import Precision, cast_model_

__all__ = ["apply", "fitted_config"]


def apply(
    config: BoostConfig | Mapping[str, Any] | str | Path | None,
    model: nn.Module,
    optimizer: Optimizer,
    total_steps: int | None = None,
    *,
    level: str = "O1",
    world_size: int | None = None,
    seed: int = 0,
    criterion: Any = None,
    example_inputs: Any = None,
    scheduler: Callable[[Optimizer, int], Any] | None = None,
) -> Boosted:
    """Process a model and its optimizer by a configuration and return what a training loop calls.

    The model is changed in place (BatchNorms removed, head replaced, weights cast, as configured). Use
    ``boosted.model``, ``boosted.optimizer`` and ``boosted.criterion`` from here on, take the batches from
    ``boosted.batches(loader, epochs)`` and evaluate under ``boosted.evaluating()``. A learning-rate scheduler of your
    own goes in as ``scheduler``, and ``boosted.step()`` advances it; only where the configuration changes neither
    schedule nor batches it may instead be put on ``boosted.optimizer`` and stepped by hand. A model under
    ``torch.compile`` stays compiled: one graph per freezing group. For several ranks call ``boosted.distribute()``
    afterwards. An update that tries its steps on the batch (``boost.dim_reduce``) needs a closure in ``step``.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        model: Module on the device it will train on.
        optimizer: Any torch optimizer over the model's parameters; ``fused=True`` avoids a host synchronisation per
            step when a loss scale is in use. Where the configuration names another (``optimizer.name``), that one is
            built over the same parameters, in this one's groups; other settings of the section are changed in it.
        total_steps: The loader's batches that the model is trained for today: epochs times batches per epoch. May be
            left to ``boosted.batches(loader, epochs)``, but freezing under a shorter run needs it here.
        level: Boost level; decides about the algorithms that the configuration does not switch on or off itself.
        world_size: Ranks that train together; None asks torch.distributed.
        seed: Seed of the freezing schedule.
        criterion: What judges the model's output, for example ``nn.CrossEntropyLoss()``; the one to train with is
            ``boosted.criterion``, while this one stays as it is. Only the head of classifiers is normalised.
        example_inputs: A tensor, a sequence of arguments, a mapping of keyword arguments, or a function that calls the
            model it is given. Methods record from it what the model does; needed where torch.fx cannot trace the model
            and no image of noise fits it, and for the size of a trained head's scores.
        scheduler: Today's learning-rate schedule: a function of the optimizer and the number of updates that returns a
            scheduler. The run goes through the whole of it, whatever its length.

    Returns:
        The boosted pair, with ``autocast()``, ``backward(loss)`` and ``step()``; ``notes`` says what became of the
        head.

    Raises:
        ConfigError: When the configuration is not valid.
        TypeError: When the model is no module or the optimizer no optimizer.
        ValueError: When a scheduler is attached to the optimizer though the configuration has a schedule, another
            number of updates or another optimizer, or the optimizer lacks a hyper-parameter that the section sets.
        RuntimeError: When the model is a DistributedDataParallel that would not notice what is done to it, or a
            compiled one that hides what group scales have to see.

    Example:
        >>> from torch import nn, randn
        >>> from torch.optim import SGD
        >>> net = nn.Linear(3, 1)
        >>> boosted = apply({"amp": {"level": "O0"}}, net, SGD(net.parameters(), lr=0.1, fused=True), level="O0")
        >>> with boosted.autocast():
        ...     loss = boosted.model(randn(8, 3)).square().mean()
        >>> boosted.backward(loss)
        >>> boosted.step().applied
        True
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"`model` must be a torch.nn.Module, got {type(model).__name__}")
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"`optimizer` must be a torch.optim.Optimizer, got {type(optimizer).__name__}")
    settings = read_config(config)
    together = ranks.world_size() if world_size is None else world_size
    if total_steps is not None:
        settings = fitted_config(settings, level, total_steps, together)
    boost = AutoBoost(level, settings, world_size=together, seed=seed)
    inner = unwrapped(model)
    asked_for = MethodsInEffect(boost.plan)
    asked_for.refuse(model)
    if not boost.plan.why_not("optimizer.name"):
        _refuse_attached_scheduler(optimizer, asked_for, settings, scheduler is not None)
        optimizer = configured_optimizer(settings, inner, optimizer)
    _, optimizer = boost.network_auto_process_train(
        inner, optimizer, criterion=criterion, example_inputs=example_inputs
    )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    precision = Precision(
        settings.effective_amp_level(device.type), settings.amp.dtype, device.type, settings.amp.keep_batchnorm_fp32
    )
    cast_model_(inner, precision)
    methods = MethodsInEffect(boost.plan)
    scaling = methods.loss_scaling(inner, device) or LossScaling.from_config(settings, device)
    boosted = Boosted(
        methods.compiled(model),
        optimizer,
        loss_scaling=scaling,
        precision=precision,
        plan=boost.plan,
        notes=boost.notes,
        criterion=criterion,
        make_scheduler=scheduler,
    )
    if total_steps is not None:
        boosted.course.begin(total_steps)
    return boosted


def fitted_config(config: BoostConfig, level: str, steps: int, world_size: int = 1) -> BoostConfig:
    """Return a configuration as a run of so many loader batches takes it, where methods change the number of passes."""
    plan = config.resolve(level, world_size=world_size)
    methods = MethodsInEffect(plan)
    passes = methods.passes(steps)
    return config if passes == steps else fitted(plan, max(1, passes // methods.n_micro()))


def _refuse_attached_scheduler(
    optimizer: Optimizer, methods: MethodsInEffect, config: BoostConfig, another: bool
) -> None:
    """Raise where a scheduler that acts on the given optimizer would set the rates wrongly, or those of nothing."""
    if not any("initial_lr" in group for group in optimizer.param_groups):  # torch's schedulers leave it there
        return
    named = None if config.optimizer is None else config.optimizer.name
    if has_schedule(methods, optimizer):
        why = "the configuration has a schedule of its own"
    elif changes_length(methods):
        why = "the configuration changes the number of updates"
    elif named is not None:
        why = f"the configuration replaces it by {named}"
    elif another:
        why = "`scheduler` makes another"
    else:
        return
    raise ValueError(
        f"a learning-rate scheduler is attached to `optimizer`, but {why}; build the optimizer without it, and give "
        "apply() a function instead: scheduler=lambda optimizer, updates: ..."
    )
