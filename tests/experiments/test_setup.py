"""What is built for a run of a task."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.network_families import ResNet
from workbench.config import BoostConfig
from workbench.tasks import Task
from workbench.training.setup import prepare

LESS_BN = BoostConfig.from_dict(
    {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": False}, "less_bn": {"fn_flag": False}}
)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, 32, 32, generator=generator), torch.tensor([0, 1, 2, 3]))]


def penalised(model: nn.Module, batch: Any) -> Tensor:
    """A slimming penalty: the loss reads the scale of a BatchNorm that LessBN would remove."""
    loss = F.cross_entropy(model(batch[0]), batch[1])
    return loss + 1e-3 * model.get_parameter("layer1.0.bn1.weight").abs().sum()


def test_a_norm_that_the_loss_of_a_task_reads_stays() -> None:
    task = Task(
        name="slimming",
        model=lambda: ResNet("basic", (1, 1), (4, 6)),
        loss=penalised,
        optimizer=lambda parameters: SGD([parameter for _, parameter in parameters], lr=0.1),
        train=batches(),
        evaluate=batches(),
        metric="loss",
        data_hash="noise",
    )
    with pytest.warns(UserWarning, match=r"left layer1\.0\.bn1 alone: the model reads its weight"):
        boosted = prepare(task, LESS_BN, level="O1", seed=0, device=torch.device("cpu"), steps=2).boosted
    boosted.backward(task.compute_loss(boosted.model, batches()[0]))
    assert boosted.step().applied
