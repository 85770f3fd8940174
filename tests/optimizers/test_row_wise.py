"""Row-wise optimizers: exact on the rows touched, nothing anywhere else."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import Optimizer

from tests.kit.twins import assert_close
from workbench.core import host_values
from workbench.loss_scale import step_if_finite, unscale_and_check_
from workbench.optim.row_wise import RowWiseAdagrad, RowWiseAdam, _merge_without_waiting, merge_rows

N_ROWS, DIM = 7, 3
BOTH = pytest.mark.parametrize("kind", [RowWiseAdam, RowWiseAdagrad])


class Scored(nn.Module):
    """A table and a dense layer on it."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table = nn.Embedding(N_ROWS, DIM, sparse=True, dtype=dtype)
        self.head = nn.Linear(DIM, 1, dtype=dtype)

    def forward(self, rows: Tensor) -> Tensor:
        """Return one score per row."""
        scores: Tensor = self.head(torch.tanh(self.table(rows)))
        return scores


def backward(model: nn.Module, rows: list[int], scale: float = 1.0) -> None:
    (model(torch.tensor(rows)).square().sum() * scale).backward()


def give_gradient(table: nn.Parameter, rows: list[int], values: Tensor) -> None:
    table.grad = torch.sparse_coo_tensor(torch.tensor([rows]), values, table.shape, check_invariants=True)


def everything(optimizer: Optimizer, model: nn.Module) -> bytes:
    values = [value for p in model.parameters() for value in (p.detach(), *optimizer.state[p].values())]
    return pickle.dumps([value.numpy().tobytes() for value in values])


BATCHES = st.lists(st.lists(st.integers(0, N_ROWS - 1), min_size=1, max_size=6), min_size=1, max_size=8)


@settings(max_examples=20)
@given(batches=BATCHES, decay=st.sampled_from([0.0, 0.1]))
def test_a_row_is_where_a_dense_adam_of_its_own_would_have_brought_it(batches: list[list[int]], decay: float) -> None:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(N_ROWS, DIM, dtype=torch.float64))
    twins = [nn.Parameter(row.clone()) for row in table.detach()]
    optimizer = RowWiseAdam([table], lr=0.1, weight_decay=decay)
    dense = [torch.optim.AdamW([twin], lr=0.1, weight_decay=decay) for twin in twins]
    for rows in batches:
        values = torch.randn(len(rows), DIM, dtype=torch.float64)
        give_gradient(table, rows, values)
        optimizer.step()
        for row in set(rows):
            twins[row].grad = values[torch.tensor(rows) == row].sum(dim=0)
            dense[row].step()
    torch.testing.assert_close(table.detach(), torch.stack([t.detach() for t in twins]), rtol=1e-12, atol=1e-14)
    counts = [sum(row in rows for rows in batches) for row in range(N_ROWS)]
    assert optimizer.state[table]["row_steps"].tolist() == counts


