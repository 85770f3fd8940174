"""All blocks of all factors in a few tensors, so that one call factorises and inverts them together.

Blocks lie in *bins* by size: tensors of shape ``[blocks, s, s]``. A block narrower than its bin is padded with a unit
diagonal, which neither changes the inverse of the rest nor can fail. On an accelerator there is one bin, hence one
batched Cholesky for everything; on a CPU, where a batch is a loop, there is one bin per power of two: padding a factor
of 16 rows to 128 would cost 500 times its own operations there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

SMALLEST_BIN = 8
RAISE_BY = 10.0  # damping of a failed block, per attempt
ATTEMPTS = 12  # float32 has fewer decades than that between a factor and its rounding error


def block_ranges(size: int, block_size: int) -> list[tuple[int, int]]:
    """Cut ``range(size)`` into pairs (begin, end); the last block may be smaller.

    Example:
        >>> block_ranges(300, 128)
        [(0, 128), (128, 256), (256, 300)]
    """
    return [(begin, min(begin + block_size, size)) for begin in range(0, size, block_size)]


class Block(NamedTuple):
    """Where a block lies: bin and row in it, and which rows of its factor it covers."""

    bin: int
    row: int
    begin: int
    end: int


class FactorBlocks:
    """Sums, running factors and inverses of the diagonal blocks of several symmetric factors.

    ``factors``, per bin ``[blocks, s, s]``, is what is being summed up, and after a refresh the factor itself;
    ``inverses`` are those in force. On a CPU the host looks at results (``host_decides``), elsewhere masks decide.
    As upstream, the factors of embeddings get L^-1 L^-1 in place of L^-T L^-1: the mask ``reference_product``, shape
    ``[factors]``; None for no factor.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        reference_product: Tensor | None = None,
    ) -> None:
        self.block_size = block_size
        self.reference_product = reference_product
        self.host_decides = device.type == "cpu"
        self.sizes = list(sizes)
        self.blocks: list[list[Block]] = [[] for _ in self.sizes]
        owners: dict[int, list[int]] = {}  # by bin, of each row its factor, ...
        widths: dict[int, list[int]] = {}  # ... and the width of the block
        for factor, size in enumerate(self.sizes):
            for begin, end in block_ranges(size, block_size):
                bin_ = _bin_of(end - begin, block_size, device)
                owners.setdefault(bin_, []).append(factor)
                widths.setdefault(bin_, []).append(end - begin)
                self.blocks[factor].append(Block(bin_, len(owners[bin_]) - 1, begin, end))
        self.owners, self._padding, self.factors, self.inverses = {}, {}, {}, {}
        for bin_, rows in owners.items():
            self.owners[bin_] = torch.tensor(rows, device=device)
            ends = torch.tensor(widths[bin_], device=device)[:, None]
            self._padding[bin_] = (torch.arange(bin_, device=device) >= ends).to(dtype)
            self.factors[bin_] = torch.zeros(len(rows), bin_, bin_, device=device, dtype=dtype)
            self.inverses[bin_] = torch.eye(bin_, device=device, dtype=dtype).repeat(len(rows), 1, 1)
        self.running: dict[int, Tensor] | None = None
        self.size_of = torch.tensor(self.sizes, device=device, dtype=dtype)

    def views(self, factor: int, of: dict[int, Tensor]) -> list[tuple[int, int, Tensor]]:
        """Return (begin, end, view without padding) of a factor's blocks in ``factors`` or ``inverses``."""
        return [(b.begin, b.end, of[b.bin][b.row, : b.end - b.begin, : b.end - b.begin]) for b in self.blocks[factor]]

    def packed(self, of: dict[int, Tensor]) -> Tensor:
        """Return all blocks without padding as one vector, which fits whatever the bins of the device are."""
        every = [view.reshape(-1) for f in range(len(self.sizes)) for _, _, view in self.views(f, of)]
        return torch.cat(every) if every else torch.zeros(0, device=next(iter(of.values())).device if of else None)

    def unpack_(self, of: dict[int, Tensor], values: Tensor) -> None:
        """Take in what ``packed`` returned, for the same factors and the same size of blocks."""
        begin = 0
        for factor in range(len(self.sizes)):
            for _, _, view in self.views(factor, of):
                view.copy_(values[begin : begin + view.numel()].view_as(view))
                begin += view.numel()

    def clear(self, factor: int) -> None:
        """Start a new sum."""
        for block in self.blocks[factor]:
            self.factors[block.bin][block.row].zero_()

    def add(self, factor: int, rows: Tensor) -> None:
        """Add ``rows @ rows.T`` to a factor's sum, block by block; shape ``[size of the factor, samples]``."""
        for begin, end, view in self.views(factor, self.factors):
            part = rows[begin:end]
            view.addmm_(part, part.T)

    def scale_(self, by: Tensor, which: Tensor) -> None:
        """Multiply sums by one number per factor, shape ``[factors]``; those outside the mask ``which`` stay."""
        by = torch.where(which, by, torch.ones_like(by))
        for bin_, values in self.factors.items():
            values.mul_(by[self.owners[bin_]][:, None, None])

    def average_(self, weight: Tensor, which: Tensor) -> None:
        """Mix the factors ``which`` into running averages, of which the past has the share ``weight``, in place."""
        if self.running is None:
            self.running = {bin_: torch.zeros_like(values) for bin_, values in self.factors.items()}
        for bin_, values in self.factors.items():
            owner = self.owners[bin_]
            share, chosen = weight[owner][:, None, None], which[owner][:, None, None]
            past = self.running[bin_]
            if self.host_decides and bool(chosen.all()):  # two passes over memory instead of six
                past.lerp_(values, 1 - share)
                values.copy_(past)
                continue
            past.copy_(torch.where(chosen, torch.lerp(past, values, 1 - share), past))
            values.copy_(torch.where(chosen, past, values))

    def traces(self) -> Tensor:
        """Return the trace of every factor, shape ``[factors]``."""
        result = torch.zeros_like(self.size_of)
        for bin_, values in self.factors.items():
            result.index_add_(0, self.owners[bin_], values.diagonal(dim1=-2, dim2=-1).sum(-1))
        return result

    def invert_(self, damping: Tensor, multiplier: Tensor | None, which: Tensor) -> Tensor:
        """Replace the inverses of some factors, and return those with a block that failed, which keeps the one it has.

        All have the shape ``[factors]``: what is added to the diagonal, what inverses are multiplied by, and which
        factors are meant.
        """
        failed = torch.zeros_like(damping)
        for bin_, values in self.factors.items():
            owner, inverses, padding = self.owners[bin_], self.inverses[bin_], self._padding[bin_]
            chosen = which[owner]
            if self.host_decides:  # what is not wanted need not be computed
                rows = chosen.nonzero()[:, 0]
                if len(rows) == 0:
                    continue
                if len(rows) < len(owner):
                    owner, padding, values = owner[rows], padding[rows], values[rows]
            reference_product = None if self.reference_product is None else self.reference_product[owner]
            kept, good = _inverse(values, damping[owner], padding, reference_product, self.host_decides)
            if multiplier is not None:
                kept.mul_(multiplier[owner][:, None, None])
            if not self.host_decides:
                torch.where((chosen & good)[:, None, None], kept, inverses, out=inverses)
                good = good | ~chosen
            elif len(rows) < len(chosen) or not bool(good.all()):
                inverses[rows[good]] = kept[good]
            else:
                inverses.copy_(kept)
            failed.index_add_(0, owner, (~good).to(failed))
        return failed > 0

    def rescue_(self, factor: int, damping: float, multiplier: float) -> float:
        """Invert a factor of which a block failed, each block with as much damping as it needs, and return the most.

        That is infinity when no amount helped a block, which keeps the inverse it has. It waits for the device.
        """
        most = damping
        reference_product = None if self.reference_product is None else self.reference_product[factor : factor + 1]
        views = zip(self.views(factor, self.factors), self.views(factor, self.inverses), strict=True)
        for (_, _, values), (_, _, inverse) in views:
            # Without damping there would be nothing to raise; this much is what rounding takes anyway.
            least = float(values.diagonal().abs().mean()) * torch.finfo(values.dtype).eps
            amount = max(damping, least)
            for _ in range(ATTEMPTS):
                added = torch.full((1,), amount, device=values.device, dtype=values.dtype)
                padding = torch.zeros(1, len(values), device=values.device, dtype=values.dtype)
                found, good = _inverse(values[None], added, padding, reference_product, True)
                if bool(good):
                    inverse.copy_(found[0] * multiplier)
                    break
                amount *= RAISE_BY
            else:
                amount = math.inf
            most = max(most, amount)
        return most


