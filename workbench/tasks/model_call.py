"""How a model is called with a batch, and what holds the target that its prediction is compared with.

Beside a criterion the batch says it: the target is under its name or comes last, and all else is the model's. Where the
loss is a function of model and batch, a batch may hold its items in any order, and the model's signature says which it
takes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from torch import nn

from workbench.core.batch import TARGET_KEYS, inputs_and_target, is_object, parts_by_name, target_key
from workbench.core.signatures import arguments_needed, arguments_taken, why_not_called
from workbench.core.wrapped_model import unwrapped
from workbench.tasks.errors import TaskError


class ModelCall(NamedTuple):
    """What a model is called with, and what a metric finds the target in."""

    inputs: tuple[Any, ...]
    named: Mapping[str, Any]
    compared: Any

    def of(self, model: Callable[..., Any], task: str) -> Any:
        """Return what the model of a task, of that name, returns.

        Raises:
            TaskError: When it does not take so many inputs, or these.
        """
        try:
            return model(*self.inputs, **self.named)
        except TypeError as error:
            if not (why_not := self.why_not(_signature_of(model))):
                raise
            given = ", ".join(self.named or [f"batch[{at}]" for at in range(len(self.inputs))])
            raise TaskError(
                f"task {task!r}: with a criterion as loss the model is called as model({given}), which it does not "
                f"take ({why_not}); write a function loss(model, batch) instead"
            ) from error

    def why_not(self, function: Callable[..., Any]) -> str:
        """Return what a function's signature has against the call; empty where it has nothing."""
        return why_not_called(function, *self.inputs, **self.named)


def with_criterion(batch: Any) -> ModelCall | None:
    """Return the call for a batch whose target stands beside a criterion; None where it has no target."""
    sides = inputs_and_target(batch)
    return None if sides is None else ModelCall(sides[0], sides[1], (None, sides[2]))


def without_criterion(model: Callable[..., Any], batch: Any) -> ModelCall:
    """Return the call for a batch whose loss is a function, or that is an object.

    Raises:
        ValueError: When the model does not take such a batch, with the call it was tried with and what would help.
    """
    function, parts = _signature_of(model), parts_by_name(batch)
    sides, call, shown = inputs_and_target(batch), "model(batch)", ModelCall((batch,), {}, batch)
    by_name = [] if sides is None else [ModelCall((), sides[1], batch)]
    ways = [*by_name, shown]
    if isinstance(batch, list | tuple):
        call, shown = "model(batch[0])", ModelCall((batch[0],), {}, batch)
        ways = [shown]
        if target_key(parts) is not None:
            ways.insert(0, ModelCall((), arguments_taken(function, parts), batch))
        elif len(batch) > 2:
            ways.append(ModelCall(tuple(batch[:-1]), {}, (None, batch[-1])))
    elif isinstance(batch, Mapping):
        call, shown = "model(**batch)", ModelCall((), arguments_taken(function, batch), batch)
        ways = [shown, *by_name]
    elif is_object(batch):
        taken = arguments_taken(function, parts)
        is_named = next(iter(arguments_needed(function)), "batch") in taken.keys() - {"batch"}
        ways = [*([] if is_named else [shown]), ModelCall((), taken, batch)]
    for way in ways:
        if not way.why_not(function):
            return way
    change = f"let a batch be a mapping or a named tuple with a target ({', '.join(TARGET_KEYS)})"
    if parts:
        change = f"name its arguments after the parts of the batch ({', '.join(map(str, parts))})"
    raise ValueError(f"{call}, which the model does not take ({shown.why_not(function)}); {change}")


def _signature_of(model: Callable[..., Any]) -> Callable[..., Any]:
    return unwrapped(model).forward if isinstance(model, nn.Module) else model
