"""What the toy does: one hook of each kind."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from workbench.methods.protocol import Method, Preparation, StepHook
from workbench.methods.weight_update import CompleteWindow, PlainUpdate, WeightUpdate

CALLS: list[str] = []


class RunningMean(StepHook):
    """Keeps a running mean of the weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model, self.decay = model, decay
        self.mean = [parameter.detach().clone() for parameter in model.parameters()]

    def before_update(self, window: CompleteWindow) -> None:
        CALLS.append("before update")

    def after_update(self, window: CompleteWindow) -> Mapping[str, float]:
        torch._foreach_lerp_(self.mean, [p.detach() for p in self.model.parameters()], 1.0 - self.decay)
        return {"toy.updates": float(window.step)}

    def state_dict(self) -> dict[str, Any]:
        return {"mean": [value.clone() for value in self.mean]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for own, given in zip(self.mean, state["mean"], strict=True):
            own.copy_(given)


class HalfStep(PlainUpdate):
    """The optimizer's step, then half of it taken back."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters

    @torch.no_grad()
    def __call__(self, window: CompleteWindow) -> Mapping[str, float]:
        before = [parameter.detach().clone() for parameter in self.parameters]
        columns = super().__call__(window)
        torch._foreach_lerp_([parameter.detach() for parameter in self.parameters], before, 0.5)
        return columns


class Smoothed(nn.Module):
    """A criterion and a small penalty."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.criterion = criterion

    def forward(self, prediction: Tensor, target: Tensor) -> Tensor:
        return self.criterion(prediction, target) + 1e-3 * prediction.square().mean()


class Called(nn.Module):
    """Calls a module, as a compiled one would."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._orig_mod = inner

    def forward(self, *inputs: Any) -> Any:
        return self._orig_mod(*inputs)


class ToyMethod(Method):
    """See the package."""

    splits_gradients = True

    def refusal(self, model: nn.Module) -> str:
        return "the toy is for small models" if sum(p.numel() for p in model.parameters()) > 10_000 else ""

    def reshape(self, preparation: Preparation) -> None:
        CALLS.append("reshape")
        preparation.notes.append("toy: looked at the model")

    def prepare(self, preparation: Preparation) -> None:
        CALLS.append("prepare")
        for group in preparation.optimizer.param_groups:
            group["lr"] *= 0.5

    def prepare_evaluation(self, model: nn.Module, example_inputs: Any) -> None:
        CALLS.append("prepare evaluation")

    def criterion(self, criterion: Any) -> Any:
        return Smoothed(criterion)

    def compiled(self, model: nn.Module) -> nn.Module:
        return Called(model)

    def batches(self, batches: Iterable[Any], passes: int) -> Iterable[Any]:
        for inputs, targets in batches:
            yield inputs * 0.9, targets

    def n_micro(self) -> int:
        return 2

    def update(self, model: nn.Module, optimizer: Optimizer) -> WeightUpdate:
        return HalfStep([parameter for group in optimizer.param_groups for parameter in group["params"]])

    def step_hook(self, model: nn.Module, optimizer: Optimizer) -> StepHook:
        return RunningMean(model, self.config.toy.decay)  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def evaluating(self, model: nn.Module) -> Iterator[None]:
        CALLS.append("evaluating")
        yield
