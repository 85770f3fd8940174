"""ResNet, MobileNetV2, DenseNet and a few relatives in plain PyTorch, with the module names of the golden lists.

Everything that the reference's rules depend on is an argument: operand order of the residual addition, style of
concatenation, pooling of the transitions.
"""

from __future__ import annotations

import operator
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

Addition = Callable[[Tensor, Tensor], Tensor]

RESNETS: dict[int, tuple[str, tuple[int, ...]]] = {
    18: ("basic", (2, 2, 2, 2)),
    34: ("basic", (3, 4, 6, 3)),
    50: ("bottleneck", (3, 4, 6, 3)),
}
DENSENETS = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32)}
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
SMALL_MOBILENET = ((1, 8, 1, 1), (6, 12, 2, 2), (6, 16, 2, 2), (6, 24, 2, 1))  # its last block has a skip


class ResidualBlock(nn.Module):
    """Basic (3x3, 3x3) or bottleneck (1x1, 3x3, 1x1) block."""

    def __init__(
        self,
        kind: str,
        cin: int,
        width: int,
        stride: int,
        addition: Addition = operator.add,
        identity_first: bool = False,
        groups: int = 1,
    ) -> None:
        super().__init__()
        self.kind, self.addition, self.identity_first = kind, addition, identity_first
        self.channels = cout = width if kind == "basic" else 4 * width
        first, second = ((3, stride, 1), (3, 1, 1)) if kind == "basic" else ((1,), (3, stride, 1, 1, groups))
        self.conv1, self.bn1 = nn.Conv2d(cin, width, *first, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, *second, bias=False), nn.BatchNorm2d(width)
        if kind == "bottleneck":
            self.conv3 = nn.Conv2d(width, cout, 1, bias=False)
            self.bn3 = nn.BatchNorm2d(cout)
        self.relu = nn.ReLU()
        self.downsample = None
        if cin != cout or stride != 1:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x: Tensor) -> Tensor:
        main = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        if self.kind == "bottleneck":
            main = self.bn3(self.conv3(self.relu(main)))
        shortcut = x if self.downsample is None else self.downsample(x)
        operands = (shortcut, main) if self.identity_first else (main, shortcut)
        return self.relu(self.addition(*operands))


