"""The reference's example of dynamic loss scale with the low-level interface, translated by docs/mindspore.md.

``BuildTrainNetwork`` and ``train_net`` are functions of that page's author; here they are what their names say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import workbench.nn
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
