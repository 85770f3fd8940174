"""Call the steps of a LightningModule outside of a Trainer's loop: for what methods look at, and for a search."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from lightning.pytorch import LightningModule
from torch import Tensor, nn

from workbench.core.devices import device_of
from workbench.core.own_generators import kept_generators
from workbench.core.torch_internals import LossModule

_LOGS = ("log", "log_dict")


def network_of(module: LightningModule) -> tuple[str, nn.Module]:
    """Return name and module of the one attribute that holds all parameters; an empty name and the module else."""
    holders = [(name, child) for name, child in module.named_children() if next(child.parameters(), None) is not None]
    own = next(module.parameters(recurse=False), None)
    return holders[0] if len(holders) == 1 and own is None else ("", module)


def criterion_of(module: LightningModule, name: str | None) -> tuple[str, Any]:
    """Return name and value of the module's criterion: the named attribute, else its one loss of torch's, else None.

    Raises:
        ValueError: When the module has no attribute of that name.
    """
    if name is not None:
        if not hasattr(module, name):
            raise ValueError(f"`criterion` must name an attribute of {type(module).__name__}, got {name!r}")
        return name, getattr(module, name)
    losses = [(of, child) for of, child in module.named_children() if isinstance(child, LossModule)]
    return losses[0] if len(losses) == 1 else ("", None)


def loss_of(returned: Any) -> Tensor:
    """Return the loss in what a training step returns.

    Raises:
        ValueError: When there is none, as from a step that asks to be skipped.
    """
    loss = returned.get("loss") if isinstance(returned, Mapping) else returned
    if not isinstance(loss, Tensor):
        raise ValueError(f"training_step must return a loss, got {type(loss).__name__}")
    return loss


def call_step(step: Callable[..., Any], batch: Any) -> Any:
    """Call a module's step with a batch, its number where it takes one, and its loader's where it needs that."""
    parameters = inspect.signature(step).parameters.values()
    takes = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needs = sum(one.default is one.empty for one in takes)
    usual = 2 if any(one.kind is one.VAR_POSITIONAL for one in parameters) else min(len(takes), 2)
    return step(*(batch, 0, 0)[: max(needs, usual)])


@contextlib.contextmanager
def logging_to(module: LightningModule, log: Callable[..., None]) -> Iterator[None]:
    """Surround steps whose ``self.log(name, value, ...)`` goes to a function, and no further."""

    def log_dict(values: Mapping[str, Any], *arguments: Any, **options: Any) -> None:
        for name, value in values.items():
            log(name, value, *arguments, **options)

    before = {name: vars(module)[name] for name in _LOGS if name in vars(module)}
    vars(module).update(zip(_LOGS, (log, log_dict), strict=True))
    try:
        yield
    finally:
        for name in _LOGS:
            del vars(module)[name]
        vars(module).update(before)


def quiet_loss(module: LightningModule, name: str, network: nn.Module, batch: Any) -> Tensor:
    """Return the loss of a module's training step with a network in the place of its attribute ``name``.

    An empty name says that the network is the module, or a copy of it. Neither the module's metrics nor the random
    generators notice.
    """
    module = module if name else cast("LightningModule", network)
    with kept_generators(device_of(network)), logging_to(module, lambda *_, **__: None):
        try:
            with with_attributes(module, {name: network} if name else {}):
                return loss_of(call_step(module.training_step, batch))
        finally:
            reset_metrics(module)


@contextlib.contextmanager
def with_attributes(module: nn.Module, values: Mapping[str, Any]) -> Iterator[None]:
    """Give a module other values of some attributes in the block, and afterwards its own ones back."""
    own = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in own.items():
            setattr(module, name, value)


def reset_metrics(module: nn.Module) -> None:
    """Empty the metric objects of torchmetrics' kind that a module holds."""
    for child in module.modules():
        if all(callable(getattr(child, method, None)) for method in ("update", "compute", "reset")):
            child.reset()  # type: ignore[operator]
