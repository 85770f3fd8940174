"""Conversion of a Model to second-order training, for programs written against the reference.

There layers are swapped for ones that store covariances, here THOR looks at the ordinary ones: only a Model is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.mindspore.model import Model
from workbench.optim.thor.optimizer import Thor


class ConvertModelUtils:
    """Convert a Model to second-order training.

    Example:
        >>> net = nn.Linear(2, 1)
        >>> optimizer = Thor(net, 0.1, 0.1, 0.9)
        >>> model = Model(net, nn.MSELoss(), optimizer)
        >>> model = ConvertModelUtils.convert_to_thor_model(model, net, loss_fn=nn.MSELoss(), optimizer=optimizer)
        >>> model.optimizer is optimizer
        True
    """

    @staticmethod
    def convert_to_thor_model(
        model: Model,
        network: nn.Module,
        loss_fn: Callable[..., Tensor] | None = None,
        optimizer: Optimizer | None = None,
        metrics: Any = None,
        amp_level: str = "O0",
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: bool | None = False,
    ) -> Model:
        """Return a Model that trains a network with THOR, or the given one when the optimizer is another.

        Differences: step-end callbacks see every step (there only of the second-order step and of the last one
        before the next), and a stop that a callback asks for is obeyed at once.

        Args:
            model: What is returned when ``optimizer`` is not THOR.
            network: What is trained.
            loss_fn: Criterion; None when the network returns the loss.
            optimizer: A ``thor`` over the network's parameters.
            metrics: As in ``Model``, like the following.
            amp_level: See there.
            loss_scale_manager: See there.
            keep_batchnorm_fp32: See there.

        Raises:
            TypeError: When ``model`` is no Model, or another argument is of the wrong kind.
        """
        if not isinstance(model, Model):
            raise TypeError(f"`model` must be a Model, got {type(model).__name__}")
        if not isinstance(optimizer, Thor):
            return model
        others: Any = {"loss_scale_manager": loss_scale_manager, "keep_batchnorm_fp32": keep_batchnorm_fp32}
        return Model(network, loss_fn, optimizer, metrics, amp_level=amp_level, **others)
