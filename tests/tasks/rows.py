"""Small data sets, and loaders of them."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

__all__ = ["LABELS", "ROWS", "Noisy", "loader"]

ROWS = torch.arange(22.0).reshape(11, 2)
LABELS = torch.arange(11)


class Noisy(Dataset[Tensor]):
    """Draws from all three global generators."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> Tensor:
        drawn = torch.rand(()), np.random.random(), random.random()  # noqa: NPY002
        return torch.tensor([index, *drawn])


def loader(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(ROWS, LABELS), batch_size=3, **options)
