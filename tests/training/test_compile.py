from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.kit.chains import chain, mean_square, pairs
from tests.kit.configurations import freezing
from workbench.methods.grad_freeze.method import allow_one_graph_per_group
from workbench.training import apply, training_loop

GROUPS = 3
FREEZING = freezing(GROUPS, kind=0, steps=12)


@pytest.fixture
def compilations() -> Iterator[list[torch.fx.GraphModule]]:
    """Start with nothing compiled and a limit below the number of groups, and leave torch's own."""
    import torch._dynamo as dynamo

    dynamo.reset()
    with dynamo.config.patch(recompile_limit=1, accumulated_recompile_limit=1, fail_on_recompile_limit_hit=True):
        yield []
    dynamo.reset()


def counting(compilations: list[torch.fx.GraphModule]) -> Callable[..., Any]:
    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    return backend


@pytest.mark.parametrize("when", ["before apply", "after apply"])
def test_every_freezing_group_is_compiled_once_even_beyond_torchs_own_limit(
    when: str, compilations: list[torch.fx.GraphModule]
) -> None:
    net = chain(3 * GROUPS)
    plain = copy.deepcopy(net)
    backend = counting(compilations)
    model: Any = torch.compile(net, backend=backend) if when == "before apply" else net
    boosted = apply(FREEZING, model, SGD(net.parameters(), lr=0.1, momentum=0.9), level="O0")
    if when == "after apply":
        boosted.model = torch.compile(boosted.model, backend=backend)  # type: ignore[assignment]
    eager = apply(FREEZING, plain, SGD(plain.parameters(), lr=0.1, momentum=0.9), level="O0")
    used = [
        {outcome.frozen_groups for outcome in training_loop(one, mean_square, pairs(12, 5))} for one in (boosted, eager)
    ]
    assert used == [set(range(GROUPS))] * 2
    assert len(compilations) == GROUPS
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_limit_that_is_high_enough_is_never_lowered(compilations: list[torch.fx.GraphModule]) -> None:
    import torch._dynamo as dynamo

    with dynamo.config.patch(recompile_limit=500, accumulated_recompile_limit=100_000):
        allow_one_graph_per_group(GROUPS)
        assert dynamo.config.recompile_limit == 500


def test_a_compiled_model_is_processed_inside_its_wrapper(compilations: list[torch.fx.GraphModule]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    model: Any = torch.compile(net, backend=counting(compilations))
    boosted = apply({"amp": {"level": "O3", "dtype": "bfloat16"}}, model, SGD(net.parameters(), lr=0.1), level="O0")
    assert boosted.model is model
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert boosted.model(torch.randn(2, 1, 4, 4)).dtype == torch.float32
