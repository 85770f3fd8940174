"""The examples of the reference's pages on optimizers.

``SoftmaxCrossEntropyWithLogits`` becomes ``CrossEntropyLoss``, ``net.trainable_params()`` ``list(net.parameters())``
and ``x.name`` a name from ``named_parameters()``; the rest is as on the pages.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

import workbench.nn
from tests.seed_examples.lenet import LeNet5, create_dataset


def test_the_model_of_the_page_on_thor() -> None:
    torch.manual_seed(0)
    net = LeNet5()
    dataset = create_dataset(40, batch_size=4)  # a CPU takes its time for convolutions in float16
    temp = torch.tensor([4e-4, 1e-4, 1e-5, 1e-5], dtype=torch.float32)
    optim = workbench.nn.thor(net, learning_rate=temp, damping=temp, momentum=0.9, loss_scale=128, frequency=4)
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

    model = workbench.nn.ConvertModelUtils.convert_to_thor_model(
        model=model,
        network=net,
        loss_fn=loss,
        optimizer=optim,
        loss_scale_manager=loss_scale,
        metrics={"acc"},
        amp_level="O2",
        keep_batchnorm_fp32=False,
    )

    before = model.eval(dataset)["acc"]
    model.train(5, dataset)
    assert model.boosted.loss_scale.item() == 128.0
    assert model.optimizer is optim
    assert optim.param_groups[0]["lr"] == pytest.approx(1e-5)
    assert optim.preconditioner.steps == 50
    after = model.eval(dataset)["acc"]
    assert before < 0.3
    assert after > 0.5  # the page's rates end at 1e-5 after four steps


def test_a_model_with_another_optimizer_is_returned_as_it_is() -> None:
    net = LeNet5()
    optim = torch.optim.SGD(net.parameters(), lr=0.1)
    model = workbench.nn.Model(net, nn.CrossEntropyLoss(), optim)
    convert = workbench.nn.ConvertModelUtils.convert_to_thor_model
    assert convert(model, net, nn.CrossEntropyLoss(), optim) is model
    with pytest.raises(TypeError, match="`model` must be a Model, got LeNet5"):
        convert(net, net)  # type: ignore[arg-type]


def test_the_model_of_the_page_on_adam_offload() -> None:
    net = LeNet5()
    # 1) All parameters use the same learning rate and weight decay
    optim = torch.optim.Adam(params=net.parameters(), fused=True)

    # 2) Use parameter groups and set different values
    conv_params = [param for name, param in net.named_parameters() if "conv" in name]
    no_conv_params = [param for name, param in net.named_parameters() if "conv" not in name]
    group_params = [{"params": conv_params, "weight_decay": 0.01, "lr": 0.003}, {"params": no_conv_params, "lr": 0.001}]
    optim = torch.optim.Adam(group_params, lr=0.1, weight_decay=0.0, fused=True)

    loss = nn.CrossEntropyLoss()  # takes the one-hot labels of SoftmaxCrossEntropyWithLogits() as they are
    model = workbench.nn.Model(net, loss_fn=loss, optimizer=optim)

    dataset = create_dataset(one_hot=True)
    model.train(8, dataset)
    by_class = workbench.nn.Model(net, loss_fn=loss, metrics={"acc"})
    assert by_class.eval(dataset) == by_class.eval(create_dataset())  # one-hot or not
    assert by_class.eval(dataset)["acc"] > 0.6


def test_adam_offload_with_one_rate_and_with_groups_of_their_own() -> None:
    net = LeNet5()
    # 1) All parameters use the same learning rate and weight decay
    optim = workbench.nn.AdamOffload(params=net.parameters())
    assert [group["lr"] for group in optim.param_groups] == [0.001]

    # 2) Use parameter groups and set different values
    conv_params = [x for name, x in net.named_parameters() if "conv" in name]
    no_conv_params = [x for name, x in net.named_parameters() if "conv" not in name]
    group_params = [
        {"params": conv_params, "weight_decay": 0.01},
        {"params": no_conv_params, "lr": 0.01},
        {"order_params": list(net.parameters())},
    ]
    optim = workbench.nn.AdamOffload(group_params, learning_rate=0.1, weight_decay=0.0)
    # The conv_params's parameters will use default learning rate of 0.1 and weight decay of 0.01.
    # The no_conv_params's parameters will use learning rate of 0.01 and default weight decay of 0.0.
    # The final parameters order in which the optimizer will be followed is the value of 'order_params'.
    assert [(group["lr"], group["weight_decay"]) for group in optim.param_groups] == [(0.1, 0.01), (0.01, 0.0)]
    assert all(a is b for a, b in zip(optim.parameters, net.parameters(), strict=True))

    loss = nn.CrossEntropyLoss()
    model = workbench.nn.Model(net, loss_fn=loss, optimizer=optim)
    dataset = create_dataset(64)
    before = [parameter.detach().clone() for parameter in net.parameters()]
    model.train(1, dataset)
    assert optim.global_step == 2
    assert all(not a.equal(b) for a, b in zip(before, net.parameters(), strict=True))
