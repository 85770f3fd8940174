"""Handwritten digits by a dense net of three layers: float16 is emulated on a CPU, and its products are bearable there.

Data, batches, loss and schedule are those of ``digits-lenet``; only the network differs (7 thousand parameters).
"""

from __future__ import annotations

import dataclasses

from torch import Tensor, nn

from workbench.tasks import Task
from workbench.tasks.digits import digits_lenet


class DenseNet(nn.Module):
    """64 - 64 - 32 - 10, rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 64)
        self.fc2 = nn.Linear(64, 32)
        self.fc3 = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape ``[n, 10]``."""
        features = self.fc1(images.flatten(1)).relu()
        logits: Tensor = self.fc3(self.fc2(features).relu())
        return logits


def digits_dense() -> Task:
    """Return the task."""
    return dataclasses.replace(
        digits_lenet(), name="digits-dense", model=DenseNet, description="three dense layers on handwritten digits"
    )
