"""What a step of THOR between two refreshes could cost with its products done otherwise.

The step multiplies every layer's gradient by the inverses of its factors, block by block. Here the same products on the
benchmark's two networks, with one thread: as they are, blocks of equal size in one batched product, and a layer's
blocks as one large matrix with zeros between them. Median of ratios within rounds, sides in turn.

    python studies/bench/thor_products.py
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from workbench.bench import interleaved, ratio_of, timed

ROUNDS, REPEATS, BLOCK = 31, 20, 128
LAYERS = {
    "perceptron 4 x 512": [(512, 512)] * 4 + [(10, 512)],
    "ResNet-8": [
        (16, 27),
        (16, 144),
        (16, 144),
        (32, 144),
        (32, 288),
        (32, 16),
        (64, 288),
        (64, 576),
        (64, 32),
        (10, 64),
    ],
}
"""Rows and columns of each layer's gradient; both have a factor."""


def ends(length: int) -> list[tuple[int, int]]:
    """Return begin and end of the blocks of a factor."""
    return list(pairwise([*range(0, length, BLOCK), length]))


def ways(rows: int, columns: int) -> tuple[Callable[[], None], Callable[[], None], Callable[[], None]]:
    """Return the three ways to multiply one layer's gradient from both sides."""
    gradient, between, out = torch.randn(rows, columns), torch.empty(rows, columns), torch.empty(rows, columns)
    left = [torch.randn(end - begin, end - begin) for begin, end in ends(rows)]
    right = [torch.randn(end - begin, end - begin) for begin, end in ends(columns)]
    pairs_left = list(zip(ends(rows), left, strict=True))
    pairs_right = [(between[:, b:e], part, out[:, b:e]) for (b, e), part in zip(ends(columns), right, strict=True)]

    def as_it_is() -> None:
        for (begin, end), part in pairs_left:
            torch.mm(part, gradient[begin:end], out=between[begin:end])
        for source, part, target in pairs_right:
            torch.mm(source, part, out=target)

    def batched() -> None:
        if rows % BLOCK or columns % BLOCK:
            as_it_is()
            return
        torch.bmm(stacked_left, gradient.view(len(left), BLOCK, columns), out=between.view(len(left), BLOCK, columns))
        wide = between.view(rows, len(right), BLOCK).transpose(0, 1)
        out.view(rows, len(right), BLOCK).copy_(torch.bmm(wide, stacked_right).transpose(0, 1))

    def whole() -> None:
        torch.mm(whole_left, gradient, out=between)
        torch.mm(between, whole_right, out=out)

    whole_left, whole_right = torch.block_diag(*left), torch.block_diag(*right)
    if not (rows % BLOCK or columns % BLOCK):
        stacked_left, stacked_right = torch.stack(left), torch.stack(right)
    answers: list[Tensor] = []
    for way in (as_it_is, batched, whole):
        way()
        answers.append(out.clone())
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=1e-4, atol=1e-3)
    return as_it_is, batched, whole


def turn(way: int, made: list[tuple[Callable[[], None], ...]]) -> Callable[[], None]:
    """Return all layers' products done in one way."""

    def work() -> None:
        for _ in range(REPEATS):
            for layer in made:
                layer[way]()

    return work


def main() -> None:
    """Print each way as a multiple of the one in use."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for name, layers in LAYERS.items():
        made: list[tuple[Callable[[], None], ...]] = [ways(*layer) for layer in layers]
        times = list(zip(*interleaved([timed(turn(way, made)) for way in range(3)], ROUNDS), strict=True))
        print(f"{name}: {1e3 * sorted(times[0])[ROUNDS // 2] / REPEATS:.3f} ms per step as it is")
        for way, words in ((1, "blocks of 128 batched"), (2, "whole matrices")):
            ratio = ratio_of(times[way], times[0])
            print(f"  {words}: {ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})")


if __name__ == "__main__":
    main()
