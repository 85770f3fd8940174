"""What watches a run while it goes on, and what the run gives back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from workbench.config import Plan
from workbench.core.records import Event, StepRecord
from workbench.runs.mirrors.live import LiveMirrors


class Pause(Protocol):
    """How a caller holds a run between two steps."""

    def requested(self) -> bool:
        """Return whether to hold; called once per step, so it must be quick."""

    def wait(self) -> None:
        """Return once the run is to go on or to stop."""


@dataclass(frozen=True, slots=True)
class RunProgress:
    """Where a run stands, for progress displays."""

    step: int  # micro-batches done
    steps: int  # and planned
    loss: float  # last drained one
    metric: float  # last evaluated one; NaN before the first evaluation
    loss_scale: float  # last drained one
    seconds: float  # since the start


@dataclass(frozen=True, slots=True)
class RunMonitor:
    """What watches a run and may end it; all but ``stop`` are used on rank 0 only."""

    on_progress: Callable[[RunProgress], None] | None = None  # called at drains and evaluations
    on_evaluation: Callable[[int, float], bool] | None = None  # with (steps done, metric); True ends the run
    stop: Callable[[], bool] | None = None  # asked once per step; over several ranks the run ends with the next one
    on_records: Callable[[Sequence[StepRecord], Sequence[Event]], None] | None = None  # with each drain
    drain_seconds: float = 1.0  # age at which recorded steps are drained from the device
    pause: Pause | None = None  # holds the run between two steps, not counted in its time; on one rank only
    mirrors: LiveMirrors | None = None  # see the run from its beginning to its end, with the blocks of on_records


UNWATCHED = RunMonitor()


@dataclass(frozen=True, slots=True)
class RunResult:
    """What one training run came to, also when it diverged or was stopped."""

    metric: float  # of the last evaluation, in the task's unit; NaN when the run diverged or was never evaluated
    metric_name: str
    higher_is_better: bool
    curve: tuple[tuple[int, float], ...]  # pairs (loader batches used, metric)
    steps: int  # forward passes (micro-batches) trained, on each rank
    seconds: float  # spent training, evaluation not included
    overflows: int  # windows whose gradients overflowed
    final_loss: float  # mean over the last tenth of the steps
    final_loss_scale: float
    diverged: bool  # the loss or the metric became NaN or inf, or the loss scale collapsed
    stopped: bool  # somebody asked it to stop
    message: str  # one sentence when it did not end as planned (diverged, stopped, ended early, was over before)
    path: Path | None  # run directory; None when nothing was recorded
    plan: Plan  # what was in effect
    notes: tuple[str, ...] = ()  # what became of the network, one line each
