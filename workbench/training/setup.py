"""Build everything a run of a task under a configuration needs, in one place and in one order."""

from __future__ import annotations

import threading
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.synchronize import Lock
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from workbench.config import BoostConfig, Plan
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.batch import move_batch
from workbench.core.own_generators import kept_generators, own_generators, seed_generators
from workbench.methods.batch.own_collate import uncollated
from workbench.methods.protocol import FirstBatch
from workbench.methods.runtime.section import Reading
from workbench.runs import collect_environment
from workbench.tasks import Task
from workbench.tasks.batches import mixed_seed, with_loader
from workbench.tasks.read_ahead import read_ahead
from workbench.tasks.reading import resident
from workbench.training import Boosted, apply
from workbench.training.everything_trained import EverythingTrained

# What an optimizer trained outside its model, as it was before the first run of this process.
_at_first: MutableMapping[Tensor, Tensor] = WeakTensorKeyDictionary()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A boosted model of a task, ready to train."""

    boosted: Boosted
    plan: Plan  # what is in effect
    task: Task  # with the criterion that the methods train with
    judged: Task  # with the task's own, of this run alone
    passes: int  # forward passes that the methods make of the loader's batches
    batches_per_pass: float  # of the loader
    train: Any  # what yields the loader's batches, as they are read
    reading: Reading

    def batches(self, seed: int, turn: Lock | None = None) -> Iterator[Any]:
        """Yield the batches of the forward passes, on the model's device; they never end.

        Reading ahead pauses while ``turn`` is held.
        """
        # A task that asks whether to stop would no longer ask with another source.
        device, batches = self.boosted.device, replace(self.task, train=self.train).batches(seed)
        read = read_ahead(batches, turn) if self.reading == "prefetch" else batches
        yield from self.boosted.methods.batches((move_batch(batch, device) for batch in read), self.passes)


def seed_everything(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators; models, dropout and schedules draw from them."""
    seed_generators(seed)
    torch.manual_seed(seed)  # those of all accelerators, too


def run_environment(device: torch.device, **facts: Any) -> dict[str, Any]:
    """Return the ``environment.json`` of a run of all ranks on a device; facts as for `collect_environment`."""
    here = {"type": device.type, "name": devices.device_name(device), "threads": torch.get_num_threads()}
    return collect_environment(device=here, **facts) | {"world_size": ranks.world_size()}


@contextmanager
def callers_generators(device: torch.device) -> Iterator[None]:
    """Let some work and its caller draw as if the other did not exist.

    In the main thread, whose caller waits for the work, the process's generators are put back afterwards. In any other
    thread the caller may draw meanwhile, so the work draws from its own generators (`own_generators`).
    """
    is_main = threading.current_thread() is threading.main_thread()
    with kept_generators(device) if is_main else own_generators():
        yield


def first_batch(task: Task, seed: int, device: torch.device) -> FirstBatch:
    """Return a call of a network as the task makes it, with its first batch, which is opened then."""
    loss, to_join = task.with_own_loss().compute_loss, lambda: next(batches_to_join(task, seed))
    return FirstBatch(loss, lambda: move_batch(next(task.batches(seed)), device), to_join)


def batches_to_join(task: Task, seed: int) -> Iterator[Any]:
    """Yield a task's batches in the form in which the batch method makes several of them one."""
    return replace(task, train=with_loader(task.train, uncollated)).batches(seed)


def prepare(task: Task, config: BoostConfig, *, level: str, seed: int, device: torch.device, steps: int) -> Prepared:
    """Build model, optimizer, boosting and scheduler; over several ranks also what averages their gradients.

    What the optimizer trains outside the model, such as a criterion's parameters, is one object for all runs of a
    process, and begins each of them as it began the first. All ranks begin with rank 0's weights. Their random numbers
    differ afterwards, so that each draws its own dropout masks; rank 0 draws what it would draw alone. ``steps`` are
    the loader's batches of a training today.
    """
    task = task.with_own_loss()
    seed_everything(seed)
    model = task.new_model().to(device)
    model.train()
    optimizer = task.new_optimizer(model)
    for parameter in EverythingTrained(model, optimizer).outside().values():
        parameter.data.copy_(_at_first.setdefault(parameter, parameter.detach().clone()))
        parameter.grad = None
    boosted = apply(
        config,
        model,
        optimizer,
        steps,
        level=level,
        seed=seed,
        criterion=task.loss,
        example_inputs=first_batch(task, seed, device),
        scheduler=None if task.scheduler is None else task.new_scheduler,
    )
    plan = boosted.plan
    assert plan is not None  # apply() has resolved one
    if ranks.world_size() > 1:
        boosted.distribute()
    if ranks.rank() > 0:
        torch.manual_seed(mixed_seed(seed, ranks.rank()))
    trained = task if boosted.criterion is task.loss else replace(task, loss=boosted.criterion)
    reading, train = boosted.methods.reading(), task.train
    if reading == "resident":
        train = resident(train, device)
    train = with_loader(train, boosted.methods.loader)
    passes = boosted.methods.passes(steps)
    per_pass = boosted.methods.length(steps) / passes if passes != steps else 1.0
    return Prepared(boosted, plan, trained, task, passes, per_pass, train, reading)
