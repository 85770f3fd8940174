"""Hash embeddings: the row a plain computation gives, weighted sums, small gradients; and the mixing below them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.optim.embeddings import HashEmbedding
from workbench.optim.embeddings.mixing import mix64, mix64_array, mix64_number, uniform_from

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(ids=st.lists(INT64, min_size=1, max_size=4), n_rows=st.integers(1, 50), seed=st.integers(0, 5))
def test_the_row_is_the_mixed_id_modulo_the_rows(ids: list[int], n_rows: int, seed: int) -> None:
    embedding = HashEmbedding(n_rows, 2, seed=seed)
    rows = [(mix64_number(i, seed) & (2**63 - 1)) % n_rows for i in ids]
    assert embedding.rows_of(torch.tensor(ids)).tolist() == rows
    assert torch.equal(embedding(torch.tensor(ids)), embedding.weight[rows])


def test_several_hashes_are_summed_by_importance() -> None:
    embedding = HashEmbedding(50, 3, n_hashes=2, n_importance_rows=7, seed=4)
    with torch.no_grad():
        embedding.importance.copy_(torch.arange(14.0).view(7, 2))
    ids = torch.tensor([[5, 6], [7, 10**15]])
    rows = embedding.rows_of(ids)
    assert rows.shape == (2, 2, 2)
    importance_rows = HashEmbedding(7, 1, seed=embedding._seed_of(2)).rows_of(ids)
    expected = torch.zeros(2, 2, 3)
    for i, j, k in itertools.product(range(2), repeat=3):
        expected[i, j] += embedding.importance[importance_rows[i, j], k] * embedding.weight[rows[i, j, k]]
    torch.testing.assert_close(embedding(ids), expected)
    assert (rows[..., 0] != rows[..., 1]).any()


@pytest.mark.parametrize("n_hashes", [1, 2])
def test_gradients_are_as_long_as_the_batch(n_hashes: int) -> None:
    embedding = HashEmbedding(10_000, 4, n_hashes=n_hashes)
    embedding(torch.tensor([3, 4, 3])).sum().backward()
    for parameter in embedding.parameters():
        assert parameter.grad.is_sparse
        assert parameter.grad._nnz() <= 3 * n_hashes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_rows": 0}, "`n_rows` must be at least 1, got 0"),
        ({"n_importance_rows": 0}, "`n_importance_rows` must be"),
        ({"init_scale": float("nan")}, "`init_scale` must be"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HashEmbedding(**({"n_rows": 4, "dim": 2} | options))


# The mixing hash: the published numbers, the same from all three implementations


def test_the_numbers_are_those_of_splitmix64_and_other_integers_are_refused() -> None:
    golden = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # splitmix64.c from state 0
    assert [mix64_number(i * golden) for i in range(3)] == published
    with pytest.raises(TypeError, match=r"`ids` must be int64, got torch.int32"):
        mix64(torch.tensor([1], dtype=torch.int32))


@given(ids=st.lists(INT64, min_size=1, max_size=5), seed=st.integers(0, 2**70))
def test_arrays_and_tensors_are_mixed_like_python_numbers(ids: list[int], seed: int) -> None:
    expected = [mix64_number(i, seed) for i in ids]
    assert mix64_array(np.array(ids, dtype=np.int64), seed).tolist() == expected
    tensor = torch.tensor(ids)
    signed = [value - 2**64 if value >= 2**63 else value for value in expected]
    assert mix64(tensor, seed).tolist() == signed
    assert tensor.tolist() == ids
    assert uniform_from(mix64(tensor, seed)).tolist() == [(value >> 40) / 2**24 for value in expected]


@given(ids=st.lists(INT64, min_size=1, max_size=5), seed=st.integers(0, 9))
def test_the_arithmetic_for_other_devices_agrees(ids: list[int], seed: int) -> None:
    class Elsewhere(torch.Tensor):
        """A tensor of the CPU that says that it is not."""

        device = torch.device("meta")

    away = torch.tensor(ids).as_subclass(Elsewhere)
    mixed = torch.Tensor.as_subclass(mix64(away, seed), torch.Tensor)
    assert torch.equal(mixed, mix64(torch.tensor(ids), seed))
