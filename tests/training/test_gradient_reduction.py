from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, SparseAdam

from tests.kit.configurations import freezing
from tests.ranks import Ranks
from workbench.core import distributed as ranks
from workbench.training import apply, gradient_reduction
from workbench.training.gradient_reduction import GradientReduction, broadcast_from_first

pytestmark = pytest.mark.slow  # starting ranks takes seconds

ADASUM = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "adasum": True},
    "common": {"device_number": 1},
}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    group = Ranks(3, tmp_path_factory.mktemp("ranks"))
    yield group
    group.close()


def parameters(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in shapes]


def gradient_of(rank: int, shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(rank))


def mean_of(shape: tuple[int, ...]) -> Tensor:
    return torch.stack([gradient_of(rank, shape).double() for rank in range(ranks.world_size())]).mean(0)


def gradients_of_every_kind() -> None:
    shapes = [(3,), (), (2, 5), (7, 1)]
    wide, narrow = parameters(*shapes), parameters((4,), (2,), dtype=torch.float16)
    sparse = nn.Parameter(torch.zeros(6, 2))
    for parameter in [*wide, *narrow]:
        parameter.grad = gradient_of(ranks.rank(), tuple(parameter.shape)).to(parameter.dtype)
    wide[2].grad = gradient_of(ranks.rank(), (5, 2)).T  # not contiguous
    row = torch.tensor([[ranks.rank()]])
    sparse.grad = torch.sparse_coo_tensor(row, torch.ones(1, 2), (6, 2), check_invariants=True)
    GradientReduction().reduce_([*wide, *narrow, sparse])
    for parameter, shape in zip(wide, shapes, strict=True):
        wanted = mean_of((5, 2)).T if shape == (2, 5) else mean_of(shape)
        torch.testing.assert_close(parameter.grad.double(), wanted, rtol=1e-6, atol=1e-7)
    for parameter in narrow:
        torch.testing.assert_close(parameter.grad.double(), mean_of(tuple(parameter.shape)), rtol=2e-3, atol=2e-3)
    assert torch.allclose(sparse.grad, torch.tensor([[1 / 3]] * 3 + [[0.0]] * 3).expand(6, 2))


def a_table_under_sparse_adam() -> None:
    looked_up = [[[1, 1, 4], [2, 4, 4], [0, 4, 1]], [[3, 0, 0], [1, 1, 1], [2, 3, 4]]]  # [step][rank]; 5 never
    wanted, table = (nn.Embedding.from_pretrained(torch.ones(6, 2), freeze=False, sparse=True) for _ in range(2))
    alone = SparseAdam(wanted.parameters(), lr=0.1)
    boosted = apply({}, table, SparseAdam(table.parameters(), lr=0.1), level="O0")
    boosted.distribute()
    for step in looked_up:
        wanted(torch.tensor(step)).square().mean().backward()
        alone.step()
        alone.zero_grad()
        boosted.backward(boosted.model(torch.tensor(step[ranks.rank()])).square().mean())
        boosted.step()
    torch.testing.assert_close(table.weight, wanted.weight)
    assert table.weight[5].tolist() == [1.0, 1.0]


def rows_on_one_rank_only() -> None:
    some, never = parameters((6, 2), (3, 2))
    if ranks.rank() == 1:
        some.grad = torch.full((6, 2), 6.0).sparse_mask(torch.eye(6, 2).to_sparse())  # sparse in both dimensions
    GradientReduction(by_rows=True).reduce_([some, never])
    assert never.grad is None
    assert some.grad.coalesce().indices().tolist() == [[0, 1]]
    assert some.grad.to_dense()[:2].tolist() == [[2.0, 0.0], [0.0, 2.0]]


def largest_float16_gradients() -> None:
    (parameter,) = parameters((4,), dtype=torch.float16)
    parameter.grad = torch.full((4,), 60000.0, dtype=torch.float16)
    GradientReduction().reduce_([parameter])
    assert parameter.grad.isfinite().all()


def gradients_on_one_rank_only() -> None:
    first, never, second = parameters((2,), (2,), (3,))
    first.grad = torch.full((2,), 3.0)
    if ranks.rank() == 1:
        second.grad = torch.full((3,), 6.0)
    GradientReduction().reduce_([first, never, second])
    assert never.grad is None
    assert first.grad.tolist() == [3.0, 3.0]
    assert second.grad.tolist() == [2.0, 2.0, 2.0]


def a_late_first_gradient() -> None:
    first, late = parameters((2,), (2,))
    reduction = GradientReduction()
    first.grad = torch.ones(2)
    reduction.reduce_([first, late])
    assert late.grad is None
    if ranks.rank() == 2:
        late.grad = torch.full((2,), 3.0)
    reduction.reduce_([first, late])
    assert late.grad.tolist() == [1.0, 1.0]
    late.grad = None  # though all had it once: with one rank it rests, too
    first.grad = torch.full((2,), float(ranks.rank()))
    reduction.reduce_([first, late])
    assert late.grad is None
    assert first.grad.tolist() == [1.0, 1.0]


def copied_reduction_over_a_group() -> None:
    group = distributed.new_group([0, 1, 2])
    (parameter,) = parameters((2,))
    reduction = copy.deepcopy(GradientReduction(group))
    parameter.grad = torch.full((2,), float(ranks.rank()))
    reduction.reduce_([parameter])
    assert reduction.group is group
    assert parameter.grad.tolist() == [1.0, 1.0]


