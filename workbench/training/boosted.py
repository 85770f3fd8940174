"""A model and its optimizer under a plan: the training step, and what surrounds the steps of a run.

The step itself is `workbench.training.step`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SparseAdam

from workbench.core.sparse_tables import why_not_at_rest
from workbench.core.step_optimizer import held_parameters
from workbench.core.torch_internals import step_hooks
from workbench.core.wrapped_model import by_plain_names, unwrapped
from workbench.methods.parameter_groups import register_step_hooks
from workbench.methods.protocol import NoFreezing
from workbench.training.gradient_reduction import (
    GradientReduction,
    broadcast_from_first,
    largest_over_ranks,
    require_same_tensors,
)
from workbench.training.step import TrainingStep

_STATEFUL = ("optimizer", "loss_scaling", "window", "update")


class Boosted(TrainingStep):
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
            TypeError: When ``epochs`` is no whole number.
            ValueError: When the length of the run is not known, or not the ``total_steps`` that ``apply`` was given;
                while iterating, when an epoch holds no batch or the loader ends before the run.
        """
        return self.course.batches(loader, epochs, self.device, start=start)

    def epochs(self, loader: Iterable[Any], epochs: int) -> Iterator[Iterator[Any]]:
        """Return the batches of the run epoch by epoch, for a loop that does something after each.

        An epoch has as many samples as today, within a batch; a shorter run has fewer. It begins where the run stands,
        so that the same loop goes on after ``load_checkpoint``, in the middle of an epoch as well. An epoch that is
        left early ends the run earlier: the next one goes on with the data.

        Args:
            loader: See `batches`.
            epochs: Epochs of the unmodified training.

        Raises:
            TypeError, ValueError: See `batches`.
        """
        start = self.step_index
        return self._epochs(self.batches(loader, epochs, start=start), start, epochs)

    def _epochs(self, stream: Generator[Any, None, None], start: int, epochs: int) -> Iterator[Iterator[Any]]:
        with contextlib.closing(stream):
            for end in self.course.epoch_ends(epochs):
                if end > start:
                    yield islice(stream, end - start)
                    start = end

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Surround an evaluation, or the saving of the weights to use: averages take the weights' place meanwhile.

        An optimizer that averages (it has ``train()`` and ``eval()``, as Schedule-Free ones do) puts its average in,
        with BatchNorm's statistics estimated from the last training batches; then a method puts in its own.
        Afterwards weights and statistics are what they were, bit for bit. Modes and generators are the caller's.
        """
        if self.has_weights_to_use:
            yield
            return
        model = unwrapped(self.model)
        average = contextlib.nullcontext() if self._average is None else self._average.in_place(model, self.precision)
        with average, self.methods.evaluating(model):
            yield

    def weights_to_use(self, module: nn.Module) -> dict[str, Tensor]:
        """Return copies of what a module that holds the model saves, with the weights to use."""
        with self.evaluating():
            return {name: value.clone() for name, value in module.state_dict().items()}

    def leave_weights_to_use(self, module: nn.Module) -> None:
        """Let a module that holds the model have the weights to use from now on: training is over."""
        if not self.has_weights_to_use:
            module.load_state_dict(self.weights_to_use(module))
            self.has_weights_to_use = True

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
        freezes = not isinstance(self._schedule, NoFreezing)
        if ddp:
            with self._schedule.unfreeze_all():
                at_rest = why_not_at_rest(unwrapped(self.model)) if freezes else ""
            if reason := self.update.refuses_ddp or self._trained.why_not_under_ddp() or at_rest:
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
            defaults = {"find_unused_parameters": True} if freezes else {}
            with self._schedule.unfreeze_all():
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
        if isinstance(self._schedule, NoFreezing) or self.window.position:
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
        self._schedule.unfreeze_all()

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on, except the data and the random generators.

        ``outside`` are parameters that the optimizer alone holds, ``gradients`` those of an unfinished window, by name;
        ``course``, ``methods`` and ``average`` (the last inputs, for BatchNorm's statistics) are included if there is a
        schedule, a method keeps a state, or the optimizer averages; ``criterion`` if that is a module. ``data`` are the
        generators that ordered what `batches` has read. ``is_over`` is there if ``model`` has the weights to use. On
        several ranks every rank keeps its own.
        """
        model = unwrapped(self.model)  # names as the user knows them, compiled or not
        gradients = self._trained.gradients() if self.window.position else {}
        outside = {name: p.detach() for name, p in self._trained.outside().items()}
        state = {"model": model.state_dict(), "outside": outside, "gradients": gradients, "step_index": self.step_index}
        state["set_up"] = self._set_up()
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
        if self.has_weights_to_use:
            state["is_over"] = True
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` of the same set-up was taken, with the same bits on a CPU.

        A RuntimeError, before anything is changed, if the set-up or the model is another; a ValueError if the length of
        the run is.
        """
        model = unwrapped(self.model)
        self._refuse_state_of_another(state.get("set_up"))
        saved, gradients = (by_plain_names(state[part], model) for part in ("model", "gradients"))
        if other := sorted(model.state_dict().keys() ^ saved.keys()):
            raise RuntimeError(
                "exact resumption needs the same weights, but the BatchNorms had learned something else before "
                f"apply(), or the model differs: {', '.join(other[:3])}{', ...' if len(other) > 3 else ''} "
                "exist on one side only; boosted.model.load_state_dict() takes the weights alone"
            )
        if self.course.has_schedule:
            self.course.load_state_dict(state["course"])
        model.load_state_dict(saved)
        if "outside" in state:  # earlier checkpoints have only what is in the model
            nn.ParameterDict(self._trained.outside()).load_state_dict(state["outside"])
        if "criterion" in state and isinstance(self.criterion, nn.Module):  # which earlier checkpoints left out
            self.criterion.load_state_dict(state["criterion"])
        self.course.order.load_state_dict(state.get("data", {}))
        for name in _STATEFUL:
            getattr(self, name).load_state_dict(state[name])
        for name, hook in self.hooks.items():
            hook.load_state_dict(state.get("methods", {}).get(name, {}))
        if self._average is not None:
            self._average.load_state_dict(state.get("average", {}))
        self.step_index = state["step_index"]
        self.has_weights_to_use = state.get("is_over", False)
        self.frozen_groups = self._schedule.begin_step()
        self._trained.set_gradients_(gradients)
        self._loss = self._witness = None
        if self._passes is not None:
            self._passes.forget()  # the loss scale is another tensor

    def _set_up(self) -> dict[str, str]:
        """Return what a state belongs to, in the words of a message; what changes the time alone is no part of it."""
        formats = {str(parameter.dtype) for parameter in held_parameters(self.optimizer)}
        optimizers = (self.optimizer, self._active_optimizer)  # the one that steps may be inside of the one shown
        scaling = self.loss_scaling
        return {
            "the optimizer is": " over ".join(dict.fromkeys(type(one).__name__ for one in optimizers)),
            "weights are": ", ".join(sorted(formats)),
            "methods with a state are": ", ".join(self.hooks),
            "the update is": type(self.update).__name__,
            "the loss scale and its rule are": f"{type(scaling).__name__}, {type(scaling.update_cell).__name__}",
            "the learning rate has": "a schedule" if self.course.has_schedule else "none",
            "forward passes for 100 batches are": str(self.methods.passes(100)),
        }

    def _refuse_state_of_another(self, then: Mapping[str, str] | None) -> None:
        """Raise RuntimeError where a state belongs to another set-up; earlier checkpoints (None) do not say."""
        if then is None:
            return
        now = self._set_up()
        if differs := next((name for name in now if then.get(name) != now[name]), None):
            raise RuntimeError(
                f"exact resumption needs the same set-up, but {differs}: {then.get(differs) or 'nothing'} before, and "
                f"{now[differs] or 'nothing'} here; boosted.model.load_state_dict() takes the weights alone"
            )

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
