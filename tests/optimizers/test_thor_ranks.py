"""THOR over ranks: the same inverses and weights everywhere, and those of one process with the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from tests.optimizers.thor_formulas import dense
from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.optim.thor.matrices import FactorExchange
from workbench.optim.thor.optimizer import Thor
from workbench.training import apply

pytestmark = pytest.mark.slow  # starting ranks takes seconds

N_RANKS = 2
ROWS = 6  # per rank


class Mixed(nn.Module):
    """A layer of every kind."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 9)
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.norm = nn.LayerNorm(27)
        self.fc = nn.Linear(27, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        images = self.table(tokens).view(-1, 1, 3, 3)
        return self.fc(self.norm(torch.tanh(self.conv(images)).flatten(1)))


def network() -> Mixed:
    torch.manual_seed(0)
    return Mixed().double()


def optimizer_of(net: nn.Module, split_indices: list[int] | None) -> Thor:
    return Thor(net, 0.05, 0.1, 0.9, 1e-3, split_indices=split_indices, frequency=2, block_size=4)


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(3)
    shape = (N_RANKS * ROWS,)
    return [
        (torch.randint(7, shape, generator=generator), torch.randint(5, shape, generator=generator)) for _ in range(6)
    ]


def train_here(split_indices: list[int] | None, overflow_on: int | None = None, ddp: bool = False) -> dict[str, Tensor]:
    """Train on this rank's share of every batch, and return the weights and inverses."""
    net = network()
    config = {"loss_scale": {"kind": "dynamic", "init": 1024.0, "window": 1000}, "amp": {"level": "O0"}}
    boosted = apply(config, net, optimizer_of(net, split_indices), level="O0", world_size=1)
    if ranks.world_size() > 1:
        boosted.distribute(ddp=ddp)
    for step, (tokens, targets) in enumerate(batches()):
        mine = slice(ranks.rank() * ROWS, (ranks.rank() + 1) * ROWS) if ranks.world_size() > 1 else slice(None)
        loss = F.cross_entropy(boosted.model(tokens[mine]), targets[mine])
        if step == 0 and overflow_on == ranks.rank():
            loss = loss * float("inf")
        boosted.backward(loss)
        boosted.step()
    optimizer = boosted.optimizer
    assert isinstance(optimizer, Thor)
    assert optimizer.layer_names == ["table", "conv", "fc"]
    inverses = {f"inverses {size}": values for size, values in optimizer.preconditioner.blocks.inverses.items()}
    scales = {"scale": boosted.loss_scale}
    return {name: value.detach().clone() for name, value in (net.state_dict() | inverses | scales).items()}


@pytest.mark.parametrize("split_indices", [None, [0, 1], [1, 2]], ids=["one group", "three groups", "two groups"])
def test_two_ranks_train_like_one_process_with_both_shares(pair: Ranks, split_indices: list[int] | None) -> None:
    first, second = pair.run(train_here, split_indices)
    alone = train_here(None)
    for name, value in alone.items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-9, atol=1e-11, msg=name)


def test_ddp_trains_alike(pair: Ranks) -> None:
    wrapped, own = pair.run(train_here, None, None, True)[0], pair.run(train_here, None)[0]
    for name, value in own.items():
        torch.testing.assert_close(wrapped[name], value, rtol=1e-9, atol=1e-11, msg=name)


def train_with_adasum() -> dict[str, Tensor]:
    net = network()
    config = {
        "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "adasum": True},
        "common": {"device_number": 1},
        "amp": {"level": "O0"},
    }
    boosted = apply(config, net, optimizer_of(net, None), level="O2")
    boosted.distribute()
    losses = []
    for tokens, targets in batches() * 4:
        mine = slice(ranks.rank() * ROWS, (ranks.rank() + 1) * ROWS)
        loss = F.cross_entropy(boosted.model(tokens[mine]), targets[mine])
        losses.append(loss.detach())
        boosted.backward(loss)
        boosted.step()
    return {"losses": torch.stack(losses), **{name: value.detach() for name, value in net.state_dict().items()}}


