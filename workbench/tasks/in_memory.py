"""A task made from what a notebook has in memory: a model, its optimizer and two loaders."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core.step_optimizer import held_parameters
from workbench.core.wrapped_model import unwrapped
from workbench.tasks.errors import TaskError
from workbench.tasks.task import Task

_SAME_WEIGHTS = (
    "Every run begins with a copy of the model as it is now, so seeds differ in the order of the batches and not in "
    "the first weights; give a function that returns a fresh model for both."
)


def task_in_memory(
    model: nn.Module | Callable[[], nn.Module],
    train: Any,
    evaluate: Any,
    *,
    optimizer: Optimizer | Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer],
    loss: Any = None,
    metric: Any = None,
    name: str | None = None,
    on_note: Callable[[str], None] = lambda _: None,
    **others: Any,
) -> Task:
    """Return the task of training a model that exists, on loaders that exist.

    Model and optimizer are copied now, together; every run trains a copy of these copies, and the originals are left
    alone. The weights are part of the data's digest: the same call with a model that has been trained since is
    another task.

    Arguments are those of `workbench.tune` for a model, ``others`` are as for a `Task`, and ``on_note`` is called with
    what follows from a model that is given as it is.

    Raises:
        TaskError: When an argument is not what it must be, or the optimizer holds none of the model's parameters.
    """
    new_model, digest = model, ""
    new_optimizer: Any = optimizer
    if isinstance(model, nn.Module):
        on_note(_SAME_WEIGHTS)
        plain = unwrapped(model)
        copies = _Copies(plain, optimizer if isinstance(optimizer, Optimizer) else None)
        new_model, digest = copies.new_model, f", weights {copies.digest}"
        new_optimizer = copies.new_optimizer if isinstance(optimizer, Optimizer) else optimizer
        name = name or _in_words(type(plain).__name__)
    elif isinstance(optimizer, Optimizer):
        raise TaskError(
            "`optimizer` holds the parameters of one model, and `model` is a function that returns fresh ones; give a "
            "function, too: optimizer=lambda named: torch.optim.SGD(named, lr=0.1)"
        )
    loss = _own_loss if loss is None else loss
    task = Task(
        name=name or _in_words(getattr(model, "__name__", "model")),
        model=new_model,
        loss=loss,
        optimizer=new_optimizer,
        train=train,
        evaluate=evaluate,
        metric=metric or ("accuracy" if isinstance(loss, nn.CrossEntropyLoss) else "loss"),
        **others,
    )
    return dataclasses.replace(task, data_hash=f"{task.data_digest()}{digest}") if digest else task


def _in_words(name: str) -> str:
    """Return the name of a class as that of a folder: ``"SmallNet"`` is ``"small-net"``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name.strip("<>")).lower()


class _Copies:
    """A model and its optimizer as they were, and copies of them."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None) -> None:
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        held = [] if optimizer is None else held_parameters(optimizer)
        foreign = sum(id(parameter) not in names for parameter in held)
        if foreign:
            raise TaskError(
                f"`optimizer` holds {foreign} of {len(held)} parameters that are not the model's; build it from "
                "model.parameters(), or give a function of the named parameters, which may add those of the loss"
            )
        if optimizer is not None and any("initial_lr" in group for group in optimizer.param_groups):
            raise TaskError(
                "a learning-rate scheduler is attached to `optimizer`; build the optimizer without it and give a "
                "function: scheduler=lambda optimizer, updates: ..."
            )
        self._model, self._optimizer = copy.deepcopy((model, optimizer))
        weights = hashlib.sha256()
        for key, value in self._model.state_dict().items():
            weights.update(key.encode())
            if isinstance(value, Tensor):
                weights.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        self.digest = f"sha256:{weights.hexdigest()[:32]}"

    def new_model(self) -> nn.Module:
        """Return a copy of the model."""
        return copy.deepcopy(self._model)

    def new_optimizer(self, named: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Return a copy of the optimizer that holds the parameters of these names instead of the model's."""
        own = dict(self._model.named_parameters())
        memo = {id(own[name]): parameter for name, parameter in named}
        return copy.deepcopy(self._optimizer, memo)  # type: ignore[return-value]


def _own_loss(model: Callable[..., Any], batch: Any) -> Tensor:
    """Return the loss that a model computes by itself from a batch."""
    returned = model(**batch) if isinstance(batch, Mapping) else model(*batch)
    loss = returned.get("loss") if isinstance(returned, Mapping) else getattr(returned, "loss", None)
    if not isinstance(loss, Tensor):
        raise TaskError(
            f"the model returns {type(returned).__name__} without a `loss`; give loss=, a criterion or a function of "
            "model and batch"
        )
    return loss
