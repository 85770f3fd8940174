"""One training step, written once: the loop, the train-one-step modules and a user's own loop all use it.

In pseudocode (``order.py`` gives the reasons for the order)::

    freeze.begin_step()                      # requires_grad of the coming window
    with autocast: loss = network(batch)     # the caller's line
    (loss * scale / n).backward()            # backward(); gradients add up in .grad
    if the window is complete:               # step()
        found_inf = unscale_and_check(grads)
        observer(grads)                      # the trace looks at the unscaled gradients
        optimizer.step() unless found_inf    # decided on the device where the optimizer can
        scale rule(found_inf)
        freeze.advance(); clear gradients
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.algorithms.grad_accumulation import AccumulationWindow
from workbench.algorithms.grad_freeze import FreezeOpt, allow_one_graph_per_group
from workbench.algorithms.optimizer_hooks import register_step_hooks, step_hooks
from workbench.config import Plan
from workbench.scaling import decides_on_device, step_if_finite
from workbench.training.loss_scaling import LossScaling
from workbench.training.outcome import StepOutcome
from workbench.training.precision import Precision, avoid_broken_kernel_

__all__ = ["Boosted", "GradientObserver"]

#: Called at the end of every window with the trained parameters that have gradients, before the update.
GradientObserver = Callable[[list[nn.Parameter]], None]


class Boosted:
    """A model and its optimizer under a plan, for a training loop of any kind.

    Four lines of a loop change::

        boosted = apply(config, model, optimizer)
        for x, y in loader:
            with boosted.autocast():
                loss = criterion(boosted.model(x), y)
            boosted.backward(loss)
            boosted.step()

    Args:
        model: The processed model.
        optimizer: The processed optimizer; a ``FreezeOpt`` when freezing is in effect.
        loss_scaling: Scale, rule and skip decision.
        accumulation_steps: Micro-batches per update (>= 1).
        precision: Number formats; None means as built.
        plan: What is in effect, for display; None when assembled by hand.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        loss_scaling: LossScaling | None = None,
        accumulation_steps: int = 1,
        precision: Precision | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.plan = plan
        self.device = _device_of(model, optimizer)
        self.loss_scaling = loss_scaling or LossScaling(device=self.device)
        self.precision = precision or Precision("O0", "float16", self.device.type)
        self.window = AccumulationWindow(accumulation_steps)
        self.observer: GradientObserver | None = None
        self.graph_observer: Callable[[Tensor], None] | None = None
        self.step_index = 0
        self._freeze = optimizer if isinstance(optimizer, FreezeOpt) else None
        self._frozen_groups = self._freeze.begin_step() if self._freeze is not None else 0
        self._found_inf = torch.zeros((), dtype=torch.float32, device=self.device)
        self._never = torch.zeros((), dtype=torch.float32, device=self.device)
        self._loss: Tensor | None = None
        self._room_for_graphs = self._freeze is None
        avoid_broken_kernel_(self._active_optimizer, self.optimizer.param_groups)

    @property
    def frozen_groups(self) -> int:
        """Return how many leading parameter groups are frozen in the coming step."""
        return self._frozen_groups

    @property
    def loss_scale(self) -> Tensor:
        """Return the live loss scale, float32, on the device."""
        return self.loss_scaling.scale

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context for the forward pass and the loss."""
        return self.precision.autocast()

    def backward(self, loss: Tensor) -> None:
        """Run the backward pass of one micro-batch, scaled; gradients add up in ``.grad``.

        Args:
            loss: Unscaled loss, one element.

        Raises:
            RuntimeError: If the previous ``backward`` was not followed by ``step``, or the loss has no gradient.
        """
        if self._loss is not None:
            raise RuntimeError("backward() was already called for this micro-batch; call step() before the next one")
        if self.graph_observer is not None:
            self.graph_observer(loss)
        # Reduced precision losses are widened first: 65504 would otherwise be the largest scaled loss.
        scaled = loss.float() if loss.dtype in (torch.float16, torch.bfloat16) else loss
        if self.window.n_steps > 1:
            scaled = scaled / self.window.n_steps
        if not self.loss_scaling.is_unit:
            scaled = scaled * self.loss_scaling.scale.reshape(loss.shape)
        if scaled.requires_grad:
            scaled.backward()  # type: ignore[no-untyped-call]
        elif not self._frozen_groups:  # a loss that only frozen layers feed has none on such a step
            raise RuntimeError("the loss has no gradient; was it detached, or computed under torch.no_grad()?")
        self._loss = loss.detach()  # last: a backward pass that failed may be tried again

    def accept_gradients(self, loss: Tensor, parameters: list[nn.Parameter], gradients: Sequence[Tensor]) -> None:
        """Take gradients computed elsewhere in place of ``backward``; they add up in ``.grad``, divided by the window.

        Args:
            loss: Loss they belong to.
            parameters: Parameters, in the order of ``gradients``.
            gradients: One per parameter, of its shape, multiplied by the loss scale in force.
        """
        self._loss = loss.detach()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            share = gradient.detach() / self.window.n_steps
            parameter.grad = share if parameter.grad is None else parameter.grad.add_(share)

    def step(self) -> StepOutcome:
        """End the micro-batch; at the end of a window update the weights, or skip, and adapt the scale.

        Returns:
            What happened; its tensors stay on the device.

        Raises:
            RuntimeError: If ``backward`` was not called before.
        """
        if self._loss is None:
            raise RuntimeError("step() needs the gradients of a micro-batch; call backward(loss) first")
        loss, self._loss = self._loss, None
        if not self._room_for_graphs:
            self._make_room_for_graphs()
        scaling = self.loss_scaling
        rate = float(self.optimizer.param_groups[0]["lr"])
        frozen = self._frozen_groups
        complete = self.window.advance()
        accumulated = self.window.n_steps if complete else self.window.position
        # The rule changes the scale in place, and outcomes may be read later: each keeps the value of its step.
        used = after = scaling.scale if scaling.update_cell is None else scaling.scale.clone()
        overflow = scaling.no_overflow
        if complete:
            overflow = self._end_window()
            if scaling.update_cell is not None:
                after = scaling.scale.clone()
        outcome = StepOutcome(self.step_index, loss, overflow, used, after, complete, accumulated, frozen, rate)
        self.step_index += 1
        return outcome

    def skips(self, outcome: StepOutcome) -> bool:
        """Return whether a step's update was dropped because of an overflow; waits for the device to know."""
        return self.loss_scaling.drop_overflow_update and bool(outcome.overflow)

    def _end_window(self) -> Tensor:
        scaling = self.loss_scaling
        parameters = [p for group in self._active_optimizer.param_groups for p in group["params"] if p.grad is not None]
        overflow = scaling.no_overflow
        if scaling.unscales:
            self._found_inf.zero_()
            gradients = [p.grad for p in parameters if p.grad is not None]
            scaling.unscale_(gradients, self._found_inf)
            overflow = self._found_inf > 0
        if self.observer is not None:
            self.observer(parameters)
        optimizer = self._active_optimizer
        if scaling.checks_overflow:
            step_if_finite(optimizer, self._found_inf)
            scaling.after_window(overflow)
        elif decides_on_device(optimizer):
            # Fused SGD (torch 2.13) fails when a parameter's first gradient comes later than the others', as freezing
            # makes happen; step_if_finite prepares the buffers.
            step_if_finite(optimizer, self._never)
        else:
            optimizer.step()
        # Schedulers look at this mark to warn when they run before the first update; an update was attempted.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        if self._freeze is not None:
            self._freeze.advance()
        self.optimizer.zero_grad(set_to_none=True)
        if self._freeze is not None:
            self._frozen_groups = self._freeze.begin_step()
        return overflow

    @property
    def _active_optimizer(self) -> Optimizer:
        # Not `active_optimizer`: a group chosen by `use_freezing_group` need not be the schedule's.
        return self._freeze.optimizer_of(self._frozen_groups) if self._freeze is not None else self.optimizer

    def _make_room_for_graphs(self) -> None:
        """Raise torch.compile's limit once it is in use; it is loaded lazily, and importing it here takes a second."""
        if self._freeze is not None and "torch._dynamo" in sys.modules:
            allow_one_graph_per_group(self._freeze.n_groups)
            self._room_for_graphs = True

    def distribute(self, **options: Any) -> DistributedDataParallel:
        """Wrap the model in DistributedDataParallel, between ``apply`` and the first step.

        DistributedDataParallel looks once, when it is made, which parameters there are and which require gradients, so
        it has to come after ``apply``, which may replace modules, and must see parameters that are frozen at first.

        Args:
            options: For DistributedDataParallel; ``find_unused_parameters`` is True when freezing is in effect.

        Returns:
            The new ``model``.

        Raises:
            RuntimeError: If torch.distributed has not been initialised.
        """
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            raise RuntimeError("distribute() needs a process group; call torch.distributed.init_process_group() first")
        if self._freeze is None:
            self.model = wrapped = DistributedDataParallel(self.model, **options)
            return wrapped
        with self._freeze.unfreeze_all():
            wrapped = DistributedDataParallel(self.model, **{"find_unused_parameters": True, **options})
        self.model = wrapped
        return wrapped

    def use_freezing_group(self, index: int) -> None:
        """Freeze for a given group in the coming step, whatever the schedule says (measurements do this).

        Args:
            index: Group index; 0 freezes nothing.

        Raises:
            RuntimeError: Without freezing, or inside an accumulation window.
        """
        if self._freeze is None or self.window.position:
            raise RuntimeError("a freezing group can be chosen only when freezing is on, between windows")
        self._freeze.enter_group(index)
        self._frozen_groups = index

    def finish(self) -> None:
        """Let every parameter require gradients again, as before training; call it when training is over."""
        if self._freeze is not None:
            self._freeze.unfreeze_all()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the data stream and the random generators.

        Entries: ``model``, ``optimizer``, ``loss_scaling``, ``window``, ``step_index`` and, inside an unfinished
        accumulation window, ``gradients`` by parameter name.
        """
        gradients = {}
        if self.window.position:
            gradients = {n: p.grad.clone() for n, p in self.model.named_parameters() if p.grad is not None}
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "loss_scaling": self.loss_scaling.state_dict(),
            "window": self.window.state_dict(),
            "step_index": self.step_index,
            "gradients": gradients,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken: the next step has the same bits on a CPU."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss_scaling.load_state_dict(state["loss_scaling"])
        self.window.load_state_dict(state["window"])
        self.step_index = state["step_index"]
        if self._freeze is not None:
            self._frozen_groups = self._freeze.begin_step()
        for name, parameter in self.model.named_parameters():
            gradient = state["gradients"].get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device).clone()
        self._loss = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs: torch copies neither gradients nor hooks, and both belong to the next step."""
        parameters = list(dict.fromkeys(_parameters_of(self.model, self.optimizer)))
        copied = dict(self.__dict__, observer=None, graph_observer=None)  # a trace watches the original only
        return {
            "attributes": copied,
            "gradients": [(p, p.grad) for p in parameters if p.grad is not None],
            "hooks": step_hooks(self.optimizer),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickled object."""
        self.__dict__.update(state["attributes"])
        for parameter, gradient in state["gradients"]:
            parameter.grad = gradient
        register_step_hooks(self.optimizer, state["hooks"])

    def __repr__(self) -> str:
        """Name the model and what is in effect."""
        effect = self.plan.summary() if self.plan is not None else "no plan"
        return f"Boosted({type(self.model).__name__}, {effect}, step {self.step_index})"


def _device_of(model: nn.Module, optimizer: Optimizer) -> torch.device:
    for parameter in _parameters_of(model, optimizer):
        return parameter.device
    return torch.device("cpu")


def _parameters_of(model: nn.Module, optimizer: Optimizer) -> Iterable[nn.Parameter]:
    yield from model.parameters()
    for group in optimizer.param_groups:
        yield from group["params"]
