"""Lightning's first example, on handwritten digits: a module and its data."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from workbench.tasks.digits import ResNet


def small_network() -> nn.Module:
    """Return a convolutional network without BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 32), nn.ReLU(), nn.Linear(32, 10)
    )


def residual_network() -> nn.Module:
    """Return a residual network with BatchNorms that can go."""
    return ResNet(widths=(8, 16), n_blocks=1)


class LitDigits(LightningModule):
    """A classifier as Lightning's documentation writes it."""

    def __init__(self, network: nn.Module, rate: float = 0.1, schedule: Any = None) -> None:
        super().__init__()
        self.network, self.rate, self.schedule = network, rate, schedule
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, images: Tensor) -> Any:
        return self.network(images)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, targets = batch
        loss = self.criterion(self(images), targets)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        images, targets = batch
        scores = self(images)
        self.log("val_loss", self.criterion(scores, targets))
        self.log("val_acc", (scores.argmax(dim=1) == targets).float().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9, fused=True)
        return optimizer if self.schedule is None else self.schedule(optimizer)


class Digits(LightningDataModule):
    """Handwritten digits, 8 by 8."""

    def __init__(self, batch_size: int = 32, n_train: int = 1408, *, shuffle: bool = False) -> None:
        super().__init__()
        self.batch_size, self.n_train, self.shuffle = batch_size, n_train, shuffle

    def setup(self, stage: str) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.data = TensorDataset(images, torch.tensor(digits.target))

    def train_dataloader(self) -> Any:
        first = torch.utils.data.Subset(self.data, range(self.n_train))
        return DataLoader(first, self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> Any:
        last = torch.utils.data.Subset(self.data, range(1408, len(self.data)))
        return DataLoader(last, 128)
