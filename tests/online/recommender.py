"""A small recommender and a stream of clicks for it, the same for every start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from workbench.rec import RecModel

__all__ = ["Recommender", "new_recommender", "stream"]

N_IDS, N_FIELDS, N_NUMBERS, BATCH = 200, 4, 3, 16


class Recommender(nn.Module):
    """Embeddings of the ids beside the numbers, then two layers; with dropout, so that randomness matters."""

    def __init__(self, sparse: bool = False, rows: int = N_IDS) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 4, sparse=sparse)
        self.layers = nn.Sequential(
            nn.Linear(4 * N_FIELDS + N_NUMBERS, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1), nn.Flatten(0)
        )

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        ids, numbers = inputs
        output: Tensor = self.layers(torch.cat([self.table(ids).flatten(1), numbers], 1))
        return output


def new_recommender(sparse: bool = False, **arguments: Any) -> RecModel:
    """Return a model with the same weights each time."""
    torch.manual_seed(5)
    network = Recommender(sparse)
    optimizer: torch.optim.Optimizer = (
        torch.optim.SGD(network.parameters(), lr=0.1)
        if sparse
        else torch.optim.Adam(network.parameters(), lr=0.01, fused=True)
    )
    return RecModel(network, nn.BCEWithLogitsLoss(), optimizer, **arguments)


def stream(seed: int, start: int, n: int | None = None) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
    """Yield batches; batch ``k`` depends on the seed and on ``k`` alone."""
    number = start
    while n is None or number < n:
        draw = torch.Generator().manual_seed(1_000_003 * seed + number)
        ids = torch.randint(N_IDS, (BATCH, N_FIELDS), generator=draw)
        numbers = torch.randn(BATCH, N_NUMBERS, generator=draw)
        odds = (ids[:, 0] % 7 - 3).float() + numbers[:, 0]
        labels = (torch.rand(BATCH, generator=draw) < odds.sigmoid()).float()
        yield (ids, numbers), labels
        number += 1
