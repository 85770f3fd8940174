"""Embeddings in a table that knows whose each row is and gives the rows of ids long unseen to new ones.

The table is a set-associative cache: a hash of the id names a bucket of ``ways`` rows, and the id's row is one of
them, found by comparing all the bucket's owners at once (Hennessy and Patterson, "Computer Architecture: A
Quantitative Approach", appendix B; for embeddings: Wei et al., "Merlin HugeCTR: GPU-accelerated Recommender System
Training and Inference", RecSys 2022, arXiv:2210.08803, section 4.2). So looking up, claiming and evicting are a fixed
number of tensor operations for a whole batch.

In training, an id without a row claims the free or else the stalest row of its bucket. The row's weights start
from numbers that are a function of seed and id, and ``weight.fresh_rows`` tells the optimizer to start the row's state
afresh (`workbench.optim.row_wise`). Where every row of the bucket is younger than ``min_age``, the id shares one of
them for this batch: a collision, counted. Outside training nothing is claimed, and an id without a row gets the
numbers that its row would begin with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.arguments import checked_count, checked_number
from workbench.optim.embeddings.mixing import mix64, row_of, uniform_from


@dataclass(frozen=True, slots=True)
class TableOccupancy:
    """How full a table is and what it has given away."""

    n_rows: int
    rows_in_use: int
    claims: int  # rows given to an id since the beginning
    evictions: int  # those of them that were another id's
    collisions: int  # ids, counted once per batch, that had to share a row


class EvictingEmbedding(nn.Module):
    """Embedding of any int64 id: a row of its own for as long as it is seen, the stalest rows for newcomers.

    ``state_dict`` holds owners and times, so training resumed continues exactly. Ranks that train one table together
    must see the same ids in the same order, else they give the same row to different ids.

    Args:
        n_rows: Rows of the table, a multiple of ``ways``.
        dim: Numbers per row, >= 1.
        ways: Rows an id may have its row among, >= 1; None for 16, or ``n_rows`` where that is smaller.
        min_age: Forward passes in training since a row was last seen before it may be evicted, >= 1. With gradient
            accumulation the number of micro-batches per step, so that no gradient reaches a row's next owner.
        init_scale: Rows begin uniform in ``[-init_scale, init_scale)``, >= 0.
        seed: Seed of hash functions and first weights.

    Attributes:
        weight: The table, shape ``[n_rows, dim]``; rows without owner are 0.
        owners: Id of each row, int64, shape ``[n_rows]``.
        last_seen: Number of the training pass in which each row was last asked for, int64; 0 for a free row.
        clock: Training passes so far, int64, shape ``[]``.
        fresh_rows: Rows claimed whose optimizer state is still a former owner's, bool, shape ``[n_rows]``.

    Raises:
        ValueError: When a number is out of range or ``ways`` does not divide ``n_rows``.

    Example:
        >>> embedding = EvictingEmbedding(n_rows=32, dim=4)
        >>> _ = embedding(torch.tensor([[10**15, -3], [10**15, 8]]))
        >>> embedding.occupancy().rows_in_use
        3
    """

    sparse = True  # its gradients, in the word of nn.Embedding
    owners: Tensor
    last_seen: Tensor
    clock: Tensor
    fresh_rows: Tensor
    counts: Tensor

    def __init__(
        self,
        n_rows: int,
        dim: int,
        *,
        ways: int | None = None,
        min_age: int = 1,
        init_scale: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        ways = min(16, n_rows) if ways is None else ways
        for name, size in {"n_rows": n_rows, "dim": dim, "ways": ways, "min_age": min_age}.items():
            checked_count(name, size)
        if n_rows % ways:
            raise ValueError(f"`n_rows` must be a multiple of `ways` ({ways}), got {n_rows}")
        checked_number("init_scale", init_scale)
        self.n_rows, self.dim, self.ways, self.min_age = n_rows, dim, ways, min_age
        self.init_scale, self.seed = init_scale, seed
        self.n_buckets = n_rows // ways
        self.weight = nn.Parameter(torch.zeros(n_rows, dim))
        self.register_buffer("owners", torch.zeros(n_rows, dtype=torch.int64))
        self.register_buffer("last_seen", torch.zeros(n_rows, dtype=torch.int64))
        self.register_buffer("clock", torch.zeros((), dtype=torch.int64))
        self.register_buffer("fresh_rows", torch.zeros(n_rows, dtype=torch.bool))
        self.register_buffer("counts", torch.zeros(3, dtype=torch.int64))  # claims, evictions, collisions

    def forward(self, ids: Tensor) -> Tensor:
        """Return embeddings ``[..., dim]`` of int64 ids ``[...]``, else a TypeError; in training, claim rows."""
        flat = ids.reshape(-1)
        rows, known = self._find(flat)
        all_known = bool(known.all())
        if self.training:
            with torch.no_grad():
                self.clock += 1
                self.last_seen.index_fill_(0, rows if all_known else rows[known], self.clock)
                if not all_known:
                    unknown = ~known
                    rows[unknown] = self._claim_(flat[unknown])
            weight: Any = self.weight
            weight.fresh_rows = self.fresh_rows
        found = F.embedding(rows, self.weight, sparse=True)
        if not (self.training or all_known):
            found = torch.where(known.unsqueeze(1), found, self.first_weights(flat))
        return found.view(*ids.shape, self.dim)

    def first_weights(self, ids: Tensor) -> Tensor:
        """Return what the rows of these ids begin with, shape ``[n, dim]``: a function of seed and id."""
        columns = torch.arange(self.dim, device=ids.device)
        scrambled = mix64(mix64(ids, self.seed + 1).unsqueeze(1) + columns, self.seed + 2)
        return ((uniform_from(scrambled) * 2.0 - 1.0) * self.init_scale).to(self.weight.dtype)

    def occupancy(self) -> TableOccupancy:
        """Return how full the table is; waits for the device."""
        claims, evictions, collisions = self.counts.tolist()
        return TableOccupancy(self.n_rows, claims - evictions, claims, evictions, collisions)

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the row of each id, int64, shape ``[n]``; -1 for an id without one. Changes nothing."""
        rows, known = self._find(ids)
        return torch.where(known, rows, -1)

    def extra_repr(self) -> str:
        """Say the sizes."""
        return f"{self.n_rows}, {self.dim}, ways={self.ways}, min_age={self.min_age}"

    def _find(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return a row for each id and whether it is the id's own."""
        bucket = row_of(ids, self.seed, self.n_buckets)
        matches = self.owners.view(self.n_buckets, self.ways).index_select(0, bucket) == ids.unsqueeze(1)
        # The first of several matches: free rows have owner 0, too, but lie behind the row of id 0, if it has one,
        # because rows of a bucket are first claimed in order.
        found, first = matches.max(dim=1)
        rows = bucket * self.ways + first
        known = found & (self.last_seen.index_select(0, rows) > 0)
        return rows, known

    def _claim_(self, ids: Tensor) -> Tensor:
        """Give rows to ids without one, as far as there are any to give, and return a row for each."""
        newcomers, position = torch.unique(ids, return_inverse=True)
        bucket = row_of(newcomers, self.seed, self.n_buckets)
        # The r-th newcomer of a bucket gets its r-th stalest row.
        ordered, order = torch.sort(bucket, stable=True)
        place = torch.arange(len(order), device=ids.device) - torch.searchsorted(ordered, ordered)
        rank = torch.empty_like(place).index_copy_(0, order, place)
        seen = self.last_seen.view(self.n_buckets, self.ways).index_select(0, bucket)
        by_age, slots = torch.sort(seen, dim=1, stable=True)
        taken = rank.clamp(max=self.ways - 1).unsqueeze(1)
        age_of_row, slot = by_age.gather(1, taken).squeeze(1), slots.gather(1, taken).squeeze(1)
        granted = (rank < self.ways) & (age_of_row <= self.clock - self.min_age)
        granted |= (rank < self.ways) & (age_of_row == 0)  # a free row needs no minimum age
        shared = row_of(newcomers, self.seed + 3, self.ways)
        rows = bucket * self.ways + torch.where(granted, slot, shared)
        given, owners = rows[granted], newcomers[granted]
        self.owners.index_copy_(0, given, owners)
        self.last_seen.index_fill_(0, given, self.clock)
        self.weight.index_copy_(0, given, self.first_weights(owners))
        self.fresh_rows.index_fill_(0, given, True)
        n_granted = granted.sum()
        evicted = (granted & (age_of_row > 0)).sum()
        self.counts += torch.stack([n_granted, evicted, len(newcomers) - n_granted])
        return rows.index_select(0, position)
