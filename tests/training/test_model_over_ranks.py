"""Model on two ranks: each trains on its half, together they train as one rank on whole batches does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.kit.chains import chain
from tests.kit.configurations import freezing
from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.mindspore.callbacks import Callback, RunContext
from workbench.nn import Model

pytestmark = pytest.mark.slow  # starting ranks takes seconds

N_RANKS = 2
CONFIG = freezing(3, accumulate=2)


class Temperature(nn.Module):
    """A criterion with a weight of its own."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0 + seed))

    def forward(self, output: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(output * self.scale, label)


def network(seed: int) -> nn.Sequential:
    return chain(8, n_out=3, seed=seed)


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


def evaluated_by_the_first() -> dict[str, float]:
    model = Model(network(0), nn.CrossEntropyLoss(), metrics={"f1", "auc", "loss"})
    return model.eval(batches()) if ranks.rank() == 0 else {}


def test_a_rank_that_evaluates_alone_waits_for_nobody(pair: Ranks) -> None:
    first, _ = pair.run(evaluated_by_the_first)
    assert first == evaluated_by_the_first()


def uneven_datasets() -> None:
    net = network(0)
    model = Model(net, nn.CrossEntropyLoss(), optimizer_of(net))
    with pytest.raises(ValueError, match="equally many batches on every rank, got 4, 3"):
        model.train(1, batches()[: 4 - ranks.rank()])


def test_unequal_numbers_of_batches_are_refused_on_every_rank(pair: Ranks) -> None:
    pair.run(uneven_datasets)


def failing_while_layers_are_frozen() -> None:
    class Fails(Callback):
        def on_train_step_begin(self, run_context: RunContext) -> None:
            if not next(net.parameters()).requires_grad:
                raise InterruptedError

    net = network(seed=0)
    always = freezing(3, kind=0, p=0.0, accumulate=2)
    model = Model(net, F.cross_entropy, optimizer_of(net), boost_config_dict=always)
    with pytest.raises(InterruptedError):
        model.train(3, own_half(ranks.rank()), Fails())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_after_an_exception_on_several_ranks_no_layer_stays_frozen(pair: Ranks) -> None:
    pair.run(failing_while_layers_are_frozen)
