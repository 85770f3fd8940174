"""Three small tasks: one that is quick, one whose float16 steps are slow on a CPU, one whose evaluation is slow."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from workbench import Task

Batch = tuple[Tensor, Tensor]
Named = Iterable[tuple[str, nn.Parameter]]

EVALUATION_SECONDS = 1.5


class _Batches:
    """Points around one centre per class, the same in every epoch."""

    def __init__(self, shape: tuple[int, ...], n_batches: int, first_seed: int) -> None:
        self._shape, self._n_batches, self._first_seed = shape, n_batches, first_seed
        self._centres = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))

    def __iter__(self) -> Iterator[Batch]:
        for number in range(self._n_batches):
            generator = torch.Generator().manual_seed(self._first_seed + number)
            classes = torch.randint(0, 4, (32,), generator=generator)
            yield self._centres[classes] + 3.0 * torch.randn(32, *self._shape, generator=generator), classes


class _SlowBatches(_Batches):
    def __iter__(self) -> Iterator[Batch]:
        time.sleep(EVALUATION_SECONDS)
        return super().__iter__()


def _mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 4)
    )


def _convolutions() -> nn.Module:
    layers: list[nn.Module] = []
    for channels_in, channels in ((3, 16), (16, 16), (16, 16)):
        layers += [nn.Conv2d(channels_in, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))


def _sgd(named: Named) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named], lr=0.02, momentum=0.9)


def _task(name: str, model: object, shape: tuple[int, ...], evaluate: _Batches) -> Task:
    return Task(
        name=name,
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=_sgd,
        train=_Batches(shape, 40, 1000),
        evaluate=evaluate,
        metric="accuracy",
    )


quick = _task("quick", _mlp, (16,), _Batches((16,), 8, 0))
slow_float16 = _task("slow_float16", _convolutions, (3, 24, 24), _Batches((3, 24, 24), 4, 0))
slow_evaluation = _task("slow_evaluation", _mlp, (16,), _SlowBatches((16,), 8, 0))
