"""Networks of the size that accelerators are bought for, on made-up data: what an image shows costs no time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workbench.tasks import Task
from workbench.tasks.topics import ByteTransformer, next_byte_loss

from .image_nets import sgd

__all__ = ["RESNET_50", "BottleneckNet", "Images", "Text", "image_task", "text_task"]

_BATCHES = 2


@dataclass(frozen=True, slots=True)
class Images:
    """A residual network and its images; as it stands the shape of ResNet-50 on ImageNet.

    Args:
        blocks: Bottleneck blocks per stage.
        width: Channels inside the blocks of the first stage; each stage doubles them.
        batch: Images per step.
        side: Height and width, pixels.
        classes: Classes.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    batch: int = 128
    side: int = 224
    classes: int = 1000


@dataclass(frozen=True, slots=True)
class Text:
    """A transformer over bytes and its windows of text; as it stands the shape of the smallest GPT-2.

    Args:
        layers: Blocks.
        width: Features per position; a multiple of ``heads``.
        heads: Attention heads.
        batch: Windows per step.
        length: Bytes per window.
    """

    layers: int = 12
    width: int = 768
    heads: int = 12
    batch: int = 16
    length: int = 1024


RESNET_50 = Images()


class BottleneckNet(nn.Module):
    """Residual network of bottleneck blocks, in the memory layout that convolutions of 16 bits are fastest in.

    Args:
        shape: Its size.

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
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape ``[n, classes]``, for images ``[n, 3, side, side]``."""
        features = self.blocks(self.stem(images))
        return self.head(features.mean((2, 3)))  # type: ignore[no-any-return]  # nn.Module calls are Any


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


def image_task(shape: Images) -> Task:
    """Return a task of such a network, with SGD and momentum.

    Args:
        shape: Its size.
    """
    generator = torch.Generator().manual_seed(0)
    batches = [
        (
            torch.randn(shape.batch, 3, shape.side, shape.side, generator=generator).contiguous(
                memory_format=torch.channels_last
            ),
            torch.randint(0, shape.classes, (shape.batch,), generator=generator),
        )
        for _ in range(_BATCHES)
    ]
    return Task(
        name=f"residual net of {sum(shape.blocks)} bottlenecks, {shape.batch} x {shape.side} x {shape.side}",
        model=functools.partial(BottleneckNet, shape),
        loss=nn.CrossEntropyLoss(),
        optimizer=sgd,
        train=batches,
        evaluate=batches[:1],
        metric="accuracy",
    )


def text_task(shape: Text) -> Task:
    """Return a task of a transformer over bytes, with AdamW.

    Args:
        shape: Its size.
    """
    generator = torch.Generator().manual_seed(0)
    windows = torch.randint(0, 256, (_BATCHES, shape.batch, shape.length + 1), generator=generator)
    batches = [(window[:, :-1].contiguous(), window[:, 1:].contiguous()) for window in windows]
    return Task(
        name=f"transformer of {shape.layers} x {shape.width}, {shape.batch} x {shape.length} bytes",
        model=functools.partial(ByteTransformer, shape.width, shape.layers, shape.heads, shape.length),
        loss=next_byte_loss,
        optimizer=functools.partial(torch.optim.AdamW, lr=1e-4, fused=True),
        train=batches,
        evaluate=batches[:1],
        metric="bits_per_byte",
    )


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> Sequence[nn.Module]:
    return (
        nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )
