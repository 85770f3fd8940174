"""Five tasks as a user might bring them, none like the built-in ones; nothing is downloaded.

    workbench tune studies/fastest/tasks.py:waveforms --steps 600 --minutes 15

`waveforms`: a residual 1-D convolution net on noisy signals. `modules_text`: which chapter of Python's help a passage
comes from. `friedman`: a tabular regression (Friedman 1991). `masks`: segmentation of handwritten digits in clutter,
with batches that are dicts and a loss of (model, batch). `pictures`: handwritten digits in files that are decoded at
each access, as photographs are; `moved_pictures`: the same, moved and shaded at random.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
from sklearn.datasets import make_friedman1
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import DataLoader, Dataset, TensorDataset

from workbench.tasks import Task
from workbench.tasks.digits import load_images

__all__ = ["friedman", "masks", "modules_text", "moved_pictures", "pictures", "waveforms"]

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def loaders(
    data: Dataset[object], batch_size: int, n_evaluation: int
) -> dict[str, Callable[[int], DataLoader[object]]]:
    """Return a task's ``train`` and ``evaluate``: two sides of a random split that the seed draws."""

    def split(seed: int) -> list[torch.utils.data.Subset[object]]:
        n = len(data)  # type: ignore[arg-type]
        return torch.utils.data.random_split(
            data, [n - n_evaluation, n_evaluation], torch.Generator().manual_seed(seed)
        )

    return {
        "train": lambda seed: DataLoader(split(seed)[0], batch_size, shuffle=True, drop_last=True),
        "evaluate": lambda seed: DataLoader(split(seed)[1], 500),
    }


# -- signals ----------------------------------------------------------------------------------------------------------


class SignalBlock(nn.Module):
    """Two convolutions with BatchNorm beside an identity, halving the signal's length before."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv1d(channels, channels, 5, padding=2, bias=False), nn.BatchNorm1d(channels))
        self.second = nn.Sequential(nn.Conv1d(channels, channels, 5, padding=2, bias=False), nn.BatchNorm1d(channels))

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool1d(x, 2)
        return F.relu(x + self.second(F.relu(self.first(x))))


@functools.cache
def _signals() -> TensorDataset:
    """Return 6,000 signals of 128 values: one of eight shapes at a random place, stretched, under noise."""
    draw = torch.Generator().manual_seed(1)
    n = 6000
    labels = torch.randint(0, 8, (n,), generator=draw)
    place = 40 + 48 * torch.rand(n, 1, generator=draw)
    width = 10 + 8 * torch.rand(n, 1, generator=draw)
    t = (torch.arange(128) - place) / width
    bell = torch.exp(-(t**2) / 2)
    shapes = [
        bell,
        -t * bell,
        (1 - t**2) * bell,
        torch.cos(4 * t) * bell,
        torch.cos(6 * t) * bell,
        torch.sin(4 * t) * bell,
        torch.cos(3 * t + 2 * t**2) * bell,
        torch.sign(t) * bell,
    ]
    clean = torch.stack(shapes, dim=1)[torch.arange(n), labels]
    return TensorDataset((clean + 0.5 * torch.randn(n, 128, generator=draw)).unsqueeze(1), labels)


def _signal_net() -> nn.Sequential:
    stem = [nn.Conv1d(1, 32, 7, padding=3, bias=False), nn.BatchNorm1d(32), nn.ReLU()]
    return nn.Sequential(
        *stem, *(SignalBlock(32) for _ in range(4)), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 8)
    )


def waveforms() -> Task:
    """Return the classification of signals: SGD with momentum, cosine."""

    def optimizer(named: NamedParameters) -> Optimizer:
        return SGD([p for _, p in named], lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4)

    def scheduler(optimizer: Optimizer, steps: int) -> LRScheduler:
        return CosineAnnealingLR(optimizer, steps)

    return Task(
        name="waveforms",
        model=_signal_net,
        loss=nn.CrossEntropyLoss(),
        optimizer=optimizer,
        scheduler=scheduler,
        metric="accuracy",
        **loaders(_signals(), 32, 1500),
    )


# -- text -------------------------------------------------------------------------------------------------------------

N_CHARACTERS = 64
N_CHAPTERS = 12


@functools.cache
def _passages() -> TensorDataset:
    """Return passages of 64 bytes from the twelve longest topics of Python's help, every 24 bytes."""
    from pydoc_data.topics import topics

    inputs, labels = [], []
    longest = sorted(topics.values(), key=len, reverse=True)[:N_CHAPTERS]
    for label, text in enumerate(longest):
        data = torch.tensor(list(text.encode()[:20_000]), dtype=torch.long)
        pieces = data.unfold(0, N_CHARACTERS, 24)
        inputs.append(pieces)
        labels.append(torch.full((len(pieces),), label))
    return TensorDataset(torch.cat(inputs), torch.cat(labels))


