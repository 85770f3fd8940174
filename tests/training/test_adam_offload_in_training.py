"""AdamOffload under the training step: what travels over the host and what stays in place must be one training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.kit.configurations import accumulating, freezing
from tests.ranks import Ranks
from workbench.optim.adam_offload.optimizer import AdamOffload
from workbench.training import apply
from workbench.training.boosted import Boosted

OFF = {"amp": {"level": "O0"}}
DYNAMIC = {"loss_scale": {"kind": "dynamic", "init": 1024.0, "window": 3}}
FREEZE = freezing(2, kind=0, p=0.6)
CONFIGS: dict[str, dict[str, Any]] = {
    "plain": OFF,
    "loss_scale": OFF | DYNAMIC,
    "fixed_scale": OFF | {"loss_scale": {"kind": "fixed", "init": 64.0, "drop_overflow_update": False}},
    "accumulation": OFF | DYNAMIC | accumulating(3),
    "freezing": OFF | DYNAMIC | FREEZE,
    "freezing_apart": OFF | FREEZE | {"compatibility": {"freeze_state": "per_group"}},
    "bfloat16": {"amp": {"level": "O2", "dtype": "bfloat16"}},
    "short_weights": {"amp": {"level": "O3", "dtype": "bfloat16"}},
}


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)
    )


def data(step: int, rank: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)


def boosted_with(config: dict[str, Any], **options: Any) -> Boosted:
    net = network()
    return apply(config, net, AdamOffload(net.named_parameters(), 0.01, bucket_bytes=300, **options), level="O0")


def train(boosted: Boosted, steps: range, rank: int = 0, bad: int = -1) -> list[tuple[bool, dict[str, float]]]:
    rows = []
    for step in steps:
        x, y = data(step, rank)
        with boosted.autocast():
            loss = nn.functional.mse_loss(boosted.model(x * torch.inf if step == bad else x).float(), y)
        boosted.backward(loss)
        outcome = boosted.step()
        rows.append((bool(outcome.overflow), dict(outcome.columns)))
    return rows


def weights(boosted: Boosted) -> list[Tensor]:
    return [parameter.detach() for parameter in boosted.model.parameters()]


@pytest.mark.parametrize(
    ("name", "frees"),
    [
        *((name, False) for name in CONFIGS if name not in ("fixed_scale", "accumulation")),
        *((name, True) for name in CONFIGS if name not in ("plain", "freezing_apart")),
    ],
)
def test_over_the_host_or_in_place_is_one_training(name: str, frees: bool) -> None:
    config, bad = CONFIGS[name], 4 if "loss_scale" in CONFIGS[name] and name != "fixed_scale" else -1
    in_place = boosted_with(config)
    travelling = boosted_with(config, transfer="always", offload_gradients=frees)
    rows = train(in_place, range(12), bad=bad), train(travelling, range(12), bad=bad)
    for a, b in zip(weights(in_place), weights(travelling), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
        assert torch.isfinite(a).all()
    assert [row[0] for row in rows[0]] == [row[0] for row in rows[1]]
    assert sum(row[0] for row in rows[0]) == (bad >= 0)
    assert {"offload.host_ms", "offload.transfer_ms", "offload.hidden_share"} <= set(rows[1][-1][1])


def test_group_optimizers_cannot_share_gradients_that_leave() -> None:
    with pytest.raises(RuntimeError, match="two optimizers"):
        train(boosted_with(CONFIGS["freezing_apart"], transfer="always", offload_gradients=True), range(12))


def test_training_resumes_inside_a_window_whose_gradients_have_left() -> None:
    options: dict[str, Any] = {"transfer": "always", "offload_gradients": True}
    boosted, other = (boosted_with(CONFIGS["accumulation"], **options) for _ in range(2))
    train(boosted, range(4))
    saved = copy.deepcopy(boosted.state_dict())
    train(boosted, range(4, 10))
    other.load_state_dict(saved)
    train(other, range(4, 10))
    for a, b in zip(weights(boosted), weights(other), strict=True):
        assert torch.equal(a, b)


def train_together(ddp: bool, frees: bool) -> list[Tensor]:
    boosted = boosted_with(OFF | DYNAMIC, transfer="always", offload_gradients=frees)
    boosted.distribute(ddp=ddp)
    train(boosted, range(5), torch.distributed.get_rank())
    return weights(boosted)


@pytest.mark.long  # starting processes takes seconds
@pytest.mark.parametrize(("ddp", "frees"), [(False, False), (False, True), (True, True)])
def test_two_ranks_are_one_with_all_their_data(pair: Ranks, ddp: bool, frees: bool) -> None:
    first, second = pair.run(train_together, ddp, frees)
    alone = network()
    optimizer = AdamOffload(alone.parameters(), 0.01)
    for step in range(5):
        for rank in range(2):
            x, y = data(step, rank)
            (nn.functional.mse_loss(alone(x), y) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for a, b, expected in zip(first, second, alone.parameters(), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected.detach(), rtol=1e-4, atol=1e-6)
