"""Mirror the training of a ``Model``: a callback.

It keeps a trace on the device as recorded runs do, so a step waits for nothing, and hands it on about once a second.
"""

from __future__ import annotations

from datetime import UTC, datetime
from types import TracebackType
from typing import Any

from workbench.core import distributed as ranks
from workbench.core.records import Event, EventKind
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.runs import new_run_id
from workbench.runs.mirrors.live import LiveMirrors, mirrors_named
from workbench.runs.mirrors.mirror import Mirror
from workbench.training.loop import samples_in
from workbench.training.setup import run_environment
from workbench.training.trace_buffer import TraceBuffer


class MirrorCallback(Callback):
    """Mirror what a ``Model`` trains, step by step, with the evaluations of ``fit``; on the first rank alone.

    Args:
        mirrors: Mirrors, or their names as on the command line (``"tensorboard=logs"``).
        name: Name of the run in the mirrors; None for one that sorts by time.
        task: What is trained, in a word; MLflow's experiment is called so.

    Raises:
        MirrorError: When a name is unknown or a library is not installed.

    Example:
        model.fit(10, train, valid, callbacks=[MirrorCallback("tensorboard=logs", name="first try")])
    """

    def __init__(self, *mirrors: Mirror | str, name: str | None = None, task: str = "model") -> None:
        self._live = LiveMirrors(mirrors_named(mirrors))
        self._name = name
        self._task = task
        self._trace: TraceBuffer | None = None
        self._steps = self._overflows = 0
        self._metrics: dict[str, float] = {}

    def on_train_begin(self, run_context: RunContext) -> None:
        """Open the run in the mirrors.

        Raises:
            MirrorError: When one of them cannot be opened.
            RuntimeError: When something else records this training.
        """
        boosted = run_context.original_args().boosted
        if boosted is None or ranks.rank() != 0:
            return
        if boosted.events is not None:
            raise RuntimeError(
                "this training is recorded already; give its recorder's blocks to LiveMirrors instead of MirrorCallback"
            )
        plan = boosted.plan
        config, level = ({}, "") if plan is None else (plan.config.to_dict(), plan.level)
        environment = run_environment(boosted.device, task=self._task, level=level)
        environment["started"] = datetime.now(UTC).isoformat()
        self._live.begin(self._name or new_run_id(), config, environment)
        self._trace = TraceBuffer(boosted)
        self._steps, self._overflows, self._metrics = 0, 0, {}

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Note the step on the device, and hand the block on when it is due."""
        state = run_context.original_args()
        if self._trace is None or state.outcome is None:
            return
        self._trace.record(state.outcome, samples_in(state.train_dataset_element))
        if self._trace.due():
            self._send()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Note what an evaluation of ``fit`` has found."""
        state = run_context.original_args()
        if self._trace is None or not state.eval_results or state.outcome is None:
            return
        self._metrics = dict(state.eval_results)
        for name, value in self._metrics.items():
            message = f"{name} {value:.6g} after epoch {state.cur_epoch_num}"
            self._trace.emit(Event(state.outcome.step, EventKind.EVALUATION, name, float(value), message))
        self._send()
        self._trace.restart_clock()

    def on_train_end(self, run_context: RunContext) -> None:
        """Send what is left."""
        self._end("stopped" if run_context.get_stop_requested() else "finished", "")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the run that an exception has ended."""
        if error is not None:
            self._end("interrupted", f"{type(error).__name__}: {error}")

    def _send(self) -> None:
        if self._trace is not None:
            records, events = self._trace.drain()
            self._steps += len(records)
            self._overflows += sum(record.overflow for record in records)
            self._live.write(records, events)

    def _end(self, state: str, message: str) -> None:
        if self._trace is None:
            return
        self._send()
        boosted = self._trace.boosted
        self._trace.detach()
        self._trace = None
        in_effect = "" if boosted.plan is None else boosted.plan.summary()
        counts = {"steps": self._steps, "overflows": self._overflows}
        summary: dict[str, Any] = {"state": state, "message": message, "in_effect": in_effect, **counts}
        if self._metrics:
            summary["metric_name"], summary["metric"] = next(iter(self._metrics.items()))
        self._live.finish(summary)
