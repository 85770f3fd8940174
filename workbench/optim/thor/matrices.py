"""THOR's matrices: all blocks of all factors in a few tensors, what ranks do with them together, how they are applied.

Blocks lie in *bins* by size, tensors ``[blocks, s, s]`` that are inverted in one call. A block narrower than its bin is
padded with a unit diagonal, which neither changes the inverse of the rest nor can fail. On an accelerator there is one
bin, hence one batched Cholesky for everything; on a CPU, where a batch is a loop, one per power of two: padding a
factor of 16 rows to 128 would cost 500 times its own operations there.

Ranks average factors in groups of layers that travel together, a layer's owner inverts them and sends the inverses to
all. Every rank takes part in every exchange with the same layers; a layer counts only the ranks on which it had a
backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, distributed

from workbench.core import distributed as ranks

if TYPE_CHECKING:
    from workbench.optim.thor.collection import FactoredLayer

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

    def blocks_of(self, factors: Iterable[int], of: dict[int, Tensor]) -> list[Tensor]:
        """Return the views of several factors' blocks alone."""
        return [view for factor in factors for _, _, view in self.views(factor, of)]

    def packed(self, of: dict[int, Tensor]) -> Tensor:
        """Return all blocks without padding as one vector, which fits whatever the bins of the device are."""
        every = [block.reshape(-1) for block in self.blocks_of(range(len(self.sizes)), of)]
        return torch.cat(every) if every else torch.zeros(0)

    def unpack_(self, of: dict[int, Tensor], values: Tensor) -> None:
        """Take in what ``packed`` returned, for the same factors and the same size of blocks."""
        _deal_out_(values, self.blocks_of(range(len(self.sizes)), of))

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
        pairs = zip(self.blocks_of([factor], self.factors), self.blocks_of([factor], self.inverses), strict=True)
        for values, inverse in pairs:
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


def _inverse(
    values: Tensor, damping: Tensor, padding: Tensor, reference_product: Tensor | None, host_decides: bool
) -> tuple[Tensor, Tensor]:
    """Return the inverses of damped blocks and which of them are good."""
    damped = values.clone()
    damped.diagonal(dim1=-2, dim2=-1).add_(damping[:, None] * (1 - padding) + padding)
    # Of LAPACK's two forms the one with the upper triangle takes a quarter less time through torch on a CPU.
    root, info = torch.linalg.cholesky_ex(damped, upper=host_decides)
    unit = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device).expand_as(root)
    if not host_decides or bool(info.any()):
        # What a failed factorisation leaves may be singular, and the inversion would raise for all blocks together.
        root = torch.where((info == 0)[:, None, None], root, unit)
    if host_decides:
        # Symmetric to the last bit, and LAPACK's matrices lie column by column: so this is copied ten times faster.
        inverse = torch.cholesky_inverse(root, upper=True).mT
    else:  # cholesky_inverse asks the device whether it went well
        half = torch.linalg.solve_triangular(root, unit, upper=False)
        inverse = half.mT @ half
    if reference_product is not None:
        half = torch.linalg.solve_triangular(root.mT if host_decides else root, unit, upper=False)
        inverse = torch.where(reference_product[:, None, None], half @ half, inverse)
    # info is blind to an infinite diagonal, whose root is a root; a sum sees everything.
    return inverse, (info == 0) & torch.isfinite(inverse.sum((-2, -1)))


def _bin_of(width: int, block_size: int, device: torch.device) -> int:
    if device.type != "cpu":
        return block_size
    return min(max(SMALLEST_BIN, 1 << (width - 1).bit_length()), block_size)


# Several ranks


def owners_of_layers(costs: Sequence[float], n_ranks: int) -> list[int]:
    """Deal layers out to ranks so that none has much more to compute than another; return the rank of each layer.

    The most expensive layer comes first, each goes to the rank that has least so far.

    Example:
        >>> owners_of_layers([1.0, 5.0, 3.0, 1.0], 2)
        [1, 0, 1, 1]
    """
    load, owners = [0.0] * n_ranks, [0] * len(costs)
    for layer in sorted(range(len(costs)), key=lambda i: -costs[i]):
        owners[layer] = rank = load.index(min(load))
        load[rank] += costs[layer]
    return owners


