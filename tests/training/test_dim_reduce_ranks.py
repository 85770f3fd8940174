"""DimReduce over four ranks, each with its part of the components and of the batch, takes the steps of one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, distributed, nn

from tests.ranks import Ranks
from workbench.methods.dim_reduce.acting import DimReduceUpdate
from workbench.training import Boosted, apply

RANKS, K, STEPS, SHARE = 4, 6, 8, 5


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    # float64: summing over ranks rounds in another order, and the update amplifies what is lost.
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def batch(step: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(RANKS * SHARE, 4, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
    return x, torch.sin(3 * x[:, :2])


def train(folder: Path, *, seed: int, part: slice, scaled: bool) -> dict[str, Any]:
    net = network(seed)
    config = {
        "boost": {"mode": "manual", "dim_reduce": True},
        "dim_reduce": {"n_components": K, "alpha": 0.1, "weight_load_dir": str(folder), "timeout": 60},
        "amp": {"level": "O0"},
        "loss_scale": {"kind": "dynamic", "init": 64.0} if scaled else {"kind": "none"},
    }
    boosted: Boosted = apply(config, net, torch.optim.SGD(net.parameters(), lr=0.1), level="O0")
    if distributed.is_initialized():
        boosted.distribute()
    found: dict[str, Any] = {"rho": [], "trials": [], "loss": []}
    for step in range(STEPS):
        x, y = (tensor[part] for tensor in batch(step))
        if scaled and step == 3 and part.start in (None, SHARE):  # on one rank only, and where there is one rank
            x = x.clone()
            x[0, 0] = float("inf")

        def loss_now(x: Tensor = x, y: Tensor = y) -> Tensor:
            loss: Tensor = nn.functional.mse_loss(boosted.model(x), y)
            return loss

        boosted.backward(loss_now())
        outcome = boosted.step(loss_now)
        for name in ("rho", "trials"):
            found[name].append(float(outcome.columns.get(f"dim_reduce.{name}", -1.0)))
        found["loss"].append(float(outcome.loss))
    update = boosted.update
    assert isinstance(update, DimReduceUpdate)
    found["weights"] = torch.cat([p.detach().reshape(-1) for p in net.parameters()])
    found["inverse_hessian"] = update.dim_reduce.inverse_hessian
    found["rows"] = len(update.dim_reduce.components)
    return found


def train_on_a_rank(folder: Path, scaled: bool) -> dict[str, Any]:
    rank = distributed.get_rank()
    # Another start on every rank: distribute() hands out the first one's.
    return train(folder, seed=rank, part=slice(rank * SHARE, (rank + 1) * SHARE), scaled=scaled)


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    ranks = Ranks(RANKS, tmp_path_factory.mktemp("ranks"))
    yield ranks
    ranks.close()


@pytest.mark.long
@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "loss scale, an overflow on one rank"])
def test_six_components_on_four_ranks_equal_one_rank(four_ranks: Ranks, tmp_path: Path, scaled: bool) -> None:
    folder = tmp_path / "snapshots"
    folder.mkdir()
    generator = torch.Generator().manual_seed(1)
    for number in range(K + 2):
        weights = {n: torch.randn(p.shape, generator=generator) for n, p in network(0).named_parameters()}
        save_file(weights, folder / f"snapshot_{number:06d}.safetensors")
    alone = train(folder, seed=0, part=slice(None), scaled=scaled)
    together = four_ranks.run(train_on_a_rank, folder, scaled)
    assert [found["rows"] for found in together] == [2, 2, 1, 1]
    assert alone["rows"] == K
    for found in together:
        assert found["rho"] == alone["rho"]
        assert found["trials"] == alone["trials"]
        torch.testing.assert_close(found["weights"], alone["weights"], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(found["inverse_hessian"], alone["inverse_hessian"], rtol=1e-7, atol=1e-9)
        assert torch.equal(found["weights"], together[0]["weights"])  # the same bits everywhere
    skipped = [step for step, rho in enumerate(alone["rho"]) if rho == -1.0]
    assert skipped == ([3] if scaled else [])
    finite = [step for step in range(STEPS) if step not in skipped]
    losses = np.mean([found["loss"] for found in together], axis=0)
    np.testing.assert_allclose(losses[finite], np.array(alone["loss"])[finite], rtol=1e-9)
    assert any(rho > 0 for rho in alone["rho"])
