"""Run a task under a configuration, record it in a run directory, evaluate it on the way.

Of several ranks all train; rank 0 alone records, evaluates, reports and asks its caller. What a clock or a caller
decides (drain now, stop) is put to the vote at each step and done by all at the next one.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from workbench.config.run_request import RunRequest
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.records import Event, EventKind
from workbench.core.wrapped_model import unwrapped
from workbench.runs import RunRecorder
from workbench.tasks import Task
from workbench.tasks.stoppable_task import StoppedError, stoppable
from workbench.training import TraceBuffer, training_loop
from workbench.training.checkpoint import checkpoint_state, with_threads_of
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.evaluation import check_outputs, evaluate
from workbench.training.generator_states import generator_states, restore_generators
from workbench.training.outcome import StepOutcome
from workbench.training.resuming import finished_before, identity, resumed_recorder, state_to_resume
from workbench.training.run_monitor import UNWATCHED, Pause, RunMonitor, RunProgress, RunResult
from workbench.training.run_output import RunOutput
from workbench.training.run_state import RunState
from workbench.training.setup import Prepared, prepare, run_environment
from workbench.training.snapshots import SnapshotRecorder, snapshot_recorder

__all__ = ["UNWATCHED", "Pause", "RunMonitor", "RunProgress", "RunRequest", "RunResult", "run_task"]

_LONG_EVALUATION = 1.0  # seconds after which an evaluation asks whether to stop, as steps do


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
    checked_count("seed", request.seed, None)
    if request.evaluate_every is not None:
        checked_count("evaluate_every", request.evaluate_every, kind="a whole number of batches")
    if monitor.pause is not None and ranks.world_size() > 1:
        raise ValueError("`pause` holds a run on one rank only: the other ranks would wait for it until they give up")
    device = device or devices.select_device("auto")
    prepared = prepare(task, request.config, level=request.level, seed=request.seed, device=device, steps=request.steps)
    check_outputs(task, unwrapped(prepared.boosted.model), device, prepared.boosted.precision, request.seed)
    kept = out is not None or monitor.on_records is not None or monitor.mirrors is not None
    this = _Run(prepared.judged, request, prepared, device, monitor, watches_gradients=kept)
    if checkpoints is not None:
        this.resume_from(checkpoints)
    this.finished = finished_before(out, request, this.resumed)
    if this.finished is not None:
        this.state.message = f"{this.finished} was finished before, with nothing left to be trained"
    elif this.leads and out is not None:
        recorder = None if this.resumed is None else resumed_recorder(out, request, this.resumed)
        this.output = RunOutput(
            recorder or RunRecorder.create(out, request.config.to_dict(), this.environment(), request.run_id or None),
            monitor.on_records,
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
    """One run on one rank, with its checkpoints and its clock; `run_task` calls it from start to end."""

    def __init__(
        self,
        task: Task,
        request: RunRequest,
        prepared: Prepared,
        device: torch.device,
        monitor: RunMonitor,
        *,
        watches_gradients: bool,  # for their norms and maxima, which take a tenth of a small network's step
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
            max_seconds=monitor.drain_seconds,
            gradients=self.leads and watches_gradients,
        )
        self.state = RunState(float(self.boosted.loss_scale.item()))
        self.output = RunOutput(on_records=monitor.on_records if self.leads else None)
        self.snapshots: SnapshotRecorder | None = None
        self.checkpoints: CheckpointFolder | None = None
        self.resumed: dict[str, Any] | None = None  # the checkpoint that it goes on from
        self.finished: Path | None = None  # its directory, where nothing is left to be trained
        self.identity = ""  # of the run, as its checkpoints name it
        self._running_since: float | None = None

    def environment(self) -> dict[str, Any]:
        facts = {"data_hash": self.task.data_digest(), "task": self.task.name, "level": self.request.level}
        return run_environment(self.device, seed=self.request.seed, **facts) | {"steps": self.steps}

    def begin(self) -> None:
        if self.leads and self.monitor.mirrors is not None and self.finished is None:
            self.output.begin_mirrors(self.monitor.mirrors, self.request.config.to_dict(), self.environment)
        if self.output.path is not None:
            self.snapshots = snapshot_recorder(self.request.config, self.boosted, self.output.path, self.state.done)

    def resume_from(self, checkpoints: CheckpointFolder) -> None:
        """Load the newest checkpoint there, if there is one; `checkpoint` will save to the same folder."""
        folder = checkpoints.folder if self.leads else checkpoints.folder / f"rank-{ranks.rank()}"
        self.checkpoints = checkpoints.at(folder)
        this = identity(self.task, self.request)  # once: it reads a part of the data
        self.identity = json.dumps(this)
        self.resumed = state_to_resume(self.checkpoints, this, self.device)
        if self.resumed is not None:
            self.boosted.load_state_dict(self.resumed["boosted"])
            self.trace.load_state_dict(self.resumed["trace"])
            self.state.load_state_dict(self.resumed["run"])

    def checkpoint(self) -> None:
        """Keep the state reached; everything recorded before it is on the disk by then."""
        assert self.checkpoints is not None
        state = {
            **checkpoint_state(self.boosted),
            "identity": self.identity,
            "run_id": self.output.run_id,
            "trace": self.trace.state_dict(),
            "run": self.state.state_dict(),
        }
        self.checkpoints.save(state, self.state.done)

    def train(self) -> None:
        loop = self._loop()
        self._record_snapshot()
        if self._evaluate_if_due():  # the run may have been stopped before an evaluation, or in it
            self._start_clock()
            for _ in loop:
                self.state.done += 1
                if not self._after_step():
                    break
        self._stop_clock()
        if self.votes is not None:
            self.votes.settle()
        self.flush()
        self._checkpoint_at_the_end()
        self.boosted.finish()
        if not self.state.is_over:
            self._evaluate()
            self.flush()
            if self.state.stopped and self.checkpoints is not None and not self.checkpoints.keep_end:
                self.checkpoint()

    def _loop(self) -> Iterator[StepOutcome]:
        """Return the steps that are left."""
        batches = self.prepared.batches(self.request.seed)
        if self.resumed is not None:
            next(itertools.islice(batches, self.state.done, self.state.done), None)  # reads what was trained on
            restore_generators(self.resumed, self.device)
        return training_loop(
            self.boosted,
            self.prepared.task.compute_loss,
            batches,
            steps=self.steps - self.state.done,
            trace=self.trace,
            batch_size=lambda batch: self.n_ranks * self.task.batch_size_of(batch),
        )

    def _after_step(self) -> bool:
        """Do what is due between two steps; return whether the run goes on."""
        self._record_snapshot()
        due, stopping = self._should_drain_or_stop()
        if due:
            self.flush()
        if self.state.diverged:
            return False
        self._pause_if_asked()
        stop = self.monitor.stop
        if stopping or (self.votes is None and stop is not None and stop()):
            self.state.stopped = True
            self._end(f"stopped on request after {self.state.done} steps")
            return False
        return self._evaluate_if_due() and self._checkpoint_if_due()

    def _pause_if_asked(self) -> None:
        pause = self.monitor.pause
        if pause is not None and pause.requested() and self.state.done < self.steps:
            self._stop_clock()  # and wait with everything recorded on the disk and on the screen
            self.flush()
            began = time.perf_counter()
            pause.wait()
            self._start_clock(left_out=time.perf_counter() - began)

    def _checkpoint_if_due(self) -> bool:
        """Keep the state between two steps if that is due; return whether the run goes on."""
        done = self.state.done
        if self.checkpoints is None or done >= self.steps or not self.checkpoints.is_due(done):
            return True
        self._stop_clock()
        self.flush()
        if self.state.diverged:
            return False
        self.checkpoint()
        self._start_clock()
        return True

    def _checkpoint_at_the_end(self) -> None:
        state = self.state
        ended = state.diverged or state.ended_early or self.finished
        if self.checkpoints is not None and not ended and (state.stopped or self.checkpoints.keep_end):
            self.checkpoint()

    def flush(self) -> None:
        """Drain the trace to the outputs, act on what it shows, and report; every rank at the same step."""
        self._drain(agree=self.votes is not None)
        state = self.state
        state.diverged, state.message = ranks.broadcast_object((state.diverged, state.message))
        self.output.write()
        self._report()

    def finish(self) -> None:
        if self.checkpoints is not None:
            self.checkpoints.close()
        self.output.finish(self.summary(), goes_on=self.state.stopped and self.checkpoints is not None)

    def interrupt(self, error: BaseException) -> None:
        """Close the record of a run that an exception ends; never raises, so that the exception itself is seen."""
        if not self.output.lasts:
            return
        goes_on = False
        with contextlib.suppress(Exception):
            self._stop_clock()
        with contextlib.suppress(Exception):  # a device that failed has nothing more to give
            self._drain()
        with contextlib.suppress(Exception):
            goes_on = self.checkpoints is not None and self.checkpoints.newest() is not None
        self.state.message = f"{type(error).__name__}: {error}"
        self.output.interrupt(self.summary() | {"state": "interrupted"}, error, goes_on=goes_on)

    def result(self) -> RunResult:
        state = self.state
        complete = not state.diverged and bool(state.curve)
        tail = state.losses[-max(1, len(state.losses) // 10) :]
        return RunResult(
            metric=state.curve[-1][1] if complete else math.nan,
            metric_name=self.task.metric_name,
            higher_is_better=self.task.higher_is_better,
            curve=tuple(state.curve),
            steps=state.done,
            seconds=state.seconds,
            overflows=state.overflows,
            final_loss=sum(tail) / len(tail) if tail else math.nan,
            final_loss_scale=state.loss_scale,
            diverged=state.diverged,
            stopped=state.stopped,
            message=state.message,
            path=self.output.path or self.finished,
            plan=self.plan,
            notes=(*filter(None, [self.request.config.found_elsewhere(self.task.name)]), *self.boosted.notes),
        )

    def summary(self) -> dict[str, Any]:
        state = self.state
        result = self.result()
        ended = {"diverged": state.diverged, "stopped": state.stopped, "ended early": state.ended_early}
        shown = ("metric_name", "metric", "curve", "steps", "seconds", "overflows", "final_loss", "final_loss_scale")
        return {
            "state": next((word for word, reached in ended.items() if reached), "finished"),
            "task": self.task.name,
            "level": self.plan.level,
            "in_effect": self.plan.summary(),
            "notes": list(result.notes),
            **{name: getattr(result, name) for name in (*shown, "message")},
        }

    def _record_snapshot(self) -> None:
        if self.snapshots is not None:
            self.snapshots.after_step(self.state.done)

    def _should_drain_or_stop(self) -> tuple[bool, bool]:
        """Return whether to drain now and whether to stop now; on one rank, stopping is asked about after draining."""
        if self.votes is None:
            return self.trace.due(), False
        full = self.trace.room <= 1  # all ranks count the same, and a vote would come one row late
        stop = self.monitor.stop
        due, stopping = self.votes.exchange(self.leads and self.trace.due(), stop is not None and stop())
        return due or full, stopping

    def _drain(self, *, agree: bool = False) -> None:
        """Take what the trace holds: with ``agree`` on every rank, otherwise for a run that ends alone."""
        state = self.state
        records, events = self.trace.drain(ranks.mean_over_ranks if agree else None)
        events += state.collapse(records, self.boosted.loss_scaling, self.boosted.window.n_steps)
        self.output.keep(records, events)
        state.count(records)
        lost = next((event for event in events if event.kind is EventKind.DIVERGED), None)
        if lost is not None and not state.diverged:
            state.diverge(lost.message)
        self.output.show(records, events)

    def _evaluate_if_due(self) -> bool:
        """Evaluate between two steps if that is asked for and was not done; return whether the run goes on."""
        state = self.state
        every = self.request.evaluate_every
        if every is None or not state.evaluated < state.done < self.steps:
            return True
        if state.done % max(round(every / self.prepared.batches_per_pass), 1):  # at least one forward pass
            return True
        self._stop_clock()
        self.flush()  # with a loss that is NaN by now there is no model to evaluate
        if not state.diverged and self._evaluate():
            state.ended_early = True
            self._end(f"ended early after {state.done} steps: its metric does not keep up")
        if state.is_over:
            return False
        self._start_clock()
        return True

    def _evaluate(self) -> bool:
        """Evaluate on rank 0, note the metric, and return whether the caller ends the run by it.

        One that is stopped in it is as it was before, and goes on with the evaluation.
        """
        state, name, value = self.state, self.task.metric_name, math.nan
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
                    value = evaluate(
                        self._task_to_evaluate(), model, self.device, self.boosted.precision, self.request.seed
                    )
                except StoppedError:
                    state.stopped = True
                    restore_generators(generators, self.device)
            if state.done >= self.steps and not state.stopped:  # the weights and statistics to keep are part of the run
                state.seconds += seconds
        value, state.stopped = ranks.broadcast_object((value, state.stopped))
        if state.stopped:
            self._end(f"stopped on request while it was evaluated after {state.done} steps")
            return False
        state.evaluated = state.done
        if not math.isfinite(value):
            sound = all(bool(weight.isfinite().all()) for weight in self.boosted.model.parameters())
            why = ", though all weights are finite: look at the metric, or its data" if sound else "; training diverged"
            state.diverge(f"{name} is {value:g} after {state.done} steps{why}")
            self.trace.emit(Event(state.done - 1, EventKind.DIVERGED, name, value, state.message))
            return False
        state.curve.append((round(state.done * self.prepared.batches_per_pass), value))
        message = f"{name} {value:.6g} after {state.done} steps"
        self.trace.emit(Event(state.done - 1, EventKind.EVALUATION, name, value, message))
        self._report()
        judge = self.monitor.on_evaluation
        return ranks.broadcast_object(self.leads and judge is not None and judge(state.done, value))

    def _task_to_evaluate(self) -> Task:
        """Return the task, which in a long evaluation asks, too, whether to stop."""
        stop, asks_from = self.monitor.stop, time.perf_counter() + _LONG_EVALUATION
        if stop is None:
            return self.task
        return stoppable(self.task, lambda: time.perf_counter() > asks_from and stop())

    def _end(self, message: str) -> None:
        self.state.message = message
        self.trace.emit(Event(self.state.done - 1, EventKind.STOPPED, message=message))

    def _report(self) -> None:
        state = self.state
        if self.leads and self.monitor.on_progress is not None:
            metric = state.curve[-1][1] if state.curve else math.nan
            loss = state.losses[-1] if state.losses else math.nan
            seconds = state.seconds + (
                0.0 if self._running_since is None else time.perf_counter() - self._running_since
            )
            self.monitor.on_progress(RunProgress(state.done, self.steps, loss, metric, state.loss_scale, seconds))

    def _start_clock(self, left_out: float = 0.0) -> None:
        self._running_since = time.perf_counter()
        self.trace.restart_clock(left_out)

    def _stop_clock(self) -> None:
        if self._running_since is not None:
            devices.synchronize(self.device)
            self.state.seconds += time.perf_counter() - self._running_since
            self._running_since = None
