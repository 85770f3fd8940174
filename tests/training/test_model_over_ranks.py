"""Model on two ranks: each trains on its half, together they train as one rank on whole batches does."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.mindspore.callbacks import (
    Callback,
    LossMonitor,
    RunContext,
    TimeMonitor,
)
from workbench.nn import DynamicLossScaleManager, Model
from workbench.training import apply

pytestmark = pytest.mark.slow  # starting ranks takes seconds

N_RANKS = 2
CONFIG = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True, "grad_accumulation": True},
    "grad_freeze": {"param_groups": 3, "freeze_type": 1, "freeze_p": 0.5, "total_steps": 12},
    "grad_accumulation": {"grad_accumulation_step": 2},
}


class Temperature(nn.Module):
    """A criterion with a weight of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0 + seed))

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output * self.scale, label)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(N_RANKS, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i in range(8):
        layers += [nn.Linear(4 if i == 0 else 6, 6, bias=False), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def batches() -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(4)]


def own_half(rank: int) -> list[tuple[Tensor, Tensor]]:
    return [(x[rank::N_RANKS], y[rank::N_RANKS]) for x, y in batches()]


def optimizer_of(*modules: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.1, momentum=0.9, fused=True)


def trained(seed: int, data: list[Any], **arguments: Any) -> dict[str, Tensor]:
    net, criterion = network(seed), Temperature(seed)
    model = Model(net, criterion, optimizer_of(net, criterion), boost_config_dict=CONFIG, **arguments)
    model.train(3, data)
    return {name: value.detach().clone() for m in (net, criterion) for name, value in m.state_dict().items()}


def trained_together() -> dict[str, Tensor]:
    return trained(seed=ranks.rank(), data=own_half(ranks.rank()))  # only the first rank's weights may count


def test_two_ranks_train_as_one_does_on_whole_batches(pair: Ranks) -> None:
    first, second = pair.run(trained_together)
    alone = trained(seed=0, data=batches())
    assert first.keys() == alone.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
        torch.testing.assert_close(value, alone[name], msg=name)


class Overflows(Callback):
    def __init__(self) -> None:
        self.seen: list[bool] = []

    def on_train_step_end(self, run_context: RunContext) -> None:
        self.seen.append(bool(run_context.original_args().net_outputs.overflow))


def overflow_on_one_rank() -> tuple[list[bool], Tensor]:
    data = own_half(ranks.rank())
    if ranks.rank() == 1:
        data[2] = (data[2][0] * torch.inf, data[2][1])
    net, overflows = network(0), Overflows()
    manager = DynamicLossScaleManager(8.0)
    Model(net, nn.CrossEntropyLoss(), optimizer_of(net), loss_scale_manager=manager).train(1, data, overflows)
    return overflows.seen, torch.cat([value.detach().flatten() for value in net.parameters()])


def test_an_overflow_on_one_rank_is_skipped_by_both(pair: Ranks) -> None:
    (first, weights), (second, others) = pair.run(overflow_on_one_rank)
    assert first == second == [False, False, True, False]
    assert torch.equal(weights, others)
    assert bool(torch.isfinite(weights).all())


def printed() -> str:
    net = network(0)
    model = Model(net, nn.CrossEntropyLoss(), optimizer_of(net), metrics={"acc"})
    with contextlib.redirect_stdout(io.StringIO()) as text:
        model.fit(1, own_half(ranks.rank()), batches(), callbacks=[LossMonitor(2), TimeMonitor()])
    return text.getvalue()


def test_the_first_rank_prints_and_the_other_is_silent(pair: Ranks) -> None:
    first, second = pair.run(printed)
    assert [line.split(":")[0] for line in first.splitlines()] == ["epoch"] * 2 + ["Eval result", "Train epoch time"]
    assert second == ""


def evaluated_by_the_first() -> dict[str, float]:
    model = Model(network(0), nn.CrossEntropyLoss(), metrics={"f1", "auc", "loss"})
    return model.eval(batches()) if ranks.rank() == 0 else {}


def test_a_rank_that_evaluates_alone_waits_for_nobody(pair: Ranks) -> None:
    first, _ = pair.run(evaluated_by_the_first)
    assert first == evaluated_by_the_first()


ADASUM = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "adasum": True},
    "common": {"device_number": 1},
}


def adasum_both_ways() -> tuple[list[Tensor], list[Tensor]]:
    by_model, by_hand = network(0), network(0)
    model = Model(by_model, nn.CrossEntropyLoss(), optimizer_of(by_model), boost_level="O2", boost_config_dict=ADASUM)
    model.train(2, own_half(ranks.rank()))
    boosted = apply(ADASUM, by_hand, optimizer_of(by_hand), level="O2")
    boosted.distribute()
    for x, y in own_half(ranks.rank()) * 2:
        boosted.backward(F.cross_entropy(boosted.model(x), y))
        boosted.step()
    return [p.detach() for p in by_model.parameters()], [p.detach() for p in by_hand.parameters()]


def test_adasum_is_in_effect_through_model(pair: Ranks) -> None:
    (first, by_hand), (second, _) = pair.run(adasum_both_ways)
    averaged = trained_averaging()
    for ours, others, theirs in zip(first, second, by_hand, strict=True):
        assert torch.equal(ours, others)
        assert torch.equal(ours, theirs)
    assert any(not torch.allclose(ours, plain, rtol=1e-3) for ours, plain in zip(first, averaged, strict=True))


def trained_averaging() -> list[Tensor]:
    net = network(0)
    Model(net, nn.CrossEntropyLoss(), optimizer_of(net)).train(2, batches())
    return [p.detach() for p in net.parameters()]


def uneven_datasets() -> None:
    net = network(0)
    model = Model(net, nn.CrossEntropyLoss(), optimizer_of(net))
    with pytest.raises(ValueError, match="equally many batches on every rank, got 4, 3"):
        model.train(1, batches()[: 4 - ranks.rank()])


def test_unequal_numbers_of_batches_are_refused_on_every_rank(pair: Ranks) -> None:
    pair.run(uneven_datasets)
