"""What does an online step cost beside a loop written by hand that touches only the rows of its batch?

A batch is 64 records of 8 ids each; their rows of 16 numbers go through one small layer into a log loss. The loop by
hand merges equal rows, differentiates only those and updates them and their states by index; the layer is trained by
torch's fused Adam. With a hash embedding the loop by hand hashes, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.contest import Sides, contest, require_equal
from workbench.optim.embeddings import HashEmbedding
from workbench.optim.row_wise import RowWiseAdagrad, RowWiseAdam

__all__ = ["measure_online"]

Rule = Literal["Adagrad", "Adam"]

_GOAL = 1.10
_RATE, _EPS, _BETAS = 0.05, 1e-8, (0.9, 0.999)
_BATCHES = 64


def measure_online(
    request: Request, *, rows: int = 1_000_000, dim: int = 16, records: int = 64, ids: int = 8
) -> list[Finding]:
    """Measure a step on ids against the row-wise loop by hand, with both adaptive rules and with hashed ids.

    Args:
        request: What is asked for.
        rows: Rows of the table.
        dim: Numbers per row.
        records: Records of a batch.
        ids: Ids of a record.
    """
    found: list[Finding] = []
    sizes = rows, dim, records, ids
    for threads in request.each_thread_count():
        for hashed, rule in ((False, "Adagrad"), (False, "Adam"), (True, "Adagrad")):
            found += _contest(f"{threads}", sizes, hashed, "Adam" if rule == "Adam" else "Adagrad", request)
    return found


def _contest(
    threads: str, sizes: tuple[int, int, int, int], hashed: bool, rule: Rule, request: Request
) -> list[Finding]:
    rows, dim, records, ids = sizes
    device = request.chosen_device()
    batches = _batches(rows, records, ids, device)

    def new(*, sparse: bool = True) -> _Network:
        return _Network(rows, dim, ids, hashed, device, sparse=sparse)

    def sides() -> Sides:
        peers: dict[str, Callable[[], object] | None] = {}
        if request.peers and rule == "Adam" and not hashed:
            peers = {
                "torch SparseAdam": _sparse_adam_step(new(), batches),
                "torch Adam": _dense_adam_step(new(sparse=False), batches),
            }
        return Sides(_our_step(new(), rule, batches), _hand_step(new(), rule, batches), peers=peers)

    def guard() -> None:
        ours, by_hand = new(), new()
        our_step, hand_step = _our_step(ours, rule, batches), _hand_step(by_hand, rule, batches)
        for _ in range(5):
            our_step()
            hand_step()
        require_equal(ours.table.weight, by_hand.table.weight, "table after 5 steps", rtol=1e-4, atol=1e-5)
        require_equal(ours.head.weight, by_hand.head.weight, "layer after 5 steps", rtol=1e-4, atol=1e-5)

    return contest(
        f"online step, {'hashed into ' if hashed else ''}{rows:,} x {dim}, batch {records} x {ids}, {rule}, {threads}",
        sides,
        rounds=request.rounds,
        named="loop by hand",
        goal=_GOAL,
        guard=guard,
        device=device,
    )


class _Network(nn.Module):
    """A table and one layer."""

    def __init__(
        self, rows: int, dim: int, ids: int, hashed: bool, device: torch.device, *, sparse: bool = True
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = HashEmbedding(rows, dim) if hashed else nn.Embedding(rows, dim, sparse=sparse)
        self.head = nn.Linear(ids * dim, 1)
        self.to(device)

    def forward(self, ids: Tensor) -> Tensor:
        return self.judged(self.table(ids))

    def judged(self, vectors: Tensor) -> Tensor:
        """Return logits ``[records]`` of vectors ``[records, ids, dim]``."""
        return self.head(vectors.flatten(1)).squeeze(1)  # type: ignore[no-any-return]  # nn.Module calls are Any

    def rows_of(self, ids: Tensor) -> Tensor:
        return self.table.rows_of(ids) if isinstance(self.table, HashEmbedding) else ids


Batch = tuple[Tensor, Tensor]


def _batches(rows: int, records: int, ids: int, device: torch.device) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(_BATCHES):
        # Squares of uniform numbers: some ids are more frequent than others, as they are in a stream.
        drawn = (torch.rand(records, ids, generator=generator).square() * rows).long()
        made.append((drawn.to(device), torch.randint(0, 2, (records,), generator=generator).float().to(device)))
    return made


def _endlessly(batches: list[Batch]) -> Iterator[Batch]:
    return itertools.cycle(batches)


def _our_step(network: _Network, rule: Rule, batches: list[Batch]) -> Callable[[], None]:
    optimizer = (RowWiseAdam if rule == "Adam" else RowWiseAdagrad)(network.parameters(), lr=_RATE)
    return _stock_step(network, [optimizer], batches)


def _sparse_adam_step(network: _Network, batches: list[Batch]) -> Callable[[], None]:
    return _stock_step(
        network,
        [
            torch.optim.SparseAdam([network.table.weight], lr=_RATE),
            torch.optim.Adam(network.head.parameters(), lr=_RATE, fused=True),
        ],
        batches,
    )


def _dense_adam_step(network: _Network, batches: list[Batch]) -> Callable[[], None]:
    return _stock_step(network, [torch.optim.Adam(network.parameters(), lr=_RATE, fused=True)], batches)


def _stock_step(network: _Network, optimizers: list[torch.optim.Optimizer], batches: list[Batch]) -> Callable[[], None]:
    stream = _endlessly(batches)

    def step() -> None:
        ids, clicked = next(stream)
        loss = F.binary_cross_entropy_with_logits(network(ids), clicked)
        loss.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    return step


def _hand_step(network: _Network, rule: Rule, batches: list[Batch]) -> Callable[[], None]:
    stream = _endlessly(batches)
    table = network.table.weight.detach()
    optimizer = torch.optim.Adam(network.head.parameters(), lr=_RATE, fused=True)
    update = _adam_rows(table) if rule == "Adam" else _adagrad_rows(table)

    def step() -> None:
        ids, clicked = next(stream)
        rows, position = torch.unique(network.rows_of(ids), return_inverse=True)
        picked = table.index_select(0, rows).requires_grad_()
        loss = F.binary_cross_entropy_with_logits(network.judged(F.embedding(position, picked)), clicked)
        loss.backward()  # type: ignore[no-untyped-call]
        gradient = picked.grad
        assert gradient is not None  # of the backward pass just done
        with torch.no_grad():
            update(rows, picked.detach(), gradient)
        optimizer.step()
        optimizer.zero_grad()

    return step


RowUpdate = Callable[[Tensor, Tensor, Tensor], None]


def _adagrad_rows(table: Tensor) -> RowUpdate:
    sums = torch.zeros(len(table), device=table.device)

    def update(rows: Tensor, weights: Tensor, gradient: Tensor) -> None:
        total = sums.index_select(0, rows) + gradient.square().mean(1)
        sums.index_copy_(0, rows, total)
        table.index_copy_(0, rows, weights - _RATE * gradient / (total.sqrt() + _EPS).unsqueeze(1))

    return update


def _adam_rows(table: Tensor) -> RowUpdate:
    counts = torch.zeros(len(table), 1, device=table.device)
    first, second = torch.zeros_like(table), torch.zeros_like(table)
    beta1, beta2 = _BETAS

    def update(rows: Tensor, weights: Tensor, gradient: Tensor) -> None:
        count = counts.index_select(0, rows) + 1
        one = first.index_select(0, rows).lerp_(gradient, 1 - beta1)
        two = second.index_select(0, rows).mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        counts.index_copy_(0, rows, count)
        first.index_copy_(0, rows, one)
        second.index_copy_(0, rows, two)
        step = _RATE / (1 - beta1**count) * one
        table.index_copy_(0, rows, weights - step / ((two / (1 - beta2**count)).sqrt() + _EPS))

    return update


BENCHMARK = Benchmark(
    "online",
    "What does an online step cost beside a row-wise loop by hand?",
    measure_online,
    rounds=15,
    quick=False,
    place=17,
)
