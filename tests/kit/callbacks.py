"""Callbacks that note what they are told, as the golden files have it, or stop a training; and a sink in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.core.records import Event, StepRecord
from workbench.mindspore.callbacks import Callback, CallbackParameters, RunContext

OLD_NAMES = ["begin", "epoch_begin", "step_begin", "step_end", "epoch_end", "end"]
NEW_NAMES = [f"on_train_{name}" for name in OLD_NAMES]


class Stop(Exception):  # noqa: N818  # the name that the recorded events carry
    """What a `Recorder` raises where it is told to."""


class Recorder(Callback):
    """Notes every event as the golden file does, and stops or fails where it is told."""

    def __init__(
        self, raise_step: int = 0, raise_where: str = "step_end", stop_step: int = 0, stop_epoch: int = 0
    ) -> None:
        self.events: list[list[Any]] = []
        self.raise_step, self.raise_where = raise_step, f"on_train_{raise_where}"
        self.stop_step, self.stop_epoch = stop_step, stop_epoch

    def __enter__(self) -> Recorder:
        self.events.append(["__enter__", None, None])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.events.append(["__exit__", None, None if kind is None else kind.__name__])

    def note(self, name: str, context: RunContext) -> None:
        state = context.original_args()
        self.events.append([name, state.cur_epoch_num, state.cur_step_num])
        reached = state.cur_epoch_num if "epoch" in name else state.cur_step_num
        if name == self.raise_where and reached == self.raise_step:
            raise Stop
        if name == "on_train_step_end" and state.cur_step_num == self.stop_step:
            context.request_stop()
        if name == "on_train_epoch_end" and state.cur_epoch_num == self.stop_epoch:
            context.request_stop()


class OldStyle(Callback):
    """Overrides the older names only and notes them, without numbers, as the golden file does."""

    def __init__(self, events: list[list[Any]] | None = None) -> None:
        self.events = [] if events is None else events


for _name in [*NEW_NAMES, *(name.replace("train", "eval") for name in NEW_NAMES)]:
    setattr(Recorder, _name, lambda self, context, name=_name: self.note(name, context))
for _name in OLD_NAMES:
    setattr(OldStyle, _name, lambda self, context, name=_name: self.events.append([name, None, None]))


class StopAt(Callback):
    """Asks for a stop at the end of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def step_end(self, run_context: RunContext) -> None:
        if run_context.original_args().cur_step_num >= self.step:
            run_context.request_stop()


class Noting(Callback):
    """Keeps what a function finds in the state of the run at each moment of a name, such as ``on_train_begin``."""

    def __init__(self, moment: str, look: Callable[[CallbackParameters], Any]) -> None:
        self.values: list[Any] = []
        setattr(self, moment, lambda context: self.values.append(look(context.original_args())))


class AtStepEnd(Noting):
    """Keeps what a function finds in the state of the run at the end of each training step."""

    def __init__(self, look: Callable[[CallbackParameters], Any]) -> None:
        super().__init__("step_end", look)


class Kept:
    """A sink that keeps what is recorded, in memory."""

    def __init__(self) -> None:
        self.records: list[StepRecord] = []
        self.events: list[Event] = []

    def write(self, records: Any, events: Any = ()) -> None:
        self.records += records
        self.events += events
