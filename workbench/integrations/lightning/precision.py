"""The step of a set-up in Lightning's automatic optimization, as a precision plugin.

The plugin is where Lightning asks for everything that a step does: the format of the forward pass, the backward pass,
the update, and what of it belongs into a checkpoint. Lightning calls ``connect`` when the optimizer has just been made.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.plugins.precision import Precision
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.core.step_optimizer import held_parameters
from workbench.integrations.lightning.batches import combined_loader
from workbench.integrations.lightning.calls import criterion_of, network_of, quiet_loss, with_attributes
from workbench.integrations.lightning.rates import course_of
from workbench.methods.protocol import FirstBatch
from workbench.training import Boosted, apply
from workbench.training.outcome import StepOutcome

if TYPE_CHECKING:
    from workbench.integrations.lightning.boost import Boost


class BoostPrecision(Precision):
    """Trains the network of a LightningModule as a `Boosted` does; made by the callback `Boost`."""

    def __init__(self, boost: Boost, trainer: Trainer) -> None:
        self._boost, self._trainer = boost, trainer
        self.boosted: Boosted | None = None
        self.outcome: StepOutcome | None = None
        self._trained_with: dict[str, Any] = {}  # attributes of the module that a training step sees otherwise
        # Gradients of an unfinished window, out of reach of the loop, which clears them before every step.
        self._held: list[tuple[nn.Parameter, Tensor]] = []

    @property
    def _running(self) -> Boosted:
        if self.boosted is None:
            raise RuntimeError("the set-up is not in place yet; it is when `on_fit_start` is called")
        return self.boosted

    def connect(
        self, model: nn.Module, optimizers: list[Optimizer], lr_schedulers: list[Any]
    ) -> tuple[nn.Module, list[Optimizer], list[Any]]:
        """Apply the set-up to the network and its optimizer; gradients are averaged by us, so DDP goes."""
        if not optimizers or self._trainer.state.fn != TrainerFn.FITTING:  # an evaluation, perhaps after a fit
            return model, optimizers, lr_schedulers
        module = model.module if isinstance(model, DistributedDataParallel) else model
        assert isinstance(module, LightningModule)
        if not optimizers[0].param_groups:  # the stand-in that Lightning takes for none
            raise ValueError("Boost needs an optimizer, and configure_optimizers returns none")
        total, boost = self._total_steps(), self._boost
        name, network = network_of(module)
        criterion_name, criterion = criterion_of(module, boost.criterion)
        scheduler = boost.scheduler
        if scheduler is None:
            scheduler = course_of(optimizers[0], lr_schedulers, total, self._trainer.num_training_batches)
        self.boosted = boosted = apply(
            boost.config,
            network,
            optimizers[0],
            total,
            level=boost.level,
            seed=boost.seed,
            criterion=criterion,
            example_inputs=FirstBatch(functools.partial(quiet_loss, module, name), self._first_batch),
            scheduler=scheduler,
        )
        if not name and (boosted.model is not network or boosted.precision.level == "O3"):
            what = "amp.level O3" if boosted.model is network else "runtime.compile"
            raise ValueError(f"{what} needs one attribute of {type(module).__name__} that holds all its parameters")
        pairs = (name, network, boosted.model), (criterion_name, criterion, boosted.criterion)
        for attribute, given, trained in pairs:
            if trained is not given:  # compiled, or with smoothed labels
                self._trained_with[attribute] = trained
        if self._trainer.world_size > 1:
            boosted.distribute()
        boosted.observer = lambda parameters: self._after_closure(module, boosted.optimizer)
        return module, [boosted.optimizer], []

    def _total_steps(self) -> int:
        total = self._trainer.estimated_stepping_batches
        if total == float("inf") or total < 1:
            raise ValueError(
                "how long is the training? Give the Trainer `max_steps`, or `max_epochs` and a loader that has a length"
            )
        return int(total)

    def _first_batch(self) -> Any:
        batch = next(iter(combined_loader(self._trainer).flattened[0]))
        return self._trainer.strategy.batch_to_device(batch)

    @contextlib.contextmanager
    def train_step_context(self) -> Generator[None, None, None]:
        """Surround a training step: its number format, and the compiled network and the criterion to train with."""
        with with_attributes(self._trainer.lightning_module, self._trained_with), self._running.autocast():
            yield

    @contextlib.contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        """Surround an evaluation."""
        with contextlib.nullcontext() if self.boosted is None else self.boosted.precision.autocast():
            yield

    def backward(  # type: ignore[override]
        self, tensor: Tensor, model: LightningModule, optimizer: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Run the backward pass, scaled, on top of the window's gradients."""
        self._give_back()
        self._running.backward(tensor)

    def optimizer_step(  # type: ignore[override]
        self, optimizer: Any, model: LightningModule, closure: Callable[[], Any], **kwargs: Any
    ) -> Any:
        """Run the training step and its backward pass, then end the micro-batch."""
        loss = closure()
        if loss is None:  # the module left this batch out, but the rates go on
            self._give_back()
            self._running.accept_gradients(torch.zeros((), device=self._running.device), [], [])
        self.outcome = self._running.step()
        self._take_away()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next step depends on; nothing before the set-up is in place."""
        if self.boosted is None:
            return {}
        self._give_back()
        state = self.boosted.state_dict()
        self._take_away()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken."""
        if self.boosted is not None:
            self.boosted.load_state_dict(state_dict)
            self._take_away()

    def _take_away(self) -> None:
        if self._running.window.position:
            trained = held_parameters(self._running.optimizer)
            self._held = [(parameter, parameter.grad) for parameter in trained if parameter.grad is not None]
            for parameter, _ in self._held:
                parameter.grad = None

    def _give_back(self) -> None:
        for parameter, gradient in self._held:
            parameter.grad = gradient
        self._held = []


def is_plain(precision: Precision) -> bool:
    """Return whether a trainer computes in the formats of its data and weights, or as a set-up of ours says."""
    return type(precision) in (Precision, BoostPrecision) and torch.get_default_dtype() is torch.float32
