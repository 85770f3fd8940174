"""Small tasks of different kinds on data that come with scikit-learn, to see what O1 does to each.

    workbench compare --task studies/kinds_of_networks/tasks.py:segmentation o0.json o1.json

Networks with residual blocks lose BatchNorms at O1; of these the classifiers alone get a normalised head.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

import torch
from sklearn.datasets import load_diabetes, load_wine
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

from workbench.tasks import Task
from workbench.tasks.batches import ShuffledBatches
from workbench.tasks.digits import load_images, split_indices

__all__ = ["conv_regression", "detector", "mlp_regression", "plain_cnn", "residual_cnn", "segmentation", "tabular"]

Data = Callable[[], tuple[Tensor, Tensor]]


class Block(nn.Module):
    """Two convolutions with BatchNorm beside an identity."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))))


def stem(width: int) -> list[nn.Module]:
    return [nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]


def residual(outputs: int, width: int = 16) -> nn.Sequential:
    """Return a residual network that maps images ``[n, 1, 8, 8]`` to ``[n, outputs]``."""
    blocks = [Block(width), Block(width), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*stem(width), *blocks, nn.Linear(16 * width, outputs))


def plain(width: int = 16) -> nn.Sequential:
    """Return a chain of convolutions with BatchNorm, which LessBN leaves as it is."""
    second = [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*stem(width), *second, nn.Flatten(), nn.Linear(16 * width, 10))


class TwoHeads(nn.Module):
    """Scores of classes, and centre and spread of the ink, from the same features."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.classes, self.box = residual(32), nn.Linear(32, 10), nn.Linear(32, 4)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = F.relu(self.features(images))
        return self.classes(features), self.box(features)


class ResidualRows(nn.Module):
    """A residual network on rows of a table."""

    def __init__(self, columns: int, classes: int, width: int = 32) -> None:
        super().__init__()
        self.enter, self.norm = nn.Linear(columns, width), nn.BatchNorm1d(width)
        self.one, self.bn1, self.two, self.bn2 = (
            *(nn.Linear(width, width), nn.BatchNorm1d(width)),
            *(nn.Linear(width, width), nn.BatchNorm1d(width)),
        )
        self.fc = nn.Linear(width, classes)

    def forward(self, rows: Tensor) -> Tensor:
        x = F.relu(self.norm(self.enter(rows)))
        x = F.relu(x + self.bn2(self.two(F.relu(self.bn1(self.one(x))))))
        return self.fc(x)  # type: ignore[no-any-return]  # nn.Module calls are Any


def segmenter(width: int = 16) -> nn.Sequential:
    """Return a fully convolutional residual network with two scores per pixel."""
    return nn.Sequential(*stem(width), Block(width), Block(width), nn.Conv2d(width, 2, 1))


def boxes() -> Tensor:
    """Return centre and spread of each digit's ink along both axes, in pixels from the middle, ``[n, 4]``."""
    ink = (load_images()[0] - load_images()[0].amin()).squeeze(1)
    ink = ink / ink.sum((1, 2), keepdim=True)
    place = torch.arange(8.0) - 3.5
    rows, columns = ink.sum(2), ink.sum(1)
    centres = torch.stack([rows @ place, columns @ place], 1)
    spreads = torch.stack([rows @ place**2, columns @ place**2], 1) - centres**2
    return torch.cat([centres, spreads], 1)


def noisy() -> tuple[Tensor, Tensor]:
    """Return images under noise and which of their pixels hold ink."""
    images, _ = load_images()
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return images + noise, (images.squeeze(1) > 0).long()


def digits_with_boxes() -> tuple[Tensor, Tensor]:
    images, classes = load_images()
    return images, torch.cat([classes[:, None].float(), boxes()], 1)


def table(load: Callable[..., tuple[object, object]]) -> tuple[Tensor, Tensor]:
    columns, targets = (torch.as_tensor(part) for part in load(return_X_y=True))
    return ((columns - columns.mean(0)) / columns.std(0)).float(), targets


def diabetes() -> tuple[Tensor, Tensor]:
    """Return ten measurements and the progress of the disease a year later, as deviations from its mean."""
    columns, progress = table(load_diabetes)
    return columns, ((progress - progress.mean()) / progress.std()).float()[:, None]


def loss_of_both_heads(model: Callable[[Tensor], tuple[Tensor, Tensor]], batch: tuple[Tensor, Tensor]) -> Tensor:
    images, targets = batch
    scores, found = model(images)
    return F.cross_entropy(scores, targets[:, 0].long()) + F.smooth_l1_loss(found, targets[:, 1:])


def sgd(named: Iterable[tuple[str, nn.Parameter]], learning_rate: float) -> Optimizer:
    return torch.optim.SGD(named, lr=learning_rate, momentum=0.9, fused=True)


def task(name: str, model: Callable[[], nn.Module], data: Data, loss: object, metric: str, rate: float) -> Task:
    """Return a task that trains on three quarters of the data, which ones depends on the seed."""

    def part(seed: int, index: int) -> tuple[Tensor, Tensor]:
        inputs, targets = data()
        kept = split_indices(torch.zeros(len(inputs), dtype=torch.int64), seed)[index]
        return inputs[kept], targets[kept]

    def train(seed: int) -> ShuffledBatches:
        inputs, targets = part(seed, 0)
        return ShuffledBatches(len(inputs), 32, seed, lambda chosen: (inputs[chosen], targets[chosen]))

    def evaluate(seed: int) -> list[tuple[Tensor, Tensor]]:
        inputs, targets = part(seed, 1)
        return list(zip(inputs.split(128), targets.split(128), strict=True))

    optimizer = functools.partial(sgd, learning_rate=rate)
    return Task(name, model, loss, optimizer, train, evaluate, metric)


def plain_cnn() -> Task:
    """Return a classifier of digits without a branch: LessBN finds nothing to remove."""
    return task("plain-cnn", plain, load_images, nn.CrossEntropyLoss(), "accuracy", 0.02)


def residual_cnn() -> Task:
    """Return a classifier of digits that loses BatchNorms and gets a normalised head."""
    return task("residual-cnn", lambda: residual(10), load_images, nn.CrossEntropyLoss(), "accuracy", 0.02)


def conv_regression() -> Task:
    """Return the regression of centre and spread of a digit's ink; it loses BatchNorms and keeps its head."""
    return task("conv-regression", lambda: residual(4), lambda: (load_images()[0], boxes()), nn.MSELoss(), "mse", 0.003)


def mlp_regression() -> Task:
    """Return the regression of the diabetes table by a network without BatchNorm."""

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    return task("mlp-regression", model, diabetes, nn.MSELoss(), "mse", 0.01)


def tabular() -> Task:
    """Return a residual classifier of the wine table."""
    return task(
        "tabular", lambda: ResidualRows(13, 3), lambda: table(load_wine), nn.CrossEntropyLoss(), "accuracy", 0.02
    )


def segmentation() -> Task:
    """Return the task of finding ink under noise, pixel by pixel."""
    return task("segmentation", segmenter, noisy, nn.CrossEntropyLoss(), "loss", 0.02)


def detector() -> Task:
    """Return the task of finding class and place of a digit at once."""
    return task("detector", TwoHeads, digits_with_boxes, loss_of_both_heads, "loss", 0.02)
