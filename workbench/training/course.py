"""The course of a run: what a configuration makes of today's number of batches and of today's learning rates.

A run that takes `total_steps` of the loader's batches today makes `passes` forward passes and `updates` updates. Its
learning rate follows a method's schedule, or today's, stretched if the number of passes differs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from workbench.core.arguments import checked_count
from workbench.core.batch import epochs_of, move_batch, n_batches_of
from workbench.core.warning import warn
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.schedule.method import StandIn, recorded, stretched
from workbench.tasks.read_ahead import loader_ahead
from workbench.tasks.reading import resident
from workbench.training.data_order import DataOrder

_MANY = 10_000


class Course:
    """How long a run is, and the course of its learning rate."""

    def __init__(
        self,
        methods: MethodsInEffect,
        optimizer: Optimizer,
        n_micro: int,  # forward passes per update
        make_scheduler: Callable[[Optimizer, int], Any] | None = None,  # today's schedule, over a number of updates
        *,
        takes_schedule: bool = True,  # whether a schedule may change the optimizer's rates at all
    ) -> None:
        self._methods, self._optimizer, self._n_micro = methods, optimizer, n_micro
        needs_none = not getattr(optimizer, "takes_schedule", True)  # as Schedule-Free ones, unless a method has one
        self._make_scheduler = None if needs_none or not takes_schedule else make_scheduler
        self._takes_schedule = takes_schedule
        #: Batches of the loader that the run takes today, its forward passes, its updates, and the schedule on the
        #: optimizer; None until they are known.
        self.total_steps: int | None = None
        self.passes: int | None = None
        self.updates: int | None = None
        self.scheduler: Any = None
        self.advanced = 0
        self.order = DataOrder()
        #: Whether there is a schedule to follow.
        self.has_schedule = self._make_scheduler is not None or (takes_schedule and has_schedule(methods, optimizer))
        #: Whether there is another number of passes, or a schedule, so that the run's length must be known.
        self.needs_length = self.has_schedule or changes_length(methods)

    def begin(self, total_steps: int) -> None:
        """Set how many of the loader's batches the run takes today, at least 1; it cannot be changed later."""
        checked_count("total_steps", total_steps, kind="a whole number of batches")
        if total_steps == self.total_steps:
            return
        if self.total_steps is not None:
            raise ValueError(f"the run has {total_steps} batches of the loader, but was set up for {self.total_steps}")
        self.total_steps = total_steps
        self.passes = self._methods.passes(total_steps)
        self.updates = max(1, self.passes // self._n_micro)
        if self.passes < self._n_micro:
            made, needed = f"{self.passes} forward {'pass' if self.passes == 1 else 'passes'}", self._n_micro
            warn(f"this run trains nothing: it has {made}, and an update takes {needed}")
        if self._takes_schedule:
            self.scheduler = self._made(total_steps, self.passes, self.updates)
        self._make_scheduler = None  # it may hold the task and its data, which copies need not

    def epoch_ends(self, today: float) -> list[int]:
        """Return after which forward pass each epoch of the run ends, at least one, where today's run has so many.

        An epoch has as many samples as today's, within a batch.
        """
        total, passes = self.total_steps or 1, self.passes or 1
        epochs = max(1, min(passes, round(today * self._methods.length(total) / total)))
        return [passes * epoch // epochs for epoch in range(1, epochs + 1)]

    def batches(
        self, loader: Iterable[Any], epochs: int | None, device: torch.device, *, start: int = 0
    ) -> Generator[Any, None, None]:
        """Return the batches of the run, see `Boosted.batches`."""
        if epochs is not None:
            checked_count("epochs", epochs, kind="a whole number, or None where `total_steps` says how long")
        if epochs is not None and (length := n_batches_of(loader)) is not None:
            given = epochs * length
            if self.total_steps not in (None, given):
                raise ValueError(
                    f"{epochs} epoch{'s' * (epochs != 1)} of {length} batches are {given} batches, but `total_steps` "
                    f"is {self.total_steps}; a loop over epochs takes them from boosted.epochs(loader, epochs)"
                )
            self.begin(given)
            epochs = None  # they are counted; the loader goes on, so that a last pass is merged in full
        elif self.total_steps is None:
            raise ValueError(
                "how long is the run? Give apply() `total_steps`, or `epochs` and a loader that has a length"
            )
        reading = self._methods.reading()
        if reading == "resident":
            loader = resident(loader, device)
        elif reading == "prefetch":
            loader = loader_ahead(loader)
        if isinstance(loader, DataLoader):
            loader = self._methods.loader(loader)

        passes = self.passes or 1
        read = epochs_of(loader, epochs, lambda loader, epoch: self.order.epoch_begins(loader, epoch, device))
        moved = (move_batch(batch, device) for batch in read)
        return self._checked(iter(self._methods.batches(moved, passes)), start, passes, device)

    def _checked(
        self, batches: Iterator[Any], start: int, passes: int, device: torch.device
    ) -> Generator[Any, None, None]:
        wanted, n_seen = max(passes - start, 0), 0
        with self._methods.running():
            if start:
                self.order.leave_out(batches, start, device)
            for n_seen, batch in enumerate(islice(batches, wanted), start=1):  # noqa: B007
                yield batch
        if n_seen < wanted:
            ended = f"the loader ended after {n_seen} of {wanted} forward passes"
            raise ValueError(f"{ended}; `total_steps` is {self.total_steps}")

    def advance(self) -> None:
        """Advance the schedule by one update; a RuntimeError if the length of the run is not known."""
        if self.scheduler is None:
            if self.total_steps is None:
                raise RuntimeError(
                    "the learning rate follows a schedule, and the length of the run is not known; give apply() "
                    "`total_steps`, or take the batches from boosted.batches(loader, epochs)"
                )
            return
        self.advanced += 1
        if self.advanced == 1:  # a copied optimizer has lost torch's mark that a scheduler is attached
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                self.scheduler.step()
            return
        if self.updates is not None and self.advanced == self.updates + 1:
            ended = f"the schedule has come to its end after {self.updates} updates"
            advice = "the batches of this run come from boosted.batches(loader, epochs)"
            warn(f"{ended}; {advice}")
        self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the run, and where the schedule stands."""
        state_of = getattr(self.scheduler, "state_dict", None)  # a class of the user's may have none
        scheduler = None if state_of is None else state_of()
        return {"total_steps": self.total_steps, "advanced": self.advanced, "scheduler": scheduler}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken, in a run of the same length, before the optimizer does."""
        if state.get("total_steps") is not None:
            self.begin(state["total_steps"])
        before, self.advanced = self.advanced, state["advanced"]
        if self.scheduler is not None and state["scheduler"] is not None:
            self.scheduler.load_state_dict(state["scheduler"])
        elif self.scheduler is not None:  # counts its steps; the rates are the optimizer's, which is loaded next
            for _ in range(before, self.advanced):
                self.scheduler.step()

    def _made(self, total_steps: int, passes: int, updates: int) -> Any:
        scheduler = self._methods.scheduler(self._optimizer, updates)
        if scheduler is not None or self._make_scheduler is None:
            return scheduler
        if passes == total_steps:
            return self._make_scheduler(self._optimizer, updates)
        course = recorded(self._make_scheduler, self._optimizer, max(1, total_steps // self._n_micro))
        return None if course is None else stretched(self._optimizer, updates, course)


def changes_length(methods: MethodsInEffect) -> bool:
    """Return whether methods turn today's batches into a different number of passes."""
    return methods.passes(_MANY) != _MANY


def has_schedule(methods: MethodsInEffect, optimizer: Optimizer) -> bool:
    """Return whether a method sets the learning rate."""
    return methods.may_schedule and methods.scheduler(StandIn(optimizer), _MANY) is not None
