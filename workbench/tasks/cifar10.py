"""``cifar10:FOLDER``: the published python batches of CIFAR-10, read from a folder and never downloaded.

60 000 colour images of 32 x 32 pixels in ten classes: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny
Images", 2009. ``data_batch_1`` to ``data_batch_5`` and ``test_batch`` are pickled dictionaries of ``data`` (uint8
``[n, 3072]``: red, green, blue planes row by row) and ``labels``, read without unpickling (`array_pickle`).

Images are centred and scaled per channel, float32 ``[n, 3, 32, 32]``, targets int64 ``[n]``. Training images are
shifted by up to four pixels and mirrored, as in He et al., "Deep Residual Learning for Image Recognition", CVPR 2016,
section 4.2, whose ResNet-20 is trained here; evaluation is on the published test images, whatever the seed.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD

from workbench.tasks.array_pickle import read_array_pickle
from workbench.tasks.batches import ShuffledBatches, digest_of_batches, mixed_seed
from workbench.tasks.digits import ResNet
from workbench.tasks.errors import TaskError
from workbench.tasks.schedules import warmup_cosine
from workbench.tasks.task import Task

BATCH_SIZE = 128
EVALUATION_BATCH_SIZE = 500
N_CLASSES = 10
_TRAINING_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
_EVALUATION_FILE = "test_batch"
_MEAN, _SPREAD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training images, per channel
_SHIFT = 4
_LARGEST_FILE = 1 << 30  # bytes; it is read as a whole


def cifar10_task(place: str) -> Task:
    """Return the task of a ResNet-20 on CIFAR-10: SGD with momentum, warm-up and cosine.

    ``place`` holds the six files, or ``cifar-10-batches-py`` with them; TaskError where one is not what it should be.
    """
    places = Path(place).expanduser(), Path(place).expanduser() / "cifar-10-batches-py"
    folder = next((folder for folder in places if (folder / _EVALUATION_FILE).is_file()), None)
    if folder is None:
        files = f"{_EVALUATION_FILE} and {_TRAINING_FILES[0]} to _5"
        raise TaskError(f"a folder of CIFAR-10 must hold {files}, got {places[0]}")
    parts = [read_batch(folder / name) for name in _TRAINING_FILES]
    images, targets = (torch.cat(column) for column in zip(*parts, strict=True))
    test_images, test_targets = read_batch(folder / _EVALUATION_FILE)
    return Task(
        name="cifar10",
        model=_resnet20,
        loss=nn.CrossEntropyLoss(),
        optimizer=partial(SGD, lr=0.1, momentum=0.9, weight_decay=1e-4, fused=True),
        train=partial(_training_batches, images, targets),
        evaluate=partial(_evaluation_batches, test_images, test_targets),
        metric="accuracy",
        scheduler=partial(warmup_cosine, warmup_share=0.1),
        data_hash=f"cifar-10-batches-py sha256:{digest_of_batches([images, targets, test_images, test_targets])}",
        description="ResNet-20 with BatchNorm on CIFAR-10",
    )


def read_batch(path: Path) -> tuple[Tensor, Tensor]:
    """Return images (uint8 ``[n, 3, 32, 32]``) and classes (int64 ``[n]``) of a published file, or raise TaskError."""
    try:
        size = path.stat().st_size
        if size > _LARGEST_FILE:
            raise TaskError(f"it is {size >> 20} MiB large, a batch is about 30")
        if stat.S_ISFIFO(path.stat().st_mode) or stat.S_ISCHR(path.stat().st_mode):
            raise TaskError("it is no file")  # and would be read without an end
        found = read_array_pickle(path.read_bytes())
    except OSError as error:
        raise TaskError(f"{path} cannot be read: {error.strerror or error}") from error
    except TaskError as error:
        raise TaskError(f"{path} is no python batch of CIFAR-10: {error}") from error
    data, labels = found.get(b"data"), found.get(b"labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise TaskError(f"{path} is no python batch of CIFAR-10: `data` must be uint8 [n, 3072]")
    whole = isinstance(labels, list) and all(type(label) is int and 0 <= label < N_CLASSES for label in labels)
    if not isinstance(labels, list) or not whole or len(labels) != len(data):
        raise TaskError(f"{path} is no python batch of CIFAR-10: `labels` must be {len(data)} numbers from 0 to 9")
    return torch.from_numpy(data.copy()).view(-1, 3, 32, 32), torch.tensor(labels, dtype=torch.int64, device="cpu")


def _evaluation_batches(images: Tensor, targets: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    parts = zip(*(torch.split(part, EVALUATION_BATCH_SIZE) for part in (images, targets)), strict=True)
    return ((_scaled(part), classes) for part, classes in parts)  # one at a time: all of them take 120 MB


def _training_batches(images: Tensor, targets: Tensor, seed: int) -> ShuffledBatches:
    padded = F.pad(images, (_SHIFT,) * 4)

    def gather(indices: Tensor) -> tuple[Tensor, Tensor]:
        # Drawn from what is gathered, so that any position of the stream can be reached without those before it.
        generator = torch.Generator().manual_seed(mixed_seed(seed, *indices[:4].tolist()))
        down, right = torch.randint(0, 2 * _SHIFT + 1, (2, len(indices), 1), generator=generator, device="cpu")
        mirrored = torch.rand(len(indices), 1, generator=generator, device="cpu") < 0.5
        rows, columns = down + torch.arange(32, device="cpu"), right + torch.arange(32, device="cpu")
        columns = torch.where(mirrored, columns.flip(1), columns)
        chosen = padded[
            indices.view(-1, 1, 1, 1),
            torch.arange(3, device="cpu").view(1, 3, 1, 1),
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]
        return _scaled(chosen), targets[indices]

    return ShuffledBatches(len(targets), BATCH_SIZE, seed, gather)


def _scaled(images: Tensor) -> Tensor:
    mean, spread = (torch.tensor(values, device="cpu").view(1, 3, 1, 1) for values in (_MEAN, _SPREAD))
    return (images.to(torch.float32) / 255 - mean) / spread


def _resnet20() -> nn.Module:
    model = ResNet()
    model.conv1 = nn.Conv2d(3, model.conv1.out_channels, kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
