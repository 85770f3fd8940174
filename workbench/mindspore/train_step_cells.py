"""Train-one-step modules: call them with a batch and one step is done.

Named and shaped after ``mindspore.nn.TrainOneStepCell`` and its relatives (MindSpore 2.7, ``nn/wrap`` and ``boost``).
The network they wrap returns the loss; ``WithLossCell`` makes one from a backbone and a criterion.
"""

from __future__ import annotations

import numbers
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.config import Plan
from workbench.core import distributed as ranks
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scaling import GroupLossScaling
from workbench.methods.plan_mark import boost_plan_of
from workbench.training.boosted import Boosted
from workbench.training.outcome import BoostStep, StepOutcome

__all__ = [
    "BoostTrainOneStepCell",
    "BoostTrainOneStepWithLossScaleCell",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
]


class WithLossCell(nn.Module):
    """A backbone and its criterion as one module that returns the loss.

    Args:
        backbone: Network called with the inputs.
        loss_fn: Criterion called as ``loss_fn(output, label)``.
    """

    def __init__(self, backbone: nn.Module, loss_fn: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.loss_fn = loss_fn

    def forward(self, data: Tensor, label: Tensor) -> Tensor:
        """Return the loss of one batch, shape ``()``.

        Args:
            data: Inputs of the backbone.
            label: What the criterion compares the backbone's output with.
        """
        loss: Tensor = self.loss_fn(self.backbone(data), label)
        return loss

    @property
    def backbone_network(self) -> nn.Module:
        """Return the backbone, under the reference's name."""
        return self.backbone


class _TrainCell(nn.Module):
    """What the four modules share: the network, the boosted pair, and one step over a batch.

    On several ranks gradients are averaged between them, unless the network is in a DistributedDataParallel already.
    """

    def __init__(
        self, network: nn.Module, optimizer: Optimizer, scaling: LossScaling, plan: Plan | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.boosted = Boosted(
            network,
            optimizer,
            loss_scaling=scaling,
            plan=plan,
        )
        if ranks.world_size() > 1 and not any(isinstance(m, DistributedDataParallel) for m in network.modules()):
            self.boosted.distribute()

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer in use."""
        return self.boosted.optimizer

    def _one_step(self, *inputs: Any) -> StepOutcome:
        with self.boosted.autocast():
            loss = self.network(*inputs)
        self.boosted.backward(loss)
        return self.boosted.step(lambda: self.network(*inputs))


class TrainOneStepCell(_TrainCell):
    """One forward pass, backward pass and update; returns the loss.

    Args:
        network: Module that returns the loss.
        optimizer: Any torch optimizer.
        sens: Number the backward pass is seeded with; gradients are multiplied by it and not divided again. None
            means 1 (the reference returns None then).

    Raises:
        TypeError: If ``sens`` is not a number.
        ValueError: If ``sens`` is 0 or not finite.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, sens: float | None = 1.0) -> None:
        super().__init__(network, optimizer, LossScaling.seeded(_checked_sens(sens), _device(network)))

    def forward(self, *inputs: Any) -> Tensor:
        """Train on one batch and return its loss before the update, shape ``()``."""
        return self._one_step(*inputs).loss


class BoostTrainOneStepCell(_TrainCell):
    """One boosted training step.

    What AutoBoost left on the network decides about accumulation, AdaSum and DimReduce, and the optimizer it returned
    about freezing.

    Args:
        network: Module that returns the loss, as ``AutoBoost.network_auto_process_train`` returned it.
        optimizer: Optimizer, as returned there.
        sens: As in ``TrainOneStepCell``.

    Raises:
        TypeError: If ``sens`` is not a number.
        ValueError: If ``sens`` is 0 or not finite.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, sens: float | None = 1.0) -> None:
        self._init(network, optimizer, LossScaling.seeded(_checked_sens(sens), _device(network)))

    def _init(self, network: nn.Module, optimizer: Optimizer, scaling: LossScaling) -> None:
        plan = boost_plan_of(network)
        super().__init__(network, optimizer, scaling, plan)
        self.plan = plan

    def forward(self, *inputs: Any) -> BoostStep:
        """Train on one batch.

        Returns:
            ``(loss, overflow, loss_scale)``, three scalar tensors on the device.
        """
        outcome = self._one_step(*inputs)
        return BoostStep(outcome.loss, outcome.overflow, outcome.loss_scale_after.reshape(()))

    def gradient_freeze_process(self, *inputs: Any) -> Tensor:
        """Train on one batch with the freezing group of this step and return the loss, shape ``()``."""
        return self._one_step(*inputs).loss

    def gradient_accumulation_process(
        self, loss: Tensor, grads: tuple[Tensor, ...], sens: Tensor | float, *inputs: Any
    ) -> Tensor:
        """Add one micro-batch's gradients to the window and update at its end.

        Args:
            loss: Loss of the micro-batch, shape ``()``; returned as it is.
            grads: Gradients, one per trained parameter in the optimizer's order, multiplied by ``sens``.
            sens: Factor the gradients carry. It stays in them as in ``TrainOneStepCell``; the module with a loss scale
                divides by its scale at the window's end, so there it must be that scale.
            inputs: Not used; the reference passes them for its graph.

        Returns:
            The loss.

        Raises:
            ValueError: If there are not as many gradients as trained parameters.
        """
        del sens, inputs
        self._step_with(loss, grads)
        return loss

    def adasum_process(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        """Update with these gradients as every server would alone, and combine the servers' updates by AdaSum.

        Args:
            loss: Loss of the batch, shape ``()``; returned as it is.
            grads: Gradients of this rank, one per trained parameter in the optimizer's order; averaged inside a server.

        Returns:
            The loss.

        Raises:
            RuntimeError: If AdaSum is not in effect; the message says why.
            ValueError: If there are not as many gradients as trained parameters.
        """
        if not self.check_adasum_enable():
            raise RuntimeError(f"adasum_process() was called, but {self._why_no_adasum()}")
        self._step_with(loss, grads)
        return loss

    def check_adasum_enable(self) -> bool:
        """Return whether AdaSum is in effect: several servers, their number a power of two."""
        return bool(self.plan is not None and self.plan.adasum)

    def check_dim_reduce_enable(self) -> bool:
        """Return whether training runs in the PCA subspace."""
        return bool(self.plan is not None and self.plan.dim_reduce)

    def _step_with(self, loss: Tensor, grads: tuple[Tensor, ...]) -> None:
        trained = [p for group in self.optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(trained) != len(grads):
            raise ValueError(f"`grads` must hold one gradient per trained parameter ({len(trained)}), got {len(grads)}")
        self.boosted.accept_gradients(loss, trained, grads)
        self.boosted.step()

    def _why_no_adasum(self) -> str:
        if self.plan is None:
            return "the network was not processed by AutoBoost"
        reasons = [dropped.reason for dropped in self.plan.dropped if dropped.name == "adasum"]
        return reasons[0] if reasons else "adasum is switched off"


class TrainOneStepWithLossScaleCell(_TrainCell):
    """One training step with a loss scale; an overflow skips the update.

    Args:
        network: Module that returns the loss.
        optimizer: Any torch optimizer; ``fused=True`` decides about the skip on the device.
        scale_sense: A loss-scale update cell, a ``GroupLossScaleManager`` with its groups, or a tensor of shape ``()``
            or ``(1,)`` for a scale that only ``set_sense_scale`` changes.

    Raises:
        TypeError: If ``scale_sense`` is neither.
        ValueError: If the tensor has another shape.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        scale_sense: nn.Module | Tensor,
    ) -> None:
        super().__init__(network, optimizer, _scaling_from(scale_sense, network))

    def forward(self, *inputs: Any) -> BoostStep:
        """Train on one batch.

        Returns:
            ``(loss, overflow, loss_scale)``; the scale is the value after the update rule ran.
        """
        outcome = self._one_step(*inputs)
        return BoostStep(outcome.loss, outcome.overflow, outcome.loss_scale_after.reshape(()))

    @property
    def scale_sense(self) -> Tensor:
        """Return the live loss scale."""
        return self.boosted.loss_scale

    def set_sense_scale(self, sens: Tensor) -> None:
        """Overwrite the loss scale.

        Args:
            sens: Tensor of shape ``()`` or ``(1,)``.

        Raises:
            TypeError: If it is not a tensor.
            ValueError: If it has more than one element.
        """
        _set_scale(self.boosted.loss_scaling, sens)


