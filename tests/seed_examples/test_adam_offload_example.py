"""The example of the reference's page on AdamOffload, translated by docs/mindspore.md.

``net.trainable_params()`` becomes ``list(net.parameters())`` and ``x.name`` a name from ``named_parameters()``.
"""

from __future__ import annotations

from torch import nn

from tests.seed_examples.lenet import LeNet5, create_dataset
from workbench.nn import AdamOffload, Model


def test_one_rate_and_groups_with_their_own_train_lenet() -> None:
    net = LeNet5()
    # 1) All parameters use the same learning rate and weight decay
    optim = AdamOffload(params=net.parameters())
    assert [group["lr"] for group in optim.param_groups] == [0.001]

    # 2) Use parameter groups and set different values
    conv_params = [x for name, x in net.named_parameters() if "conv" in name]
    no_conv_params = [x for name, x in net.named_parameters() if "conv" not in name]
    group_params = [
        {"params": conv_params, "weight_decay": 0.01},
        {"params": no_conv_params, "lr": 0.01},
        {"order_params": list(net.parameters())},
    ]
    optim = AdamOffload(group_params, learning_rate=0.1, weight_decay=0.0)
    # The conv_params's parameters will use default learning rate of 0.1 and weight decay of 0.01.
    # The no_conv_params's parameters will use learning rate of 0.01 and default weight decay of 0.0.
    # The final parameters order in which the optimizer will be followed is the value of 'order_params'.
    assert [(group["lr"], group["weight_decay"]) for group in optim.param_groups] == [(0.1, 0.01), (0.01, 0.0)]
    assert all(a is b for a, b in zip(optim.parameters, net.parameters(), strict=True))

    loss = nn.CrossEntropyLoss()
    model = Model(net, loss_fn=loss, optimizer=optim)
    dataset = create_dataset(64)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    model.train(1, dataset)
    assert optim.global_step == 2
    assert all(not a.equal(b) for a, b in zip(before, net.parameters(), strict=True))
