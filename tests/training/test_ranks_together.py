"""Four ranks against one process that does the same by definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.kit.chains import chain
from tests.ranks import Ranks
from tests.training import rank_program as program
from workbench.methods.adasum.method import adasum_tree
from workbench.training import apply

pytestmark = pytest.mark.slow  # starting ranks takes seconds

RANKS = range(4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every case of rank_program.py once."""
    results = tmp_path_factory.mktemp("ranks")
    program.write_snapshots(results / "snapshots")
    ranks = Ranks(len(RANKS), results)
    ranks.run(program.run_cases, results)
    ranks.close()
    return results


def loaded(folder: Path, case: str) -> list[dict[str, Any]]:
    return [torch.load(folder / f"{case}.{rank}.pt") for rank in RANKS]


def assert_equal_bits(ranks: list[list[Tensor]]) -> None:
    for other in ranks[1:]:
        for first, second in zip(ranks[0], other, strict=True):
            assert torch.equal(first, second)


def trained_alone(n_servers: int, steps: int = 5) -> list[Tensor]:
    """AdaSum training by its definition, in float64: each server steps alone, the tree combines what changed."""
    per_server = len(RANKS) // n_servers
    nets = [program.network(seed=0).double() for _ in range(n_servers)]
    optimizers = [SGD(net.parameters(), lr=0.1, momentum=0.9) for net in nets]
    for step in range(steps):
        old = [p.detach().clone() for p in nets[0].parameters()]
        for server, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            optimizer.zero_grad()
            for rank in range(server * per_server, (server + 1) * per_server):
                x, y = program.data(step, rank)
                (nn.functional.mse_loss(net(x.double()), y.double()) / per_server).backward()
            optimizer.step()
        with torch.no_grad():
            for i, start in enumerate(old):
                combined = start - adasum_tree([start - list(net.parameters())[i] for net in nets])
                for net in nets:
                    list(net.parameters())[i].copy_(combined)
    return [p.detach() for p in nets[0].parameters()]


@pytest.mark.parametrize(
    ("case", "n_servers"), [("adasum_training", 4), ("adasum_of_servers", 2), ("adasum_cell", 4)], ids=str
)
def test_training_with_adasum_is_servers_stepping_alone_and_a_tree(folder: Path, case: str, n_servers: int) -> None:
    results = loaded(folder, case)
    assert_equal_bits([result["weights"] for result in results])
    for found, expected in zip(results[0]["weights"], trained_alone(n_servers), strict=True):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


def test_adasum_takes_complex_weights_as_pairs_of_numbers(folder: Path) -> None:
    results = [result["weights"] for result in loaded(folder, "adasum_of_complex")]
    assert_equal_bits(results)
    combined = adasum_tree([torch.view_as_real(program.pull(rank).conj().resolve_conj()) for rank in RANKS])
    torch.testing.assert_close(torch.view_as_real(results[0][0]), -combined)


def test_the_cell_says_that_adasum_is_in_effect_and_returns_the_loss(folder: Path) -> None:
    assert all(result["enabled"] and result["same"] for result in loaded(folder, "adasum_cell"))


@pytest.mark.parametrize("case", ["overflow_in_buckets", "overflow_under_ddp", "overflow_with_adasum"])
def test_an_overflow_on_one_rank_makes_all_ranks_skip(folder: Path, case: str) -> None:
    results = loaded(folder, case)
    for result in results:
        overflowed = program.OVERFLOWING_STEP
        assert [row[0] for row in result["rows"]] == [step == overflowed for step in range(4)]
        assert result["rows"][overflowed][1:] == (1024.0, 512.0)
        before, after = result["weights"][overflowed - 1], result["weights"][overflowed]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
        changed = result["weights"][overflowed + 1]
        assert not any(torch.equal(a, b) for a, b in zip(after, changed, strict=True))
    assert_equal_bits([result["weights"][-1] for result in results])


@pytest.mark.parametrize("case", ["accumulation_in_buckets", "accumulation_under_ddp"])
def test_accumulation_on_four_ranks_is_one_rank_with_all_their_data(folder: Path, case: str) -> None:
    results = loaded(folder, case)
    assert_equal_bits([result["weights"] for result in results])
    net = program.network(seed=0)
    optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
    for step in range(0, 6, 2):
        optimizer.zero_grad()
        batches = [program.data(s, rank) for s in (step, step + 1) for rank in RANKS]
        for x, y in batches:
            (nn.functional.mse_loss(net(x), y) / len(batches)).backward()
        optimizer.step()
    for found, expected in zip(results[0]["weights"], net.parameters(), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["freezing", "freezing_under_ddp", "freezing_in_a_wrapper"])
def test_freezing_on_four_ranks_is_one_rank_with_all_their_data(folder: Path, case: str) -> None:
    results = loaded(folder, case)
    assert_equal_bits([result["weights"] for result in results])
    net = chain(n_in=3)
    alone = apply(program.FREEZING, net, SGD(net.parameters(), lr=0.1, momentum=0.9), level="O0")
    alone.use_freezing_group(program.FIRST_GROUP)
    groups = []
    for step in range(9):
        batches = [program.data(step, rank) for rank in RANKS]
        x, y = (torch.cat(parts) for parts in zip(*batches, strict=True))
        groups.append(alone.frozen_groups)
        alone.backward(nn.functional.mse_loss(net(x), y))
        alone.step()
    assert results[0]["groups"] == groups
    assert len(set(groups)) == 3
    for found, expected in zip(results[0]["weights"], net.parameters(), strict=True):
        torch.testing.assert_close(found, expected.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scale, an overflow on one rank"])
def test_six_components_on_four_ranks_take_the_steps_of_one(folder: Path, scaled: bool) -> None:
    together = loaded(folder, "dim_reduce_with_an_overflow" if scaled else "dim_reduce")
    alone = program.train_in_subspace(folder / "snapshots", RANKS, scaled=scaled)
    assert [found["components"] for found in together] == [2, 2, 1, 1]
    assert alone["components"] == 6
    assert_equal_bits([found["weights"] for found in together])
    for found in together:
        assert found["rows"] == alone["rows"]
        torch.testing.assert_close(found["inverse_hessian"], alone["inverse_hessian"], rtol=1e-7, atol=1e-9)
    for ours, expected in zip(together[0]["weights"], alone["weights"], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
    skipped = [step for step, (rho, _) in enumerate(alone["rows"]) if rho == -1.0]
    assert skipped == ([program.OVERFLOWING_STEP] if scaled else [])
    finite = [step for step in range(8) if step not in skipped]
    losses = np.mean([found["losses"] for found in together], axis=0)
    np.testing.assert_allclose(losses[finite], np.array(alone["losses"])[finite], rtol=1e-9)
    assert any(rho > 0 for rho, _ in alone["rows"])
