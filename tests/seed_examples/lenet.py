"""What the examples take from elsewhere: LeNet5 and a dataset of handwritten digits of its size."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["LeNet5", "create_dataset"]


class LeNet5(nn.Module):
    def __init__(self, num_class: int = 10, num_channel: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(num_channel, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, num_class)
        self.relu = nn.ReLU()
        self.max_pool2d = nn.MaxPool2d(kernel_size=2, stride=2)
        self.flatten = nn.Flatten()

    def forward(self, x: Tensor) -> Tensor:
        x = self.max_pool2d(self.relu(self.conv1(x)))
        x = self.max_pool2d(self.relu(self.conv2(x)))
        x = self.flatten(x)
        x = self.relu(self.fc1(x))
        x = self.relu(self.fc2(x))
        out: Tensor = self.fc3(x)
        return out


def create_dataset(n_samples: int = 320, one_hot: bool = False, batch_size: int = 32) -> DataLoader[tuple[Tensor, ...]]:
    """Return scikit-learn's digits in the place of MNIST, padded from 8 x 8 to 32 x 32, in batches."""
    table = load_digits()
    images = torch.tensor(table.images[:n_samples], dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(table.target[:n_samples])
    targets = F.one_hot(labels, 10).float() if one_hot else labels
    return DataLoader(TensorDataset(F.pad(images, (12, 12, 12, 12)), targets), batch_size=batch_size)