def test_adasum_combines_the_steps_of_thor(pair: Ranks) -> None:
    first, second = pair.run(train_with_adasum)
    for name, value in first.items():
        assert name == "losses" or torch.equal(value, second[name]), name
    assert first["losses"][-6:].mean() < 0.9 * first["losses"][:6].mean()


@pytest.mark.parametrize("rank", [0, 1])
def test_an_overflow_on_one_rank_spoils_no_factor_of_any(pair: Ranks, rank: int) -> None:
    first, second = pair.run(train_here, None, rank)
    for name, value in first.items():
        assert torch.isfinite(value).all(), name
        assert torch.equal(value, second[name]), name
    assert first["scale"].item() == 512.0
    unit = torch.eye(4, dtype=torch.float64)
    assert not torch.equal(first["inverses 4"][0], unit)  # the refresh was made up for


def count_exchanges() -> list[int]:
    """Return how many elements each all_reduce and broadcast of one refresh carried."""
    net = network()
    optimizer = optimizer_of(net, [0, 1])
    carried: list[int] = []
    kept = distributed.all_reduce, distributed.broadcast

    def counting_reduce(tensor: Tensor, *args: object) -> object:
        carried.append(tensor.numel())
        return kept[0](tensor)

    def counting_broadcast(tensor: Tensor, src: int) -> object:
        carried.append(-tensor.numel())
        return kept[1](tensor, src)

    distributed.all_reduce, distributed.broadcast = counting_reduce, counting_broadcast
    try:
        for tokens, targets in batches()[:2]:
            F.cross_entropy(net(tokens), targets).backward()
            optimizer.step()
    finally:
        distributed.all_reduce, distributed.broadcast = kept
    return carried


def test_a_refresh_costs_one_exchange_per_group_and_one_broadcast_per_owner(pair: Ranks) -> None:
    for carried in pair.run(count_exchanges):
        reduced, sent = [n for n in carried if n > 0], [-n for n in carried if n < 0]
        blocks = {"table": 2 * 16 + 1, "conv": (2 * 16 + 1) + 9, "fc": (6 * 16 + 9) + (16 + 1)}
        # Flags of three layers and the overflow; the groups, the table with its counts; and who failed.
        assert reduced == [4, blocks["table"] + 7, blocks["conv"], blocks["fc"], 5]
        assert len(sent) == N_RANKS
        assert sum(sent) == sum(blocks.values())  # every inverse once


def train_with_an_idle_layer() -> list[bool]:
    """Let rank 1 leave a layer out; its factor is that of rank 0 alone, on both."""
    torch.manual_seed(0)
    net = nn.ModuleDict({"always": nn.Linear(3, 4), "sometimes": nn.Linear(4, 2)})
    optimizer = Thor(net, 0.1, 0.1, 0.9, frequency=2)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(ranks.rank()))
    hidden = net["always"](x)
    (net["sometimes"](hidden) if ranks.rank() == 0 else hidden).square().mean().backward()
    optimizer.step()
    layer = optimizer.preconditioner.layers[1]
    found = dense(optimizer.preconditioner.blocks, layer.a, optimizer.preconditioner.blocks.factors)
    mine = hidden.detach().T @ hidden.detach() / 5
    distributed.broadcast(mine, 0)
    return [torch.allclose(found, mine, rtol=1e-5)]


def test_a_layer_that_one_rank_left_out_has_the_factor_of_the_others(pair: Ranks) -> None:
    assert pair.run(train_with_an_idle_layer) == [[True], [True]]


def test_the_cuts_of_split_indices_lie_behind_the_layers_named() -> None:
    optimizer = optimizer_of(network(), None)
    engine = optimizer.preconditioner
    assert FactorExchange(engine.layers, engine.blocks, None).groups == [[0, 1, 2]]
    assert FactorExchange(engine.layers, engine.blocks, [0, 2]).groups == [[0], [1, 2]]
    assert FactorExchange(engine.layers, engine.blocks, [1, 26, 53]).groups == [[0, 1], [2]]
