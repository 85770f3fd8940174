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
from workbench.methods.grad_freeze.method import FreezeOpt
from workbench.training import Boosted, apply, training_loop

GROUPS = 12  # more than torch's own limit of 8 graphs
FREEZING = freezing(GROUPS, kind=0, p=0.1, steps=48)


@pytest.fixture
def compilations() -> Iterator[list[torch.fx.GraphModule]]:
    """Start with nothing compiled and torch's own limits, and leave it so."""
    import torch._dynamo as dynamo

    dynamo.reset()
    with dynamo.config.patch(recompile_limit=8, accumulated_recompile_limit=256, fail_on_recompile_limit_hit=True):
        yield []
    dynamo.reset()


def counting(compilations: list[torch.fx.GraphModule]) -> Callable[..., Any]:
    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
        compilations.append(graph)
        return graph.forward

    return backend


def groups_used(boosted: Boosted, steps: int) -> int:
    assert isinstance(boosted.optimizer, FreezeOpt)
    return len(set(boosted.optimizer.strategy[:steps]))


@pytest.mark.long
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
    batches = pairs(36, 5)
    assert groups_used(boosted, 36) == GROUPS
    for _ in training_loop(boosted, mean_square, batches):
        pass
    assert len(compilations) == GROUPS
    eager = apply(FREEZING, plain, SGD(plain.parameters(), lr=0.1, momentum=0.9), level="O0")
    for _ in training_loop(eager, mean_square, batches):
        pass
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p, q)


def test_a_compiled_model_is_processed_inside_its_wrapper(compilations: list[torch.fx.GraphModule]) -> None:
    net = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2))
    model: Any = torch.compile(net, backend=counting(compilations))
    boosted = apply({"amp": {"level": "O3", "dtype": "bfloat16"}}, model, SGD(net.parameters(), lr=0.1), level="O0")
    assert boosted.model is model
    assert {p.dtype for p in net.parameters()} == {torch.bfloat16}
    assert boosted.model(torch.randn(2, 1, 4, 4)).dtype == torch.float32
