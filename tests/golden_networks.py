"""Networks, losses and optimizers that the golden files were recorded with, rebuilt from their meta data.

Names follow the files: ``traj/<parameter>`` has shape ``[steps + 1, ...]`` and row k holds the value after k calls.
Nothing here knows any particular file: shapes, losses and hyper-parameters come from ``meta``, so another set of files
of the same form works as well.

Training is repeated in float64 unless a test asks for float32: where an input of a ReLU is within rounding of 0 (4e-8
in one file), float32 would take either branch depending on the number of threads, and the trajectories part by 1e-4.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.network_families import ResidualBlock

__all__ = [
    "ConvNet",
    "MiniResidualNet",
    "MultilayerPerceptron",
    "assert_training",
    "assert_trajectory",
    "build_loss",
    "build_network",
    "build_optimizer",
    "divide_by_loss_scale",
    "golden_batch",
    "load_initial_weights",
    "optimizer_arguments",
    "plain_list",
]


class RecordedTanh(torch.autograd.Function):
    """The tanh of the recording processor: a quotient of polynomials, off by up to 1e-4, and its derivative 1 - y^2."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        square = x * x
        above = (((square + 378) * square + 17325) * square + 135135) * x
        y = above / (((28 * square + 3150) * square + 62370) * square + 135135)
        y = torch.where(x.abs() > 5, x.sign(), y)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return gradients[0] * (1 - y * y)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "tanh": RecordedTanh.apply}


