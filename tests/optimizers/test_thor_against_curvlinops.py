"""THOR's default factors against curvlinops' KFAC, where both mean the same: the empirical Fisher matrix, expanded.

curvlinops brings torchvision and half a dozen packages more, so it is no extra of ours: install
``curvlinops-for-pytorch`` (3.0.1 was used) to run this.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.optimizers.thor_formulas import dense
from workbench.optim.thor.optimizer import Thor

curvlinops: Any = pytest.importorskip("curvlinops", reason="curvlinops-for-pytorch is not installed")


@pytest.mark.filterwarnings("ignore")  # curvlinops' own
def test_the_factors_multiply_as_curvlinops_kfac_does() -> None:
    # For a squared error curvlinops counts every output as a term of the loss; there the two differ by a constant.
    loss = nn.CrossEntropyLoss()
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1, stride=2, bias=False),
        nn.Tanh(),
        nn.Conv2d(3, 4, 2, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(16, 5, bias=False),
        nn.Tanh(),
        nn.Linear(5, 3, bias=False),
    ).double()
    x = torch.randn(10, 2, 6, 6, dtype=torch.float64)
    y = torch.randint(3, (10,))
    weights = list(net.parameters())
    kfac = curvlinops.KFACLinearOperator(
        net, loss, weights, [(x, y)], fisher_type="empirical", check_deterministic=False
    )

    optimizer = Thor(net, 0.0, 0.1, 0.0)
    loss(net(x), y).backward()
    optimizer.step()

    vectors = [torch.randn_like(weight) for weight in weights]
    products = kfac @ vectors
    engine = optimizer.preconditioner
    for layer, vector, product in zip(engine.layers, vectors, products, strict=True):
        a = dense(engine.blocks, layer.a, engine.blocks.factors)
        g = dense(engine.blocks, layer.g, engine.blocks.factors)
        ours = (g @ vector.flatten(1) @ a).view_as(vector)
        torch.testing.assert_close(ours, product.detach(), rtol=1e-8, atol=1e-12, msg=layer.name)