class BoostTrainOneStepWithLossScaleCell(BoostTrainOneStepCell):
    """One boosted training step with a loss scale.

    Args:
        network: Module that returns the loss, as ``AutoBoost.network_auto_process_train`` returned it.
        optimizer: Optimizer, as returned there.
        scale_sense: As in ``TrainOneStepWithLossScaleCell``.

    Raises:
        TypeError: If ``scale_sense`` is neither an update cell nor a tensor.
        ValueError: If the tensor has another shape than ``()`` or ``(1,)``.
    """

    def __init__(
        self,
        network: nn.Module,
        optimizer: Optimizer,
        scale_sense: nn.Module | Tensor,
    ) -> None:
        self._init(network, optimizer, _scaling_from(scale_sense, network))

    @property
    def scale_sense(self) -> Tensor:
        """Return the live loss scale."""
        return self.boosted.loss_scale

    def set_sense_scale(self, sens: Tensor) -> None:
        """Overwrite the loss scale; see ``TrainOneStepWithLossScaleCell.set_sense_scale``."""
        _set_scale(self.boosted.loss_scaling, sens)


def _checked_sens(sens: float | None) -> float:
    if sens is None:
        return 1.0
    if isinstance(sens, bool) or not isinstance(sens, numbers.Real):
        raise TypeError(f"`sens` must be a number, got {type(sens).__name__}")
    value = float(sens)
    if not 0 < abs(value) < float("inf"):  # NaN fails, too
        raise ValueError(f"`sens` must be a finite number other than 0, got {value:g}")
    return value


