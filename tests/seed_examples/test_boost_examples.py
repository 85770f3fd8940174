"""The examples of the reference's page on ``mindspore.boost``, translated by the table of docs/mindspore.md only.

Each test is one example, statement by statement and in its order; what comes after it looks at what it did.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import workbench.nn
from tests.seed_examples.lenet import LeNet5, create_dataset
from workbench import boost
from workbench.boost import AutoBoost, FreezeOpt, OptimizerProcess, ParameterProcess, freeze_cell
from workbench.nn import WithLossCell
from workbench.tasks.digits import ResNet


class Net(nn.Module):
    """The network of most examples: one matrix of ones."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones([in_features, out_features], dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        output = x @ self.weight
        return output  # noqa: RET504  # as the example has it


class NetOfTwo(nn.Module):
    """The network of the example of ParameterProcess."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones([in_features, out_features], dtype=torch.float32))
        self.weight2 = nn.Parameter(torch.ones([in_features, out_features], dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        output = x @ self.weight
        output2 = x @ self.weight2
        return output + output2


# The dictionary that the page suggests, as it stands there.
SUGGESTED: dict[str, Any] = {
    "boost": {
        "mode": "auto",
        "less_bn": False,
        "grad_freeze": False,
        "adasum": False,
        "grad_accumulation": False,
        "dim_reduce": False,
    },
    "common": {"gradient_split_groups": [50, 100], "device_number": 8},
    "less_bn": {"fn_flag": True, "gc_flag": True},
    "grad_freeze": {"param_groups": 10, "freeze_type": 1, "freeze_p": 0.7, "total_steps": 65536},
    "grad_accumulation": {"grad_accumulation_step": 1},
    "dim_reduce": {
        "rho": 0.55,
        "gamma": 0.9,
        "alpha": 0.001,
        "sigma": 0.4,
        "n_components": 32,
        "pca_mat_path": None,
        "weight_load_dir": None,
        "timeout": 1800,
    },
}


def test_auto_boost_takes_a_dictionary_or_the_content_of_a_file(tmp_path: Path) -> None:
    # 1) when configuring the dict directly:
    boost_config_dict: dict[str, Any] = {"boost": {"mode": "auto"}}
    boost = AutoBoost("O1", boost_config_dict)
    assert boost.plan.in_effect() == ("less_bn", "grad_freeze")

    # 2) when loading the dict from a json file:
    boost_json = tmp_path / "boost_config.json"
    boost_json.write_text(json.dumps(SUGGESTED | {"boost": SUGGESTED["boost"] | {"mode": "disable_all"}}))
    with open(boost_json) as fp:  # noqa: PTH123  # as the example has it
        boost_config_dict = json.load(fp)
    boost = AutoBoost("O1", boost_config_dict)
    assert boost.plan.in_effect() == ()


def test_the_suggested_dictionary_is_taken_as_it_stands() -> None:
    boost = AutoBoost("O1", SUGGESTED)
    assert boost.plan.in_effect() == ("less_bn", "grad_freeze")  # mode auto: the level decides
    assert boost.config.common.gradient_split_groups == [50, 100]


def test_auto_boost_processes_a_network_for_training_and_for_inference() -> None:
    network, boost = ResNet(), AutoBoost("O1", {"boost": {"mode": "auto"}})
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    network, optimizer = boost.network_auto_process_train(network, optimizer)  # type: ignore[assignment]
    assert isinstance(optimizer, FreezeOpt)
    assert boost.network_auto_process_eval(network) is network


def test_optimizer_process() -> None:
    _size, in_features, out_features = 16, 16, 10
    network = Net(in_features, out_features)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer_process = OptimizerProcess(optimizer)
    optimizer_process.add_grad_centralization(network)
    optimizer = optimizer_process.generate_new_optimizer()
    assert [group["grad_centralization"] for group in optimizer.param_groups] == [True]
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_parameter_process() -> None:
    _size, in_features, out_features = 16, 16, 10
    network = NetOfTwo(in_features, out_features)
    new_parameter = list(network.parameters())[:1]
    group_params = ParameterProcess.generate_group_params(new_parameter, list(network.parameters()))
    assert [[id(p) for p in group["params"]] for group in group_params] == [[id(network.weight)]]


def test_boost_train_one_step_cell() -> None:
    net = LeNet5()
    loss_fn = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    # 1) Using the WithLossCell existing provide
    loss_net: nn.Module = workbench.nn.WithLossCell(net, loss_fn)
    train_net = boost.BoostTrainOneStepCell(loss_net, optim)

    data, label = next(iter(create_dataset()))
    before = net.fc3.weight.clone()
    loss, overflow, loss_scale = train_net(data, label)
    assert (loss.shape, bool(overflow), float(loss_scale)) == ((), False, 1.0)
    assert not torch.equal(before, net.fc3.weight)

    # 2) Using user-defined WithLossCell
    class MyWithLossCell(nn.Module):
        def __init__(self, backbone: nn.Module, loss_fn: nn.Module) -> None:
            super().__init__()
            self._backbone = backbone
            self._loss_fn = loss_fn

        def forward(self, x: Tensor, y: Tensor, label: Tensor) -> Tensor:
            out = self._backbone(x, y)
            loss: Tensor = self._loss_fn(out, label)
            return loss

        @property
        def backbone_network(self) -> nn.Module:
            return self._backbone

    loss_net = MyWithLossCell(net, loss_fn)
    train_net = boost.BoostTrainOneStepCell(loss_net, optim)

    # The backbone of the example takes two inputs, which its LeNet5 does not; this one adds them.
    two_inputs = SumOfInputs(net)
    train_net = boost.BoostTrainOneStepCell(MyWithLossCell(two_inputs, loss_fn), optim)
    expected = loss_fn(net(data), label).item()
    assert train_net(data / 2, data / 2, label).loss.item() == expected


class SumOfInputs(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.body(x + y)
        return out


def test_boost_train_one_step_with_loss_scale_cell() -> None:
    size, in_features, out_features = 16, 16, 10
    # 1) when the type of scale_sense is Cell:
    net = Net(in_features, out_features)
    loss = nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    net_with_loss = WithLossCell(net, loss)
    manager = workbench.nn.DynamicLossScaleUpdateCell(loss_scale_value=2**12, scale_factor=2, scale_window=1000)
    train_network = boost.BoostTrainOneStepWithLossScaleCell(net_with_loss, optimizer, scale_sense=manager)
    input = torch.ones([out_features, in_features], dtype=torch.float32)  # the example's name
    labels = torch.ones([out_features], dtype=torch.float32)
    with pytest.warns(UserWarning, match="target size"):  # torch says that the example compares [10, 10] with [10]
        output = train_network(input, labels)
    assert (float(output.loss), bool(output.overflow), float(output.loss_scale)) == (225.0, False, 4096.0)
    # d/dw of the mean of (16 - 1)^2 over 100 outputs: every weight of a column sees 10 of them
    torch.testing.assert_close(net.weight.detach(), torch.full((16, 10), 1 - 0.1 * 2 * 15 * 10 / 100))

    # 2) when the type of scale_sense is Tensor:
    net = Net(in_features, out_features)
    loss = nn.MSELoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    net_with_loss = WithLossCell(net, loss)
    inputs = torch.ones([size, in_features], dtype=torch.float32)
    label = torch.zeros([size, out_features], dtype=torch.float32)
    scaling_sens = torch.full((1,), torch.finfo(torch.float32).max, dtype=torch.float32)
    train_network = boost.BoostTrainOneStepWithLossScaleCell(net_with_loss, optimizer, scale_sense=scaling_sens)
    output = train_network(inputs, label)
    # such a scale overflows, and the step is skipped
    assert (float(output.loss), bool(output.overflow)) == (256.0, True)
    assert torch.equal(net.weight, torch.ones_like(net.weight))


def test_less_bn() -> None:
    network: nn.Module = ResNet()
    n_before = sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())
    network = boost.LessBN(network)
    assert sum(isinstance(module, nn.BatchNorm2d) for module in network.modules()) < n_before


def test_gradient_freeze() -> None:
    network: nn.Module = ResNet()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    gradient_freeze_class = boost.GradientFreeze(10, 1, 0.5, 2000)
    network, optimizer = gradient_freeze_class.freeze_generate(network, optimizer)
    assert isinstance(optimizer, FreezeOpt)
    assert optimizer.n_groups == 10


def test_freeze_cell() -> None:
    in_features, out_features = 16, 10
    network = Net(in_features, out_features)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, fused=True)
    optimizer = FreezeOpt(optimizer)  # type: ignore[assignment]
    grad = None
    freeze_nets = freeze_cell(False, network, optimizer, 1.0, grad, False, None, None, 1)  # type: ignore[arg-type]
    assert len(freeze_nets) == 1
