"""Is a loss a criterion, of prediction and target, or a function of model and batch? And what the former needs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.nn import functional as F

from workbench.core.signatures import arguments_needed, why_not_called
from workbench.core.wrapped_model import unwrapped
from workbench.tasks.errors import TaskError

# First parameter names that betray a criterion among the plain functions.
_PREDICTION_NAMES = frozenset(
    {"input", "inputs", "output", "outputs", "logits", "pred", "preds", "prediction", "predictions", "y_hat", "y_pred"}
)


def is_criterion(loss: Any) -> bool:
    """Return whether a loss is called as ``loss(model(x), y)`` rather than ``loss(model, batch)``.

    Criteria are functions of ``torch.nn.functional``, also under ``functools.partial``, and ``nn.Module`` objects,
    unless their ``forward`` asks for a ``model`` first.

    Raises:
        TaskError: For what can be called in neither way, and for plain functions whose first parameter is named like a
            prediction: they would be given a model.
    """
    if isinstance(loss, type):
        name = loss.__name__
        raise TaskError(f"`loss` must be an object or a function, got the class {name}; write {name}()")
    if not callable(loss):
        raise TaskError(f"`loss` must be a criterion or a function (model, batch), got {loss!r}")
    if isinstance(loss, nn.Module):
        return arguments_needed(loss.forward)[:1] != ["model"]
    function = loss
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, nn.Module) or getattr(F, getattr(function, "__name__", ""), None) is function:
        return True
    try:
        signature = inspect.signature(loss)
    except (TypeError, ValueError):
        return False  # a builtin without signature; the first step will show
    if why_not_called(loss, None, None):
        raise TaskError(f"`loss` must take two arguments (model, batch), got {signature}")
    first = next(iter(signature.parameters))
    if first.lower() in _PREDICTION_NAMES:
        raise TaskError(
            f"`loss` functions are called as loss(model, batch), got {signature}, which looks like a criterion; "
            "wrap it in an nn.Module, or write `lambda model, batch: ...`"
        )
    return False


def called_with_inputs(task: str, model: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return what a model returns for a batch without its target.

    Raises:
        TaskError: When the model does not take so many, or these.
    """
    try:
        return model(*inputs, **named)
    except TypeError as error:
        function = unwrapped(model).forward if isinstance(model, nn.Module) else model
        if not (why_not := why_not_called(function, *inputs, **named)):
            raise
        given = ", ".join(named or [f"batch[{at}]" for at in range(len(inputs))])
        raise TaskError(
            f"task {task!r}: with a criterion as loss the model is called as model({given}), which it does not take "
            f"({why_not}); write a function loss(model, batch) instead"
        ) from error
