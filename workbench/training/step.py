"""One training step, written once: the loop, the train-one-step modules and a user's own loop all use it.

In pseudocode, each line with the reason for its place::

    schedule.begin_step()                    # the forward pass must know what needs gradients, or activations are saved
    with autocast: loss = network(batch)     # the caller's line, in the level's number format
    (loss * scale / n).backward()            # scaled before, so that small gradients survive; they add up in .grad
    if the window is complete:               # step()
        average the gradients over ranks     # once per window, before the test, so that all ranks see the same
        found_inf = unscale_and_check(grads) # one pass over them, and the device's own overflow flag, where it has one
        observer(grads)                      # the trace looks at the unscaled gradients
        clip(grads), if asked for            # without the scale, too
        update unless found_inf              # the optimizer's step or a method's; decided on the device if possible
        scale rule(found_inf)                # between windows only, so one window has one scale
        schedule.advance(); clear gradients
        learning-rate schedule, if any       # per attempted update, so that no device is waited for
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.config import Plan
from workbench.core.arguments import checked_number
from workbench.core.records import EventSink
from workbench.core.sparse_tables import values_of
from workbench.core.step_optimizer import clear_gradients, held_parameters
from workbench.core.torch_internals import mark_stepped
from workbench.core.wrapped_model import allow_one_graph_per_group
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.accumulation_window import AccumulationWindow
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.plan_mark import boosted_module_of
from workbench.methods.protocol import GroupSchedule, NoFreezing
from workbench.methods.weight_update import CompleteWindow
from workbench.training.averaged_weights import OptimizersAverage, averages_weights
from workbench.training.course import Course
from workbench.training.everything_trained import EverythingTrained
from workbench.training.gradient_reduction import GradientReduction, largest_over_ranks, without_sync
from workbench.training.outcome import StepOutcome
from workbench.training.overflow_check import OverflowCheck
from workbench.training.pass_graphs import PassGraphs
from workbench.training.precision import Precision, avoid_broken_kernel_, warn_of_short_moments

_SHORT = frozenset({torch.float16, torch.bfloat16})

#: Called at the end of every window with the trained parameters that have gradients, before the update.
GradientObserver = Callable[[list[nn.Parameter]], object]


class TrainingStep:
    """The step of a model and its optimizer under a plan; `Boosted` adds what surrounds the steps of a run."""

    #: Whether the model has the weights to use already, since training is over; an evaluation then changes nothing.
    has_weights_to_use = False

    def __init__(
        self,
        model: nn.Module,  # processed
        optimizer: Optimizer,  # processed; it may train another group from step to step (`GroupSchedule`)
        *,
        loss_scaling: LossScaling | None = None,  # scale, rule and skip decision
        accumulation_steps: int = 1,  # micro-batches per update, multiplied by those the plan's methods ask for
        precision: Precision | None = None,  # None means as built
        plan: Plan | None = None,  # what is in effect; its methods take part in the step
        notes: Sequence[str] = (),  # what became of the network, one line each
        criterion: Any = None,  # of the unmodified training; `criterion` of this object is the one to train with
        make_scheduler: Callable[[Optimizer, int], Any] | None = None,  # of the unmodified training, see `Course`
        max_grad_norm: float | None = None,  # to which an update's gradients are clipped, without the loss scale
        passes: PassGraphs | None = None,  # where passes are captured
    ) -> None:
        self.model, self.optimizer, self.plan, self.notes = model, optimizer, plan, tuple(notes)
        self.methods = MethodsInEffect(plan)
        prepared = boosted_module_of(model)
        prepared = model if prepared is None else prepared  # an empty container is false, and some wrappers neither
        self.window = AccumulationWindow(accumulation_steps * self.methods.n_micro())
        self.update = self.methods.update(prepared, optimizer)
        self._average = OptimizersAverage(model, optimizer) if averages_weights(optimizer) else None
        self.hooks = self.methods.step_hooks(prepared, optimizer)  # by the names of methods
        self.course = Course(
            self.methods, optimizer, self.window.n_steps, make_scheduler, takes_schedule=self.update.takes_schedule
        )
        self.criterion = self.methods.criterion(criterion)
        self._trained = EverythingTrained(model, optimizer)
        self.device = next((p.device for p in self._trained.named().values()), torch.device("cpu"))
        self.loss_scaling = loss_scaling or LossScaling(device=self.device)
        self.precision = precision or Precision("O0", "float16", self.device.type)
        self.max_grad_norm = (
            None if max_grad_norm is None else checked_number("max_grad_norm", max_grad_norm, above=0.0)
        )
        self.observer: GradientObserver | None = None
        self.graph_observer: Callable[[Tensor], None] | None = None
        self.events: EventSink | None = None
        self.step_index = 0
        self._schedule: GroupSchedule = optimizer if isinstance(optimizer, GroupSchedule) else NoFreezing(optimizer)
        #: How many leading parameter groups are frozen in the coming step.
        self.frozen_groups = self._schedule.begin_step()
        self._unchecked_groups = set(range(self._schedule.n_groups))
        self._room_for_graphs = isinstance(self._schedule, NoFreezing)
        self._overflow_check = OverflowCheck(self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._reciprocal_of_window = self._one / self.window.n_steps
        self._passes = None if self._average is not None and self._average.keeps_inputs else passes
        self._loss: Tensor | None = None  # of the pass that waits for its step
        self._witness: nn.Parameter | None = None  # one that has got a gradient in a window that is not complete
        self._reduction: GradientReduction | None = None
        self._distributed = False
        if isinstance(model, DistributedDataParallel):
            self.loss_scaling.agree = largest_over_ranks
        avoid_broken_kernel_(self._active_optimizer, optimizer.param_groups)
        warn_of_short_moments(self._active_optimizer)

    @property
    def loss_scale(self) -> Tensor:
        """Return the live loss scale, float32, on the device."""
        return self.loss_scaling.scale

    # -- the passes of a micro-batch -----------------------------------------------------------------------------------

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        precision = self.precision.autocast() if self.loss_scaling.autocast_allowed else contextlib.nullcontext()
        if self.window.position + 1 < self.window.n_steps and isinstance(self.model, DistributedDataParallel):
            return without_sync(self.model, precision)
        return precision  # as it is: another context around it would cost every micro-batch 20 microseconds

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one micro-batch, scaled, from its loss (one element); gradients add up in ``.grad``.

        An update begins without gradients: those that another loss has left are dropped, as by ``zero_grad``. Where the
        pass fails, or is interrupted, the gradients of its window are dropped, and the next one begins a window.

        Raises:
            RuntimeError: If ``step`` did not follow the previous ``backward``, the loss has no gradient, or layers are
                frozen in a model with reentrant activation checkpoints.
        """
        self._begin_pass()
        self._backward(loss)
        self._end_pass(loss.detach())

    def forward_backward(self, compute_loss: Callable[[nn.Module, Any], Tensor], batch: Any) -> Tensor:
        """Run forward and backward pass of one micro-batch; return the detached loss. ``step`` follows.

        In place of ``autocast``, the loss and ``backward``; with ``runtime.cuda_graph`` both passes are one graph.

        Args:
            compute_loss: Gives the loss of (model, batch), one element; the same function in every step.
            batch: On the device; all that ``compute_loss`` takes from it.

        Raises:
            RuntimeError: As from ``backward``.
        """
        if not self.replay_pass(compute_loss, batch):
            with self.autocast():
                loss = compute_loss(self.model, batch)
            self.backward(loss)
        assert self._loss is not None  # the pass has just kept it
        return self._loss

    def replay_pass(self, compute_loss: Callable[[nn.Module, Any], Tensor], batch: Any) -> bool:
        """Do what `forward_backward` does, if it is to be one graph; False where the passes are the caller's to do."""
        if self._passes is None:
            return False
        self._begin_pass()

        def work(batch: Any) -> Tensor:
            with self.autocast():
                loss = compute_loss(model, batch)
            self._backward(loss)
            return loss.detach()

        model = self._passes.model
        settings = (compute_loss, model.training, self.frozen_groups, self.loss_scaling.scale.data_ptr())
        n_held = sum(len(group["params"]) for group in self.optimizer.param_groups)
        options: Any = {"n_held": n_held, "alone": self.window.n_steps == 1, "criterion": self.criterion}
        try:
            loss = self._passes.run(work, batch, lambda: self._trained.named().values(), settings, **options)
        except BaseException:  # half of the gradients would be added to those of a second try
            self._trained.set_gradients_({})
            self.window.reset()
            raise
        if loss is None:
            return False
        self._end_pass(loss)
        return True

    @property
    def replays_passes(self) -> bool:
        """Whether passes are replayed as graphs, which each training has to capture for itself."""
        return self._passes is not None and self._passes.has_graphs

    def forget_pass(self) -> Tensor:
        """Drop the gradients of a pass that no ``step`` is to follow, between windows; return its loss."""
        if self._loss is None or self.window.position:
            raise RuntimeError("forget_pass() follows the pass that begins a window")
        loss, self._loss = self._loss, None
        self._trained.set_gradients_({})
        return loss

    def accept_gradients(self, loss: Tensor, parameters: list[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """Take gradients computed elsewhere in place of ``backward``; they add up in ``.grad``, divided by the window.

        They must be multiplied by the loss scale in force. What ``.grad`` held before the first pass of an update is
        dropped, as in ``backward``. If overflows show only in the device's flag (an NPU in saturation mode), those of
        the passes that computed the gradients go unnoticed.
        """
        self._begin_pass()
        self._begin_overflow_watch()
        self._loss = loss.detach()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # Laid out as the parameter: fused kernels go through both as if they were, or refuse.
            share = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach()).div_(self.window.n_steps)
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)

    def _begin_pass(self) -> None:
        if self._loss is not None:
            raise RuntimeError("backward() was already called for this micro-batch; call step() before the next one")
        if self.window.position and self._witness is not None and self._witness.grad is None:
            raise RuntimeError(
                f"the gradients of {self.window.position} micro-batches are gone before their update; leave out "
                "zero_grad(), since step() clears them after each update"
            )
        if self.window.position == 0:  # a generator's loss, for example, leaves gradients in its discriminator
            clear_gradients(self.optimizer)
            self._witness = None

    def _begin_overflow_watch(self) -> None:
        if self.window.position == 0:  # one watch for all micro-batches of a window
            self._overflow_check.begin_window(self.loss_scaling)

    def _backward(self, loss: Tensor) -> None:
        self._begin_overflow_watch()
        if self.graph_observer is not None:
            self.graph_observer(loss)
        if self.frozen_groups in self._unchecked_groups:  # once each: a walk of the graph takes about a millisecond
            self._schedule.check_graph(loss)
            self._unchecked_groups.discard(self.frozen_groups)
        scaled, initial_gradient = self._scaled(loss)
        if scaled.requires_grad:
            try:
                torch.autograd.backward(scaled, initial_gradient)
            except BaseException:  # half of them would be added to those of a second try
                clear_gradients(self.optimizer)
                self.window.reset()
                raise
        elif not self.frozen_groups:  # a loss that only frozen layers feed has none on such a step
            hint = "was it detached, or computed under torch.no_grad(), or is every parameter frozen (requires_grad)?"
            raise RuntimeError(f"the loss has no gradient; {hint}")

    def _scaled(self, loss: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return what to differentiate, and the gradient to begin with (None: 1): the loss by its scale and window."""
        # Reduced precision losses are widened first: 65504 would otherwise be the largest scaled loss.
        loss = loss.float() if loss.dtype in _SHORT else loss
        initial_gradient: Tensor | None = None
        if self.loss_scaling.is_unit and loss.dtype == torch.float32 and loss.ndim == 0:
            # The backward pass may as well begin with 1 / N, which is what a division of the loss would hand on.
            reciprocal = self._reciprocal_of_window
            initial_gradient = reciprocal if loss.device == reciprocal.device else None
        elif self.window.n_steps == 1:
            initial_gradient = self.loss_scaling.seed_gradient(loss)
        if initial_gradient is not None:
            return loss, initial_gradient
        share = loss / self.window.n_steps if self.window.n_steps > 1 else loss
        return self.loss_scaling.seed(share), None

    def _end_pass(self, loss: Tensor) -> None:
        """Keep the detached loss of a micro-batch whose gradients are there."""
        if self.window.position == 0 and self.window.n_steps > 1:
            held = held_parameters(self.optimizer)
            self._witness = next((parameter for parameter in held if parameter.grad is not None), None)
        if not loss.is_cpu and "torch._dynamo" in sys.modules:
            # A graph of torch.compile's may be a CUDA graph, which writes its next results over these.
            loss = loss.clone()  # outcomes keep it
            if self.window.position == 0 and self.window.n_steps > 1:
                self._own_gradients()
        self._loss = loss  # last: a backward pass that failed may be tried again

    def _own_gradients(self) -> None:
        """Copy the gradients of a window's first micro-batch; later ones are added to the copies."""
        for parameter in held_parameters(self.optimizer):
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    # -- the end of a micro-batch, and of its window -------------------------------------------------------------------

    def step(self, closure: Callable[[], Tensor] | None = None) -> StepOutcome:
        """End the micro-batch; at the end of a window update the weights, or skip, and adapt the scale.

        ``closure`` computes the loss of the same micro-batch at the weights as they are, for example
        ``lambda: criterion(boosted.model(x), y)``; only an update that tries its steps needs it. A RuntimeError if
        it is missing, or if ``backward`` or ``distribute`` was not called. Tensors of the outcome stay on the device.
        """
        if self._loss is None:
            raise RuntimeError("step() needs the gradients of a micro-batch; call backward(loss) first")
        loss, self._loss = self._loss, None
        if not self._room_for_graphs and "torch._dynamo" in sys.modules:
            allow_one_graph_per_group(self._schedule.n_groups)  # now only: torch.compile takes a second to load
            self._room_for_graphs = True
        if self.update.needs_distribute and not self._distributed:
            raise RuntimeError(self.update.needs_distribute)
        scaling, rate, frozen = self.loss_scaling, self._rate_now(), self.frozen_groups
        complete = self.window.advance()
        accumulated = self.window.n_steps if complete else self.window.position
        # The rule changes the scale in place, and outcomes may be read later: each keeps the value of its step.
        used = after = scaling.shown_scale() if scaling.moves else scaling.scale
        groups = None if scaling.group_scales is None else scaling.group_scales.clone()
        overflow = scaling.no_overflow
        columns: Mapping[str, float] = {}
        if complete:
            overflow, columns = self._end_window(loss, closure)
            if scaling.moves:
                after = scaling.shown_scale()
        outcome = StepOutcome(
            self.step_index, loss, overflow, used, after, complete, accumulated, frozen, rate, groups, columns
        )
        self.step_index += 1
        return outcome

    def skips(self, outcome: StepOutcome) -> bool:
        """Return whether a step's update was dropped because of an overflow; waits for the device to know."""
        return self.loss_scaling.drop_overflow_update and bool(outcome.overflow)

    def _rate_now(self) -> float | Tensor:
        """Return the first group's learning rate, which stays so, without a wait; NaN where there is none."""
        rate = self.optimizer.param_groups[0].get("lr")
        if rate is None:  # an optimizer may have none, or find its own
            return math.nan
        return rate.detach().clone() if isinstance(rate, Tensor) else float(rate)

    def _end_window(self, loss: Tensor, closure: Callable[[], Tensor] | None) -> tuple[Tensor, Mapping[str, float]]:
        """Update the weights and prepare the next window; return the overflow flag and the methods' columns."""
        scaling, optimizer, check = self.loss_scaling, self._active_optimizer, self._overflow_check
        parameters = self._with_gradients(optimizer)
        overflow = check.unscale_(parameters, optimizer, scaling) if scaling.unscales else scaling.no_overflow
        if self.observer is not None:
            self.observer(parameters)
        left = self._one if scaling.unscales or scaling.is_unit else scaling.scale.reshape(())
        if self.max_grad_norm is not None:
            norm = nn.utils.get_total_norm([values_of(one.grad) for one in parameters if one.grad is not None])
            nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm / left)
        window = CompleteWindow(
            self.step_index,
            optimizer,
            loss,
            check.found_inf if scaling.drop_overflow_update else None,
            left,
            None if closure is None else lambda: self._evaluate(closure),
            self.events,
            scaling.scale_of if scaling.unscales else None,
        )
        for hook in self.hooks.values():
            hook.before_update(window)
        columns = self.update(window)
        for hook in self.hooks.values():
            columns = {**columns, **hook.after_update(window)}
        if scaling.drop_overflow_update:
            scaling.after_window(overflow)
        mark_stepped(self.optimizer)  # an update was attempted
        self.has_weights_to_use = False
        self._schedule.advance()
        clear_gradients(self.optimizer)
        self.frozen_groups = self._schedule.begin_step()
        if self.course.has_schedule:
            self.course.advance()
        return overflow, columns

    def _with_gradients(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Average the gradients over ranks; return the parameters that have one, or none if nothing needs them."""
        is_looked_at = self.loss_scaling.unscales or self.observer is not None or self.max_grad_norm is not None
        if self._reduction is None and not is_looked_at:
            return []
        trained = held_parameters(optimizer)
        if self._reduction is not None:
            self._reduction.reduce_([parameter for parameter in trained if parameter.requires_grad])
        return [parameter for parameter in trained if parameter.grad is not None]

    def _evaluate(self, closure: Callable[[], Tensor]) -> Tensor:
        with self.autocast():
            return closure().float()

    @property
    def _active_optimizer(self) -> Optimizer:
        # Not `active_optimizer`: a group chosen by `use_freezing_group` need not be the schedule's.
        return self._schedule.optimizer_of(self.frozen_groups)
