"""The table that evicts: who has a row, who loses it, and that all of it resumes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workbench.optim.embeddings import EvictingEmbedding
from workbench.optim.row_wise import RowWiseAdagrad

IDS = st.integers(-4, 12)
BATCHES = st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=1, max_size=10)


class StalestFirst:
    """What a table with one bucket must do, one id after another."""

    def __init__(self, n_rows: int, min_age: int) -> None:
        self.owner: list[int | None] = [None] * n_rows
        self.seen = [0] * n_rows
        self.clock, self.min_age = 0, min_age
        self.claims = self.evictions = self.collisions = 0

    def see(self, ids: list[int]) -> dict[int, int | None]:
        """Return the row of each id after a training pass, None for one that had to share."""
        self.clock += 1
        for row, owner in enumerate(self.owner):
            if owner in ids:
                self.seen[row] = self.clock
        for new in sorted(set(ids) - set(self.owner)):
            row = min(range(len(self.owner)), key=lambda r: (self.seen[r], r))
            if self.seen[row] != 0 and self.seen[row] > self.clock - self.min_age:
                self.collisions += 1
                continue
            self.evictions += self.owner[row] is not None
            self.claims += 1
            self.owner[row], self.seen[row] = new, self.clock
        return {i: self.owner.index(i) if i in self.owner else None for i in ids}


@pytest.mark.long
@settings(max_examples=100)
@given(batches=BATCHES, n_rows=st.integers(1, 6), min_age=st.integers(1, 3))
def test_one_bucket_evicts_the_stalest_row_of_all(batches: list[list[int]], n_rows: int, min_age: int) -> None:
    embedding = EvictingEmbedding(n_rows, 2, ways=n_rows, min_age=min_age)
    reference = StalestFirst(n_rows, min_age)
    for ids in batches:
        embedding(torch.tensor(ids))
        expected = reference.see(ids)
        rows = embedding.rows_of(torch.tensor(ids)).tolist()
        assert rows == [-1 if expected[i] is None else expected[i] for i in ids]
    assert embedding.last_seen.tolist() == reference.seen
    told, wanted = embedding.occupancy(), (reference.claims, reference.evictions, reference.collisions)
    assert (told.claims, told.evictions, told.collisions) == wanted
    assert told.rows_in_use == sum(owner is not None for owner in reference.owner)


@settings(max_examples=40)
@given(batches=BATCHES, n_buckets=st.integers(1, 4), ways=st.integers(1, 3))
def test_no_id_has_two_rows_and_no_row_two_owners(batches: list[list[int]], n_buckets: int, ways: int) -> None:
    embedding = EvictingEmbedding(n_buckets * ways, 2, ways=ways)
    for ids in batches:
        found = embedding(torch.tensor(ids))
        rows = embedding.rows_of(torch.tensor(ids))
        owned = {i: r for i, r in zip(ids, rows.tolist(), strict=True) if r >= 0}
        assert len(set(owned.values())) == len(owned)
        for i, r, vector in zip(ids, rows.tolist(), found, strict=True):
            assert r == owned.get(i, -1)
            if r >= 0:
                assert torch.equal(vector, embedding.weight[r])
    told = embedding.occupancy()
    assert told.rows_in_use == int((embedding.last_seen > 0).sum())


def test_a_row_begins_with_numbers_of_seed_and_id_alone() -> None:
    first = EvictingEmbedding(8, 4, seed=1, init_scale=0.1)
    other = EvictingEmbedding(8, 4, seed=1, init_scale=0.1)
    other(torch.tensor([99, 5]))
    a, b = first(torch.tensor([7])), other(torch.tensor([7]))
    assert torch.equal(a, b)
    assert a.abs().max() <= 0.1
    assert a.std() > 0.01
    assert not torch.equal(a, EvictingEmbedding(8, 4, seed=2, init_scale=0.1)(torch.tensor([7])))


def test_an_unknown_id_outside_training_claims_nothing_and_gets_its_first_weights() -> None:
    embedding = EvictingEmbedding(8, 4)
    embedding(torch.tensor([1, 2]))
    before = copy.deepcopy(embedding.state_dict())
    embedding.eval()
    known, unknown = embedding(torch.tensor([[1], [3]]))
    assert torch.equal(known[0], embedding.weight[embedding.rows_of(torch.tensor([1]))[0]])
    assert all(torch.equal(value, before[name]) for name, value in embedding.state_dict().items())
    embedding.train()
    assert torch.equal(unknown[0], embedding(torch.tensor([3]))[0])


def test_what_a_former_owner_learned_is_forgotten() -> None:
    embedding = EvictingEmbedding(1, 2)
    optimizer = RowWiseAdagrad(embedding.parameters(), lr=0.1)

    def train(number: int) -> Tensor:
        embedding(torch.tensor([number])).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        return embedding.weight.detach().clone()

    first = train(5)
    for _ in range(3):
        train(5)
    train(6)
    assert embedding.occupancy().evictions == 1
    assert torch.equal(train(5), first), "weights and accumulator began anew"


@settings(max_examples=25)
@given(batches=st.lists(st.lists(IDS, min_size=1, max_size=5), min_size=2, max_size=8), cut=st.integers(0, 7))
def test_training_resumed_is_training_continued(batches: list[list[int]], cut: int) -> None:
    def fresh() -> tuple[EvictingEmbedding, RowWiseAdagrad]:
        embedding = EvictingEmbedding(4, 2, ways=2)
        return embedding, RowWiseAdagrad(embedding.parameters(), lr=0.3)

    def train(embedding: EvictingEmbedding, optimizer: RowWiseAdagrad, part: list[list[int]]) -> None:
        for ids in part:
            embedding(torch.tensor(ids)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    whole = fresh()
    train(*whole, batches[:cut])
    resumed = fresh()
    resumed[0].load_state_dict(copy.deepcopy(whole[0].state_dict()))
    resumed[1].load_state_dict(copy.deepcopy(whole[1].state_dict()))
    for pair in (whole, resumed):
        train(*pair, batches[cut:])
    for name, value in whole[0].state_dict().items():
        assert torch.equal(value, resumed[0].state_dict()[name]), name
    mine, theirs = (list(o.state_dict()["state"].values()) for _, o in (whole, resumed))
    for a, b in zip(mine, theirs, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_rows_of_ids_that_come_again_are_kept() -> None:
    embedding = EvictingEmbedding(64, 2, ways=8)
    frequent = torch.arange(4)
    embedding(frequent)
    rows = embedding.rows_of(frequent)
    for start in range(100, 900, 20):  # 800 ids pass through
        embedding(torch.cat([frequent, torch.arange(start, start + 20)]))
    assert torch.equal(embedding.rows_of(frequent), rows)
    assert embedding.occupancy().evictions > 600


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_rows": 0}, "`n_rows` must be at least 1, got 0"),
        ({"ways": 3}, r"`n_rows` must be a multiple of `ways` \(3\), got 4"),
        ({"min_age": 0}, "`min_age` must be"),
        ({"init_scale": -1.0}, "`init_scale` must be"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        EvictingEmbedding(**({"n_rows": 4, "dim": 2} | options))
