"""Is a loss a criterion, of prediction and target, or a function of model and batch?"""

from __future__ import annotations

import functools
import inspect
from typing import Any

from torch import nn
from torch.nn import functional as F

from workbench.core.signatures import arguments_needed, why_not_called
from workbench.tasks.errors import TaskError

# First parameter names that betray a criterion among the plain functions.
_PREDICTION_NAMES = frozenset(
    {"input", "inputs", "out", "output", "outputs", "logits", "pred", "preds", "prediction", "predictions", "scores"}
    | {"yhat", "y_hat", "y_pred", "predicted"}
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
