"""How many operations of torch a refresh of THOR and a scaled step are on an accelerator, counted on its stand-in.

    python -m tests.accelerator.count_operations

Needs g++, and says nothing of time.
"""

from __future__ import annotations

import copy

from workbench.bench.questions.large_nets import BottleneckNet, Images
from workbench.bench.questions.scaled_step import (
    Perceptron,
    _boosted_step,
    _scaler_step,
    _stock_step,
    batch_of,
    network_of,
)
from workbench.bench.questions.thor import (
    _perceptron,
    _Refresh,
    _resnet8,
    _Training,
)

from tests.accelerator.standin import load_standin
from workbench.bench.operations import operations_of

device = load_standin()
for name, network, shape in (
    ("perceptron", _perceptron(32), (8, 32)),
    ("ResNet-8", _resnet8(), (2, 3, 8, 8)),
    ("ResNet-50 shape, narrow", BottleneckNet(Images(width=4, batch=2, side=32, classes=10)), (2, 3, 32, 32)),
):
    refresh = _Refresh(_Training(network, shape, device))
    print(f"refresh of {len(refresh.engine.layers)} layers, {name}: {operations_of(refresh.ours).total()} operations")

net = Perceptron(8, 16, 4)
model, batch = network_of(net).to(device), batch_of(net, device)
steps = {"unscaled": _stock_step, "ours": _boosted_step, "GradScaler": _scaler_step}
for name, step in steps.items():
    print(f"step, {name}: {operations_of(step(copy.deepcopy(model), *batch)).total()} operations")