def _root_inverse(root: Tensor) -> Tensor:
    """Return the inverses of lower triangular matrices, shape ``[..., n, n]``."""
    unit = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
    return cast("Tensor", torch.linalg.solve_triangular(root, unit, upper=False))


def _inverse(
    values: Tensor, damping: Tensor, padding: Tensor, reference_product: Tensor | None, host_decides: bool
) -> tuple[Tensor, Tensor]:
    """Return the inverses of damped blocks and which of them are good."""
    damped = values.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping[:, None] * (1 - padding) + padding)
    # Of LAPACK's two forms the one with the upper triangle takes a quarter less time through torch on a CPU.
    root, info = torch.linalg.cholesky_ex(damped, upper=host_decides)
    if not host_decides or bool(info.any()):
        # What a failed factorisation leaves may be singular, and the inversion would raise for all blocks together.
        unit = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
        root = torch.where((info == 0)[:, None, None], root, unit)
    if host_decides:
        # Symmetric to the last bit, and LAPACK's matrices lie column by column: so this is copied ten times faster.
        inverse = torch.cholesky_inverse(root, upper=True).mT
    else:  # cholesky_inverse asks the device whether it went well
        half = _root_inverse(root)
        inverse = half.mT @ half
    if reference_product is not None:
        half = _root_inverse(root.mT if host_decides else root)
        inverse = torch.where(reference_product[:, None, None], half @ half, inverse)
    # info is blind to an infinite diagonal, whose root is a root; a sum sees everything.
    return inverse, (info == 0) & torch.isfinite(inverse.sum((-2, -1)))


def _bin_of(width: int, block_size: int, device: torch.device) -> int:
    if device.type != "cpu":
        return block_size
    return min(max(SMALLEST_BIN, 1 << (width - 1).bit_length()), block_size)
