"""Callbacks: what a caller sees of a Model's training and evaluation, and how it stops them.

The order of calls, with ``(cur_epoch_num, cur_step_num)`` at that moment::

    __enter__
    on_train_begin                  # (0, 0)
    for every epoch:
        on_train_epoch_begin        # (1, 0): epochs count from 1, steps never start over
        for every batch:
            on_train_step_begin     # (1, 1): the step is counted before it runs
            on_train_step_end       # (1, 1)
        on_eval_begin ... on_eval_end     # where `fit` evaluates
        on_train_epoch_end
    on_train_end                    # when training ends by itself or by request_stop()
    __exit__                        # always; with the exception, where one ended training

Evaluation has the same shape with ``on_eval_`` and one epoch. Several callbacks are called in the order of their list,
each moment for all of them before the next moment. An exception of theirs ends training and reaches the caller.

Named and shaped after ``mindspore.train.Callback`` (MindSpore 2.7). A callback may override the older names (``begin``,
``epoch_begin``, ``step_begin``, ``step_end``, ``epoch_end``, ``end``) instead of the newer ones, which call them.
Differences: a stop that was requested always happens, and nothing is printed by ranks other than the first.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core import distributed as ranks
from workbench.training.outcome import StepOutcome

if TYPE_CHECKING:
    from workbench.training.boosted import Boosted

__all__ = [
    "Callback",
    "CallbackList",
    "CallbackParameters",
    "LossMonitor",
    "Moment",
    "RunContext",
    "TimeMonitor",
    "loss_of",
]

#: The moments at which callbacks are called, by the name of the method.
Moment = Literal[
    "on_train_begin",
    "on_train_epoch_begin",
    "on_train_step_begin",
    "on_train_step_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_eval_begin",
    "on_eval_epoch_begin",
    "on_eval_step_begin",
    "on_eval_step_end",
    "on_eval_epoch_end",
    "on_eval_end",
]


@dataclass
class CallbackParameters:
    """What is going on, as ``run_context.original_args()`` gives it; one object for the whole run, changed as it goes.

    Attributes:
        mode: ``"train"``, ``"eval"``, or ``"fit"`` for an evaluation in the middle of a training.
        network: The network the Model was made with.
        loss_fn: The criterion; None when the network returns the loss.
        optimizer: The optimizer in use; learning-rate schedulers belong on it. None in a Model without one.
        train_network: Module that returns the loss of a batch.
        eval_network: Module that is evaluated.
        boosted: The boosted pair that takes the steps; None without an optimizer.
        epoch_num: Epochs to train; None for training without end.
        batch_num: Batches per epoch; None where the dataset does not say.
        train_dataset: What is trained on; None in an evaluation.
        valid_dataset: What is evaluated; None where nothing is.
        list_callback: All callbacks of this run.
        cur_epoch_num: Present epoch, from 1; 0 before the first.
        cur_step_num: Present step (micro-batch) of the run, from 1; 0 before the first.
        cur_step_in_epoch: Present step of the epoch, from 1.
        train_dataset_element: The batch of this step, on the device.
        net_outputs: In training the loss before the update, shape ``()``; a ``BoostStep`` (loss, overflow, loss scale)
            where a loss scale or boosting is in effect. In an evaluation the outputs for the batch. On the device.
        outcome: Everything about this training step.
        online: Figures of online training, by column (``"online.auc"``); empty otherwise.
        metrics: Results of an evaluation, once it is complete.
        eval_results: Results of the last evaluation of ``fit`` in this epoch; empty where there was none.
    """

    mode: Literal["train", "eval", "fit"]
    network: nn.Module
    list_callback: CallbackList
    loss_fn: Any = None
    optimizer: Optimizer | None = None
    train_network: nn.Module | None = None
    eval_network: nn.Module | None = None
    boosted: Boosted | None = None
    epoch_num: int | None = None
    batch_num: int | None = None
    train_dataset: Any = None
    valid_dataset: Any = None
    cur_epoch_num: int = 0
    cur_step_num: int = 0
    cur_step_in_epoch: int = 0
    train_dataset_element: Any = None
    net_outputs: Any = None
    outcome: StepOutcome | None = None
    online: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] | None = None
    eval_results: Mapping[str, float] = field(default_factory=dict)


class RunContext:
    """What a callback is given: the state of the run, and the means to stop it.

    Args:
        parameters: State of the run.
    """

    def __init__(self, parameters: CallbackParameters) -> None:
        self._parameters = parameters
        self._stop_requested = False

    def original_args(self) -> CallbackParameters:
        """Return the state of the run."""
        return self._parameters

    def request_stop(self) -> None:
        """End training after the present step; asked for at the end of an epoch, after that epoch.

        On several ranks every rank has to ask for it at the same step, or the others wait for this one.
        """
        self._stop_requested = True

    def get_stop_requested(self) -> bool:
        """Return whether the run is about to end."""
        return self._stop_requested


class Callback:
    """Something to be told of a training or an evaluation; override what is of interest.

    The older names are called by the newer ones, except in evaluations inside ``fit``, where a ``begin`` and ``end``
    amid training would be taken for those of the training.

    Example:
        >>> class StopAtStep(Callback):
        ...     def on_train_step_end(self, run_context):
        ...         if run_context.original_args().cur_step_num == 100:
        ...             run_context.request_stop()
    """

    def __enter__(self) -> Self:
        """Return the callback; called before everything else."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clean up; called after everything else, with the exception that ended the run, if one did.

        Args:
            kind: Class of the exception; None without one.
            error: The exception.
            trace: Its traceback.
        """

    def begin(self, run_context: RunContext) -> None:
        """Be told that training or evaluation begins (older name)."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """Be told that an epoch begins (older name)."""

    def step_begin(self, run_context: RunContext) -> None:
        """Be told that a step begins (older name)."""

    def step_end(self, run_context: RunContext) -> None:
        """Be told that a step has ended (older name)."""

    def epoch_end(self, run_context: RunContext) -> None:
        """Be told that an epoch has ended (older name)."""

    def end(self, run_context: RunContext) -> None:
        """Be told that training or evaluation has ended (older name)."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Be told that training begins."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Be told that an epoch begins."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """Be told that a step begins; its batch is there."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Be told that a step has ended; its outcome is there."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Be told that an epoch has ended, with the evaluation that ``fit`` may have made after it."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Be told that training has ended."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Be told that an evaluation begins."""
        if _is_eval(run_context):
            self.begin(run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """Be told that the pass over the evaluation data begins."""
        if _is_eval(run_context):
            self.epoch_begin(run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """Be told that a batch is about to be evaluated."""
        if _is_eval(run_context):
            self.step_begin(run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """Be told that a batch was evaluated."""
        if _is_eval(run_context):
            self.step_end(run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """Be told that the pass over the evaluation data has ended; the metrics are there."""
        if _is_eval(run_context):
            self.epoch_end(run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """Be told that the evaluation has ended."""
        if _is_eval(run_context):
            self.end(run_context)


class CallbackList:
    """Several callbacks as one, called in their order.

    Args:
        callbacks: One callback, an iterable of them, or None.

    Raises:
        TypeError: When one of them is no callback.
    """

    def __init__(self, callbacks: Callback | Iterable[Callback] | None = None) -> None:
        given = [callbacks] if callbacks is None or isinstance(callbacks, Callback) else callbacks
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise TypeError(f"`callbacks` must be a Callback or a list of them, got {type(given).__name__}")
        self.callbacks = [callback for callback in given if callback is not None]
        for callback in self.callbacks:
            if not isinstance(callback, Callback):
                name = callback.__name__ if isinstance(callback, type) else type(callback).__name__
                hint = "; write it with ()" if isinstance(callback, type) else "; derive its class from Callback"
                raise TypeError(f"`callbacks` must hold Callback objects, got {name}{hint}")
        self._entered = contextlib.ExitStack()

    def __enter__(self) -> Self:
        """Enter all callbacks."""
        with contextlib.ExitStack() as stack:  # should one fail, those before it are left again
            for callback in self.callbacks:
                stack.enter_context(callback)
            self._entered = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave all callbacks, the last one first.

        Args:
            kind: Class of the exception; None without one.
            error: The exception.
            trace: Its traceback.
        """
        self._entered.__exit__(kind, error, trace)

    def tell(self, moment: Moment, run_context: RunContext) -> None:
        """Call one method of every callback.

        Args:
            moment: Name of the method.
            run_context: What they are given.
        """
        for callback in self.callbacks:
            getattr(callback, moment)(run_context)