def broadcasting() -> None:
    values = [torch.full((2, 3), float(ranks.rank() + 1)), torch.full((3, 2), float(ranks.rank() + 1)).T]
    counter = torch.tensor(ranks.rank() + 5)
    repeated = torch.tensor([[ranks.rank() + 1.0], [ranks.rank() + 2.0]]).expand(2, 4)
    broadcast_from_first([*values, counter, repeated])
    assert all((value == 1.0).all() for value in values)
    assert repeated.tolist() == [[1.0] * 4, [2.0] * 4]
    assert int(counter) == 5


def a_trained_criterion() -> None:
    torch.manual_seed(ranks.rank())
    model, shift = nn.Linear(3, 2), nn.Parameter(torch.randn(2))
    boosted = apply({}, model, SGD([*model.parameters(), shift], lr=0.1), level="O0")
    with pytest.raises(ValueError, match=r"trains parameters outside the model, such as param_groups\[0\]\[2\],"):
        boosted.distribute(ddp=True)
    boosted.distribute()
    for _ in range(3):
        boosted.backward((boosted.model(torch.randn(4, 3)) + shift).square().mean())
        boosted.step()
    first = [value.detach().clone() for value in (shift, *model.parameters())]
    broadcast_from_first(first)
    assert all(torch.equal(one, own) for one, own in zip(first, (shift, *model.parameters()), strict=True))


def a_table_that_rests() -> None:
    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(nn.EmbeddingBag(4, 3, sparse=True), *(nn.Linear(3, 3) for _ in range(4)))

    net = network()
    boosted = apply(freezing(2), net, SGD(net.parameters(), lr=0.1), level="O0")
    with pytest.raises(ValueError, match=r"needs a gradient of 0\.weight in every step, since it is sparse"):
        boosted.distribute(ddp=True)
    wrapped = DistributedDataParallel(network(), find_unused_parameters=True)
    with pytest.raises(RuntimeError, match=r"needs a gradient of 0\.weight in every step, since it is sparse"):
        apply(freezing(2), wrapped, SGD(wrapped.parameters(), lr=0.1), level="O0")
    boosted.distribute()
    frozen = []
    for _ in range(6):
        boosted.backward(net(torch.tensor([[0, ranks.rank()]])).sum())
        frozen.append(boosted.step().frozen_groups)
    assert set(frozen) == {0, 1}


def criteria_of_different_shapes() -> None:
    model, shift = nn.Linear(3, 2), nn.Parameter(torch.zeros(2 + ranks.rank() // 2))
    boosted = apply({}, model, SGD([*model.parameters(), shift], lr=0.1), level="O0")
    with pytest.raises(RuntimeError, match=r"param_groups\[0\]\[2\] \[2\] .* and param_groups\[0\]\[2\] \[3\]"):
        boosted.distribute()


@pytest.mark.parametrize(
    ("what", "on_each_rank"),
    [
        ("gradients of every kind are averaged", gradients_of_every_kind),
        ("SparseAdam gets sparse gradients, and trains as on all samples", a_table_under_sparse_adam),
        ("rows that one rank has count as zero on the others", rows_on_one_rank_only),
        ("the sum of float16 gradients does not overflow", largest_float16_gradients),
        ("a gradient that one rank has counts as zero on the others", gradients_on_one_rank_only),
        ("a first gradient may come late and on one rank only", a_late_first_gradient),
        ("a copy averages over the same ranks", copied_reduction_over_a_group),
        ("every rank takes the first one's values", broadcasting),
        ("what only the optimizer holds is trained together, too", a_trained_criterion),
        ("and must be alike on all ranks", criteria_of_different_shapes),
        ("a table whose gradients are sparse may rest, but not under DistributedDataParallel", a_table_that_rests),
    ],
)
def test_on_three_ranks(three: Ranks, what: str, on_each_rank: Callable[[], None]) -> None:
    three.run(on_each_rank)


def test_buckets_keep_dtype_and_split_group_apart_and_stay_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_reduction, "_BUCKET_BYTES", 40)
    wide, narrow = parameters((6,), (4,), (5,), (100,)), parameters((6,), dtype=torch.float16)
    wide[0].comm_fusion = 1  # type: ignore[attr-defined]  # ParameterProcess's mark
    buckets = gradient_reduction._buckets([*wide, *narrow])
    shapes = [[tuple(parameter.shape) for parameter in bucket] for bucket in buckets]
    assert shapes == [[(6,)], [(100,)], [(5,), (4,)], [(6,)]]
    assert buckets[0][0] is narrow[0]


def adasum_without_distribute() -> None:
    net = nn.Linear(2, 1)
    boosted = apply(ADASUM, net, SGD(net.parameters(), lr=0.1), level="O0")
    boosted.backward(net(torch.ones(1, 2)).sum())
    with pytest.raises(RuntimeError, match=r"call boosted\.distribute\(\) on every rank before the first step"):
        boosted.step()
    wrapped = DistributedDataParallel(nn.Linear(2, 1))
    with pytest.raises(RuntimeError, match=r"AdaSum combines updates.*boosted\.distribute\(\)"):
        apply(ADASUM, wrapped, SGD(wrapped.parameters(), lr=0.1), level="O0")


@pytest.mark.long
def test_adasum_asks_for_distribute(pair: Ranks) -> None:
    pair.run(adasum_without_distribute)