def build_network(net: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> nn.Module:
    """Build the network that ``meta["net"]`` describes, in training mode, with a plain Linear head."""
    kind = net["kind"]
    if kind == "MLP":
        return MultilayerPerceptron(net["dims"], net.get("act", "relu")).to(dtype)
    if kind == "ConvNet":
        return ConvNet(**net["args"]).to(dtype)
    if kind == "mini residual net":
        return MiniResidualNet(net["block"], net["widths"], net["strides"], net["classes"]).to(dtype)
    raise ValueError(f"golden files describe networks MLP, ConvNet and mini residual net, got {kind!r}")


def build_loss(name: str) -> nn.Module:
    """Build the loss ``mse`` (mean over all elements) or ``ce`` (mean softmax cross entropy, integer labels)."""
    losses = {"mse": nn.MSELoss, "ce": CrossEntropy}
    return losses[name]()


def optimizer_arguments(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded optimizer arguments, whether they stand in ``optimizer_args`` or beside it."""
    arguments = {key: meta[key] for key in ("momentum", "weight_decay", "nesterov") if key in meta}
    return arguments | dict(meta.get("optimizer_args") or {})


def build_optimizer(meta: Mapping[str, Any], params: Iterable[Any], **overrides: Any) -> torch.optim.Optimizer:
    """Build the torch optimizer that computes what the recorded one did.

    The recorded Momentum ignores ``use_nesterov`` on a CPU, so it is SGD with momentum. ``loss_scale`` has no torch
    counterpart: see ``divide_by_loss_scale``. A learning rate given as a list starts with its first entry.
    """
    arguments = optimizer_arguments(meta)
    arguments.pop("loss_scale", None)
    rate = meta["learning_rate"]
    arguments["lr"] = rate[0] if isinstance(rate, list) else rate
    name = str(meta["optimizer"]).lower()
    if name == "momentum":
        arguments.pop("use_nesterov", None)
        return torch.optim.SGD(params, **(arguments | overrides))
    if name == "sgd":
        return torch.optim.SGD(params, **(arguments | overrides))
    if name == "adam":
        arguments["betas"] = (arguments.pop("beta1", 0.9), arguments.pop("beta2", 0.999))
        adam = torch.optim.Adam(params, **(arguments | overrides))
        adam.register_step_pre_hook(enlarge_eps)
        return adam
    raise ValueError(f"golden files use Momentum, SGD and Adam, got {meta['optimizer']!r}")


def plain_list(net: nn.Module) -> list[dict[str, Any]]:
    """Return all parameters of a network in the groups that the recorded optimizer makes of a plain list of them.

    By itself it takes scale and shift of norms out of the decay. Given groups (which most algorithms make of a list) it
    decays all of them. The order stays, so that a change of the decay begins a new group.
    """
    norms = {
        id(p)
        for module in net.modules()
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm)
        for p in module.parameters(recurse=False)
    }
    return [
        {"params": list(run), **({"weight_decay": 0.0} if is_norm else {})}
        for is_norm, run in itertools.groupby(net.parameters(), key=lambda p: id(p) in norms)
    ]


def enlarge_eps(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    """Set the eps with which torch's Adam makes the step of the recorded one, which does not correct eps for the bias.

    The recorded step is ``lr * sqrt(1 - beta2**t) / (1 - beta1**t) * m / (sqrt(v) + eps)``; torch's divides ``sqrt(v)``
    by ``sqrt(1 - beta2**t)`` before it adds eps. After one step that makes eps 30 times as large, and where gradients
    are around it the weights part by 1e-3.
    """
    step = 1 + max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)
    for group in optimizer.param_groups:
        group["eps"] = optimizer.defaults["eps"] / math.sqrt(1 - group["betas"][1] ** step)


def divide_by_loss_scale(optimizer: torch.optim.Optimizer, meta: Mapping[str, Any]) -> None:
    """Let the optimizer divide its gradients by the recorded optimizer's ``loss_scale`` before every step."""
    loss_scale = optimizer_arguments(meta).get("loss_scale", 1.0)

    def divide(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad /= loss_scale

    optimizer.register_step_pre_hook(divide)


def golden_batch(
    arrays: Mapping[str, np.ndarray], step: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Return input and target of one step; integer targets stay integers."""
    x, y = torch.from_numpy(arrays["x"][step]), torch.from_numpy(arrays["y"][step])
    return x.to(dtype), y.to(dtype) if y.is_floating_point() else y


def load_initial_weights(net: nn.Module, arrays: Mapping[str, np.ndarray], *, prefix: str = "traj/") -> None:
    """Copy row 0 of every recorded trajectory into the network; every parameter must be recorded."""
    recorded = {key.removeprefix(prefix): value for key, value in arrays.items() if key.startswith(prefix)}
    missing = {name for name, _ in net.named_parameters()} - set(recorded)
    unknown = set(recorded) - set(net.state_dict())
    if missing or unknown:
        raise ValueError(f"network and file disagree: not in the file {sorted(missing)}, unknown {sorted(unknown)}")
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if name in recorded:
                tensor.copy_(torch.from_numpy(recorded[name][0]))


def assert_trajectory(
    net: nn.Module,
    arrays: Mapping[str, np.ndarray],
    step: int,
    rtol: float = 1e-4,
    atol: float = 1e-5,
    *,
    prefix: str = "traj/",
) -> None:
    """Compare every recorded tensor (parameters, and statistics where recorded) after ``step`` calls."""
    state = net.state_dict()
    compared = 0
    for key, rows in arrays.items():
        if not key.startswith(prefix):
            continue
        name = key.removeprefix(prefix)
        actual = state[name].detach().cpu().numpy()
        np.testing.assert_allclose(actual, rows[step], rtol=rtol, atol=atol, err_msg=f"{name} after {step} calls")
        compared += 1
    if not compared:
        raise ValueError(f"the file holds no trajectory with the prefix {prefix!r}")


def assert_training(
    net: nn.Module, optimizer: torch.optim.Optimizer, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Train on the recorded batches, and compare every loss and what every step leaves."""
    criterion = build_loss(meta["loss"])
    for step, expected in enumerate(meta["losses"]):
        x, y = golden_batch(arrays, step)
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
        assert loss.item() == pytest.approx(expected, rel=1e-4)
        assert_trajectory(net, arrays, step + 1)


class CrossEntropy(nn.CrossEntropyLoss):
    """Cross entropy that takes labels of any integer type, as the files hold int32."""

    def forward(self, outputs: Tensor, target: Tensor) -> Tensor:
        return super().forward(outputs, target.long())


class MultilayerPerceptron(nn.Module):
    """Linear layers fc1..fcN with an activation between them."""

    def __init__(self, dims: Iterable[int], act: str = "relu") -> None:
        super().__init__()
        dims = list(dims)
        self.activation = ACTIVATIONS[act]
        self.n_layers = len(dims) - 1
        for index in range(self.n_layers):
            self.add_module(f"fc{index + 1}", nn.Linear(dims[index], dims[index + 1]))

    def forward(self, x: Tensor) -> Tensor:
        for index in range(1, self.n_layers + 1):
            x = getattr(self, f"fc{index}")(x)
            if index < self.n_layers:
                x = self.activation(x)
        return x


class ConvNet(nn.Module):
    """Three convolutions without bias, each with BatchNorm and ReLU, and a linear head."""

    def __init__(self, cin: int, c1: int, c2: int, c3: int, hw: int, ncls: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, c1, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(c1)
        self.conv2 = nn.Conv2d(c1, c2, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(c2)
        self.conv3 = nn.Conv2d(c2, c3, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(c3)
        side = (hw + 1) // 2
        self.fc = nn.Linear(c3 * side * side, ncls)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        return self.fc(x.flatten(1))


class MiniResidualNet(nn.Module):
    """Stem with max pooling, two residual blocks per stage, global mean, linear head."""

    def __init__(self, block: str, widths: Iterable[int], strides: Iterable[int], classes: int) -> None:
        super().__init__()
        kind = {"basic": "basic", "bottle": "bottleneck"}[block]
        widths = list(widths)
        channels = widths[0]
        self.conv1 = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.stages: list[str] = []
        for index, (width, stride) in enumerate(zip(widths, strides, strict=True), start=1):
            first = ResidualBlock(kind, channels, width, stride)
            channels = first.channels
            self.add_module(f"layer{index}", nn.Sequential(first, ResidualBlock(kind, channels, width, 1)))
            self.stages.append(f"layer{index}")
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2, 2)
        for stage in self.stages:
            x = getattr(self, stage)(x)
        return self.fc(x.mean((2, 3)))
