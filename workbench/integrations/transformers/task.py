"""A Task made of a Trainer: the search begins from what is there."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import EvalPrediction, Trainer
from transformers.trainer_pt_utils import EvalLoopContainer

from workbench.config import BoostConfig
from workbench.core.step_optimizer import held_parameters
from workbench.integrations.transformers.batches import joining
from workbench.integrations.transformers.conflicts import conflict
from workbench.integrations.transformers.trainer import BoostedTrainer, todays_schedule
from workbench.methods.parameter_groups import rebuild_optimizer
from workbench.tasks import Task

_PADDING = -100


def task_from_trainer(trainer: Trainer, name: str = "") -> Task:
    """Return the Task of what a Trainer trains, for ``workbench.tune(task_from_trainer(trainer), minutes=15)``.

    Model, loss (``compute_loss``), optimizer, schedule, gradient clipping, batches and length are the Trainer's.
    ``model_init`` makes the model of every run; without it each begins with a copy of the model as it is now, with the
    same weights, as a fine-tuning does. The metric is what ``compute_metrics`` gives under ``metric_for_best_model``,
    else the loss.

    Args:
        trainer: A Trainer that has not trained yet; it stays as it is.
        name: Name of the task; empty for the class of the model.

    Raises:
        TypeError: When it is no Trainer, or one that has a set-up already.
        ValueError: When it has trained, has nothing to evaluate on, its arguments do what a search tries or counts
            otherwise, or its metric is not named.
    """
    if not isinstance(trainer, Trainer) or isinstance(trainer, BoostedTrainer):
        raise TypeError(f"`trainer` must be a transformers.Trainer without a set-up, got {type(trainer).__name__}")
    args = trainer.args
    if trainer.state.global_step:
        raise ValueError("the trainer has trained already; give one whose model is as a training begins with it")
    if sentence := conflict(args, BoostConfig().resolve("O0"), trainer.lr_scheduler):
        raise ValueError(sentence)
    if args.torch_compile:
        raise ValueError("`torch_compile=True` is one of the things that a search tries; leave it out")
    if trainer.eval_dataset is None or isinstance(trainer.eval_dataset, dict):
        raise ValueError("a search evaluates what it has trained; give the Trainer one `eval_dataset`")
    metric, direction = _metric(trainer)
    with joining(trainer):
        *_, steps = trainer.set_initial_training_values(args, trainer.get_train_dataloader())
    return Task(
        name=name or type(trainer.model).__name__,
        model=_fresh_model(trainer),
        loss=functools.partial(_loss, trainer),
        optimizer=_TrainersOptimizer(trainer),
        scheduler=functools.partial(todays_schedule, trainer),
        train=functools.partial(_training_batches, trainer),
        evaluate=functools.partial(_evaluation_batches, trainer),
        metric=metric,
        direction=direction,
        steps=int(steps),
        description=f"{type(trainer.model).__name__} as a Trainer trains it",
    )


def _fresh_model(trainer: Trainer) -> Any:
    if trainer.model_init is not None:
        return trainer.call_model_init
    return functools.partial(copy.deepcopy, copy.deepcopy(trainer.model))


def _loss(trainer: Trainer, model: Any, batch: Any) -> Tensor:
    low = torch.autocast(trainer.args.device.type, torch.bfloat16) if trainer.args.bf16 else contextlib.nullcontext()
    with low:
        return trainer.compute_loss(model, dict(batch))  # type: ignore[return-value]  # no outputs are asked for


class _TrainersOptimizer:
    """The optimizer of ``create_optimizer``, with its groups, over the parameters of another model."""

    def __init__(self, trainer: Trainer) -> None:
        given = trainer.optimizer
        self._template: Any = trainer.create_optimizer() or trainer.optimizer  # an override may set it only
        trainer.optimizer = given
        assert trainer.model is not None  # a Trainer has one from its first day
        self._names = {parameter: name for name, parameter in trainer.model.named_parameters()}
        self._max_norm = float(trainer.args.max_grad_norm)

    def __call__(self, named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        """Return it for these parameters."""
        by_name = dict(named_parameters)
        groups = [
            {**group, "params": [by_name[self._names[parameter]] for parameter in group["params"]]}
            for group in self._template.param_groups
        ]
        made = rebuild_optimizer(self._template, groups)
        if self._max_norm > 0:
            made.register_step_pre_hook(functools.partial(_clip, self._max_norm))
        return made


def _clip(max_norm: float, optimizer: Optimizer, *_: Any) -> None:
    torch.nn.utils.clip_grad_norm_(held_parameters(optimizer), max_norm)


def _training_batches(trainer: Trainer, seed: int) -> Any:
    del seed  # the caller has seeded the generators that the loader takes its order from
    with joining(trainer):
        return trainer.get_train_dataloader()


def _evaluation_batches(trainer: Trainer, seed: int) -> Any:
    del seed
    return trainer.get_eval_dataloader()


def _metric(trainer: Trainer) -> tuple[Any, Any]:
    named = (trainer.args.metric_for_best_model or "").removeprefix("eval_")
    if named in ("", "loss") or trainer.compute_metrics is None:
        if trainer.compute_metrics is not None and not named:
            raise ValueError(
                "which of what `compute_metrics` gives is the quality? Name it in "
                "TrainingArguments(metric_for_best_model=...), or say 'loss'"
            )
        return "loss", None
    if trainer.args.batch_eval_metrics:
        raise ValueError("`batch_eval_metrics` has `compute_metrics` remember; leave it out")
    if getattr(trainer.args, "predict_with_generate", False):
        raise ValueError(
            "`predict_with_generate` has `compute_metrics` judge what generate() writes, and a search what the model "
            "returns; leave it out, or say metric_for_best_model='loss'"
        )
    better = trainer.args.greater_is_better
    kind = type(named, (_TrainersMetric,), {})  # tables show the name of its class
    return kind(trainer, named), "maximize" if better is None or better else "minimize"


class _TrainersMetric:
    """What ``compute_metrics`` gives of a whole evaluation, under one name."""

    def __init__(self, trainer: Trainer, name: str) -> None:
        self._trainer, self._name = trainer, name
        self.reset()

    def __deepcopy__(self, memo: Any) -> _TrainersMetric:
        return type(self)(self._trainer, self._name)

    def reset(self) -> None:
        """Forget what was seen."""
        self._outputs, self._targets = (EvalLoopContainer(padding_index=_PADDING) for _ in range(2))

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        """Keep a batch, on the host."""
        preprocess = self._trainer.preprocess_logits_for_metrics
        self._outputs.add(outputs if preprocess is None else preprocess(outputs, targets))
        self._targets.add(targets)
        for kept in (self._outputs, self._targets):
            kept.to_cpu_and_numpy()

    def compute(self) -> float:
        """Return the number."""
        outputs, targets = (kept.get_arrays() for kept in (self._outputs, self._targets))  # type: ignore[no-untyped-call]
        compute = self._trainer.compute_metrics
        assert compute is not None  # checked where the metric was made
        given = compute(EvalPrediction(predictions=outputs, label_ids=targets))
        for name in (self._name, f"eval_{self._name}"):
            if name in given:
                return float(given[name])
        raise ValueError(f"`compute_metrics` gives {', '.join(given)}, but metric_for_best_model is {self._name!r}")