class TextNet(nn.Module):
    """Bytes, embedded, through a layer of a transformer's encoder, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 64)
        self.places = nn.Parameter(0.02 * torch.randn(N_CHARACTERS, 64))
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, 0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(64, N_CHAPTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.places[: tokens.shape[1]]
        scores: Tensor = self.head(self.layer(x).mean(dim=1))
        return scores


def modules_text() -> Task:
    """Return the classification of passages: Adam at a constant rate, as a first try has it."""
    return Task(
        name="modules_text",
        model=TextNet,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: Adam([p for _, p in named], lr=1e-3),
        metric="accuracy",
        **loaders(_passages(), 32, 1500),
    )


# -- a table ----------------------------------------------------------------------------------------------------------


@functools.cache
def _table() -> TensorDataset:
    """Return 10,000 rows of Friedman's first problem, ten columns of which five matter, noise of variance 1."""
    x, y = make_friedman1(10_000, n_features=10, noise=1.0, random_state=0)
    columns, target = torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)
    return TensorDataset(2 * columns - 1, (target - target.mean()) / target.std())


def friedman() -> Task:
    """Return the tabular regression: AdamW, cosine."""

    def net() -> nn.Sequential:
        wide = [nn.Linear(10, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU()]
        return nn.Sequential(*wide, nn.Linear(256, 1))

    def scheduler(optimizer: Optimizer, steps: int) -> LRScheduler:
        return CosineAnnealingLR(optimizer, steps)

    return Task(
        name="friedman",
        model=net,
        loss=nn.MSELoss(),
        optimizer=lambda named: AdamW([p for _, p in named], lr=1e-3),
        scheduler=scheduler,
        metric="mse",
        **loaders(_table(), 64, 2500),
    )


# -- segmentation -----------------------------------------------------------------------------------------------------


class ClutteredDigits(Dataset[dict[str, Tensor]]):
    """Digits of 8 x 8 pixels at a random place of a 24 x 24 field of strokes and noise, with the mask of their ink."""

    def __init__(self, n: int = 2500) -> None:
        draw = torch.Generator().manual_seed(2)
        digits = load_images()[0].reshape(-1, 8, 8)
        digits = (digits - digits.min()) / (digits.max() - digits.min())
        self.images = 0.25 * torch.rand(n, 1, 24, 24, generator=draw)
        self.masks = torch.zeros(n, 24, 24, dtype=torch.long)
        for index in range(n):
            digit = digits[int(torch.randint(0, len(digits), (1,), generator=draw))]
            for _ in range(4):  # strokes that are no digit
                row, column, length = (int(one) for one in torch.randint(0, 20, (3,), generator=draw))
                self.images[index, 0, row : row + 1 + length // 4, column : column + 1] += 0.6
                self.images[index, 0, row : row + 1, column : column + 1 + length // 3] += 0.6
            row, column = (int(one) for one in torch.randint(0, 16, (2,), generator=draw))
            self.images[index, 0, row : row + 8, column : column + 8] += digit
            self.masks[index, row : row + 8, column : column + 8] = (digit > 0.4).long()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self.images[index], "mask": self.masks[index]}


class SmallUNet(nn.Module):
    """Down once and up again with a bridge; takes a batch's dict and returns scores ``[n, 2, height, width]``."""

    def __init__(self) -> None:
        super().__init__()
        self.down = self._pair(1, 16)
        self.deep = nn.Sequential(self._pair(16, 32), self._pair(32, 32))
        self.up = self._pair(48, 16)
        self.out = nn.Conv2d(16, 2, 1)

    @staticmethod
    def _pair(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        fine = self.down(image)
        deep = F.interpolate(self.deep(F.max_pool2d(fine, 2)), scale_factor=2.0)
        scores: Tensor = self.out(self.up(torch.cat([fine, deep], dim=1)))
        return scores


def dice_and_entropy(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Return cross entropy plus one minus the soft Dice coefficient."""
    scores = model(batch["image"])
    ink = scores.softmax(dim=1)[:, 1]
    target = batch["mask"].float()
    dice = (2 * (ink * target).sum() + 1) / (ink.sum() + target.sum() + 1)
    return F.cross_entropy(scores, batch["mask"]) + 1 - dice


def masks() -> Task:
    """Return the segmentation: Adam at a constant rate, judged by its loss."""
    return Task(
        name="masks",
        model=SmallUNet,
        loss=dice_and_entropy,
        optimizer=lambda named: Adam([p for _, p in named], lr=1e-3),
        metric="loss",
        **loaders(ClutteredDigits(), 16, 500),
    )


# -- pictures in files ------------------------------------------------------------------------------------------------


class CompressedDigits(Dataset[tuple[Tensor, Tensor]]):
    """Digits of 8 x 8 pixels, enlarged to 64 x 64 under noise and compressed; decoded and halved at each access."""

    def __init__(self) -> None:
        draw = torch.Generator().manual_seed(3)
        digits, self.labels = load_images()
        digits = (digits - digits.min()) / (digits.max() - digits.min())
        large = digits.reshape(-1, 8, 8).repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
        noisy = (large + 0.5 * torch.randn(large.shape, generator=draw)).clamp(0, 1)
        self.files = [zlib.compress(one.numpy().tobytes()) for one in (255 * noisy).byte()]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        pixels = torch.frombuffer(bytearray(zlib.decompress(self.files[index])), dtype=torch.uint8)
        picture = F.avg_pool2d(pixels.reshape(1, 1, 64, 64).float() / 255, 2)[0]
        return (picture - 0.5) / 0.25, self.labels[index]


def pictures() -> Task:
    """Return the classification of pictures: SGD with momentum at a constant rate."""

    def net() -> nn.Sequential:
        first = [nn.Conv2d(1, 16, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        second = [nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]
        return nn.Sequential(*first, *second, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, 10))

    return Task(
        name="pictures",
        model=net,
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda named: SGD([p for _, p in named], lr=0.05, momentum=0.9),
        metric="accuracy",
        **loaders(CompressedDigits(), 32, 450),
    )


class Moved(Dataset[tuple[Tensor, Tensor]]):
    """Pictures of 32 x 32 pixels, each moved by up to four of them and lit otherwise at each access."""

    def __init__(self, pictures: Dataset[tuple[Tensor, Tensor]]) -> None:
        self.pictures = pictures

    def __len__(self) -> int:
        return len(self.pictures)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture, label = self.pictures[index]
        down, right = torch.randint(0, 9, (2,)).tolist()
        moved = F.pad(picture, (4, 4, 4, 4), value=-2.0)[:, down : down + 32, right : right + 32]
        return moved * (1 + 0.2 * torch.randn(1)) + 0.2 * torch.randn(1), label


def moved_pictures() -> Task:
    """Return `pictures` with random augmentation of what it trains on."""
    task = pictures()
    return replace(task, name="moved_pictures", train=lambda seed: _moved(task.train(seed)))


def _moved(loader: DataLoader[object]) -> DataLoader[object]:
    return DataLoader(Moved(loader.dataset), loader.batch_size, shuffle=True, drop_last=True)