def _scaling_from(scale_sense: Any, network: nn.Module) -> LossScaling:
    if isinstance(scale_sense, GroupLossScaleManager):
        return GroupLossScaling.from_manager(scale_sense, network)
    device = _device(network)
    if isinstance(scale_sense, Tensor):
        _check_shape(scale_sense)
        return LossScaling(scale_sense, drop_overflow_update=True, device=device)
    if isinstance(scale_sense, nn.Module) and hasattr(scale_sense, "get_loss_scale"):
        cell: Any = scale_sense  # the user's own cell may be any module with this method
        initial = float(cell.get_loss_scale())
        minimum = float(getattr(scale_sense, "minimum", initial))
        return LossScaling(initial, scale_sense, drop_overflow_update=True, device=device, minimum=minimum)
    raise TypeError(
        "`scale_sense` must be a loss-scale update cell (for example DynamicLossScaleUpdateCell, or a manager's "
        f"get_update_cell()) or a tensor of shape () or (1,), got {type(scale_sense).__name__}"
    )


def _set_scale(scaling: LossScaling, sens: Any) -> None:
    if not isinstance(sens, Tensor):
        raise TypeError(f"`sens` must be a tensor of shape () or (1,), got {type(sens).__name__}")
    _check_shape(sens)
    scaling.set(sens)


def _check_shape(scale: Tensor) -> None:
    if tuple(scale.shape) not in ((), (1,)):
        raise ValueError(f"a loss scale tensor must have shape () or (1,), got {tuple(scale.shape)}")


def _device(network: nn.Module) -> torch.device | None:
    return next((parameter.device for parameter in network.parameters()), None)