@settings(max_examples=20)
@given(batches=BATCHES, start=st.sampled_from([0.0, 0.5]), decay=st.sampled_from([0.0, 0.1]))
def test_adagrad_divides_by_the_root_of_a_rows_mean_squares(batches: Any, start: float, decay: float) -> None:
    torch.manual_seed(0)
    table = nn.Parameter(torch.randn(N_ROWS, DIM, dtype=torch.float64))
    weights = [[float(w) for w in row] for row in table.detach()]
    sums = [start] * N_ROWS
    optimizer = RowWiseAdagrad([table], lr=0.1, eps=1e-6, initial_accumulator=start, weight_decay=decay)
    for rows in batches:
        values = torch.randn(len(rows), DIM, dtype=torch.float64)
        give_gradient(table, rows, values)
        optimizer.step()
        for row in set(rows):
            gradient = values[torch.tensor(rows) == row].sum(dim=0).tolist()
            sums[row] += sum(g * g for g in gradient) / DIM
            weights[row] = [
                w * (1 - 0.1 * decay) - 0.1 * g / (sums[row] ** 0.5 + 1e-6)
                for w, g in zip(weights[row], gradient, strict=True)
            ]
    torch.testing.assert_close(table.detach(), torch.tensor(weights, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@BOTH
def test_dense_parameters_are_trained_by_adam(kind: Any) -> None:
    model, twin = Scored(), Scored()
    optimizer = kind(model.parameters(), lr=0.05)
    adam = torch.optim.Adam(twin.head.parameters(), lr=0.05)
    for rows in ([1, 2, 2], [4], [6, 0]):
        backward(model, rows)
        for mine, theirs in zip(model.head.parameters(), twin.head.parameters(), strict=True):
            theirs.grad = mine.grad.clone()
        optimizer.step()
        adam.step()
        optimizer.zero_grad()
    assert_close(model.head, twin.head, rtol=1e-12, atol=1e-14)


@BOTH
def test_rows_without_a_gradient_keep_their_bits(kind: Any) -> None:
    model = Scored()
    optimizer = kind(model.parameters(), lr=0.5, weight_decay=0.1)
    for rows in ([1, 3], [3, 3]):
        backward(model, rows)
        optimizer.step()
    reference = Scored().table.weight
    for row in range(N_ROWS):
        assert torch.equal(model.table.weight[row], reference[row]) is (row not in (1, 3))


@BOTH
def test_a_loss_scale_cancels(kind: Any) -> None:
    tables = []
    for scale in (1.0, 1024.0):
        model = Scored()
        optimizer = kind(model.parameters())
        for rows in ([0, 1, 1], [1, 6]):
            backward(model, rows, scale)
            found = unscale_and_check_([p.grad for p in model.parameters()], torch.tensor(1 / scale), torch.zeros(()))
            step_if_finite(optimizer, found)
            optimizer.zero_grad()
        tables.append(model.table.weight.detach())
    assert torch.equal(*tables)


@BOTH
def test_the_state_of_a_row_with_a_new_owner_begins_anew(kind: Any) -> None:
    table, twin = (nn.Parameter(torch.ones(N_ROWS, DIM)) for _ in range(2))
    table.fresh_rows = fresh = torch.zeros(N_ROWS, dtype=torch.bool)  # type: ignore[attr-defined]
    optimizer, anew = kind([table], lr=0.1), kind([twin], lr=0.1)
    give_gradient(table, [2, 3], torch.full((2, DIM), 5.0))
    optimizer.step()
    fresh[2] = fresh[4] = True
    table.data.fill_(1.0)
    give_gradient(table, [3, 2], torch.ones(2, DIM))
    step_if_finite(optimizer, torch.ones(()))
    assert fresh.nonzero().flatten().tolist() == [2, 4], "a skipped step leaves the mark"
    optimizer.step()
    assert fresh.nonzero().flatten().tolist() == [4], "row 4 has not had a gradient yet"
    give_gradient(twin, [2], torch.ones(1, DIM))
    anew.step()
    assert torch.equal(table[2], twin[2])
    assert not torch.equal(table[3], twin[2])


@settings(max_examples=25)
@given(rows=st.lists(st.integers(0, N_ROWS - 1), max_size=9))
def test_merged_rows_are_those_of_coalesce_on_any_device(rows: list[int]) -> None:
    values = torch.arange(1.0, len(rows) * DIM + 1).view(-1, DIM)
    indices = torch.tensor([rows], dtype=torch.int64)
    gradient = torch.sparse_coo_tensor(indices, values, (N_ROWS, DIM), check_invariants=True)
    expected = gradient.coalesce()
    found, sums = merge_rows(gradient)
    assert torch.equal(found, expected.indices()[0])
    assert torch.equal(sums, expected.values())
    found, sums = _merge_without_waiting(indices[0], values)
    assert len(found) == len(rows)
    k = expected._nnz()
    assert torch.equal(found[:k], expected.indices()[0])
    assert torch.equal(sums[:k], expected.values())
    assert torch.equal(found[k:], found[:1].expand(len(rows) - k))  # the rest repeats the first
    assert torch.equal(sums[k:], sums[:1].expand(len(rows) - k, DIM))


@BOTH
@pytest.mark.parametrize("flag", [0.0, 1.0])
def test_a_device_that_is_not_waited_for_skips_too(kind: Any, flag: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of accelerators, taken on the CPU: the flag is used in the arithmetic and the host never reads it."""
    monkeypatch.setattr(host_values, "reads_without_waiting", lambda *tensors: False)
    model, twin = Scored(torch.float32), Scored(torch.float32)
    for net in (model, twin):
        net.table.weight.fresh_rows = torch.arange(N_ROWS) == 2  # type: ignore[attr-defined]
    optimizer, other = kind(model.parameters(), lr=0.1), kind(twin.parameters(), lr=0.1)
    for net, own in ((model, optimizer), (twin, other)):
        backward(net, [1, 5, 1])
        own.step()
        own.zero_grad()
        backward(net, [2, 5, 5])
    before = everything(optimizer, model)
    optimizer.step_with_found_inf(torch.tensor(flag))
    other.step()
    assert (everything(optimizer, model) == before) is bool(flag)
    assert (everything(optimizer, model) == everything(other, twin)) is not bool(flag)
    assert bool(model.table.weight.fresh_rows[2]) is bool(flag)  # type: ignore[attr-defined]


def test_a_frozen_table_and_later_gradients_of_other_parameters_are_no_trouble() -> None:
    model = Scored()
    optimizer = RowWiseAdam(model.parameters())
    model.head.bias.requires_grad_(False)
    backward(model, [1])
    optimizer.step()
    optimizer.zero_grad()
    model.head.bias.requires_grad_(True)
    model.table.weight.requires_grad_(False)
    before = model.table.weight.clone()
    backward(model, [1])
    optimizer.step()
    assert torch.equal(model.table.weight, before)
    assert [float(optimizer.state[p]["step"]) for p in model.head.parameters()] == [2.0, 1.0]


@BOTH
def test_a_gradient_that_changes_its_kind_is_refused(kind: Any) -> None:
    table = nn.Parameter(torch.ones(N_ROWS, DIM))
    for first_sparse in (True, False):
        optimizer = kind([table])
        for sparse in (first_sparse, not first_sparse):
            give_gradient(table, [1], torch.ones(1, DIM))
            if not sparse:
                table.grad = table.grad.to_dense()
            if sparse is first_sparse:
                optimizer.step()
        with pytest.raises(TypeError, match="must stay sparse or dense"):
            optimizer.step()


def test_a_gradient_sparse_in_two_dimensions_is_refused() -> None:
    table = nn.Parameter(torch.ones(3, 3))
    table.grad = torch.eye(3).to_sparse()
    with pytest.raises(TypeError, match="sparse by rows only, got 2 sparse dimensions"):
        RowWiseAdam([table]).step()


@BOTH
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", -1.0, "`lr` must be finite and at least 0"),
        ("lr", float("nan"), "`lr` must be finite and at least 0"),
        ("eps", 0.0, "`eps` must be finite and above 0"),
        ("weight_decay", -0.1, "`weight_decay` must be finite and at least 0"),
        ("betas", (0.9, 1.0), r"`betas` must lie in \[0, 1\)"),
    ],
)
def test_values_outside_their_range_are_refused(kind: Any, name: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kind([nn.Parameter(torch.ones(1))], **{name: value})
    with pytest.raises(ValueError, match=words):
        kind([{"params": [nn.Parameter(torch.ones(1))], name: value}])
