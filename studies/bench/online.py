"""What does an online step cost beside a loop written by hand that touches only the rows of its batch?

A batch is 64 records of 8 ids each; their rows of 16 numbers go through one small layer into a log loss. The loop by
hand merges equal rows, differentiates only those and updates them and their states by index; the layer is trained by
torch's fused Adam. With a hash embedding the loop by hand hashes, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from workbench.bench import Benchmark, Finding, Request, Sides, contest, require_equal
from workbench.optim.embeddings import HashEmbedding
from workbench.optim.row_wise import RowWiseAdagrad, RowWiseAdam

from .nets import weights_of

Rule = Literal["Adagrad", "Adam"]

_GOAL = 1.10
_RATE, _EPS, _BETAS = 0.05, 1e-8, (0.9, 0.999)
_BATCHES = 64
_CONTESTS: tuple[tuple[bool, Rule], ...] = ((False, "Adagrad"), (False, "Adam"), (True, "Adagrad"))


def measure(
    request: Request, *, rows: int = 1_000_000, dim: int = 16, records: int = 64, ids: int = 8
) -> list[Finding]:
    """Measure a step on ids against the row-wise loop by hand, with both adaptive rules and with hashed ids.

    The table has so many rows of ``dim`` numbers, a batch so many records of so many ids.
    """
    device = request.chosen_device()
    batches = _batches(rows, records, ids, device)
    found: list[Finding] = []
    for threads in request.each_thread_count():
        for hashed, rule in _CONTESTS:

            def new(hashed: bool = hashed, *, sparse: bool = True) -> _Network:
                return _Network(rows, dim, ids, hashed, device, sparse=sparse)

            def sides(hashed: bool = hashed, rule: Rule = rule, new: Callable[..., _Network] = new) -> Sides:
                peers: dict[str, Callable[[], object] | None] = {}
                if request.peers and rule == "Adam" and not hashed:
                    sparse, dense = new(), new(sparse=False)
                    peers["torch SparseAdam"] = _step(sparse, batches, *_sparse_adam(sparse))
                    peers["torch Adam"] = _step(dense, batches, _fused_adam(dense))
                ours = new()
                return Sides(_step(ours, batches, _row_wise(ours, rule)), _hand_step(new(), rule, batches), peers=peers)

            def guard(rule: Rule = rule, new: Callable[..., _Network] = new) -> None:
                ours, by_hand = new(), new()
                our_step, hand_step = _step(ours, batches, _row_wise(ours, rule)), _hand_step(by_hand, rule, batches)
                for _ in range(5):
                    our_step()
                    hand_step()
                require_equal(weights_of(ours), weights_of(by_hand), "weights after 5 steps", rtol=1e-4, atol=1e-5)

            table = f"{'hashed into ' if hashed else ''}{rows:,} x {dim}"
            found += contest(
                f"online step, {table}, batch {records} x {ids}, {rule}, {threads}",
                sides,
                request,
                named="loop by hand",
                goal=_GOAL,
                guard=guard,
            )
    return found


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
        return self.head(vectors.flatten(1)).squeeze(1)

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


def _row_wise(network: nn.Module, rule: Rule) -> torch.optim.Optimizer:
    return (RowWiseAdam if rule == "Adam" else RowWiseAdagrad)(network.parameters(), lr=_RATE)


def _sparse_adam(network: _Network) -> Sequence[torch.optim.Optimizer]:
    return torch.optim.SparseAdam([network.table.weight], lr=_RATE), _fused_adam(network.head)


def _fused_adam(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(network.parameters(), lr=_RATE, fused=True)


def _step(network: _Network, batches: list[Batch], *optimizers: torch.optim.Optimizer) -> Callable[[], None]:
    stream = cycle(batches)

    def step() -> None:
        ids, clicked = next(stream)
        F.binary_cross_entropy_with_logits(network(ids), clicked).backward()
        for optimizer in optimizers:
            optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()

    return step


def _hand_step(network: _Network, rule: Rule, batches: list[Batch]) -> Callable[[], None]:
    stream = cycle(batches)
    table = network.table.weight.detach()
    optimizer = _fused_adam(network.head)
    update = _adam_rows(table) if rule == "Adam" else _adagrad_rows(table)

    def step() -> None:
        ids, clicked = next(stream)
        rows, position = torch.unique(network.rows_of(ids), return_inverse=True)
        picked = table.index_select(0, rows).requires_grad_()
        loss = F.binary_cross_entropy_with_logits(network.judged(F.embedding(position, picked)), clicked)
        loss.backward()
        with torch.no_grad():
            update(rows, picked.detach(), picked.grad)
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
    "online", "What does an online step cost beside a row-wise loop by hand?", measure, rounds=15, place=17
)
