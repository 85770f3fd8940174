"""What accompanies the steps of one online training: figures, drift, rejected records, checkpoints, publishing.

It is the last callback of the run, so that a checkpoint holds what the user's callbacks did after the same step.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import Tensor, nn

from workbench.core.records import Event, EventKind, StepRecord
from workbench.core.wrapped_model import unwrapped
from workbench.mindspore.callbacks import Callback, CallbackParameters, RunContext
from workbench.online.feed import Feed, Interrupts
from workbench.online.page_hinkley import DriftDetector
from workbench.online.prequential import Prequential
from workbench.online.publishing import SnapshotPublisher
from workbench.online.record_rules import RecordRules
from workbench.online.record_sieve import RecordSieve
from workbench.online.stream import OpenStream, StreamPosition
from workbench.training.boosted import Boosted
from workbench.training.checkpoint import checkpoint_state
from workbench.training.checkpoint_folder import CheckpointFolder as OnlineCheckpoints
from workbench.training.generator_states import restore_generators
from workbench.training.outcome import StepOutcome
from workbench.training.trace_buffer import TraceBuffer

_FIGURES_EVERY = 100  # steps between two looks at rates and table sizes where no Prequential says otherwise
_REFUSED_IN_A_ROW = 3  # so many batches that the network cannot compute with are its fault and not theirs


class StepSink(Protocol):
    """What keeps a run, for example a ``workbench.runs.RunRecorder``."""

    def write(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> None:
        """Keep a block of steps and the events among them."""
        ...


class RefusedBatchError(Exception):
    """The network could not compute with a batch; the cause is what it raised."""


@dataclass(eq=False)
class OnlineSession(Callback):
    """State of one online training apart from the model's; arguments as for ``RecModel.online_train``."""

    boosted: Boosted
    interrupts: Interrupts
    rules: RecordRules | None
    prequential: Prequential | None
    drift: DriftDetector | None
    checkpoints: OnlineCheckpoints | None
    publisher: SnapshotPublisher | None
    recorder: StepSink | None
    record_gradients: bool

    def __post_init__(self) -> None:
        self.sieve = RecordSieve(self.rules or RecordRules(), self._report_rejected)
        self.n_drifts = 0
        self.columns: dict[str, float] = {}  # the newest figures
        self.trace: TraceBuffer | None = None
        self.numbers = (0, 0)  # epoch and step that a resumed run continues
        self.feed: Feed  # what the trainer is fed with, once `open` was called
        self._position = StreamPosition()
        self._generators: dict[str, Any] | None = None
        self._clock: dict[str, float] | None = None  # and the rest of a trace's state, of a resumed run
        self._context: RunContext | None = None
        self._is_in_step = False
        self._n_refused = 0
        self._n_steps = 0
        self._figured = (time.perf_counter(), self.sieve.accepted)

    # Feeding

    def open(self, stream: Iterable[Any] | OpenStream, queue_size: int) -> Feed:
        """Return the feed of a stream, at the place where this session is."""
        self.feed = Feed(
            stream,
            self._position,
            queue_size=queue_size,
            sift=self.sieve.sift if self.rules is not None else lambda batch: batch,
            interrupts=self.interrupts,
            stopped=lambda: self._context is not None and self._context.get_stop_requested(),
            opened=self._restore_generators,
        )
        return self.feed

    # In a step

    def begin_forward(self) -> bool:
        """Note that a forward pass begins; return whether it is the first of its step."""
        is_first, self._is_in_step = not self._is_in_step, True
        return is_first

    def saw(self, prediction: Any, label: Any) -> None:
        """Take what the first forward pass of a step predicted, and what it should have been."""
        if self.prequential is None:
            return
        if not (isinstance(prediction, Tensor) and isinstance(label, Tensor)):
            raise ValueError(
                "`prequential` needs a prediction and a label, each a tensor; give `loss_fn`, or let the network "
                "return (loss, prediction, label)"
            )
        self.prequential.see(prediction, label)

    def refuse(self, error: RefusedBatchError, state: CallbackParameters) -> None:
        """Skip the batch of this step; raise the cause when several in a row were refused, or nothing is checked."""
        self._is_in_step = False
        self._n_refused += 1
        cause = error.__cause__ or error
        if self.rules is None or self._n_refused >= _REFUSED_IN_A_ROW:
            raise cause
        state.cur_step_num -= 1
        state.cur_step_in_epoch -= 1
        reason = f"the network raised {type(cause).__name__}"
        self.sieve.refuse(state.train_dataset_element, reason, forget_form=self._n_steps == 0)

    def end_step(self, outcome: StepOutcome) -> None:
        """Note that a step is complete."""
        self._is_in_step = False
        self._n_refused = 0
        self._n_steps += 1
        if self.trace is None:
            self.figures_after(outcome)

    def figures_after(self, outcome: StepOutcome) -> Mapping[str, float]:
        """Return the figures after a step, by column; expensive ones only now and then."""
        columns = {
            "online.rejected": float(self.sieve.rejected),
            "online.queue_depth": float(self.feed.depth),
            "online.wait_ms": self.feed.wait_ms,
        }
        every = self.prequential.every if self.prequential is not None else _FIGURES_EVERY
        if (outcome.step + 1) % every == 0:
            columns.update(self._expensive_figures(outcome.step))
        self.columns.update(columns)
        return columns

    def _expensive_figures(self, step: int) -> dict[str, float]:
        columns = {}
        if self.prequential is not None:
            self._take_in(step)
            columns["online.auc"] = self.prequential.auc()
            columns["online.log_loss"] = self.prequential.log_loss()
        now, accepted = time.perf_counter(), self.sieve.accepted
        if self.rules is not None:
            columns["online.records_per_second"] = (accepted - self._figured[1]) / max(now - self._figured[0], 1e-9)
        self._figured = now, accepted
        columns.update(_table_figures(unwrapped(self.boosted.model)))
        return columns

    def _take_in(self, step: int) -> None:
        """Bring predictions to the host and let the detector look at each of their steps."""
        if self.prequential is None:
            return
        losses = self.prequential.take_in()
        for index, loss in enumerate(losses):
            if self.drift is not None and self.drift.update(loss):
                self.n_drifts += 1
                at = step - len(losses) + 1 + index
                message = f"step {at}: the log loss of new records has risen (to {loss:.4g} in this step); drift"
                self._emit(Event(at, EventKind.DRIFT, "online.log_loss", loss, message))

    # As a callback

    def __enter__(self) -> Self:
        if self.recorder is not None:
            # Norm and maximum of the gradients only if asked for: on a large table they cost as much as a step.
            self.trace = TraceBuffer(self.boosted, gradients=self.record_gradients, figures=self.figures_after)
            if self._clock is not None:
                self.trace.load_state_dict(self._clock)
        return self

    def on_train_begin(self, run_context: RunContext) -> None:
        """Note whom to ask whether training is to stop."""
        self._context = run_context

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Write what is due."""
        state = run_context.original_args()
        if self.interrupts.asked:
            run_context.request_stop()
        if self.trace is not None and self.trace.due():
            self._record()
        if self.checkpoints is not None and self.checkpoints.is_due(self.boosted.step_index):
            self._save(state)
        if self.publisher is not None and self.publisher.is_due(self.boosted.step_index):
            self._publish(self.publisher)

    def on_train_end(self, run_context: RunContext) -> None:
        """Write the state that was reached, unless an interrupt broke off the last step."""
        if self._is_in_step:
            return
        self._take_in(self.boosted.step_index - 1)
        if self.checkpoints is not None:
            self._save(run_context.original_args(), wait=True)
        if self.publisher is not None:
            self._publish(self.publisher, wait=True)

    def _publish(self, publisher: SnapshotPublisher, *, wait: bool = False) -> None:
        """Publish the weights to use, with which this process evaluates and predicts."""
        with self.boosted.evaluating():
            publisher.publish(unwrapped(self.boosted.model), self.boosted.step_index, wait=wait)

    def _save(self, state: CallbackParameters, *, wait: bool = False) -> None:
        """Write a checkpoint, and before it every step that lies behind it: the record of a killed run has no gap."""
        assert self.checkpoints is not None
        self._take_in(self.boosted.step_index - 1)
        self._record()
        self.checkpoints.save(self.state_dict(state), self.boosted.step_index, wait=wait)

    def _record(self) -> None:
        """Hand all steps and events of the trace to the recorder."""
        if self.trace is not None and self.recorder is not None:
            records, events = self.trace.drain()
            if records or events:
                self.recorder.write(records, events)

    def __exit__(self, *_: object) -> None:
        with contextlib.ExitStack() as endings:  # each of them, whatever becomes of the others; the last one first
            if self.trace is not None:
                endings.callback(self._record)
                endings.callback(self.trace.detach)
            if self.publisher is not None:
                endings.callback(self.publisher.close)
            if self.checkpoints is not None:
                endings.callback(self.checkpoints.close)
            endings.callback(self.feed.close)

    # Going on

    def state_dict(self, state: CallbackParameters) -> dict[str, Any]:
        """Return everything that the rest of this training depends on, the user's callbacks excepted."""
        position = self.feed.position
        return {
            **checkpoint_state(self.boosted),
            "online": {
                "position": [position.epoch, position.offset],
                "numbers": [state.cur_epoch_num, state.cur_step_num],
                "sieve": self.sieve.state_dict(),
                "n_drifts": self.n_drifts,
                "trace": None if self.trace is None else self.trace.state_dict(),
                "prequential": None if self.prequential is None else self.prequential.state_dict(),
                "drift": None if self.drift is None else self.drift.state_dict(),
                "also": {name: part.state_dict() for name, part in self._also().items()},
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was taken; the random generators follow when the stream is open."""
        if "online" not in state:
            raise ValueError("the checkpoint was not written by online training; it names no place in a stream")
        online = state["online"]
        self.boosted.load_state_dict(state["boosted"])
        self._generators = state
        self._position = StreamPosition(*online["position"])
        self.numbers = tuple(online["numbers"])
        self.sieve.load_state_dict(online["sieve"])
        self.n_drifts = online["n_drifts"]
        self._clock = online.get("trace")  # which earlier checkpoints lack
        parts = {"prequential": self.prequential, "drift": self.drift, **self._also()}
        states = {"prequential": online["prequential"], "drift": online["drift"], **online["also"]}
        for name, part in parts.items():
            if part is not None:
                if states.get(name) is None:
                    raise ValueError(f"the checkpoint holds no state of `{name}`; the run that wrote it had none")
                part.load_state_dict(states[name])
        self._n_steps = self.boosted.step_index
        self._figured = time.perf_counter(), self.sieve.accepted

    def _restore_generators(self) -> None:
        if self._generators is not None:
            restore_generators(self._generators, self.boosted.device)
            self._generators = None

    def _also(self) -> dict[str, Any]:
        return {} if self.checkpoints is None else self.checkpoints.also

    def _report_rejected(self, reason: str, number: float, message: str) -> None:
        step = self.boosted.step_index
        self._emit(Event(step, EventKind.RECORD_REJECTED, reason, float(number), f"step {step}: {message}"))

    def _emit(self, event: Event) -> None:
        if self.boosted.events is not None:
            self.boosted.events.emit(event)


def _table_figures(network: nn.Module) -> dict[str, float]:
    """Return the figures of all growing tables of a network together, by column; empty when it has none.

    A growing table, such as ``workbench.optim.embeddings.EvictingEmbedding``, reports with ``occupancy()`` how full it
    is.
    """
    asked = (getattr(module, "occupancy", None) for module in network.modules())
    tables = [occupancy() for occupancy in asked if callable(occupancy)]
    if not tables:
        return {}
    return {
        "online.table_rows": float(sum(table.rows_in_use for table in tables)),
        "online.table_evictions": float(sum(table.evictions for table in tables)),
    }
