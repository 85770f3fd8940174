"""Where convolutions are faster by shape: forward and backward pass of one layer, late layers and groups.

What `workbench.methods.runtime.convolution` computes otherwise was read from this: the library's time over that of
products of matrices, and of convolutions in groups in bfloat16 over float32, so that above 1 the other way is faster.
Medians of ratios within rounds, sides in turn.

    python studies/bench/convolution_shapes.py [--threads N]
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from workbench.bench import interleaved, ratio_of, timed
from workbench.methods.runtime.convolution import LIMITS, Limits, use_faster_convolutions_

ROUNDS, BATCHES, CHANNELS = 9, (16, 64), 64
SHAPES = [  # channels in and out, height and width, kernel
    *[(channels, channels, side, 3) for channels in (64, 128, 256, 512) for side in (1, 2, 4, 8)],
    (512, 512, 7, 3),
    (512, 512, 4, 1),
    (1024, 256, 4, 1),
    (256, 1024, 8, 1),
    (2048, 512, 4, 1),
]


def both_passes(layer: nn.Conv2d, images: Tensor) -> Callable[[], float]:
    """Return what does a forward and a backward pass, and returns its seconds."""

    def once() -> None:
        output = layer(images)
        output.backward(torch.ones_like(output))
        layer.weight.grad = images.grad = None

    return timed(once)


def main() -> None:
    """Print two tables, of late layers and of groups."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    torch.set_num_threads(parser.parse_args().threads)
    in_groups()
    late_layers()


class InFloat32(nn.Conv2d):
    """A convolution of bfloat16 images that is computed in float32."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution in bfloat16."""
        with torch.autocast("cpu", enabled=False):
            return super().forward(input.float()).bfloat16()


def in_groups() -> None:
    """Print what float32 gains under bfloat16, by channels of a group, kernel and stride."""
    print("channels  of a group  kernel  stride  bfloat16 / float32")
    for of_group in (1, 2, 4, 8, 16):
        for size in (3, 5, 7):
            for stride in (1, 2):
                groups = CHANNELS // of_group
                layer = nn.Conv2d(CHANNELS, CHANNELS, size, stride, size // 2, groups=groups, bias=False)
                sides = [layer.to(memory_format=torch.channels_last), copy.deepcopy(layer)]
                sides[1].__class__ = InFloat32
                images = torch.randn(32, CHANNELS, 16, 16).bfloat16().to(memory_format=torch.channels_last)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    work = [both_passes(one, images.clone().requires_grad_()) for one in sides]
                    usual, other = zip(*interleaved(work, ROUNDS), strict=True)
                found = ratio_of(usual, other)
                shape = f"{CHANNELS:8}  {of_group:10}  {size} x {size}  {stride:6}"
                print(f"{shape}  {found.value:6.2f} ({found.low:.2f}-{found.high:.2f})", flush=True)


def late_layers() -> None:
    """Print a line for each format, batch and shape."""
    print("format    images  shape                  kernel   positions/channel  gradient        all passes")
    for dtype in LIMITS:
        for wide, out, side, size in SHAPES:
            for n in BATCHES:
                library = nn.Conv2d(wide, out, size, padding=size // 2, bias=False).to(dtype)
                library = library.to(memory_format=torch.channels_last)
                images = torch.randn(n, wide, side, side, dtype=dtype).to(memory_format=torch.channels_last)
                sides = [library, copy.deepcopy(library), copy.deepcopy(library)]
                for ours, whole in zip(sides[1:], (0.0, 1e9), strict=True):
                    use_faster_convolutions_(ours)
                    ours.limits = {dtype: Limits(0, 0, whole, 1e9)}
                times = interleaved([both_passes(one, images.clone().requires_grad_()) for one in sides], ROUNDS)
                base, gradient, whole_pass = zip(*times, strict=True)
                told = [ratio_of(base, one) for one in (gradient, whole_pass)]
                shape = f"{wide} to {out}, {side} x {side}"
                print(
                    f"{str(dtype)[6:]:9} {n:6}  {shape:22} {size} x {size} {n * side * side / out:19.2f}  "
                    + "  ".join(f"{one.value:5.2f} ({one.low:.2f}-{one.high:.2f})" for one in told),
                    flush=True,
                )


if __name__ == "__main__":
    main()
