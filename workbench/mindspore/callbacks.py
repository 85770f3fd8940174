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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, cast

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.training.outcome import StepOutcome

if TYPE_CHECKING:
    from workbench.training.boosted import Boosted


@dataclass
class CallbackParameters:
    """What is going on, as ``run_context.original_args()`` gives it; one object for the whole run, which changes."""

    mode: Literal["train", "eval", "fit"]  # "fit": an evaluation in the middle of a training
    network: nn.Module  # the one that the Model was made with
    list_callback: CallbackList  # all callbacks of this run
    loss_fn: Any = None  # criterion; None when the network returns the loss
    optimizer: Optimizer | None = None  # the one in use; learning-rate schedulers belong on it
    train_network: nn.Module | None = None  # returns the loss of a batch
    eval_network: nn.Module | None = None  # is evaluated
    boosted: Boosted | None = None  # the boosted pair that takes the steps; None without an optimizer
    epoch_num: int | None = None  # epochs to train; None for training without end
    batch_num: int | None = None  # batches per epoch; None where the dataset does not say
    train_dataset: Any = None  # None in an evaluation
    valid_dataset: Any = None  # None where nothing is evaluated
    cur_epoch_num: int = 0  # present epoch, from 1; 0 before the first
    cur_step_num: int = 0  # present step (micro-batch) of the run, from 1; 0 before the first
    cur_step_in_epoch: int = 0  # present step of the epoch, from 1
    train_dataset_element: Any = None  # the batch of this step, on the device
    # In training the loss before the update, shape (); a BoostStep (loss, overflow, loss scale) where a loss scale or
    # boosting is in effect. In an evaluation the outputs for the batch. On the device.
    net_outputs: Any = None
    outcome: StepOutcome | None = None  # everything about this training step
    online: Mapping[str, float] = field(default_factory=dict)  # figures of online training, by column ("online.auc")
    metrics: Mapping[str, float] | None = None  # results of an evaluation, once it is complete
    eval_results: Mapping[str, float] = field(default_factory=dict)  # those of `fit` in this epoch, if it evaluated


class RunContext:
    """What a callback is given: the state of the run, and the means to stop it."""

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
    """Called in the course of a training or an evaluation; override the methods you need.

    The older names are called by the newer ones, except in evaluations inside ``fit``, where a ``begin`` and ``end``
    would be taken for those of the training.

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
        """Clean up; called after everything else, with the exception that ended the run, if one did."""

    def begin(self, run_context: RunContext) -> None:
        """Training or evaluation begins (older name)."""

    def epoch_begin(self, run_context: RunContext) -> None:
        """An epoch begins (older name)."""

    def step_begin(self, run_context: RunContext) -> None:
        """A step begins (older name)."""

    def step_end(self, run_context: RunContext) -> None:
        """A step has ended (older name)."""

    def epoch_end(self, run_context: RunContext) -> None:
        """An epoch has ended (older name)."""

    def end(self, run_context: RunContext) -> None:
        """Training or evaluation has ended (older name)."""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Training begins."""
        self.begin(run_context)

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """An epoch begins."""
        self.epoch_begin(run_context)

    def on_train_step_begin(self, run_context: RunContext) -> None:
        """A step begins; its batch is there."""
        self.step_begin(run_context)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """A step has ended and its outcome is available."""
        self.step_end(run_context)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """An epoch has ended, with the evaluation that ``fit`` may have made after it."""
        self.epoch_end(run_context)

    def on_train_end(self, run_context: RunContext) -> None:
        """Training has ended."""
        self.end(run_context)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """An evaluation begins."""
        _outside_fit(self.begin, run_context)

    def on_eval_epoch_begin(self, run_context: RunContext) -> None:
        """The pass over the evaluation data begins."""
        _outside_fit(self.epoch_begin, run_context)

    def on_eval_step_begin(self, run_context: RunContext) -> None:
        """A batch is about to be evaluated."""
        _outside_fit(self.step_begin, run_context)

    def on_eval_step_end(self, run_context: RunContext) -> None:
        """A batch was evaluated."""
        _outside_fit(self.step_end, run_context)

    def on_eval_epoch_end(self, run_context: RunContext) -> None:
        """The pass over the evaluation data has ended; the metrics are there."""
        _outside_fit(self.epoch_end, run_context)

    def on_eval_end(self, run_context: RunContext) -> None:
        """The evaluation has ended."""
        _outside_fit(self.end, run_context)


class CallbackList:
    """One callback, an iterable of them, or none, as one that calls all in their order."""

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

    def __exit__(self, *exception: Any) -> None:
        """Leave all callbacks, the last one first."""
        self._entered.__exit__(*exception)

    def notify(self, moment: str, run_context: RunContext) -> None:
        """Call the method of this name of every callback."""
        for callback in self.callbacks:
            getattr(callback, moment)(run_context)


class LossMonitor(Callback):
    """Print the loss every so many steps, on the first rank, and raise when it is NaN or infinite.

    A printed loss waits for the device; the others do not.

    Args:
        per_print_times: Steps between two lines, at least 1.

    Raises:
        ValueError: When it is below 1; in training, when a loss that is due to be printed is NaN or infinite and the
            step was not skipped for an overflow.
    """

    def __init__(self, per_print_times: int = 1) -> None:
        self.per_print_times = checked_count("per_print_times", per_print_times)

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Print the loss of the step, when it is its turn; one that is NaN or infinite is a ValueError."""
        state = run_context.original_args()
        if state.cur_step_num % self.per_print_times:
            return
        loss = float(loss_of(state.net_outputs))
        where = f"epoch: {state.cur_epoch_num} step: {state.cur_step_in_epoch}"
        is_skipped = state.boosted is not None and state.outcome is not None and state.boosted.skips(state.outcome)
        if not (math.isfinite(loss) or is_skipped):
            raise ValueError(f"{where}: the loss is {loss}, training cannot continue; lower the learning rate")
        if ranks.rank() == 0:
            print(f"{where}, loss is {loss}", flush=True)

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print what an evaluation of ``fit`` found."""
        state = run_context.original_args()
        if state.eval_results and ranks.rank() == 0:
            print(f"Eval result: epoch {state.cur_epoch_num}, metrics: {dict(state.eval_results)}", flush=True)


class TimeMonitor(Callback):
    """Print the time of each epoch and of its steps, on the first rank.

    On an asynchronous device this is the time until the last step was issued.

    Args:
        data_size: Steps to divide an epoch's time by; None for those it had.
    """

    def __init__(self, data_size: int | None = None) -> None:
        self.data_size = None if data_size is None else checked_count("data_size", data_size)
        self._began = 0.0

    def on_train_epoch_begin(self, run_context: RunContext) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_train_epoch_end(self, run_context: RunContext) -> None:
        """Print the times."""
        milliseconds = (time.perf_counter() - self._began) * 1e3
        each = milliseconds / max(self.data_size or run_context.original_args().cur_step_in_epoch, 1)
        if ranks.rank() == 0:
            print(f"Train epoch time: {milliseconds:5.3f} ms, per step time: {each:5.3f} ms", flush=True)


def loss_of(net_outputs: Any) -> Tensor:
    """Return the loss in the ``net_outputs`` of a training step: itself, or the first of several."""
    while isinstance(net_outputs, (tuple, list)):
        net_outputs = net_outputs[0]
    return cast("Tensor", net_outputs)


def _outside_fit(older: Callable[[RunContext], None], run_context: RunContext) -> None:
    if run_context.original_args().mode == "eval":
        older(run_context)
