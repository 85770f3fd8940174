"""The reference's examples of loss scales, translated by docs/mindspore.md.

``BuildTrainNetwork`` and ``train_net`` are functions of that page's author; here they are what their names say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import workbench.nn
from tests.seed_examples.lenet import create_dataset
from workbench import boost
from workbench.nn import TrainOneStepWithLossScaleCell
from workbench.tasks.digits import ResNet, load_images

LR_ORI, MOMENTUM_ORI, WEIGHT_DECAY = 0.05, 0.9, 1e-4
TRAIN_BATCH_SIZE, CLASS_NUM, EPOCH_MAX = 64, 10, 2


def resnet() -> nn.Module:
    return ResNet(widths=(8, 16), n_blocks=1)


class BuildTrainNetwork(nn.Module):
    def __init__(self, network: nn.Module, criterion: nn.Module, train_batch_size: int, class_num: int) -> None:
        super().__init__()
        self.network = network
        self.criterion = criterion
        self.expected = (train_batch_size, class_num)

    def forward(self, input_data: Tensor, label: Tensor) -> Tensor:
        output = self.network(input_data)
        assert output.shape == self.expected
        loss: Tensor = self.criterion(output, label)
        return loss


def train_net(
    model_constructed: nn.Module, net: nn.Module, loss_function: nn.Module, epochs: int, data: Iterable[Any]
) -> list[Any]:
    net.train()
    return [model_constructed(x, y) for _ in range(epochs) for x, y in data]


def test_dynamic_loss_scale_with_the_low_level_interface() -> None:
    # Define network
    net = resnet()

    # Define the loss_function
    loss_function = nn.CrossEntropyLoss(reduction="mean")

    # Define the optimizer
    opt = torch.optim.SGD(net.parameters(), LR_ORI, MOMENTUM_ORI, weight_decay=WEIGHT_DECAY, fused=True)

    # Bind loss_function to net
    model_constructed: nn.Module = BuildTrainNetwork(net, loss_function, TRAIN_BATCH_SIZE, CLASS_NUM)

    # Define the Dynamic Loss scale update cell
    loss_scale_manager = workbench.nn.DynamicLossScaleUpdateCell(
        loss_scale_value=2**12, scale_factor=2, scale_window=1000
    )

    # Define Network training with loss scaling
    model_constructed = TrainOneStepWithLossScaleCell(model_constructed, opt, scale_sense=loss_scale_manager)

    # Train
    images, labels = load_images()
    pieces = (torch.split(tensor[:512], TRAIN_BATCH_SIZE) for tensor in (images, labels))
    batches = list(zip(*pieces, strict=True))
    steps = train_net(model_constructed, net, loss_function, EPOCH_MAX, batches)

    assert [(bool(step.overflow), float(step.loss_scale)) for step in steps] == [(False, 4096.0)] * 16
    assert float(steps[-1].loss) < float(steps[0].loss)


def test_group_loss_scale_manager() -> None:
    class Net(nn.Module):
        def __init__(self, enhanced_amp: nn.Module, num_class: int = 10, num_channel: int = 1) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(num_channel, 6, 5)
            self.conv2 = nn.Conv2d(6, 16, 5)
            self.fc1 = nn.Linear(16 * 5 * 5, 120)
            self.fc2 = nn.Linear(120, 84)
            self.fc3 = nn.Linear(84, num_class)
            for layer in (self.fc1, self.fc2, self.fc3):
                nn.init.ones_(layer.weight)
            self.relu = nn.ReLU()
            self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
            self.flatten = nn.Flatten()
            self.enhanced_amp = enhanced_amp

        def forward(self, x: Tensor) -> Tensor:
            x = self.enhanced_amp(x, 0, 1)
            x = self.max_pool2d(self.relu(self.conv1(x)))
            x = self.max_pool2d(self.relu(self.conv2(x)))
            x = self.flatten(x)
            x = self.enhanced_amp(x, 1, 2)
            x = self.relu(self.fc1(x))
            x = self.relu(self.fc2(x))
            x = self.fc3(x)
            x = self.enhanced_amp(x, 2, 3)
            return x  # noqa: RET504  # as the example has it

    loss_scale_manager = boost.GroupLossScaleManager(4096, [])
    net = Net(loss_scale_manager)
    param_group1 = []
    param_group2 = []
    for name, param in net.named_parameters():
        if "conv" in name:
            param_group1.append(param)
        else:
            param_group2.append(param)
    loss_scale_manager.loss_scale_groups = [param_group1, param_group2]
    loss = nn.CrossEntropyLoss()
    optim = torch.optim.SGD(params=net.parameters(), lr=0.1, momentum=0.9, fused=True)
    boost_config_dict = {
        "boost": {
            "mode": "manual",
            "less_bn": False,
            "grad_freeze": False,
            "adasum": False,
            "grad_accumulation": False,
            "dim_reduce": False,
            "loss_scale_group": True,
        }
    }
    model = workbench.nn.Model(
        net,
        loss_fn=loss,
        optimizer=optim,
        metrics=None,
        loss_scale_manager=loss_scale_manager,
        boost_level="O1",
        boost_config_dict=boost_config_dict,
    )
    dataset: DataLoader[tuple[Tensor, ...]] = create_dataset()
    before = net.fc3.weight.clone()
    model.train(2, dataset)

    scales = model.boosted.loss_scaling.group_scales
    assert torch.equal(scales, loss_scale_manager.group_scales)
    # 20 steps without an overflow: each scale grew by 2^(1/1000) a step, in float32
    torch.testing.assert_close(scales, torch.full((2,), 4096 * 2 ** (20 / 1000)), rtol=1e-5, atol=0)
    assert not torch.equal(before, net.fc3.weight)
    assert bool(torch.isfinite(net.fc3.weight).all())
