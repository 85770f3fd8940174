"""How many operations of torch a refresh of THOR and a scaled step are on an accelerator, counted on its stand-in.

    python -m tests.accelerator.count_operations

Needs g++, and says nothing of time.
"""

from __future__ import annotations

import copy

from workbench.bench.questions.loss_scale import Perceptron, grad_scaler_step, scaled_step, unscaled_step
from workbench.bench.questions.nets import CLASSES, BottleneckNet, Images, perceptron, residual_net
from workbench.bench.questions.operations import operations_of
from workbench.bench.questions.thor import Refresh, Training

from tests.accelerator.standin import load_standin

device = load_standin()
for name, network, shape in (
    ("perceptron", perceptron([32] * 5 + [CLASSES]), (8, 32)),
    ("ResNet-8", residual_net(n_blocks=1), (2, 3, 8, 8)),
    ("ResNet-50 shape, narrow", BottleneckNet(Images(width=4, batch=2, side=32, classes=10)), (2, 3, 32, 32)),
):
    refresh = Refresh(Training(network, shape, device))
    print(f"refresh of {len(refresh.engine.layers)} layers, {name}: {operations_of(refresh.ours).total()} operations")

net = Perceptron(8, 16, 4)
model, batches = net.network().to(device), net.samples(device)
steps = {"unscaled": unscaled_step, "ours": scaled_step, "GradScaler": grad_scaler_step}
for name, step in steps.items():
    print(f"step, {name}: {operations_of(step(copy.deepcopy(model), batches)).total()} operations")
