"""The example of ``GroupLossScaleManager`` on the reference's page, translated by docs/mindspore.md's table only."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import workbench.nn
from tests.seed_examples.lenet import create_dataset
from workbench import boost


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

    assert model.boosted is not None
    scales = model.boosted.loss_scaling.group_scales
    assert scales is not None
    assert torch.equal(scales, loss_scale_manager.group_scales)
    # 20 steps without an overflow: each scale grew by 2^(1/1000) a step, in float32
    torch.testing.assert_close(scales, torch.full((2,), 4096 * 2 ** (20 / 1000)), rtol=1e-5, atol=0)
    assert not torch.equal(before, net.fc3.weight)
    assert bool(torch.isfinite(net.fc3.weight).all())
