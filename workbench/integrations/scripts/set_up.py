"""What a script is written for: an exported configuration, what its parts are worth, and the task it trains."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch.utils.data import DataLoader, default_collate

from workbench.config import BoostConfig, Plan
from workbench.core.batch import held_by_object, told_of_epochs
from workbench.core.loader import is_plain
from workbench.core.metrics import is_function, output_kind, says_its_kind, what_targets_are
from workbench.core.own_generators import kept_generators
from workbench.core.step_optimizer import held_parameters
from workbench.core.torch_internals import step_hooks
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.regularization.method import why_no_smoothing
from workbench.tasks import Task
from workbench.tasks.batches import SeekableBatches, opens_each_epoch, takes_seed
from workbench.tasks.loading import BUILT_IN

HOOKS = "step hooks"
Source = Literal["stream", "again", "each epoch", "each epoch by number"]
Metric = Literal["accuracy", "loss", "bits_per_byte", "object", "function"]


@dataclass(frozen=True)
class SetUp:
    """An exported set-up, as a script says it."""

    config: BoostConfig
    target: str  # the export: "o1"
    steps: int  # batches of the loader that the task is trained for today
    headline: str = ""  # what was measured of the whole, a sentence
    worth: Mapping[str, str] = field(default_factory=dict)  # config path -> what its part was measured to be worth
    task: Task | None = None  # None where only another program knows it
    float32_layers: tuple[str, ...] | None = None  # that float16 does not hold; None where no float16 run was recorded
    seed: int = 0

    @property
    def level(self) -> str:
        """The boost level that the export is for."""
        return self.target.upper()

    @property
    def plan(self) -> Plan:
        """What is in effect on one rank."""
        return self.config.resolve(self.level)

    @property
    def passes(self) -> int:
        """Forward passes of the run."""
        return MethodsInEffect(self.plan).passes(self.steps)

    @property
    def updates(self) -> int:
        """Updates of the run."""
        return max(1, self.passes // MethodsInEffect(self.plan).n_micro())


@dataclass(frozen=True)
class Pieces:
    """How a script calls what a task is made of."""

    train: Source = "again"
    train_takes_seed: bool = False
    evaluate_takes_seed: bool = False
    is_criterion: bool = True  # called as loss(model(x), y) with a pair; else as loss(model, batch)
    smooths: Literal["module", "function", ""] = "module"  # how labels are smoothed; empty where they cannot be
    outputs: str = ""  # "key" or "function" where the prediction is a part of what the model returns
    outputs_are: str = "logits"  # or "probabilities", ...; "unclear" where the loss does not say
    metric: Metric = "loss"
    metric_name: str = "loss"
    one_hot: bool = False  # whether targets may be probabilities of the classes
    ignored: int = -100  # the target that an accuracy leaves out
    has_scheduler: bool = False
    has_collate: bool = False  # whether the loader has a collate_fn of its own, or may have one
    has_objects: bool = False  # whether a batch may be an object, as one of graphs
    tells_epoch: bool = False  # whether a loader, its data set or its sampler may ask which epoch it is


def pieces_of(task: Task | None) -> Pieces:
    """Look at a task and say how its pieces are called; data of the user's are not opened."""
    if task is None:
        return Pieces()
    reason, (one_hot, ignored) = why_no_smoothing(task.loss), what_targets_are(task.loss)
    is_unknown = takes_seed(task.train) and task.spec not in BUILT_IN  # what a function of the user's returns
    named: dict[str, Metric] = {"accuracy": "accuracy", "loss": "loss", "bits_per_byte": "bits_per_byte"}
    kind = named.get(task.metric_name, "loss")
    if not isinstance(task.metric, str):
        kind = "function" if is_function(task.metric) else "object"
    return Pieces(
        train=_source(task),
        train_takes_seed=takes_seed(task.train),
        evaluate_takes_seed=takes_seed(task.evaluate),
        is_criterion=task.has_criterion,
        smooths="" if reason else "module" if hasattr(task.loss, "label_smoothing") else "function",
        outputs="" if task.outputs is None else "function" if callable(task.outputs) else "key",
        outputs_are=output_kind(task.loss) if says_its_kind(task.loss) else "unclear",
        metric=kind,
        metric_name=task.metric_name if kind != "loss" else "loss",
        one_hot=one_hot,
        ignored=ignored,
        has_scheduler=task.scheduler is not None,
        has_collate=is_unknown or _has_collate(task.train),
        has_objects=is_unknown or _has_objects(task.train),
        tells_epoch=is_unknown or any(told_of_epochs(task.train)),
    )


def _has_collate(source: Any) -> bool:
    return is_plain(source) and source.collate_fn is not default_collate


def _has_objects(source: Any) -> bool:
    if isinstance(source, list | tuple):
        return any(held_by_object(batch) is not None for batch in source[:1])
    return _has_collate(source) or (isinstance(source, DataLoader) and not is_plain(source))


def handed_on(task: Task) -> list[str]:
    """Return what `apply` hands on from a task's optimizer to another, and a new one over all weights has not."""
    with kept_generators():
        model = task.new_model()
        optimizer = task.new_optimizer(model)
    held, trained = (
        {p for p in every if p.requires_grad} for every in (held_parameters(optimizer), model.parameters())
    )
    has = {
        HOOKS: any(step_hooks(optimizer)),
        "parameter groups": len(optimizer.param_groups) > 1,
        "weights of its own choice": held != trained,
    }
    return [name for name, is_so in has.items() if is_so]


def _source(task: Task) -> Source:
    if not takes_seed(task.train):
        return "stream" if isinstance(task.train, SeekableBatches) else "again"
    if opens_each_epoch(task.train):
        return "each epoch by number"
    if task.spec in BUILT_IN:  # whose data are small
        return "stream" if isinstance(task.train(0), SeekableBatches) else "again"
    return "each epoch" if inspect.isgeneratorfunction(task.train) else "again"
