"""Networks and made-up batches that several questions share, and the two ways to do a step on them.

What an image or a text shows costs no time, so all of them are noise.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, Optimizer

from workbench.tasks import Task
from workbench.tasks.digits import ResNet
from workbench.tasks.topics import ByteTransformer, next_byte_loss
from workbench.training import Boosted

CLASSES = 10

Batch = tuple[Tensor, Tensor]
"""Inputs, float32 ``[n, ...]``, and their classes, int64 ``[n]``."""

sgd: Callable[..., Optimizer] = functools.partial(SGD, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)


def noise(shape: Sequence[int], device: torch.device, number: int = 1, classes: int = CLASSES) -> list[Batch]:
    """Return so many batches; equal calls give equal ones."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(*shape, generator=generator).to(device),
            torch.randint(0, classes, shape[:1], generator=generator).to(device),
        )
        for _ in range(number)
    ]


def perceptron(widths: Sequence[int]) -> nn.Sequential:
    """Return linear layers of these widths, the input's first, with ReLU between them, and the weights of seed 0."""
    torch.manual_seed(0)
    layers = [layer for n_in, n_out in pairwise(widths) for layer in (nn.Linear(n_in, n_out), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def residual_net(widths: tuple[int, ...] = (16, 32, 64), n_blocks: int = 3) -> ResNet:
    """Return a residual network for colour images, by channels and blocks per stage; ResNet-20 by default."""
    model = ResNet(widths, n_blocks)
    model.conv1 = nn.Conv2d(3, widths[0], kernel_size=3, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model


def image_task(model: Callable[[], nn.Module], batches: list[Batch], name: str = "made-up images") -> Task:
    """Return a task of images for a network, with SGD and momentum."""
    return Task(
        name=name,
        model=model,
        loss=nn.CrossEntropyLoss(),
        optimizer=sgd,
        train=batches,
        evaluate=batches[:1],
        metric="accuracy",
    )


def plain_step(model: nn.Module, batches: Sequence[Batch], optimizer: Optimizer) -> Callable[[], None]:
    """Return the step as everyone writes it, on one batch after the other."""
    stream = cycle(batches)

    def step() -> None:
        inputs, classes = next(stream)
        F.cross_entropy(model(inputs), classes).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def boosted_step(boosted: Boosted, batches: Sequence[Batch]) -> Callable[[], None]:
    """Return our step, on one batch after the other."""
    stream = cycle(batches)

    def step() -> None:
        inputs, classes = next(stream)
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(inputs), classes)
        boosted.backward(loss)
        boosted.step()

    return step


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters by name, to be compared."""
    return {name: weight.detach() for name, weight in model.named_parameters()}


def twin(model: nn.Module) -> nn.Module:
    """Return an equal network that shares nothing."""
    return copy.deepcopy(model)


@dataclass(frozen=True, slots=True)
class Images:
    """A residual network of bottlenecks and its images; as it stands the shape of ResNet-50 on ImageNet.

    ``blocks`` are counted per stage, ``width`` are the channels inside the first stage's blocks, which each stage
    doubles, ``side`` is the height and width in pixels.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    batch: int = 128
    side: int = 224
    classes: int = 1000

    def task(self) -> Task:
        """Return a task of it, in the memory layout that convolutions of 16 bits are fastest in."""
        images = (self.batch, 3, self.side, self.side)
        batches = [
            (batch.contiguous(memory_format=torch.channels_last), classes)
            for batch, classes in noise(images, torch.device("cpu"), 2, self.classes)
        ]
        name = f"residual net of {sum(self.blocks)} bottlenecks, {self.batch} x {self.side} x {self.side}"
        return image_task(functools.partial(BottleneckNet, self), batches, name)


RESNET_50 = Images()


@dataclass(frozen=True, slots=True)
class Text:
    """A transformer over bytes and its windows of text; as it stands the shape of the smallest GPT-2."""

    layers: int = 12
    width: int = 768
    heads: int = 12
    batch: int = 16
    length: int = 1024

    def task(self) -> Task:
        """Return a task of it, with AdamW."""
        generator = torch.Generator().manual_seed(0)
        windows = torch.randint(0, 256, (2, self.batch, self.length + 1), generator=generator)
        batches = [(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in windows]
        return Task(
            name=f"transformer of {self.layers} x {self.width}, {self.batch} x {self.length} bytes",
            model=functools.partial(ByteTransformer, self.width, self.layers, self.heads, self.length),
            loss=next_byte_loss,
            optimizer=functools.partial(torch.optim.AdamW, lr=1e-4, fused=True),
            train=batches,
            evaluate=batches[:1],
            metric="bits_per_byte",
        )


class BottleneckNet(nn.Module):
    """Residual network of bottleneck blocks, channels last.

    Reference:
        He et al., "Deep Residual Learning for Image Recognition", 2015, table 1 and figure 5; the stride of a stage
        lies in its 3 x 3 convolution.
    """

    def __init__(self, shape: Images) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_convolution(3, shape.width, 7, stride=2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        blocks: list[nn.Module] = []
        channels = shape.width
        for stage, number in enumerate(shape.blocks):
            inside = shape.width * 2**stage
            for position in range(number):
                blocks.append(_Bottleneck(channels, inside, stride=2 if stage and position == 0 else 1))
                channels = 4 * inside
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(channels, shape.classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.to(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``[n, classes]``, for images ``[n, 3, side, side]``."""
        features = self.blocks(self.stem(images))
        return self.head(features.mean((2, 3)))


class _Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions, added to what came in."""

    def __init__(self, channels: int, inside: int, stride: int) -> None:
        super().__init__()
        outside = 4 * inside
        self.residual = nn.Sequential(
            *_convolution(channels, inside, 1),
            nn.ReLU(),
            *_convolution(inside, inside, 3, stride=stride),
            nn.ReLU(),
            *_convolution(inside, outside, 1),
        )
        same = stride == 1 and channels == outside
        self.shortcut = nn.Identity() if same else nn.Sequential(*_convolution(channels, outside, 1, stride=stride))

    def forward(self, features: Tensor) -> Tensor:
        return torch.relu(self.residual(features) + self.shortcut(features))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    padding = kernel // 2
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False), nn.BatchNorm2d(outputs)
