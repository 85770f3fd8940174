"""Everything that is trained: a model's parameters, and those that its optimizer alone holds.

The model knows nothing of a criterion's parameters, for example. If they are given to the optimizer, they have to be in
checkpoints and equal on all ranks, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.core.wrapped_model import unwrapped


class EverythingTrained:
    """The parameters of a model, whatever wraps it, and of its optimizer, as they are at the time of asking."""

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._model = unwrapped(model)
        self._optimizer = optimizer

    def named(self) -> dict[str, nn.Parameter]:
        """Return the model's parameters by the names that it has for them, then those `outside` it."""
        return {**dict(self._model.named_parameters()), **self.outside()}

    def outside(self) -> dict[str, nn.Parameter]:
        """Return what the optimizer alone holds, by its place in the groups, such as ``param_groups[0][3]``."""
        own = set(self._model.parameters())
        return {
            f"param_groups[{number}][{index}]": parameter
            for number, group in enumerate(self._optimizer.param_groups)
            for index, parameter in enumerate(group["params"])
            if parameter not in own
        }

    def gradients(self) -> dict[str, Tensor]:
        """Return copies of the gradients there are, by name."""
        return {name: parameter.grad.clone() for name, parameter in self.named().items() if parameter.grad is not None}

    def set_gradients_(self, gradients: Mapping[str, Tensor]) -> None:
        """Take copies of the gradients that `gradients` returned; the others are None."""
        for name, parameter in self.named().items():
            gradient = gradients.get(name)
            parameter.grad = None if gradient is None else gradient.to(parameter.device).clone()

    def why_not_under_ddp(self) -> str:
        """Return why DistributedDataParallel around the model will not do; empty where it averages all gradients."""
        first = next(iter(self.outside()), None)
        if first is None:
            return ""
        return (
            f"the optimizer trains parameters outside the model, such as {first}, whose gradients "
            "DistributedDataParallel would not average; call distribute() without ddp=True"
        )
