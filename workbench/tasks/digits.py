"""``digits-lenet`` and ``digits-resnet``: handwritten digits that come with scikit-learn.

1797 grey images of 8 x 8 pixels in ten classes (``sklearn.datasets.load_digits``), a part of: E. Alpaydin and
C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository 1998, doi:10.24432/C50P49. A
quarter of each class, chosen by the seed, is kept for evaluation. There is no augmentation. Images are
``[n, 1, 8, 8]`` float32, targets ``[n]`` int64. Both networks have static control flow: ``torch.fx`` traces them.
"""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD

from workbench.tasks.batches import ShuffledBatches, digest_of_batches, mixed_seed
from workbench.tasks.schedules import warmup_cosine
from workbench.tasks.task import Task

BATCH_SIZE = 32
EVALUATION_BATCH_SIZE = 150
_EVALUATION_SHARE = 0.25  # of each class: 450 images, so one image is 0.22 % accuracy
_PIXEL_MEAN, _PIXEL_SPREAD = 4.884, 6.017  # over all images, in grey levels 0..16; the same for every split


def digits_resnet() -> Task:
    """Return the task of a ResNet-20 on the digits: SGD with momentum, warm-up and cosine."""
    return _digits_task("digits-resnet", ResNet, 0.05)


def digits_lenet() -> Task:
    """Return the task of a small LeNet on the digits: SGD with momentum, warm-up and cosine."""
    return _digits_task("digits-lenet", LeNet, 0.1)


def _digits_task(name: str, model: type[nn.Module], learning_rate: float) -> Task:
    return Task(
        name=name,
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=functools.partial(SGD, lr=learning_rate, momentum=0.9, weight_decay=5e-4, fused=True),
        train=_training_batches,
        evaluate=_evaluation_batches,
        metric="accuracy",
        scheduler=functools.partial(warmup_cosine, warmup_share=0.1),
        data_hash=f"sklearn.datasets.load_digits sha256:{digest_of_batches(load_images())}",
        steps=180,
    )


@functools.cache
def read_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return what ``sklearn.datasets.load_digits`` returns as ``data`` and ``target``, without importing scikit-learn.

    Importing ``sklearn.datasets`` takes longer than anything else that ``workbench train`` does before its first step.
    """
    found = importlib.util.find_spec("sklearn")
    for folder in [] if found is None else found.submodule_search_locations or []:
        if (path := Path(folder) / "datasets" / "data" / "digits.csv.gz").is_file():
            table = np.loadtxt(path, delimiter=",")
            return table[:, :-1], table[:, -1].astype(np.int64)
    # Absent, or a release that keeps its data elsewhere: its own function knows, or says what is missing.
    from sklearn.datasets import load_digits

    digits = load_digits()
    return digits.data, digits.target.astype(np.int64)


@functools.cache
def load_images() -> tuple[Tensor, Tensor]:
    """Return all images, shape ``[1797, 1, 8, 8]``, centred and scaled, and their classes, shape ``[1797]``."""
    pixels, classes = read_digits()
    images = torch.tensor(pixels, dtype=torch.float32, device="cpu").reshape(-1, 1, 8, 8)
    return (images - _PIXEL_MEAN) / _PIXEL_SPREAD, torch.tensor(classes, device="cpu")


def split_indices(targets: Tensor, seed: int, evaluation_share: float = _EVALUATION_SHARE) -> tuple[Tensor, Tensor]:
    """Split the indices of samples of these classes into training and evaluation, a share of each class; ascending."""
    generator = torch.Generator().manual_seed(mixed_seed(seed, 0x5711))
    training, evaluation = [], []
    for value in torch.unique(targets):
        members = (targets == value).nonzero().squeeze(1)
        members = members[torch.randperm(len(members), generator=generator, device="cpu")]
        n_evaluation = round(evaluation_share * len(members))
        evaluation.append(members[:n_evaluation])
        training.append(members[n_evaluation:])
    return torch.cat(training).sort().values, torch.cat(evaluation).sort().values


class LeNet(nn.Module):
    """Two convolutions and three linear layers, as LeNet-5 scaled down to 8 x 8 images (28 thousand parameters).

    Reference:
        LeCun et al., "Gradient-Based Learning Applied to Document Recognition", Proc. IEEE 1998, figure 2; here with
        3 x 3 kernels, ReLU and max pooling.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, kernel_size=3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(32 * 2 * 2, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape ``[n, 10]``."""
        features = self.pool(self.relu(self.conv1(images)))
        features = self.pool(self.relu(self.conv2(features)))
        features = self.relu(self.fc1(torch.flatten(features, 1)))
        return self.fc3(self.relu(self.fc2(features)))  # type: ignore[no-any-return]  # nn.Module calls are Any


class _BasicBlock(nn.Module):
    """conv-bn-relu-conv-bn next to a shortcut, added and rectified; the shortcut projects where the shape changes."""

    def __init__(self, n_in: int, n_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_out)
        self.conv2 = nn.Conv2d(n_out, n_out, kernel_size=3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU()
        self.downsample = nn.Sequential()
        if stride != 1 or n_in != n_out:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(n_out)
            )

    def forward(self, features: Tensor) -> Tensor:
        main = self.relu(self.bn1(self.conv1(features)))
        main = self.bn2(self.conv2(main))
        return self.relu(main + self.downsample(features))  # type: ignore[no-any-return]  # nn.Module calls are Any


class ResNet(nn.Module):
    """Residual network with BatchNorm for small images; ResNet-20 by default (0.27 million parameters).

    ``widths`` are the channels per stage; every stage but the first halves height and width.

    Reference:
        He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, arXiv:1512.03385, section 4.2; with
        projection shortcuts (option B) between stages.
    """

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64), n_blocks: int = 3) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, widths[0], kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU()
        stages, n_in = [], widths[0]
        for index, width in enumerate(widths):
            blocks = []
            for block in range(n_blocks):
                blocks.append(_BasicBlock(n_in, width, stride=2 if index > 0 and block == 0 else 1))
                n_in = width
            stages.append(nn.Sequential(*blocks))
        self.layers = nn.Sequential(*stages)
        self.fc = nn.Linear(n_in, 10)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits, shape ``[n, 10]``."""
        features = self.layers(self.relu(self.bn1(self.conv1(images))))
        return self.fc(features.mean(dim=(2, 3)))  # type: ignore[no-any-return]  # nn.Module calls are Any


def _training_batches(seed: int) -> ShuffledBatches:
    images, targets = load_images()
    chosen, _ = split_indices(targets, seed)
    return ShuffledBatches(len(chosen), BATCH_SIZE, seed, _rows, held=(images[chosen], targets[chosen]))


def _rows(samples: tuple[Tensor, Tensor], indices: Tensor) -> tuple[Tensor, Tensor]:
    return samples[0][indices], samples[1][indices]


def _evaluation_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    images, targets = load_images()
    _, kept = split_indices(targets, seed)
    return [(images[part], targets[part]) for part in torch.split(kept, EVALUATION_BATCH_SIZE)]
