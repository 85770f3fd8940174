"""Train-one-step modules: call them with a batch and one step is done.

Named and shaped after ``mindspore.nn.TrainOneStepCell`` and its relatives (MindSpore 2.7, ``nn/wrap`` and ``boost``).
The network they wrap returns the loss; ``WithLossCell`` makes one from a backbone and a criterion.
"""

from __future__ import annotations

import math
import numbers
from typing import Any, cast

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from workbench.config import Plan
from workbench.core import distributed as ranks
from workbench.core.devices import device_of
from workbench.core.step_optimizer import held_parameters
from workbench.loss_scale.scaler import LossScaling
from workbench.methods.loss_scale_group.method import GroupLossScaleManager
from workbench.methods.loss_scale_group.scaling import GroupLossScaling
from workbench.methods.plan_mark import boost_plan_of
from workbench.training.boosted import Boosted
from workbench.training.outcome import BoostStep


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
        return cast("Tensor", self.loss_fn(self.backbone(data), label))

    @property
    def backbone_network(self) -> nn.Module:
        """Return the backbone, under the reference's name."""
        return self.backbone


class _TrainCell(nn.Module):
    """What the four modules share: network, boosted pair, and one step; ranks average gradients where DDP does not."""

    def __init__(
        self, network: nn.Module, optimizer: Optimizer, scaling: LossScaling, plan: Plan | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.boosted = Boosted(network, optimizer, loss_scaling=scaling, plan=plan)
        if ranks.world_size() > 1 and not any(isinstance(m, DistributedDataParallel) for m in network.modules()):
            self.boosted.distribute()

    @property
    def optimizer(self) -> Optimizer:
        """Return the optimizer in use."""
        return self.boosted.optimizer

    def _one_step(self, *inputs: Any) -> BoostStep:
        with self.boosted.autocast():
            loss = self.network(*inputs)
        self.boosted.backward(loss)
        outcome = self.boosted.step(lambda: self.network(*inputs))
        return BoostStep(outcome.loss, outcome.overflow, outcome.loss_scale_after.reshape(()))


class TrainOneStepCell(_TrainCell):
    """One forward pass, backward pass and update; returns the loss.

    Args:
        network: Module that returns the loss.
        optimizer: Any torch optimizer.
        sens: Number the backward pass is seeded with; gradients are multiplied by it and not divided again. None
            means 1 (the reference returns None then).
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, sens: float | None = 1.0) -> None:
        super().__init__(network, optimizer, LossScaling.seeded(checked_sens(sens), device_of(network)))

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
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, sens: float | None = 1.0) -> None:
        self._init(network, optimizer, LossScaling.seeded(checked_sens(sens), device_of(network)))

    def _init(self, network: nn.Module, optimizer: Optimizer, scaling: LossScaling) -> None:
        plan = boost_plan_of(network)
        super().__init__(network, optimizer, scaling, plan)
        self.plan = plan

    def forward(self, *inputs: Any) -> BoostStep:
        """Train on one batch and return ``(loss, overflow, loss_scale)``, three scalar tensors on the device."""
        return self._one_step(*inputs)

    def gradient_freeze_process(self, *inputs: Any) -> Tensor:
        """Train on one batch with the freezing group of this step and return the loss, shape ``()``."""
        return self._one_step(*inputs).loss

    def gradient_accumulation_process(
        self, loss: Tensor, grads: tuple[Tensor, ...], sens: Tensor | float, *inputs: Any
    ) -> Tensor:
        """Add one micro-batch's gradients to the window, update at its end, and return the loss, shape ``()``.

        Args:
            loss: Loss of the micro-batch, shape ``()``.
            grads: Gradients, one per trained parameter in the optimizer's order, multiplied by ``sens``.
            sens: Factor the gradients carry. It stays in them as in ``TrainOneStepCell``; the module with a loss scale
                divides by its scale at the window's end, so there it must be that scale.
            inputs: Not used; the reference passes them for its graph.
        """
        del sens, inputs
        return self._step_with(loss, grads)

    def adasum_process(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        """Update with these gradients as every server would alone, combine the servers' updates, and return the loss.

        Args:
            loss: Loss of the batch, shape ``()``.
            grads: Gradients of this rank, one per trained parameter in the optimizer's order; averaged inside a server.

        Raises:
            RuntimeError: If AdaSum is not in effect; the message says why.
            ValueError: If there are not as many gradients as trained parameters.
        """
        if not self.check_adasum_enable():
            why = "the network was not processed by AutoBoost"
            if self.plan is not None:
                reasons = (dropped.reason for dropped in self.plan.dropped if dropped.name == "adasum")
                why = next(reasons, "adasum is switched off")
            raise RuntimeError(f"adasum_process() was called, but {why}")
        return self._step_with(loss, grads)

    def check_adasum_enable(self) -> bool:
        """Return whether AdaSum is in effect: several servers, their number a power of two."""
        return self.plan is not None and self.plan.adasum

    def check_dim_reduce_enable(self) -> bool:
        """Return whether training runs in the PCA subspace."""
        return self.plan is not None and self.plan.dim_reduce

    def _step_with(self, loss: Tensor, grads: tuple[Tensor, ...]) -> Tensor:
        trained = [parameter for parameter in held_parameters(self.optimizer) if parameter.requires_grad]
        if len(trained) != len(grads):
            raise ValueError(f"`grads` must hold one gradient per trained parameter ({len(trained)}), got {len(grads)}")
        self.boosted.accept_gradients(loss, trained, grads)
        self.boosted.step()
        return loss


class _WithLossScale(_TrainCell):
    """What both modules with a loss scale offer of it."""

    @property
    def scale_sense(self) -> Tensor:
        """Return the live loss scale."""
        return self.boosted.loss_scale

    def set_sense_scale(self, sens: Tensor) -> None:
        """Overwrite the loss scale by a tensor of shape ``()`` or ``(1,)``.

        Raises:
            TypeError: If it is not a tensor.
            ValueError: If it has more than one element.
        """
        if not isinstance(sens, Tensor):
            raise TypeError(f"`sens` must be a tensor of shape () or (1,), got {type(sens).__name__}")
        self.boosted.loss_scaling.set(_checked_scale(sens))


class TrainOneStepWithLossScaleCell(_WithLossScale):
    """One training step with a loss scale; an overflow skips the update.

    Args:
        network: Module that returns the loss.
        optimizer: Any torch optimizer; ``fused=True`` decides about the skip on the device.
        scale_sense: A loss-scale update cell, a ``GroupLossScaleManager`` with its groups, or a tensor of shape ``()``
            or ``(1,)`` for a scale that only ``set_sense_scale`` changes.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, scale_sense: nn.Module | Tensor) -> None:
        super().__init__(network, optimizer, _scaling_from(scale_sense, network))

    def forward(self, *inputs: Any) -> BoostStep:
        """Train on one batch; return ``(loss, overflow, loss_scale)``, the scale after the update rule ran."""
        return self._one_step(*inputs)


