"""What a run has come to so far: what is counted, how it ended, and what of that a checkpoint keeps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from workbench.core.records import Event, EventKind, StepRecord
from workbench.loss_scale import ScaleCollapseError, collapsed_at
from workbench.loss_scale.scaler import LossScaling
from workbench.training.step_events import AT_FLOOR_COLUMN

_KEPT = ("done", "evaluated", "overflows", "streak", "seconds", "loss_scale")


@dataclass(slots=True)
class RunState:
    """What a run has come to; losses, overflows and loss scale as far as they have been drained."""

    loss_scale: float
    done: int = 0  # steps that were taken
    evaluated: int = 0  # steps after which it was last evaluated
    seconds: float = 0.0  # spent training
    overflows: int = 0
    streak: int = 0  # overflows in a row with the loss scale on its floor
    losses: list[float] = field(default_factory=list)
    curve: list[tuple[int, float]] = field(default_factory=list)  # (loader batches used, metric)
    diverged: bool = False
    stopped: bool = False
    ended_early: bool = False
    message: str = ""

    def count(self, records: Sequence[StepRecord]) -> None:
        """Take in the records of further steps."""
        for record in records:
            self.losses.append(record.loss)
            self.overflows += record.overflow
            self.loss_scale = record.loss_scale_after

    def collapse(self, records: Sequence[StepRecord], scaling: LossScaling, n_micro: int) -> list[Event]:
        """Diverge if the loss scale has collapsed in further steps; return the event that says so, if there is one.

        An update takes ``n_micro`` micro-batches.
        """
        windows = [record for record in records if record.accumulated == n_micro]
        if scaling.collapse_after is None or not scaling.drop_overflow_update or not windows:
            return []
        overflowed = [record.overflow for record in windows]
        heights = [_height(record, scaling.minimum) for record in windows]
        at, self.streak = collapsed_at(overflowed, heights, scaling.minimum, scaling.collapse_after, self.streak)
        if at is None or self.diverged:
            return []
        step, scale = windows[at].step, windows[at].loss_scale_after
        self.diverge(str(ScaleCollapseError(step, self.streak, scaling.minimum)))
        return [Event(step, EventKind.SCALE_COLLAPSE, "", scale, self.message)]

    def diverge(self, message: str) -> None:
        """Note that training is lost, and why."""
        self.diverged, self.message = True, message

    @property
    def is_over(self) -> bool:
        """Whether the run ends before its last step."""
        return self.diverged or self.stopped or self.ended_early

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to go on from here."""
        curve, losses = [list(point) for point in self.curve], torch.tensor(self.losses, dtype=torch.float64)
        return {name: getattr(self, name) for name in _KEPT} | {"curve": curve, "losses": losses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken."""
        known = {"evaluated": state["done"], **state}  # which earlier checkpoints do not say
        for name in _KEPT:
            setattr(self, name, known[name])
        self.curve = [(int(at), value) for at, value in state["curve"]]
        self.losses = state["losses"].tolist()


def _height(record: StepRecord, minimum: float) -> float:
    """Return the scale to test for collapse.

    With scale groups, the floor if every overflowing group is at its own floor, else inf.
    """
    if not record.group_scales:
        return record.loss_scale_after
    return minimum if AT_FLOOR_COLUMN in record.columns else math.inf
