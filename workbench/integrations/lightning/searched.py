"""A Task of a LightningModule and its data, so that a search begins with what a user of Lightning has."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Literal

from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.loggers.logger import DummyLogger
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from workbench.core.batch import batch_size_of, n_batches_of
from workbench.core.metrics import Direction
from workbench.core.wrapped_model import unwrapped
from workbench.integrations.lightning.calls import call_step, logging_to, loss_of
from workbench.integrations.lightning.rates import course_of
from workbench.tasks import Task, TaskError

_SMALLER_IS_BETTER = ("loss", "error", "perplexity", "mae", "mse", "nll")
_LARGER_IS_BETTER = ("acc", "f1", "auc", "auroc", "precision", "recall", "r2", "iou", "psnr")
# What a module may do around its steps that changes the training, and that nothing calls in a search.
_NOT_CALLED = (
    *("optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"),
    *("on_fit_start", "on_train_start", "on_train_epoch_start", "on_train_batch_start", "on_train_batch_end"),
)
_PLACE = "lightning"  # the attribute of the task's model that holds the module; it begins the parameters' names


def from_lightning(
    module: LightningModule | Callable[[], LightningModule],
    datamodule: LightningDataModule | None = None,
    *,
    metric: str,
    max_epochs: int | None = None,
    max_steps: int | None = None,
    train_dataloaders: Any = None,
    val_dataloaders: Any = None,
    direction: Direction | None = None,
    name: str | None = None,
) -> Task:
    """Return a task for `workbench.tune` of what ``Trainer.fit`` takes; what is found goes back in as ``Boost``.

    Trained is the loss of ``training_step`` with what ``configure_optimizers`` makes, judged by what
    ``validation_step`` logs, or ``on_validation_epoch_end``. ``setup("fit")`` and ``configure_model`` make the module
    what it is. All are called without a Trainer: what they log otherwise, callbacks and the hooks of training are left
    out; ``self.trainer`` knows lengths only (``estimated_stepping_batches``, ``max_epochs``, ...).

    Args:
        module: A module, of which each run trains a deep copy as it is now, so that all runs begin with the same
            weights and differ in the order of the data alone; or a function (its class) that returns a fresh one.
        datamodule: Its data, which is prepared and set up now; or give the loaders, else the module has them.
        metric: Name under which the module logs in validation what is judged, for example ``"val_loss"``.
        max_epochs: Epochs that the module is trained for today, as for a Trainer; at most one of the two.
        max_steps: The same in batches.
        train_dataloaders: Training batches, as for ``Trainer.fit``.
        val_dataloaders: Batches for ``validation_step``.
        direction: ``"minimize"`` or ``"maximize"``; None where the metric's name shows it (loss, error, acc, f1, ...).
        name: Name for reports and folders; None takes that of the module's class.

    Raises:
        TaskError: When the module optimizes by hand or with several optimizers, or runs its backward pass itself; when
            there is not one loader of each kind, the metric's direction is not known, or what is given makes no task.
    """
    given = functools.partial(copy.deepcopy, copy.deepcopy(module)) if isinstance(module, LightningModule) else module
    trainer = _NoTrainer(max_epochs=max_epochs or -1, max_steps=max_steps or -1, datamodule=datamodule)
    fresh = functools.partial(_set_up, given, trainer)
    if datamodule is not None:
        datamodule.prepare_data()
        datamodule.setup("fit")
    first = fresh(prepare=True)
    if not first.automatic_optimization:
        raise TaskError(f"a search needs automatic optimization, and {type(first).__name__} optimizes by hand")
    if is_overridden("backward", first):
        raise TaskError(f"a search runs the backward pass, and {type(first).__name__} has its own backward()")
    if left_out := [hook for hook in _NOT_CALLED if is_overridden(hook, first)]:
        warnings.warn(
            f"{type(first).__name__}'s {', '.join(left_out)} {'is' if len(left_out) == 1 else 'are'} not called in a "
            "search: what changes the training there has to stand in training_step or configure_optimizers",
            stacklevel=2,
        )
    train, evaluate = _loaders(first, datamodule, train_dataloaders, val_dataloaders)
    epoch = n_batches_of(train)
    total = max_steps or (max_epochs or 1) * (epoch or 1)
    vars(trainer).update(estimated_stepping_batches=total, num_training_batches=epoch or total)
    configured = functools.partial(_configured, fresh)
    optimizer, schedulers = configured()[1:]
    return LightningTask(
        name=name or type(first).__name__,
        model=lambda: _Steps(fresh(), trainer),
        loss=lambda model, batch: model(batch),
        optimizer=functools.partial(_optimizer_of, configured),
        scheduler=course_of(optimizer, schedulers, total, epoch or float("inf")),
        train=train,
        evaluate=evaluate,
        metric=_Logged(metric, direction),
        steps=max_steps,
        epochs=None if max_steps else max_epochs,
    )


@dataclass(frozen=True)
class LightningTask(Task):
    """A task that is judged by what a module logs in validation."""

    @property
    def metric_name(self) -> str:
        """Name under which the metric is logged."""
        return str(self.metric.name)

    def new_metric(self) -> Any:
        """Begin an evaluation."""
        return _Logged(self.metric.name, self.metric.direction)

    def update_metric(self, metric: Any, model: Callable[..., Any], batch: Any) -> None:
        """Call ``validation_step`` with a batch and keep what it logs."""
        metric.begin(unwrapped(model))  # type: ignore[arg-type]  # a module, whatever wraps it
        metric.update(model(batch), batch)


class _Logged:
    """A logged value over all batches: its mean over samples, as Lightning's, or what a metric object computes."""

    def __init__(self, name: str, direction: Direction | None) -> None:
        words = name.lower().replace("/", "_").split("_")
        kinds: dict[Direction, tuple[str, ...]] = {"minimize": _SMALLER_IS_BETTER, "maximize": _LARGER_IS_BETTER}
        if direction is None:
            matching = (kind for kind, starts in kinds.items() if any(word.startswith(starts) for word in words))
            direction = next(matching, None)
        self.name, self.direction = name, direction
        self.higher_is_better = None if direction is None else direction == "maximize"
        self.needs: Literal["outputs", "loss"] = "outputs"
        self._steps: _Steps | None = None
        self._object: Any = None
        self._values: list[Any] = []
        self._sizes: list[int] = []

    def begin(self, steps: _Steps) -> None:
        if self._steps is None:
            self._steps = steps
            steps.logs_of("on_validation_epoch_start")

    def update(self, logged: Mapping[str, tuple[Any, int | None]], batch: Any) -> None:
        if self.name not in logged:
            if self._steps is not None and is_overridden("on_validation_epoch_end", self._steps.lightning):
                return  # which logs it, perhaps
            names = ", ".join(logged) or "nothing"
            raise TaskError(f"`metric` must be what validation_step logs ({names}), got {self.name!r}")
        value, size = logged[self.name]
        if callable(getattr(value, "compute", None)):
            self._object = value
        else:
            self._values.append(value)
            self._sizes.append(size or (1 if batch is None else batch_size_of(batch)))

    def compute(self) -> float:
        at_end = {} if self._steps is None else self._steps.logs_of("on_validation_epoch_end")
        if self.name in at_end:
            self.update(at_end, None)
        if self._object is not None:
            value = float(self._object.compute())
            self._object.reset()
            return value
        if not self._values:
            names = ", ".join(at_end) or "nothing"
            raise TaskError(
                f"`metric` must be what the module logs in validation, got {self.name!r}; at the end of an "
                f"epoch it logs {names}"
            )
        pairs = zip(self._values, self._sizes, strict=True)
        return sum(float(value) * size for value, size in pairs) / sum(self._sizes)

    def reset(self) -> None:
        self.__init__(self.name, self.direction)  # type: ignore[misc]