class BoostTrainOneStepWithLossScaleCell(_WithLossScale, BoostTrainOneStepCell):
    """One boosted training step with a loss scale.

    Args:
        network: Module that returns the loss, as ``AutoBoost.network_auto_process_train`` returned it.
        optimizer: Optimizer, as returned there.
        scale_sense: As in ``TrainOneStepWithLossScaleCell``.
    """

    def __init__(self, network: nn.Module, optimizer: Optimizer, scale_sense: nn.Module | Tensor) -> None:
        self._init(network, optimizer, _scaling_from(scale_sense, network))


def checked_sens(sens: float | None) -> float:
    """Return what the backward pass is seeded with: a finite number other than 0; None means 1."""
    if sens is None:
        return 1.0
    if isinstance(sens, bool) or not isinstance(sens, numbers.Real):
        raise TypeError(f"`sens` must be a number, got {type(sens).__name__}")
    if not 0 < abs(float(sens)) < math.inf:  # NaN fails, too
        raise ValueError(f"`sens` must be a finite number other than 0, got {float(sens):g}")
    return float(sens)


def scaling_of_manager(manager: Any, network: nn.Module) -> LossScaling:
    """Return the scaling that a loss-scale manager, the user's own perhaps, means for a network without wrappers."""
    if isinstance(manager, GroupLossScaleManager):
        return GroupLossScaling.from_manager(manager, network)
    cell, drops = manager.get_update_cell(), bool(manager.get_drop_overflow_update())
    return LossScaling.with_cell(cell, manager.get_loss_scale(), drop_overflow_update=drops, device=device_of(network))


def _scaling_from(scale_sense: Any, network: nn.Module) -> LossScaling:
    if isinstance(scale_sense, GroupLossScaleManager):
        return GroupLossScaling.from_manager(scale_sense, network)
    device = device_of(network)
    if isinstance(scale_sense, Tensor):
        return LossScaling(_checked_scale(scale_sense), drop_overflow_update=True, device=device)
    if isinstance(scale_sense, nn.Module) and hasattr(scale_sense, "get_loss_scale"):
        cell: Any = scale_sense  # the user's own cell may be any module with this method
        return LossScaling.with_cell(cell, cell.get_loss_scale(), drop_overflow_update=True, device=device)
    raise TypeError(
        "`scale_sense` must be a loss-scale update cell (for example DynamicLossScaleUpdateCell, or a manager's "
        f"get_update_cell()) or a tensor of shape () or (1,), got {type(scale_sense).__name__}"
    )


def _checked_scale(scale: Tensor) -> Tensor:
    if tuple(scale.shape) not in ((), (1,)):
        raise ValueError(f"a loss scale tensor must have shape () or (1,), got {tuple(scale.shape)}")
    if not scale.item() > 0:  # NaN fails, too; what is multiplied by 0 cannot be divided again
        raise ValueError(f"a loss scale must be above 0, got {scale.item():g}")
    return scale
