"""One training step, written once: the loop, the train-one-step modules and a user's own loop all use it.

The file is long because a step and its state belong to one class, the one that a training loop calls.

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
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer, SparseAdam

from workbench.config import Plan
from workbench.core import devices
from workbench.core.records import EventSink
from workbench.core.step_optimizer import StepOptimizer, clear_gradients
from workbench.core.torch_internals import mark_stepped, step_hooks
from workbench.core.wrapped_model import allow_one_graph_per_group, by_plain_names, unwrapped
from workbench.loss_scale import host_values
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.accumulation_window import AccumulationWindow
from workbench.methods.in_effect import MethodsInEffect
from workbench.methods.parameter_groups import register_step_hooks
from workbench.methods.plan_mark import boosted_module_of
from workbench.methods.protocol import GroupSchedule
from workbench.methods.weight_update import CompleteWindow
from workbench.training.averaged_weights import OptimizersAverage, averages_weights
from workbench.training.course import Course
from workbench.training.everything_trained import EverythingTrained
from workbench.training.gradient_reduction import (
    GradientReduction,
    broadcast_from_first,
    largest_over_ranks,
    require_same_tensors,
    without_sync,
)
from workbench.training.outcome import StepOutcome
from workbench.training.pass_graphs import PassGraphs
from workbench.training.precision import Precision, avoid_broken_kernel_, warn_of_short_moments
from workbench.training.state_owner import refuse_another, set_up_of

_SHORT = frozenset({torch.float16, torch.bfloat16})
_STATEFUL = ("optimizer", "loss_scaling", "window", "update")

#: Called at the end of every window with the trained parameters that have gradients, before the update.
GradientObserver = Callable[[list[nn.Parameter]], object]


class Boosted:
    """A model and its optimizer under a plan, for a training loop of any kind; made by `apply`, or by hand.

    Example::

        boosted = apply(config, model, optimizer, epochs * len(loader), criterion=criterion)
        for x, y in boosted.batches(loader, epochs):
            with boosted.autocast():
                loss = boosted.criterion(boosted.model(x), y)
            boosted.backward(loss)
            boosted.step()
        with boosted.evaluating():
            accuracy = evaluate(model)
    """

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
        criterion: Any = None,  # of the unmodified training; `boosted.criterion` is the one to train with
        make_scheduler: Callable[[Optimizer, int], Any] | None = None,  # of the unmodified training, see `Course`
        max_grad_norm: float | None = None,  # to which an update's gradients are clipped, without the loss scale
        passes: PassGraphs | None = None,  # where passes are captured
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.notes = tuple(notes)
        self._trained = EverythingTrained(model, optimizer)
        self.device = next((p.device for p in self._trained.named().values()), torch.device("cpu"))
        self._has_overflow_flag = devices.has_overflow_flag(self.device)  # asked once: a step elsewhere pays nothing
        self.loss_scaling = loss_scaling or LossScaling(device=self.device)
        self.precision = precision or Precision("O0", "float16", self.device.type)
        self.methods = MethodsInEffect(plan)
        prepared = boosted_module_of(model)
        prepared = model if prepared is None else prepared  # an empty container is false, and some wrappers neither
        self.window = AccumulationWindow(accumulation_steps * self.methods.n_micro())
        self.update = self.methods.update(prepared, optimizer)
        self.hooks = self.methods.step_hooks(prepared, optimizer)
        self.criterion = self.methods.criterion(criterion)
        self.course = Course(
            self.methods, optimizer, self.window.n_steps, make_scheduler, takes_schedule=self.update.takes_schedule
        )
        self._average = OptimizersAverage(model, optimizer) if averages_weights(optimizer) else None
        self._passes = None if self._average is not None and self._average.keeps_inputs else passes
        self.max_grad_norm = max_grad_norm
        self.observer: GradientObserver | None = None
        self.graph_observer: Callable[[Tensor], None] | None = None
        self.events: EventSink | None = None
        self.step_index = 0
        self._schedule = optimizer if isinstance(optimizer, GroupSchedule) else None
        #: How many leading parameter groups are frozen in the coming step.
        self.frozen_groups = self._schedule.begin_step() if self._schedule is not None else 0
        self._unchecked_groups = set() if self._schedule is None else set(range(self._schedule.n_groups))
        self._found_inf = torch.zeros((), dtype=torch.float32, device=self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._reciprocal_of_window = self._one / self.window.n_steps
        self._loss: Tensor | None = None
        self._witness: nn.Parameter | None = None  # one that has got a gradient in a window that is not complete
        self._reduction: GradientReduction | None = None
        self._distributed = False
        self._room_for_graphs = self._schedule is None
        if isinstance(model, DistributedDataParallel):
            self.loss_scaling.agree = largest_over_ranks
        avoid_broken_kernel_(self._active_optimizer, self.optimizer.param_groups)
        warn_of_short_moments(self._active_optimizer)

    @property
    def loss_scale(self) -> Tensor:
        """Return the live loss scale, float32, on the device."""
        return self.loss_scaling.scale

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        precision = self.precision.autocast() if self.loss_scaling.autocast_allowed else contextlib.nullcontext()
        if self.window.position + 1 < self.window.n_steps and isinstance(self.model, DistributedDataParallel):
            return without_sync(self.model, precision)
        return precision  # as it is: another context around it would cost every micro-batch 20 microseconds

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one micro-batch, scaled, from its loss (one element); gradients add up in ``.grad``.

        Where it fails, or is interrupted, the gradients of its window are dropped, and the next pass begins a window.

        Raises:
            RuntimeError: If ``step`` did not follow the previous ``backward``, the loss has no gradient, or layers are
                frozen in a model with reentrant activation checkpoints.
        """
        self._check_pass_may_begin()
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
        self._check_pass_may_begin()

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

    def _check_pass_may_begin(self) -> None:
        if self._loss is not None:
            raise RuntimeError("backward() was already called for this micro-batch; call step() before the next one")
        if self.window.position and self._witness is not None and self._witness.grad is None:
            raise RuntimeError(
                f"the gradients of {self.window.position} micro-batches are gone before their update; leave out "
                "zero_grad(), since step() clears them after each update"
            )

    def _backward(self, loss: Tensor) -> None:
        self._begin_overflow_watch()
        if self.graph_observer is not None:
            self.graph_observer(loss)
        if self.frozen_groups in self._unchecked_groups:  # once each: a walk of the graph takes about a millisecond
            if self._schedule is not None:
                self._schedule.check_graph(loss)
            self._unchecked_groups.discard(self.frozen_groups)
        # Reduced precision losses are widened first: 65504 would otherwise be the largest scaled loss.
        scaled = loss.float() if loss.dtype in _SHORT else loss
        initial_gradient: Tensor | None = None
        if self.loss_scaling.is_unit and scaled.dtype == torch.float32 and scaled.ndim == 0:
            # The backward pass may as well begin with 1 / N, which is what a division of the loss would hand on.
            reciprocal = self._reciprocal_of_window
            initial_gradient = reciprocal if scaled.device == reciprocal.device else None
        elif self.window.n_steps == 1:
            initial_gradient = self.loss_scaling.seed_gradient(scaled)
        if initial_gradient is None:
            if self.window.n_steps > 1:
                scaled = scaled / self.window.n_steps
            scaled = self.loss_scaling.seed(scaled)
        if scaled.requires_grad:
            try:
                torch.autograd.backward(scaled, initial_gradient)
            except BaseException:  # half of them would be added to those of a second try
                clear_gradients(self.optimizer)
                self.window.reset()
                raise
        elif not self.frozen_groups:  # a loss that only frozen layers feed has none on such a step
            raise RuntimeError("the loss has no gradient; was it detached, or computed under torch.no_grad()?")

    def _end_pass(self, loss: Tensor) -> None:
        """Keep the detached loss of a micro-batch whose gradients are there."""
        if self.window.position == 0 and self.window.n_steps > 1:
            held = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
            self._witness = next((parameter for parameter in held if parameter.grad is not None), None)
        if not loss.is_cpu and "torch._dynamo" in sys.modules:
            # A graph of torch.compile's may be a CUDA graph, which writes its next results over these.
            loss = loss.clone()  # outcomes keep it
            if self.window.position == 0 and self.window.n_steps > 1:
                self._own_gradients()
        self._loss = loss  # last: a backward pass that failed may be tried again

    def _own_gradients(self) -> None:
        """Copy the gradients of a window's first micro-batch; later ones are added to the copies."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad = parameter.grad.clone()

    def accept_gradients(self, loss: Tensor, parameters: list[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """Take gradients computed elsewhere in place of ``backward``; they add up in ``.grad``, divided by the window.

        They must be multiplied by the loss scale in force. If overflows show only in the device's flag (an NPU in
        saturation mode), those of the passes that computed the gradients go unnoticed.
        """
        self._begin_overflow_watch()
        self._loss = loss.detach()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            # Laid out as the parameter: fused kernels go through both as if they were, or refuse.
            share = torch.empty_like(parameter, dtype=gradient.dtype).copy_(gradient.detach()).div_(self.window.n_steps)
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)

    def step(self, closure: Callable[[], Tensor] | None = None) -> StepOutcome:
        """End the micro-batch; at the end of a window update the weights, or skip, and adapt the scale.

        ``closure`` computes the loss of the same micro-batch at the weights as they are, for example
        ``lambda: criterion(boosted.model(x), y)``; only an update that tries its steps needs it. A RuntimeError if
        it is missing, or if ``backward`` or ``distribute`` was not called. Tensors of the outcome stay on the device.
        """
        if self._loss is None:
            raise RuntimeError("step() needs the gradients of a micro-batch; call backward(loss) first")
        loss, self._loss = self._loss, None
        if not self._room_for_graphs and "torch._dynamo" in sys.modules and self._schedule is not None:
            allow_one_graph_per_group(self._schedule.n_groups)  # now only: torch.compile takes a second to load
            self._room_for_graphs = True
        if self.update.needs_distribute and not self._distributed:
            raise RuntimeError(self.update.needs_distribute)
        scaling = self.loss_scaling
        given = self.optimizer.param_groups[0].get("lr")
        given = math.nan if given is None else given  # an optimizer may have none, or find its own
        # Of a tensor as it is now, and without a wait.
        rate = given if type(given) is float else given.detach().clone() if isinstance(given, Tensor) else float(given)
        frozen = self.frozen_groups
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

    def _end_window(self, loss: Tensor, closure: Callable[[], Tensor] | None) -> tuple[Tensor, Mapping[str, float]]:
        scaling, optimizer = self.loss_scaling, self._active_optimizer
        parameters: list[nn.Parameter] = []
        reads = self.observer is not None or self.max_grad_norm is not None
        if self._reduction is not None or reads or scaling.unscales:
            trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            if self._reduction is not None:
                self._reduction.reduce_([parameter for parameter in trained if parameter.requires_grad])
            parameters = [parameter for parameter in trained if parameter.grad is not None]
        overflow = scaling.no_overflow
        if scaling.unscales:
            self._found_inf.zero_()
            if self._has_overflow_flag and (flag := devices.device_overflow(self.device)) is not None:
                self._found_inf.copy_(flag)
            if self._has_overflow_flag and scaling.agree is not None:
                scaling.agree(self._found_inf)  # now, since scale groups decide in `unscale_` whose scale falls
            scaling.unscale_(parameters, self._found_inf)
            if isinstance(optimizer, StepOptimizer):  # gradients may have left the device during the backward pass
                optimizer.unscale_offloaded_(scaling.scale_of, self._found_inf)
            if scaling.agree is not None:  # averaged gradients are equal on all ranks, those of servers apart differ
                scaling.agree(self._found_inf)
            if not host_values.reads_without_waiting(self._found_inf) or self._found_inf.item():
                overflow = self._found_inf > 0
        if self.observer is not None:
            self.observer(parameters)
        left = self._one if scaling.unscales or scaling.is_unit else scaling.scale.reshape(())
        if self.max_grad_norm is not None:
            norm = nn.utils.get_total_norm([one.grad for one in parameters if one.grad is not None])
            nn.utils.clip_grads_with_norm_(parameters, self.max_grad_norm, norm / left)
        window = CompleteWindow(
            self.step_index,
            optimizer,
            loss,
            self._found_inf if scaling.drop_overflow_update else None,
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
        if self._schedule is not None:
            self._schedule.advance()
        clear_gradients(self.optimizer)
        if self._schedule is not None:
            self.frozen_groups = self._schedule.begin_step()
        if self.course.has_schedule:
            self.course.advance()
        return overflow, columns

    def _begin_overflow_watch(self) -> None:
        # One watch for all micro-batches of a window.
        if self._has_overflow_flag and self.loss_scaling.unscales and self.window.position == 0:
            devices.begin_overflow_watch(self.device)

    def _evaluate(self, closure: Callable[[], Tensor]) -> Tensor:
        with self.autocast():
            return closure().float()

    @property
    def _active_optimizer(self) -> Optimizer:
        # Not `active_optimizer`: a group chosen by `use_freezing_group` need not be the schedule's.
        return self._schedule.optimizer_of(self.frozen_groups) if self._schedule is not None else self.optimizer

    @property
    def updates(self) -> int | None:
        """Return the updates of the whole run; None until its length is known."""
        return self.course.updates

    def batches(
        self, loader: Iterable[Any], epochs: int | None = None, *, start: int = 0
    ) -> Generator[Any, None, None]:
        """Return the batches of the run, on the device: merged, cut and resized, and as many as the set-up asks for.

        Settings of the whole process (threads, precision of products) hold until the iterator's end.

        Args:
            loader: Batches of the original loader, iterated again for each epoch; samplers are given the epoch.
            epochs: Epochs of the unmodified training; None takes as many as ``total_steps`` needs.
            start: Batches to leave out: ``boosted.step_index`` where training is resumed. They are read again, in the
                order in which they were trained on, and random generators are put back afterwards.

        Raises:
            ValueError: When the length of the run is not known, or not the ``total_steps`` that ``apply`` was given;
                while iterating, when an epoch holds no batch or the loader ends before the run.
        """
        return self.course.batches(loader, epochs, self.device, start=start)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Surround an evaluation, or the saving of the weights to use: averages take the weights' place meanwhile.

        An optimizer that averages (it has ``train()`` and ``eval()``, as Schedule-Free ones do) puts its average in,
        with BatchNorm's statistics estimated from the last training batches; then a method puts in its own.
        Afterwards weights and statistics are what they were, bit for bit. Modes and generators are the caller's.
        """
        model = unwrapped(self.model)
        average = contextlib.nullcontext() if self._average is None else self._average.in_place(model, self.precision)
        with average, self.methods.evaluating(model):
            yield

    def weights_to_use(self, module: nn.Module) -> dict[str, Tensor]:
        """Return copies of what a module that holds the model saves, with the weights to use."""
        with self.evaluating():
            return {name: value.clone() for name, value in module.state_dict().items()}

    def distribute(self, *, ddp: bool = False, **options: Any) -> nn.Module:
        """Let all ranks train together, between ``apply`` and the first step.

        Every rank takes the first one's buffers, also those of the criterion, and all that it trains. Then gradients
        are averaged at the end of every window, in buckets of our own: only gradients of what the freezing group trains
        are sent. BatchNorm statistics stay each rank's own until ``finish``, which hands out the first one's. The model
        to call is returned.

        Args:
            ddp: Wrap the model in DistributedDataParallel instead, which hides the exchange behind the backward pass.
            options: For DistributedDataParallel; ``find_unused_parameters`` is True when freezing is in effect.

        Raises:
            RuntimeError: If torch.distributed has not been initialised, or the ranks' models differ.
            ValueError: If ``ddp`` cannot average all gradients, or the update averages them in its own way.
        """
        if not (distributed.is_available() and distributed.is_initialized()):
            raise RuntimeError("distribute() needs a process group; call torch.distributed.init_process_group() first")
        if ddp and (reason := self.update.refuses_ddp or self._trained.why_not_under_ddp()):
            raise ValueError(reason)
        if options and not ddp:
            raise TypeError(f"distribute() takes {', '.join(options)} with ddp=True only")
        trained = self._trained.named()
        judge = nn.ModuleDict({"criterion": self.criterion} if isinstance(self.criterion, nn.Module) else {})
        judges = [*judge.named_parameters(), *judge.named_buffers()]
        require_same_tensors([*trained.items(), *self.model.named_buffers(), *judges])
        broadcast_from_first(tensor for _, tensor in judges)
        self.loss_scaling.agree = largest_over_ranks
        if ddp:
            unfrozen = self._schedule.unfreeze_all() if self._schedule is not None else contextlib.nullcontext()
            with unfrozen:
                defaults = {"find_unused_parameters": True} if self._schedule is not None else {}
                self.model = DistributedDataParallel(self.model, **{**defaults, **options})
            self._passes = None  # its exchange is hooked to the passes
            return self.model
        broadcast_from_first([*trained.values(), *self.model.buffers()])
        if self.update.averages_gradients:
            by_rows = isinstance(self._active_optimizer, SparseAdam)
            self._reduction = GradientReduction(self.update.server_group, by_rows=by_rows)
        self._distributed = True
        return self.model

    def use_freezing_group(self, index: int) -> None:
        """Freeze for a given group in the coming step (0: nothing), whatever the schedule; for measurements."""
        if self._schedule is None or self.window.position:
            raise RuntimeError("a freezing group can be chosen only when freezing is on, between windows")
        self._schedule.enter_group(index)
        self.frozen_groups = index

    def finish(self) -> None:
        """Let every parameter require gradients again, as before training; call it, on every rank, when it is over."""
        self.unfreeze()
        if self._distributed:
            broadcast_from_first(self.model.buffers())

    def unfreeze(self) -> None:
        """Let every parameter require gradients until the next window ends, without asking other ranks for anything."""
        if self._schedule is not None:
            self._schedule.unfreeze_all()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the data and the random generators.

        ``outside`` are parameters that the optimizer alone holds, ``gradients`` those of an unfinished window, by name;
        ``course``, ``methods`` and ``average`` (the last inputs, for BatchNorm's statistics) are included if there is a
        schedule, a method keeps a state, or the optimizer averages; ``criterion`` if that is a module. ``data`` are the
        generators that ordered what `batches` has read. On several ranks every rank keeps its own.
        """
        model = unwrapped(self.model)  # names as the user knows them, compiled or not
        gradients = self._trained.gradients() if self.window.position else {}
        outside = {name: p.detach() for name, p in self._trained.outside().items()}
        state = {"model": model.state_dict(), "outside": outside, "gradients": gradients, "step_index": self.step_index}
        state["set_up"] = set_up_of(self, self._active_optimizer)
        state |= {name: getattr(self, name).state_dict() for name in _STATEFUL}
        if isinstance(self.criterion, nn.Module):
            state["criterion"] = self.criterion.state_dict()
        if begun := self.course.order.state_dict():
            state["data"] = begun
        if self.course.has_schedule:
            state["course"] = self.course.state_dict()
        if self.hooks:
            state["methods"] = {name: hook.state_dict() for name, hook in self.hooks.items()}
        if self._average is not None:
            state["average"] = self._average.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` of the same set-up was taken, with the same bits on a CPU.

        A RuntimeError, before anything is changed, if the set-up or the model is another.
        """
        model = unwrapped(self.model)
        refuse_another(state.get("set_up"), set_up_of(self, self._active_optimizer))
        saved, gradients = (by_plain_names(state[part], model) for part in ("model", "gradients"))
        if other := sorted(model.state_dict().keys() ^ saved.keys()):
            raise RuntimeError(
                "exact resumption needs the same weights, but the BatchNorms had learned something else before "
                f"apply(), or the model differs: {', '.join(other[:3])}{', ...' if len(other) > 3 else ''} "
                "exist on one side only; boosted.model.load_state_dict() takes the weights alone"
            )
        model.load_state_dict(saved)
        if "outside" in state:  # earlier checkpoints have only what is in the model
            nn.ParameterDict(self._trained.outside()).load_state_dict(state["outside"])
        if "criterion" in state and isinstance(self.criterion, nn.Module):  # which earlier checkpoints left out
            self.criterion.load_state_dict(state["criterion"])
        self.course.order.load_state_dict(state.get("data", {}))
        if self.course.has_schedule:
            self.course.load_state_dict(state["course"])
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        for name, hook in self.hooks.items():
            hook.load_state_dict(state.get("methods", {}).get(name, {}))
        if self._average is not None:
            self._average.load_state_dict(state.get("average", {}))
        self.step_index = state["step_index"]
        if self._schedule is not None:
            self.frozen_groups = self._schedule.begin_step()
        self._trained.set_gradients_(gradients)
        self._loss = self._witness = None
        if self._passes is not None:
            self._passes.forget()  # the loss scale is another tensor

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: torch copies neither gradients nor hooks, and both belong to the next step."""
        parameters = self._trained.named().values()
        watched_by = {"observer": None, "graph_observer": None, "events": None}  # a trace, the original only
        return {
            "attributes": self.__dict__ | watched_by,
            "gradients": [(p, p.grad) for p in parameters if p.grad is not None],
            "hooks": step_hooks(self.optimizer),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["attributes"])
        for parameter, gradient in state["gradients"]:
            parameter.grad = gradient
        register_step_hooks(self.optimizer, state["hooks"])

    def __repr__(self) -> str:
        effect = self.plan.summary() if self.plan is not None else "no configuration"
        notes = "".join(f"{note}, " for note in self.notes)
        return f"Boosted({type(self.model).__name__}, {effect}, {notes}step {self.step_index})"
