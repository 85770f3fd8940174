"""Embeddings of ids without a dictionary: the row is a hash of the id.

Ids that fall into the same row share it. With several hash functions an id has a sum of rows of its own,

    e(id) = sum over j of p_j(id) * table[h_j(id)],

and two ids are confused only where all their rows and weights p agree; p is learned, in a table of its own whose row
is one more hash of the id.

References:
    Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML 2009, arXiv:0902.2206 (one hash
    function); Svenstrup, Hansen and Winther, "Hash Embeddings for Efficient Word Representations", NeurIPS 2017,
    arXiv:1709.03933, section 2 (several). There h_j goes through a shared table of buckets; here it is computed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.core.arguments import checked_count, checked_number
from workbench.optim.embeddings.mixing import row_of


class HashEmbedding(nn.Module):
    """Embedding of any int64 id into a table of fixed size, with gradients for the rows touched only.

    Nothing is remembered but weights: any id may come at any time, on any rank, and gets the same row everywhere.

    Args:
        n_rows: Rows of the table, >= 1.
        dim: Numbers per row, >= 1.
        n_hashes: Hash functions per id, >= 1. 1 looks up a row; more sum that many, weighted.
        n_importance_rows: Rows of the table of weights p, >= 1; None for ``n_rows``. Unused with one hash function.
        init_scale: Rows begin uniform in ``[-init_scale, init_scale]``, >= 0; p begins as ``n_hashes ** -0.5``, which
            keeps the size of the sum.
        seed: Seed of the hash functions.

    Attributes:
        weight: The table, shape ``[n_rows, dim]``.
        importance: p, shape ``[n_importance_rows, n_hashes]``; None with one hash function.

    Example:
        >>> embedding = HashEmbedding(n_rows=1000, dim=4)
        >>> embedding(torch.tensor([[7, -1], [2**62, 7]])).shape
        torch.Size([2, 2, 4])
    """

    sparse = True  # its gradients, in the word of nn.Embedding

    def __init__(
        self,
        n_rows: int,
        dim: int,
        n_hashes: int = 1,
        *,
        n_importance_rows: int | None = None,
        init_scale: float = 0.05,
        seed: int = 0,
    ) -> None:
        super().__init__()
        n_importance_rows = n_rows if n_importance_rows is None else n_importance_rows
        sizes = {"n_rows": n_rows, "dim": dim, "n_hashes": n_hashes, "n_importance_rows": n_importance_rows}
        for name, size in sizes.items():
            checked_count(name, size)
        checked_number("init_scale", init_scale)
        self.n_rows, self.dim, self.n_hashes, self.init_scale, self.seed = n_rows, dim, n_hashes, init_scale, seed
        self.weight = nn.Parameter(torch.empty(n_rows, dim))
        self.importance = nn.Parameter(torch.empty(n_importance_rows, n_hashes)) if n_hashes > 1 else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the first weights, with torch's global generator."""
        nn.init.uniform_(self.weight, -self.init_scale, self.init_scale)
        if self.importance is not None:
            nn.init.constant_(self.importance, self.n_hashes**-0.5)

    def rows_of(self, ids: Tensor) -> Tensor:
        """Return the rows of int64 ids of shape ``[...]``; with several hash functions ``[..., n_hashes]``."""
        if self.n_hashes == 1:
            return row_of(ids, self.seed, self.n_rows)
        return torch.stack([row_of(ids, self._seed_of(j), self.n_rows) for j in range(self.n_hashes)], dim=-1)

    def forward(self, ids: Tensor) -> Tensor:
        """Return embeddings ``[..., dim]`` of int64 ids ``[...]``; other ids are a TypeError."""
        found = F.embedding(self.rows_of(ids), self.weight, sparse=True)
        if self.importance is None:
            return found
        importance_rows = row_of(ids, self._seed_of(self.n_hashes), len(self.importance))
        weights = F.embedding(importance_rows, self.importance, sparse=True)
        return (weights.unsqueeze(-1) * found).sum(dim=-2)

    def extra_repr(self) -> str:
        """Say the sizes."""
        return f"{self.n_rows}, {self.dim}, n_hashes={self.n_hashes}"

    def _seed_of(self, function: int) -> int:
        return self.seed + function * 0x1000003  # a step that seeds of neighbouring tables do not take
