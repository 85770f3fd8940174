"""The examples of the reference's pages on optimizers, as far as they are about ``Model``.

Not yet here, because what they show comes with later work: the optimizers ``thor`` and ``AdamOffload`` themselves,
``ConvertModelUtils``, and ``RecModel.online_train``. Their places are taken by torch's optimizers below.
"""

from __future__ import annotations

import torch
from torch import nn

import workbench.nn
from tests.seed_examples.lenet import LeNet5, create_dataset


def test_the_model_of_the_page_on_thor() -> None:
    net = LeNet5()
    dataset = create_dataset()
    optim = torch.optim.Adam(net.parameters(), lr=0.003, fused=True)  # in the place of thor
    loss = nn.CrossEntropyLoss(reduction="mean")
    loss_scale = workbench.nn.FixedLossScaleManager(128, drop_overflow_update=False)
    model = workbench.nn.Model(
        net,
        loss_fn=loss,
        optimizer=optim,
        loss_scale_manager=loss_scale,
        metrics={"acc"},
        amp_level="O2",
        keep_batchnorm_fp32=False,
    )

    before = model.eval(dataset)["acc"]
    model.train(5, dataset)
    assert model.boosted is not None
    assert model.boosted.loss_scale.item() == 128.0
    assert before < 0.3 < 0.6 < model.eval(dataset)["acc"]


def test_the_model_of_the_page_on_adam_offload() -> None:
    net = LeNet5()
    # 1) All parameters use the same learning rate and weight decay
    optim = torch.optim.Adam(params=net.parameters(), fused=True)

    # 2) Use parameter groups and set different values
    conv_params = [param for name, param in net.named_parameters() if "conv" in name]
    no_conv_params = [param for name, param in net.named_parameters() if "conv" not in name]
    group_params = [
        {"params": conv_params, "weight_decay": 0.01, "lr": 0.003},
        {"params": no_conv_params, "lr": 0.001},
    ]
    optim = torch.optim.Adam(group_params, lr=0.1, weight_decay=0.0, fused=True)

    loss = nn.CrossEntropyLoss()  # takes the one-hot labels of SoftmaxCrossEntropyWithLogits() as they are
    model = workbench.nn.Model(net, loss_fn=loss, optimizer=optim)

    dataset = create_dataset(one_hot=True)
    model.train(8, dataset)
    by_class = workbench.nn.Model(net, loss_fn=loss, metrics={"acc"})
    assert by_class.eval(dataset) == by_class.eval(create_dataset())  # one-hot or not
    assert by_class.eval(dataset)["acc"] > 0.6