class LossMonitor(Callback):
    """Print the loss every so many steps, on the first rank, and end a training whose loss is no number.

    A printed loss waits for the device; the others do not.

    Args:
        per_print_times: Steps between two lines, at least 1.

    Raises:
        TypeError: When it is no whole number.
        ValueError: When it is below 1; in training, when a loss that is due to be printed is NaN or infinite and the
            step was not skipped for an overflow.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        self.per_print_times = _at_least_one("per_print_times", per_print_times)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Print the loss of the step, when it is its turn.

        Raises:
            ValueError: When the loss is NaN or infinite.
        """
        state = run_context.original_args()
        if state.cur_step_num % self.per_print_times:
            return
        loss = float(loss_of(state.net_outputs))
        where = f"epoch: {state.cur_epoch_num} step: {state.cur_step_in_epoch}"
        if not math.isfinite(loss) and not _was_skipped(state):
            raise ValueError(f"{where}: the loss is {loss}, training cannot go on; lower the learning rate")
        if ranks.rank() == 0:
            print(f"{where}, loss is {loss}", flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print what an evaluation of ``fit`` found."""
        state = run_context.original_args()
        if state.eval_results and ranks.rank() == 0:
            print(f"Eval result: epoch {state.cur_epoch_num}, metrics: {dict(state.eval_results)}", flush=True)


class TimeMonitor(Callback):
    """Print the time of each epoch and of its steps, on the first rank.

    On an asynchronous device this is the time until the last step was handed over.

    Args:
        data_size: Steps to divide an epoch's time by; None for those it had.

    Raises:
        TypeError: When it is no whole number.
        ValueError: When it is below 1.
    """

    def __init__(self, data_size: int | None = None) -> None:
        self.data_size = None if data_size is None else _at_least_one("data_size", data_size)
        self._began = 0.0

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the times."""
        milliseconds = (time.perf_counter() - self._began) * 1e3
        steps = self.data_size or run_context.original_args().cur_step_in_epoch
        if ranks.rank() == 0:
            each = milliseconds / max(steps, 1)
            print(f"Train epoch time: {milliseconds:5.3f} ms, per step time: {each:5.3f} ms", flush=True)


def loss_of(net_outputs: Any) -> Tensor:
    """Return the loss in what a training step gave: itself, or the first of several outputs.

    Args:
        net_outputs: ``original_args().net_outputs`` of a training step.
    """
    while isinstance(net_outputs, (tuple, list)):
        net_outputs = net_outputs[0]
    loss: Tensor = net_outputs
    return loss


def _is_eval(run_context: RunContext) -> bool:
    return run_context.original_args().mode == "eval"


def _was_skipped(state: CallbackParameters) -> bool:
    return state.boosted is not None and state.outcome is not None and state.boosted.skips(state.outcome)


def _at_least_one(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"`{name}` must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"`{name}` must be at least 1, got {value}")
    return value
