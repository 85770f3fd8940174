"""Run a task under a configuration, record it in a run directory, evaluate it on the way.

What was drained from the device is kept until the recorder has it on the disk, so neither a full disk nor Ctrl-C loses
a step that was measured. Of several ranks all train; rank 0 alone records, evaluates, reports and asks its caller. What
a clock or a caller decides (drain now, stop) is put to the vote at each step and done by all at the next one.

The file is long because a run and what it has come to belong to one class.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from workbench.config.run_request import RunRequest
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.records import Event, EventKind, StepRecord
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale import ScaleCollapseError, collapsed_at
from workbench.runs import RunRecorder, new_run_id
from workbench.runs.mirrors.live import LiveMirrors
from workbench.tasks import Task
from workbench.tasks.stoppable_task import StoppedError, stoppable
from workbench.training import TraceBuffer, training_loop
from workbench.training.checkpoint import checkpoint_state, with_threads_of
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.evaluation import check_outputs, evaluate
from workbench.training.generator_states import generator_states, restore_generators
from workbench.training.resuming import finished_before, identity, resumed_recorder, state_to_resume
from workbench.training.run_monitor import UNWATCHED, Pause, RunMonitor, RunProgress, RunResult
from workbench.training.setup import Prepared, prepare, run_environment
from workbench.training.snapshots import SnapshotRecorder, snapshot_recorder
from workbench.training.trace_buffer import AT_FLOOR_COLUMN

__all__ = ["UNWATCHED", "Pause", "RunMonitor", "RunProgress", "RunRequest", "RunResult", "run_task"]

_LONG_EVALUATION = 1.0  # seconds after which an evaluation asks whether to stop, as steps do
_TRACE_ROWS = 1024
_COUNTS = ("done", "evaluated", "overflows", "streak", "seconds", "loss_scale")  # kept in checkpoints


def run_task(
    task: Task,
    request: RunRequest,
    *,
    device: torch.device | None = None,
    out: Path | None = None,
    monitor: RunMonitor = UNWATCHED,
    checkpoints: CheckpointFolder | None = None,
) -> RunResult:
    """Train a task as long as it is trained today, or as the configuration makes of that.

    Where several ranks train together (``workbench.core.distributed``) each of them calls this with the same arguments
    and gets the same result. A step then is one micro-batch on each rank, its recorded loss is the mean over ranks and
    its samples are those of all ranks. A diverged run is a result, not an error.

    Args:
        task: What is trained.
        request: How it is trained.
        device: Where to train; None takes the accelerator if there is one.
        out: Folder in which rank 0 makes a run directory; None records nothing on disk.
        monitor: Who watches.
        checkpoints: Where the run's state is kept, and when; a run with checkpoints there goes on from the newest
            one that is whole, on a CPU with the same bits. It stays unfinished when it is stopped. Ranks above the
            first have their own folders inside.

    Raises:
        ResumeError: If the checkpoints belong to another run.
        TaskError: If the model returns something that the loss or the metric cannot take.
        RankFailure: If another rank has died or does not answer.
        TelemetryError: If the run directory cannot be written.
    """
    checked_count("steps", request.steps, kind="a whole number of batches")
    if request.evaluate_every is not None:
        checked_count("evaluate_every", request.evaluate_every, kind="a whole number of batches")
    if monitor.pause is not None and ranks.world_size() > 1:
        raise ValueError("`pause` holds a run on one rank only: the other ranks would wait for it until they give up")
    device = device or devices.select_device("auto")
    prepared = prepare(task, request.config, level=request.level, seed=request.seed, device=device, steps=request.steps)
    check_outputs(task, unwrapped(prepared.boosted.model), device, prepared.boosted.precision, request.seed)
    this = _Run(prepared.judged, request, prepared, device, monitor)
    if checkpoints is not None:
        this.resume_from(checkpoints)
    this.finished = finished_before(out, request, this.resumed)
    if this.finished is not None:
        this.message = f"{this.finished} was finished before, with nothing left to be trained"
    if this.leads and out is not None and this.finished is None:
        if this.resumed is not None:
            this.recorder = resumed_recorder(out, request, this.resumed)
        this.recorder = this.recorder or RunRecorder.create(
            out, request.config.to_dict(), this.environment(), request.run_id or None
        )
    try:
        this.begin()
        with with_threads_of(this.resumed, device), prepared.boosted.methods.running():
            this.train()
        this.finish()
    except BaseException as raised:
        error = ranks.explained(raised)
        this.interrupt(error)
        if error is raised:
            raise
        raise error from raised
    return ranks.broadcast_object(this.result())


class _Run:
    """One run on one rank: its counters, its recording and its checkpoints; `run_task` calls it from start to end."""

    def __init__(
        self, task: Task, request: RunRequest, prepared: Prepared, device: torch.device, monitor: RunMonitor
    ) -> None:
        self.task, self.request, self.prepared = task, request, prepared
        self.device, self.monitor = device, monitor
        self.boosted, self.plan = prepared.boosted, prepared.plan
        self.steps = prepared.passes
        self.leads, self.n_ranks = ranks.rank() == 0, ranks.world_size()
        self.votes = ranks.StepVotes() if self.n_ranks > 1 else None
        # The other ranks keep their losses only: what is recorded of gradients is the same everywhere.
        self.trace = TraceBuffer(
            self.boosted,
            exponents_every=request.exponents_every if self.leads else 0,
            capacity=_TRACE_ROWS,
            max_seconds=monitor.drain_seconds,
            gradients=self.leads,
        )
        self.recorder: RunRecorder | None = None
        self.mirrors: LiveMirrors | None = None  # once it has begun
        self.snapshots: SnapshotRecorder | None = None
        self._undrained = 0
        self._records: list[StepRecord] = []  # drained, not yet on the disk
        self._events: list[Event] = []
        self.curve: list[tuple[int, float]] = []
        self.losses: list[float] = []
        self.overflows = 0
        self.done = self.evaluated = 0  # steps that were taken, and after how many it was last evaluated
        self.seconds = 0.0
        self.loss_scale = float(self.boosted.loss_scale.item())
        self.streak = 0
        self.diverged = self.stopped = self.ended_early = False
        self.message = ""
        self.checkpoints: CheckpointFolder | None = None
        self.resumed: dict[str, Any] | None = None  # the checkpoint that it goes on from
        self.finished: Path | None = None  # its directory, where nothing is left to be trained
        self.identity = ""  # of the run, as its checkpoints name it
        self._running_since: float | None = None

    def environment(self) -> dict[str, Any]:
        facts = {"data_hash": self.task.data_digest(), "task": self.task.name, "level": self.request.level}
        return run_environment(self.device, seed=self.request.seed, **facts) | {"steps": self.steps}

    def begin(self) -> None:
        """Show the run to its mirrors, with the recorded run's name and environment if there is one."""
        mirrors = self.monitor.mirrors
        if self.leads and mirrors is not None and self.finished is None:
            if self.recorder is not None:
                name = self.recorder.run_id
                environment = json.loads((self.recorder.path / "environment.json").read_bytes())
            else:
                name, environment = new_run_id(), self.environment() | {"started": datetime.now(UTC).isoformat()}
            mirrors.begin(name, self.request.config.to_dict(), environment)
            self.mirrors = mirrors
        if self.recorder is not None:
            self.snapshots = snapshot_recorder(self.request.config, self.boosted, self.recorder.path, self.done)

    def resume_from(self, checkpoints: CheckpointFolder) -> None:
        """Load the newest checkpoint there, if there is one; `checkpoint` will save to the same folder."""
        folder = checkpoints.folder if self.leads else checkpoints.folder / f"rank-{ranks.rank()}"
        self.checkpoints = checkpoints.at(folder)
        this = identity(self.task, self.request)  # once: it reads a part of the data
        self.identity = json.dumps(this)
        self.resumed = state_to_resume(self.checkpoints, this, self.device)
        if self.resumed is None:
            return
        self.boosted.load_state_dict(self.resumed["boosted"])
        self.trace.load_state_dict(self.resumed["trace"])
        was = self.resumed["run"]
        self.curve = [(int(at), value) for at, value in was["curve"]]
        self.losses = was["losses"].tolist()
        self.done, self.overflows, self.streak = was["done"], was["overflows"], was["streak"]
        self.evaluated = was.get("evaluated", self.done)  # which earlier checkpoints do not say
        self.seconds, self.loss_scale = was["seconds"], was["loss_scale"]

    def checkpoint(self) -> None:
        """Keep the state reached; everything recorded before it is on the disk by then."""
        assert self.checkpoints is not None
        run = {name: getattr(self, name) for name in _COUNTS}
        curve, losses = [list(point) for point in self.curve], torch.tensor(self.losses, dtype=torch.float64)
        run |= {"curve": curve, "losses": losses}
        state = {
            **checkpoint_state(self.boosted),
            "identity": self.identity,
            "run_id": "" if self.recorder is None else self.recorder.run_id,
            "trace": self.trace.state_dict(),
            "run": run,
        }
        self.checkpoints.save(state, self.done)

    def train(self) -> None:
        stop, pause = self.monitor.stop, self.monitor.pause
        batches = self.prepared.batches(self.request.seed)
        if self.resumed is not None:
            next(itertools.islice(batches, self.done, self.done), None)  # reads what was trained on
            restore_generators(self.resumed, self.device)
        loop = training_loop(
            self.boosted,
            self.prepared.task.compute_loss,
            batches,
            steps=self.steps - self.done,
            trace=self.trace,
            batch_size=lambda batch: self.n_ranks * self.task.batch_size_of(batch),
        )
        self._record_snapshot()
        goes_on = self._evaluate_if_due()  # the run may have been stopped before an evaluation, or in it
        if goes_on:
            self._start_clock()
        for _ in loop if goes_on else ():
            self.done += 1
            self._undrained += 1
            self._record_snapshot()
            due, stopping = self._should_drain_or_stop()
            if due:
                self.flush()
            if self.diverged:
                break
            if pause is not None and pause.requested() and self.done < self.steps:
                self._stop_clock()  # and wait with everything recorded on the disk and on the screen
                self.flush()
                began = time.perf_counter()
                pause.wait()
                self._start_clock(left_out=time.perf_counter() - began)
            if stopping or (self.votes is None and stop is not None and stop()):
                self.stopped = True
                self._end(f"stopped on request after {self.done} steps")
                break
            if not self._evaluate_if_due():
                break
            if self.checkpoints is not None and self.done < self.steps and self.checkpoints.is_due(self.done):
                self._stop_clock()
                self.flush()
                if self.diverged:
                    break
                self.checkpoint()
                self._start_clock()
        self._stop_clock()
        if self.votes is not None:
            self.votes.settle()
        self.flush()
        ended = self.diverged or self.ended_early or self.finished
        if self.checkpoints is not None and not ended and (self.stopped or self.checkpoints.keep_end):
            self.checkpoint()
        self.boosted.finish()
        if not (self.diverged or self.stopped or self.ended_early):
            self._evaluate()
            self.flush()
            if self.stopped and self.checkpoints is not None and not self.checkpoints.keep_end:
                self.checkpoint()

    def flush(self) -> None:
        """Drain the trace to the recorder, act on what it shows, and report; every rank at the same step."""
        self._drain(agree=self.votes is not None)
        if self.votes is not None:
            self.diverged, self.message = ranks.broadcast_object((self.diverged, self.message))
        self._write()
        self._report()

    def finish(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.close()
        if self.recorder is not None and self.stopped and self.checkpoints is not None:
            self.recorder.close()  # unfinished: it can go on
        elif self.recorder is not None:
            self.recorder.finish(self.summary())
        if self.mirrors is not None:
            self.mirrors.finish(self.summary())

    def interrupt(self, error: BaseException) -> None:
        """Close the record of a run that an exception ends; never raises, so that the exception itself is seen."""
        if self.recorder is None and self.mirrors is None:
            return
        with contextlib.suppress(Exception):
            self._stop_clock()
        with contextlib.suppress(Exception):  # a device that failed has nothing more to give
            self._drain()
        self.message = f"{type(error).__name__}: {error}"
        if self.mirrors is not None:
            with contextlib.suppress(Exception):  # where warnings are errors, what it has to say is one
                self.mirrors.finish(self.summary() | {"state": "interrupted"})
        if self.recorder is None:
            return
        try:
            self._write()
            if self.checkpoints is not None and self.checkpoints.newest() is not None:
                self.recorder.close()
            else:
                self.recorder.finish(self.summary() | {"state": "interrupted"})
        except Exception as failure:  # the disk may be full: what is on it stays, and the user should know
            error.add_note(f"the end of the run could not be recorded in {self.recorder.path}: {failure}")
            with contextlib.suppress(Exception):
                self.recorder.close()

    def result(self) -> RunResult:
        complete = not self.diverged and bool(self.curve)
        tail = self.losses[-max(1, len(self.losses) // 10) :]
        return RunResult(
            metric=self.curve[-1][1] if complete else math.nan,
            metric_name=self.task.metric_name,
            higher_is_better=self.task.higher_is_better,
            curve=tuple(self.curve),
            steps=self.done,
            seconds=self.seconds,
            overflows=self.overflows,
            final_loss=sum(tail) / len(tail) if tail else math.nan,
            final_loss_scale=self.loss_scale,
            diverged=self.diverged,
            stopped=self.stopped,
            message=self.message,
            path=self.recorder.path if self.recorder is not None else self.finished,
            plan=self.plan,
            notes=self.boosted.notes,
        )

    def summary(self) -> dict[str, Any]:
        result = self.result()
        ended = {"diverged": self.diverged, "stopped": self.stopped, "ended early": self.ended_early}
        shown = ("metric_name", "metric", "curve", "steps", "seconds", "overflows", "final_loss", "final_loss_scale")
        return {
            "state": next((state for state, reached in ended.items() if reached), "finished"),
            "task": self.task.name,
            "level": self.plan.level,
            "in_effect": self.plan.summary(),
            "notes": list(result.notes),
            **{name: getattr(result, name) for name in (*shown, "message")},
        }

    def _record_snapshot(self) -> None:
        if self.snapshots is not None:
            self.snapshots.after_step(self.done)

    def _should_drain_or_stop(self) -> tuple[bool, bool]:
        """Return whether to drain now and whether to stop now; on one rank, stopping is asked about after draining."""
        if self.votes is None:
            return self.trace.due(), False
        full = self._undrained >= _TRACE_ROWS - 1  # all ranks count the same, and a vote would come one row late
        stop = self.monitor.stop
        due, stopping = self.votes.exchange(self.leads and self.trace.due(), stop is not None and stop())
        return due or full, stopping

    def _drain(self, *, agree: bool = False) -> None:
        """Take what the trace holds: with ``agree`` on every rank, otherwise for a run that ends alone."""
        records, events = self.trace.drain(ranks.mean_over_ranks if agree else None)
        self._undrained = 0
        events += self._detect_collapse(records)
        self._records += records
        self._events += events
        for record in records:
            self.losses.append(record.loss)
            self.overflows += record.overflow
            self.loss_scale = record.loss_scale_after
        diverged = next((event for event in events if event.kind is EventKind.DIVERGED), None)
        if diverged is not None and not self.diverged:
            self.diverged, self.message = True, diverged.message
        if records or events:
            if self.leads and self.monitor.on_records is not None:
                self.monitor.on_records(records, events)
            if self.mirrors is not None:
                self.mirrors.write(records, events)

    def _detect_collapse(self, records: list[StepRecord]) -> list[Event]:
        scaling = self.boosted.loss_scaling
        windows = [record for record in records if record.accumulated == self.boosted.window.n_steps]
        if scaling.collapse_after is None or not scaling.drop_overflow_update or not windows:
            return []
        overflowed = [record.overflow for record in windows]
        heights = [_height(record, scaling.minimum) for record in windows]
        at, self.streak = collapsed_at(overflowed, heights, scaling.minimum, scaling.collapse_after, self.streak)
        if at is None or self.diverged:
            return []
        step, scale = windows[at].step, windows[at].loss_scale_after
        self.diverged, self.message = True, str(ScaleCollapseError(step, self.streak, scaling.minimum))
        return [Event(step, EventKind.SCALE_COLLAPSE, "", scale, self.message)]

    def _write(self) -> None:
        if self.recorder is not None:
            self.recorder.write(self._records, self._events)
        self._records, self._events = [], []

    def _evaluate_if_due(self) -> bool:
        """Evaluate between two steps if that is asked for and was not done; return whether the run goes on."""
        every = self.request.evaluate_every
        if every is None or not self.evaluated < self.done < self.steps:
            return True
        if self.done % max(round(every / self.prepared.batches_per_pass), 1):  # at least one forward pass
            return True
        self._stop_clock()
        self.flush()  # with a loss that is NaN by now there is no model to evaluate
        if not self.diverged and self._evaluate():
            self.ended_early = True
            self._end(f"ended early after {self.done} steps: its metric does not keep up")
        if self.diverged or self.ended_early or self.stopped:
            return False
        self._start_clock()
        return True

    def _evaluate(self) -> bool:
        """Evaluate on rank 0, note the metric, and return whether the caller ends the run by it.

        One that is stopped in it is as it was before, and goes on with the evaluation.
        """
        value, name, precision = math.nan, self.task.metric_name, self.boosted.precision
        if self.leads:
            generators = generator_states(self.device)
            # Unwrapped: a DistributedDataParallel would talk to ranks that do not evaluate, and evaluation mode would
            # be compiled again.
            model = unwrapped(self.boosted.model)
            began = time.perf_counter()
            with self.boosted.evaluating():
                devices.synchronize(self.device)
                seconds = time.perf_counter() - began
                try:
                    value = evaluate(self._task_to_evaluate(), model, self.device, precision, self.request.seed)
                except StoppedError:
                    self.stopped = True
                    restore_generators(generators, self.device)
            if self.done >= self.steps and not self.stopped:  # the weights and statistics to keep are part of the run
                self.seconds += seconds
        value, self.stopped = ranks.broadcast_object((value, self.stopped))
        if self.stopped:
            self._end(f"stopped on request while it was evaluated after {self.done} steps")
            return False
        self.evaluated = self.done
        if not math.isfinite(value):
            self.diverged = True
            self.message = f"{name} is {value:g} after {self.done} steps; training diverged"
            self.trace.emit(Event(self.done - 1, EventKind.DIVERGED, name, value, self.message))
            return False
        self.curve.append((round(self.done * self.prepared.batches_per_pass), value))
        message = f"{name} {value:.6g} after {self.done} steps"
        self.trace.emit(Event(self.done - 1, EventKind.EVALUATION, name, value, message))
        self._report()
        judge = self.monitor.on_evaluation
        return ranks.broadcast_object(self.leads and judge is not None and judge(self.done, value))

    def _task_to_evaluate(self) -> Task:
        """Return the task, which in a long evaluation asks, too, whether to stop."""
        stop, asks_from = self.monitor.stop, time.perf_counter() + _LONG_EVALUATION
        if stop is None:
            return self.task
        return stoppable(self.task, lambda: time.perf_counter() > asks_from and stop())

    def _end(self, message: str) -> None:
        self.message = message
        self.trace.emit(Event(self.done - 1, EventKind.STOPPED, message=message))

    def _report(self) -> None:
        if self.leads and self.monitor.on_progress is not None:
            metric = self.curve[-1][1] if self.curve else math.nan
            loss = self.losses[-1] if self.losses else math.nan
            seconds = self.seconds + (0.0 if self._running_since is None else time.perf_counter() - self._running_since)
            self.monitor.on_progress(RunProgress(self.done, self.steps, loss, metric, self.loss_scale, seconds))

    def _start_clock(self, left_out: float = 0.0) -> None:
        self._running_since = time.perf_counter()
        self.trace.restart_clock(left_out)

    def _stop_clock(self) -> None:
        if self._running_since is not None:
            devices.synchronize(self.device)
            self.seconds += time.perf_counter() - self._running_since
            self._running_since = None


def _height(record: StepRecord, minimum: float) -> float:
    """Return the scale to test for collapse.

    With scale groups, the floor if every overflowing group is at its own floor, else inf.
    """
    if not record.group_scales:
        return record.loss_scale_after
    return minimum if AT_FLOOR_COLUMN in record.columns else math.inf