class ResNet(nn.Module):
    """ResNet v1 with torchvision's names; ``widths`` may be small for tests."""

    def __init__(
        self,
        kind: str = "basic",
        blocks: Sequence[int] = (2, 2, 2, 2),
        widths: Sequence[int] = (64, 128, 256, 512),
        *,
        addition: Addition = operator.add,
        identity_first: bool = False,
        groups: int = 1,
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        channels = widths[0]
        self.conv1 = nn.Conv2d(3, channels, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.n_stages = len(blocks)
        for stage, (n_blocks, width) in enumerate(zip(blocks, widths, strict=True), start=1):
            layers = []
            for index in range(n_blocks):
                stride = 2 if index == 0 and stage > 1 else 1
                layers.append(ResidualBlock(kind, channels, width, stride, addition, identity_first, groups))
                channels = layers[-1].channels
            self.add_module(f"layer{stage}", nn.Sequential(*layers))
        self.fc = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(1, self.n_stages + 1):
            x = getattr(self, f"layer{stage}")(x)
        return self.fc(x.mean((2, 3)))


def conv_bn_relu6(cin: int, cout: int, kernel: int, stride: int, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(cout), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expansion 1x1 (unless t = 1), depthwise 3x3, linear projection 1x1."""

    def __init__(self, cin: int, cout: int, stride: int, expansion: int, addition: Addition, input_first: bool) -> None:
        super().__init__()
        self.addition, self.input_first = addition, input_first
        self.skip = stride == 1 and cin == cout
        hidden = cin * expansion
        layers: list[nn.Module] = [conv_bn_relu6(cin, hidden, 1, 1)] if expansion != 1 else []
        layers.append(conv_bn_relu6(hidden, hidden, 3, stride, groups=hidden))
        layers += [nn.Conv2d(hidden, cout, 1, bias=False), nn.BatchNorm2d(cout)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if not self.skip:
            return self.conv(x)
        return self.addition(x, self.conv(x)) if self.input_first else self.addition(self.conv(x), x)


class MobileNetV2(nn.Module):
    """MobileNetV2 with torchvision's names; settings are rows (expansion t, channels c, blocks n, stride s)."""

    def __init__(
        self,
        settings: Sequence[Sequence[int]] = MOBILENET,
        *,
        stem: int = 32,
        last: int = 64,
        addition: Addition = operator.add,
        input_first: bool = True,
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [conv_bn_relu6(3, stem, 3, 2)]
        channels = stem
        for expansion, cout, n_blocks, first_stride in settings:
            for index in range(n_blocks):
                stride = first_stride if index == 0 else 1
                layers.append(InvertedResidual(channels, cout, stride, expansion, addition, input_first))
                channels = cout
        layers.append(conv_bn_relu6(channels, last, 1, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(last, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class DenseLayer(nn.Module):
    """BatchNorm, ReLU, 1x1, BatchNorm, ReLU, 3x3."""

    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(F.relu(self.norm2(self.conv1(F.relu(self.norm1(x))))))


class DenseBlock(nn.ModuleDict):
    """Layers that each read everything before them."""

    def __init__(self, n_layers: int, cin: int, growth: int, concat: str) -> None:
        super().__init__({f"denselayer{i + 1}": DenseLayer(cin + i * growth, growth) for i in range(n_layers)})
        self.concat = concat

    def forward(self, x: Tensor) -> Tensor:
        if self.concat == "list":  # torchvision's style; its first layer concatenates a list of one
            features = [x]
            for layer in self.values():
                features.append(layer(torch.cat(features, 1)))
            return torch.cat(features, 1)
        for layer in self.values():
            new = layer(x)
            x = torch.cat((x, new) if self.concat == "pairwise" else (new, x), 1)
        return x


class DenseNet(nn.Module):
    """DenseNet-BC; ``concat`` is "pairwise" (x, new), "new first" (new, x) or "list"."""

    def __init__(
        self,
        blocks: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
        stem: int = 64,
        *,
        concat: str = "pairwise",
        transition_pool: str = "average",
        n_classes: int = 10,
    ) -> None:
        super().__init__()
        features: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, stem, 7, 2, 3, bias=False),
            norm0=nn.BatchNorm2d(stem),
            relu0=nn.ReLU(),
            pool0=nn.MaxPool2d(3, 2, 1),
        )
        channels = stem
        for index, n_layers in enumerate(blocks, start=1):
            features[f"denseblock{index}"] = DenseBlock(n_layers, channels, growth, concat)
            channels += n_layers * growth
            if index < len(blocks):
                pool = nn.AvgPool2d(2, 2) if transition_pool == "average" else nn.MaxPool2d(2, 2)
                transition = OrderedDict(
                    norm=nn.BatchNorm2d(channels),
                    relu=nn.ReLU(),
                    conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
                    pool=pool,
                )
                features[f"transition{index}"] = nn.Sequential(transition)
                channels //= 2
        features["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(features)
        self.classifier = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(F.relu(self.features(x)).mean((2, 3)))


class PreActivationBlock(nn.Module):
    """ResNet v2 block: the shortcut of a widening block reads the activated input."""

    def __init__(self, cin: int, width: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(cin)
        self.conv1 = nn.Conv2d(cin, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(cin, width, 1, bias=False) if cin != width else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        return shortcut + self.conv2(F.relu(self.bn2(self.conv1(active))))


class PreActivationNet(nn.Module):
    """Small ResNet v2: convolution stem, pre-activation blocks, final BatchNorm."""

    def __init__(self, widths: Sequence[int] = (4, 4, 6, 6), n_classes: int = 3) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, padding=1, bias=False)
        ins = [widths[0], *widths[:-1]]
        pairs = zip(ins, widths, strict=True)
        self.blocks = nn.Sequential(*(PreActivationBlock(cin, width) for cin, width in pairs))
        self.norm = nn.BatchNorm2d(widths[-1])
        self.fc = nn.Linear(widths[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))


class Block(nn.Module):
    """Residual block of two convolutions; LessBN removes ``bn1`` wherever it may."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm2d, conv: type[nn.Conv2d] = nn.Conv2d) -> None:
        super().__init__()
        self.conv1, self.bn1 = conv(4, 4, 3, padding=1, bias=False), norm(4)
        self.conv2, self.bn2 = conv(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn2(self.conv2(self.bn1(self.conv1(x))))


class Net(nn.Module):
    """Stem, residual block (or several) and linear head."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.block, self.head = block, nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def learned(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every BatchNorm statistics, a scale and a shift of its own, in evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            tensors = (module.weight, module.bias, module.running_mean, module.running_var)
            for tensor, (low, high) in zip(tensors, [(0.5, 1.5), (-0.5, 0.5), (-0.5, 0.5), (0.5, 2)], strict=True):
                if tensor is not None:
                    tensor.data.uniform_(low, high, generator=generator)
            if module.num_batches_tracked is not None:
                module.num_batches_tracked.fill_(7)
    return model.eval()


def build_family_member(name: str, record: Mapping[str, Any]) -> nn.Module | None:
    """Build the network that a golden record names, or return None if its family is unknown.

    Kind, depth and operand order are read from the name and the description, block counts from the BatchNorm names;
    widths do not matter for the rules, so they are small.
    """
    words = f"{name} {record.get('description', '')}".lower().replace("-", " ").replace("_", " ")
    norms = list(record["all_bn"])
    if name.startswith("resnet"):
        stages = _counts(norms, r"layer(\d+)\.(\d+)\.")
        kind = "bottleneck" if any(norm.endswith("bn3") for norm in norms) else "basic"
        first = "identity first" in words or "shortcut first" in words or "add(shortcut, main)" in words
        return ResNet(kind, stages, [8 * 2**i for i in range(len(stages))], identity_first=first)
    if name.startswith("mobilenet"):
        rows = [[int(n) for n in row] for row in re.findall(r"[\[(](\d+), ?(\d+), ?(\d+), ?(\d+)[\])]", words)]
        if not rows:
            rows = [list(row) for row in (MOBILENET if len(norms) == 52 else SMALL_MOBILENET)]
        return MobileNetV2(rows, stem=8, last=16, input_first="add(branch, input)" not in words)
    if name.startswith("densenet"):
        blocks = _counts(norms, r"denseblock(\d+)\.denselayer(\d+)\.", first=1)
        concat = "list" if "list" in words else "pairwise"
        pool = "max" if "max pool" in words or "maxpool" in words else "average"
        return DenseNet(blocks, 4, 8, concat=concat, transition_pool=pool)
    return None


def _counts(names: Sequence[str], pattern: str, *, first: int = 0) -> list[int]:
    """Return how many blocks each stage has, from the highest index that occurs."""
    highest: dict[int, int] = {}
    for name in names:
        if match := re.search(pattern, name):
            stage, index = int(match[1]), int(match[2])
            highest[stage] = max(highest.get(stage, 0), index + 1 - first)
    return [highest[stage] for stage in sorted(highest)]
