"""Boost a user's own training loop: four changed lines, any model, any torch optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.in_effect import MethodsInEffect
from workbench.training.auto_boost import AutoBoost, read_config
from workbench.training.boosted import Boosted
from workbench.training.precision import Precision, cast_model_

__all__ = ["apply"]


def apply(
    config: BoostConfig | Mapping[str, Any] | str | Path | None,
    model: nn.Module,
    optimizer: Optimizer,
    *,
    level: str = "O1",
    world_size: int | None = None,
    seed: int = 0,
    criterion: Any = None,
    example_inputs: Any = None,
) -> Boosted:
    """Process a model and its optimizer by a configuration and return what a training loop calls.

    The model is changed in place (BatchNorms removed, head replaced, weights cast, as configured). Use
    ``boosted.model`` and ``boosted.optimizer`` from here on; a learning-rate scheduler belongs on the latter. A model
    under ``torch.compile`` stays compiled: one graph per freezing group. For several ranks call
    ``boosted.distribute()`` afterwards. With DimReduce ``step`` needs a closure, as it tries its steps on the batch.

    Args:
        config: Configuration, dictionary, or path of a ``boost_config.json``.
        model: Module on the device it will train on.
        optimizer: Any torch optimizer over the model's parameters; ``fused=True`` avoids a host synchronisation per
            step when a loss scale is in use.
        level: Boost level; decides about the algorithms that the configuration does not switch on or off itself.
        world_size: Ranks that train together; None asks torch.distributed.
        seed: Seed of the freezing schedule.
        criterion: What judges the model's output, for example ``nn.CrossEntropyLoss()``; LessBN normalises the head
            of classifiers only.
        example_inputs: A tensor, a sequence of arguments, a mapping of keyword arguments, or a function that calls the
            model it is given. LessBN records from it what the model does; needed where torch.fx cannot trace the model
            and no image of noise fits it, and for the size of a trained head's scores.

    Returns:
        The boosted pair, with ``autocast()``, ``backward(loss)`` and ``step()``; ``notes`` says what became of the
        head.

    Raises:
        ConfigError: When the configuration is not valid.
        TypeError: When the model is no module or the optimizer no optimizer.
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
    boost = AutoBoost(level, settings, world_size=together, seed=seed)
    inner = unwrapped(model)
    MethodsInEffect(boost.plan).refuse(model)
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
    return Boosted(
        methods.compiled(model),
        optimizer,
        loss_scaling=scaling,
        precision=precision,
        plan=boost.plan,
        notes=boost.notes,
    )
