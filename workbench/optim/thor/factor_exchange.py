"""Factors between ranks: averaged in fused groups, inverted once per layer by its owner, sent back to all.

Every rank takes part in every exchange with the same layers; a layer counts only the ranks on which it had a backward
pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from workbench.core import distributed as ranks
from workbench.optim.thor.factor_blocks import FactorBlocks
from workbench.optim.thor.thor_layers import FactoredLayer


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
            members, factors = [i for i in group if i in set(due)], self.blocks.factors
            _together([part.div_(n_alive[i]) for i in members for part in self._tensors_of(i, factors)])

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
            mine, inverses = [i for i, owner in enumerate(owners) if owner == rank], self.blocks.inverses
            _together([part for i in mine for part in self._views_of(i, inverses)], sent_by=rank)
        flags = failed.to(damping.dtype)
        distributed.all_reduce(flags)
        return flags > 0

    def _views_of(self, layer: int, of: dict[int, Tensor]) -> list[Tensor]:
        return [view for f in self.layers[layer].numbers for _, _, view in self.blocks.views(f, of)]

    def _tensors_of(self, layer: int, of: dict[int, Tensor]) -> list[Tensor]:
        counts = self.layers[layer].counts
        return self._views_of(layer, of) + ([] if counts is None else [counts])


def _together(parts: Sequence[Tensor], sent_by: int | None = None) -> None:
    """Sum many tensors, if there are any, over the ranks as one, or take those of one rank."""
    if not parts:
        return
    flat = torch.cat([part.reshape(-1) for part in parts])
    if sent_by is None:
        distributed.all_reduce(flat)
    else:
        distributed.broadcast(flat, src=sent_by)
    for part, piece in zip(parts, flat.split_with_sizes([part.numel() for part in parts]), strict=True):
        part.copy_(piece.view_as(part))