class FactorExchange:
    """What ranks do together at a refresh; on a single rank nothing.

    ``split_indices`` are the last layers of each group whose factors travel together; None for one group.
    """

    def __init__(
        self, layers: Sequence[FactoredLayer], blocks: FactorBlocks, split_indices: Sequence[int] | None
    ) -> None:
        self.layers, self.blocks = layers, blocks
        ends = sorted({min(index, len(layers) - 1) + 1 for index in split_indices or ()} | {len(layers)})
        self.groups = [list(range(begin, end)) for begin, end in zip([0, *ends], ends, strict=False)]
        self.costs = [float(sum(block.bin**3 for f in layer.numbers for block in blocks.blocks[f])) for layer in layers]

    def average_(self, due: Sequence[int], alive: Tensor, skip: Tensor) -> None:
        """Average the factors of some layers, the same on every rank, over the ranks that have one, in place.

        ``alive`` is 1 for layers that have a factor here, shape ``[layers]``, and is set where any rank has one;
        ``skip`` is 1 when this rank's gradients overflowed, and is set when any rank's did.
        """
        if ranks.world_size() == 1:
            return
        flags = torch.cat([alive, skip.reshape(1)])
        distributed.all_reduce(flags)
        n_alive = flags[:-1].clamp_min(1.0)
        alive.copy_(flags[:-1])
        skip.copy_((flags[-1] > 0).to(skip))
        for group in self.groups:
            # Where another rank overflowed this may hold inf or NaN; the refresh is skipped anyway.
            members = [i for i in group if i in set(due)]
            _together([part.div_(n_alive[i]) for i in members for part in self._sums_of(self.layers[i])])

    def invert_(self, damping: Tensor, multiplier: Tensor | None, which: Tensor) -> Tensor:
        """Invert factors, each on its owner's rank, and hand the inverses out; see ``FactorBlocks.invert_``."""
        n_ranks = ranks.world_size()
        if n_ranks == 1:
            return self.blocks.invert_(damping, multiplier, which)
        owners = owners_of_layers(self.costs, n_ranks)
        owner_of = torch.zeros(len(self.blocks.sizes), dtype=torch.long, device=which.device)
        for layer, owner in zip(self.layers, owners, strict=True):
            for factor in layer.numbers:
                owner_of[factor] = owner
        failed = self.blocks.invert_(damping, multiplier, which & (owner_of == ranks.rank()))
        for rank in range(n_ranks):
            mine = [f for layer, owner in zip(self.layers, owners, strict=True) if owner == rank for f in layer.numbers]
            _together(self.blocks.blocks_of(mine, self.blocks.inverses), sent_by=rank)
        flags = failed.to(damping.dtype)
        distributed.all_reduce(flags)
        return flags > 0

    def _sums_of(self, layer: FactoredLayer) -> list[Tensor]:
        blocks = self.blocks.blocks_of(layer.numbers, self.blocks.factors)
        return blocks if layer.counts is None else [*blocks, layer.counts]


def _together(parts: Sequence[Tensor], sent_by: int | None = None) -> None:
    """Sum many tensors, if there are any, over the ranks as one, or take those of one rank."""
    if not parts:
        return
    flat = torch.cat([part.reshape(-1) for part in parts])
    if sent_by is None:
        distributed.all_reduce(flat)
    else:
        distributed.broadcast(flat, src=sent_by)
    _deal_out_(flat, parts)


def _deal_out_(flat: Tensor, parts: Sequence[Tensor]) -> None:
    """Fill tensors from one vector that holds their elements in turn."""
    for part, piece in zip(parts, flat.split_with_sizes([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view_as(part))


# The gradient of a layer


class LayerPlan:
    """How one layer's gradient is preconditioned, ``G^-1 dW A^-1`` block by block: views and buffers, made once.

    Slices of matrices are written in place by the matrix product itself, so the blocks cost no copies.
    """

    def __init__(self, layer: FactoredLayer, blocks: FactorBlocks) -> None:
        left = blocks.views(layer.g, blocks.inverses) if layer.kind != "embedding" else []
        right = blocks.views(layer.a if layer.a >= 0 else layer.g, blocks.inverses)
        weight = layer.weight
        self.row_scale = layer.row_scale
        self.shape, self.dtype = (len(weight), weight[0].numel()), right[0][2].dtype
        self.between = torch.empty(self.shape, dtype=self.dtype, device=weight.device)
        self.flat = torch.empty_like(self.between)
        # The update reads weight and gradient side by side in memory, so both must lie there in the same order.
        self.is_plain = weight.is_contiguous() and weight.dtype == self.dtype
        self.result = self.flat.view(weight.shape) if self.is_plain else torch.empty_like(weight, requires_grad=False)
        self.left = [(inverse, begin, end, self.between[begin:end]) for begin, end, inverse in left]
        self.right = [(self.between[:, begin:end], inverse, self.flat[:, begin:end]) for begin, end, inverse in right]

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the preconditioned gradient, in memory that the next call overwrites."""
        matrix = gradient.reshape(self.shape)
        if matrix.dtype != self.dtype:
            matrix = matrix.to(self.dtype)
        if self.row_scale is not None:
            torch.mul(matrix, self.row_scale[:, None], out=self.between)
        else:
            for inverse, begin, end, target in self.left:
                torch.mm(inverse, matrix[begin:end], out=target)
        for part, inverse, target in self.right:
            torch.mm(part, inverse, out=target)
        if not self.is_plain:
            self.result.copy_(self.flat.view(self.result.shape))
        return self.result
