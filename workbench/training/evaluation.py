"""Evaluate a model on a task: the metric over the whole evaluation set, leaving no trace on training."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.batch import inputs_and_target, move_batch
from workbench.core.evaluation_mode import evaluation_mode
from workbench.core.metrics import MetricError
from workbench.core.own_generators import seed_generators
from workbench.core.text import first_line
from workbench.core.warning import warn
from workbench.core.wrapped_model import unwrapped
from workbench.tasks import Task, TaskError
from workbench.tasks.batches import mixed_seed
from workbench.training.precision import Precision
from workbench.training.setup import prepare

_EVALUATION = 0x0E7A  # sets the random numbers of an evaluation apart from others of its seed
_LONG = 10_000  # batches of a run that is not trained; one of few could be too short for an update

# Tasks that were looked at in this process, by their id: a study trains one task hundreds of times.
_checked: weakref.WeakValueDictionary[int, Task] = weakref.WeakValueDictionary()


def evaluate(task: Task, model: nn.Module, device: torch.device, precision: Precision, seed: int = 0) -> float:
    """Return the task's metric over its evaluation batches of a seed's split, in the metric's own unit.

    The criterion is in evaluation mode, too. Whatever draws random numbers even then, such as a diffusion model's loss,
    draws the same ones for the same seed, so that two trainings on it differ in their weights alone. Training goes on
    as if it had not been evaluated.
    """
    metric = task.new_metric()
    modules = [module for module in (model, task.loss) if isinstance(module, nn.Module)]
    with _kept_state(modules), evaluation_mode(modules, device):
        seed_generators(mixed_seed(seed, _EVALUATION), device)
        with precision.autocast():
            for batch in task.evaluation_batches(seed):
                task.update_metric(metric, model, move_batch(batch, device))
        return float(metric.compute())  # a metric may ask the model for what it has gathered


@contextlib.contextmanager
def _kept_state(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Put back what modules gather in the block.

    In buffers these are statistics, as of observers of numbers; in attributes, the hidden state of a recurrent network.
    """
    every = [child for module in modules for child in module.modules()]
    attributes = [(child, dict(vars(child))) for child in every]
    buffers = [(child, *named) for child in every for named in child.named_buffers(recurse=False)]
    values = [buffer.detach().clone() for _, _, buffer in buffers]
    try:
        yield
    finally:
        for child, held in attributes:
            for name in vars(child).keys() - held.keys():
                delattr(child, name)
            vars(child).update(held)
        for (child, name, buffer), before in zip(buffers, values, strict=True):
            if getattr(child, name) is not buffer:
                setattr(child, name, buffer)
            if buffer.shape != before.shape:  # an observer's first statistics change it
                buffer.data = before
            elif buffer.layout != torch.strided or not torch.equal(buffer, before):  # equal takes no sparse ones
                with torch.no_grad():
                    buffer.copy_(before)  # in place: captured graphs know its address


def metric_without_learning(task: Task, config: BoostConfig, level: str, seed: int, device: torch.device) -> float:
    """Return the metric of the network before it is trained, evaluated once on a seed's split.

    An accuracy is at least the share of the commonest label, which a network reaches that always says the same.
    """
    prepared = prepare(task, config, level=level, seed=seed, device=device, steps=_LONG)
    metric = evaluate(task, unwrapped(prepared.boosted.model), device, prepared.boosted.precision, seed)
    return max(metric, _commonest_share(task, seed)) if task.metric_name == "accuracy" else metric


def _commonest_share(task: Task, seed: int) -> float:
    """Return the share of the commonest label in the evaluation data; -inf where labels are not whole numbers."""
    found: list[Tensor] = []
    for batch in task.evaluation_batches(seed) if task.has_criterion else ():
        sides = inputs_and_target(batch)
        labels = None if sides is None else sides[-1]
        if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.is_complex():
            return -math.inf
        found.append(labels.flatten().cpu().long())
    labels = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
    counted = torch.bincount(labels[labels >= 0])  # below 0 are those that a criterion ignores
    return float(counted.max() / counted.sum()) if len(counted) else -math.inf


def check_outputs(task: Task, model: nn.Module, device: torch.device, precision: Precision, seed: int) -> None:
    """Try a criterion and the metric on one batch each before anything is trained, once per task and process.

    The first evaluation may come after hours. Whatever else is wrong with a batch shows in the first step. Model and
    criterion are left as they are.
    """
    if _checked.get(id(task)) is task:
        return
    own = task.with_own_loss()
    with _kept_state([model]), evaluation_mode([model], device), precision.autocast():
        if own.has_criterion:
            with _only_clear_errors():
                own.compute_loss(model, move_batch(next(own.batches(seed)), device))
        with _only_clear_errors(warns=True) as told:  # a model may have to be trained before it can be evaluated
            batch = move_batch(next(iter(own.evaluation_batches(seed))), device)
            told.append(own.what_is_compared(model, batch))
            own.update_metric(metric := own.new_metric(), model, batch)
            if ranks.world_size() == 1:  # torchmetrics' objects may wait for all others
                metric.compute()
    _checked[id(task)] = task


@contextlib.contextmanager
def _only_clear_errors(*, warns: bool = False) -> Iterator[list[str]]:
    """Let only errors pass that say what to do; a warning about another adds the sentences in the list."""
    told: list[str] = []
    try:
        yield told
    except (MetricError, TaskError):
        raise
    except Exception as error:  # a criterion for what the model returns in training only; real trouble comes back there
        if warns and isinstance(error, AttributeError | LookupError | NameError | TypeError):
            said = f"{type(error).__name__}: {first_line(error)}"
            warn(
                f"before training, a batch cannot be evaluated ({said}); it may fail after training, too"
                + "".join(f". {sentence.removesuffix('.')}" for sentence in told if sentence)
            )