class _Steps(nn.Module):
    """A module that runs its training step when called; in evaluation it returns what its validation step logs."""

    def __init__(self, module: LightningModule, trainer: Any) -> None:
        super().__init__()
        self.lightning, self._trainer = module, trainer

    def logs_of(self, hook: str) -> dict[str, tuple[Any, int | None]]:
        """Call a hook without arguments; return what it logs."""
        return self._logs(getattr(self.lightning, hook))[1]

    def forward(self, batch: Any) -> Any:
        module, data = self.lightning, self._trainer.datamodule
        device = next((parameter.device for parameter in module.parameters()), module.device)
        if module.device != device:  # its own record, which a move of the whole passes by
            module.to(device)
        for hook in ("on_before_batch_transfer", "on_after_batch_transfer"):
            owner = data if data is not None and is_overridden(hook, data) else module
            batch = getattr(owner, hook)(batch, 0)
        if self.training:
            return loss_of(self._logs(lambda: call_step(module.training_step, batch))[0])
        return self._logs(lambda: call_step(module.validation_step, batch))[1]

    def _logs(self, call: Callable[[], Any]) -> tuple[Any, dict[str, tuple[Any, int | None]]]:
        """Return what a call returns, and what the module logs in it."""
        logged: dict[str, tuple[Any, int | None]] = {}

        def log(name: str, value: Any, *_: Any, batch_size: int | None = None, **__: Any) -> None:
            logged[name] = (value.detach() if isinstance(value, Tensor) else value), batch_size

        self.lightning.trainer = self._trainer  # copies have lost it
        with logging_to(self.lightning, log):
            return call(), logged


