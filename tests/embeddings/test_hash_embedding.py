"""Hash embeddings: the row a plain computation gives, sums that are weighted, gradients that are small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.optim.embeddings import HashEmbedding
from workbench.optim.embeddings.mixing import mix64_number

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(ids=st.lists(INT64, min_size=1, max_size=4), n_rows=st.integers(1, 50), seed=st.integers(0, 5))
def test_the_row_is_the_mixed_id_modulo_the_rows(ids: list[int], n_rows: int, seed: int) -> None:
    embedding = HashEmbedding(n_rows, 2, seed=seed)
    rows = [(mix64_number(i, seed) & (2**63 - 1)) % n_rows for i in ids]
    assert embedding.rows_of(torch.tensor(ids)).tolist() == rows
    assert torch.equal(embedding(torch.tensor(ids)), embedding.weight[rows])


def test_consecutive_ids_fill_the_table_evenly() -> None:
    counts = HashEmbedding(64, 1).rows_of(torch.arange(64_000)).bincount(minlength=64).double()
    chi_square = ((counts - 1000) ** 2 / 1000).sum().item()
    assert 30 < chi_square < 110  # 63 degrees of freedom: 1e-4 on either side


def test_several_hashes_are_summed_by_importance() -> None:
    embedding = HashEmbedding(50, 3, n_hashes=2, n_importance_rows=7, seed=4)
    assert embedding.importance is not None
    with torch.no_grad():
        embedding.importance.copy_(torch.arange(14.0).view(7, 2))
    ids = torch.tensor([[5, 6], [7, 10**15]])
    rows = embedding.rows_of(ids)
    assert rows.shape == (2, 2, 2)
    importance_rows = HashEmbedding(7, 1, seed=embedding._seed_of(2)).rows_of(ids)
    expected = torch.zeros(2, 2, 3)
    for i in range(2):
        for j in range(2):
            for k in range(2):
                expected[i, j] += embedding.importance[importance_rows[i, j], k] * embedding.weight[rows[i, j, k]]
    torch.testing.assert_close(embedding(ids), expected)
    assert (rows[..., 0] != rows[..., 1]).any()


@pytest.mark.parametrize("n_hashes", [1, 2])
def test_gradients_are_as_long_as_the_batch(n_hashes: int) -> None:
    embedding = HashEmbedding(10_000, 4, n_hashes=n_hashes)
    embedding(torch.tensor([3, 4, 3])).sum().backward()
    for parameter in embedding.parameters():
        assert parameter.grad is not None
        assert parameter.grad.is_sparse
        assert parameter.grad._nnz() <= 3 * n_hashes


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n_rows": 0}, "`n_rows` must be at least 1, got 0"),
        ({"dim": 0}, "`dim` must be"),
        ({"n_hashes": 0}, "`n_hashes` must be"),
        ({"n_importance_rows": 0}, "`n_importance_rows` must be"),
        ({"init_scale": float("nan")}, "`init_scale` must be"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        HashEmbedding(**({"n_rows": 4, "dim": 2} | options))