class _NoSuchPartError(TaskError, AttributeError):
    """What hasattr and a default of getattr take for a missing attribute, and a search for a mistake."""


class _NoTrainer(SimpleNamespace):
    """What a module finds as its trainer: lengths, and a logger that drops what it gets."""

    def __init__(self, **lengths: Any) -> None:
        now = {"current_epoch": 0, "global_step": 0, "world_size": 1, "global_rank": 0, "is_global_zero": True}
        logs = {"logger": DummyLogger(), "loggers": [], "sanity_checking": False}
        super().__init__(**lengths, **now, **logs)

    def __getattr__(self, name: str) -> Any:
        """Say what is wrong: a module would say that it has itself no such attribute."""
        if name.startswith("__"):
            raise AttributeError(name)
        raise _NoSuchPartError(
            f"a search calls the steps of a module without a Trainer, and this one asks for its trainer's {name!r}, as "
            "self.optimizers() and others of Lightning's methods do; leave that out of the steps"
        )


def _set_up(given: Callable[[], LightningModule], trainer: _NoTrainer, *, prepare: bool = False) -> LightningModule:
    """Return a new module as it is when a fit begins."""
    module = given()
    if not isinstance(module, LightningModule):
        raise TaskError(f"`module` must be a LightningModule or return one, got {type(module).__name__}")
    module.trainer = trainer  # type: ignore[assignment]
    if prepare:
        module.prepare_data()
    module.setup("fit")
    module.configure_model()
    return module


def _configured(fresh: Callable[[], LightningModule]) -> tuple[LightningModule, Optimizer, list[SimpleNamespace]]:
    """Return a new module with its optimizer and schedulers."""
    module = fresh()
    made: Any = module.configure_optimizers()
    schedulers: Any = []
    if isinstance(made, Mapping):
        made, schedulers = made["optimizer"], [made["lr_scheduler"]] if "lr_scheduler" in made else []
    elif isinstance(made, tuple | list) and len(made) == 2 and isinstance(made[0], tuple | list):
        made, schedulers = made
    if isinstance(made, tuple | list) and len(made) == 1:
        made = made[0]
    if not isinstance(made, Optimizer):
        raise TaskError(f"configure_optimizers must return one optimizer, got {type(made).__name__}")
    usual = {"interval": "epoch", "frequency": 1}
    as_mappings = [one if isinstance(one, Mapping) else {"scheduler": one} for one in schedulers]
    return module, made, [SimpleNamespace(**{**usual, **one}) for one in as_mappings]


def _optimizer_of(
    configured: Callable[[], tuple[LightningModule, Optimizer, list[SimpleNamespace]]],
    named_parameters: Iterable[tuple[str, nn.Parameter]],
) -> Optimizer:
    """Return what the module configures, over the parameters of another copy of it."""
    module, optimizer, schedulers = configured()
    course_of(optimizer, schedulers, 0, 1)  # so that none is attached
    given = dict(named_parameters)
    twins = {twin: given[f"{_PLACE}.{name}"] for name, twin in module.named_parameters()}
    for group in optimizer.param_groups:
        group["params"] = [twins[twin] for twin in group["params"]]
    return optimizer


def _loaders(module: LightningModule, datamodule: LightningDataModule | None, train: Any, val: Any) -> tuple[Any, Any]:
    found = []
    for given, role in ((train, "train_dataloader"), (val, "val_dataloader")):
        owner = datamodule if datamodule is not None else module
        if given is None and not is_overridden(role, owner):
            raise TaskError(f"{type(owner).__name__} has no {role}(); give {role}s, or a datamodule that has it")
        made = getattr(owner, role)() if given is None else given
        several = isinstance(made, list | tuple) and any(isinstance(one, DataLoader) for one in made)
        if several and len(made) == 1:
            made = made[0]
        elif several or isinstance(made, Mapping | CombinedLoader):
            raise TaskError(f"a search takes one {role}, got several; give {role}s=..., the one that counts")
        found.append(made)
    return found[0], found[1]
