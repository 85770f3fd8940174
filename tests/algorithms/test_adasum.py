"""AdaSum: its formula, its laws, and the collective against the formula on threads and on real processes."""

from __future__ import annotations

import copy
import itertools
import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.golden_files import golden_paths, load_npz
from tests.kit.processes import forkserver
from tests.ranks import leave_together
from workbench.config import BoostConfig
from workbench.methods.adasum.method import (
    AdaSum,
    AdaSumState,
    ServerLinks,
    adasum_hook,
    adasum_pair,
    adasum_reduce_,
    adasum_sets_,
    adasum_tree,
    connect_servers,
)

GOLDEN = golden_paths("adasum*.npz")
SHAPES = [(1,), (2,), (3,), (5,), (7,), (128, 3), (), (0,), (1, 1)]


# --- The collective without processes: one thread per rank ---------------------------------------------------------


class Wires:
    """What threads that stand for ranks share: a queue per direction, and a place to meet per server."""

    def __init__(self, n_servers: int, n_devices: int) -> None:
        # All made beforehand: two threads that ask a defaultdict for the same new queue may get two.
        ways = itertools.product(range(n_devices), range(n_servers), range(n_servers))
        self.queues: dict[tuple[int, int, int], queue.Queue[Tensor]] = {way: queue.Queue() for way in ways}
        self.slots = [[torch.empty(0)] * n_devices for _ in range(n_servers)]
        self.barriers = [threading.Barrier(n_devices, timeout=20) for _ in range(n_servers)]


@dataclass(frozen=True)
class ThreadLinks(ServerLinks):
    wires: Wires = field(default_factory=lambda: Wires(0, 0))
    sent: list[int] = field(default_factory=list)

    def exchange(self, mine: Tensor, server: int, into: Tensor | None = None) -> Tensor:
        assert mine.is_contiguous()
        self.sent.append(mine.numel())
        self.wires.queues[self.device, self.server, server].put(mine.clone())
        theirs = self.wires.queues[self.device, server, self.server].get(timeout=20)
        return theirs if into is None else into.copy_(theirs)

    def _meet(self, value: Tensor) -> list[Tensor]:
        slots, barrier = self.wires.slots[self.server], self.wires.barriers[self.server]
        slots[self.device] = value.clone()
        barrier.wait()
        values = list(slots)
        barrier.wait()
        return values

    def sum_inside_(self, values: Tensor) -> None:
        values.copy_(torch.stack(self._meet(values)).sum(0))

    def gather_inside_(self, flat: Tensor) -> None:
        flats = self._meet(flat)
        flat.copy_(torch.cat([flats[i].chunk(self.n_devices)[i] for i in range(self.n_devices)]))


def on_threads(
    values: Sequence[Sequence[Tensor]], n_servers: int, n_devices: int
) -> tuple[list[list[Tensor]], list[ThreadLinks]]:
    """Return what each rank holds after adasum_reduce_ of one bucket; ``values[rank]`` are its tensors."""
    wires = Wires(n_servers, n_devices)
    links = [
        ThreadLinks(*divmod(rank, n_devices), n_servers, n_devices, wires=wires)
        for rank in range(n_servers * n_devices)
    ]

    def run(rank: int) -> list[Tensor]:
        lengths = [value.numel() for value in values[rank]]
        padding = torch.zeros(-sum(lengths) % len(links), dtype=values[rank][0].dtype)
        flat = torch.cat([*(value.flatten() for value in values[rank]), padding])
        parts = adasum_reduce_(flat, lengths, links[rank])[: sum(lengths)].split(lengths)
        return [part.view_as(value) for part, value in zip(parts, values[rank], strict=True)]

    with ThreadPoolExecutor(len(links)) as pool:
        return list(pool.map(run, range(len(links)))), links


def expected(values: Sequence[Sequence[Tensor]], n_servers: int, n_devices: int) -> list[Tensor]:
    """Return the formula in float64: a tree over the servers' averages."""
    combined = []
    for tensors in zip(*values, strict=True):
        stacked = torch.stack(tensors).double().unflatten(0, (n_servers, n_devices)).mean(1)
        combined.append(adasum_tree(list(stacked)))
    return combined


def drawn(shapes: Sequence[tuple[int, ...]], n_ranks: int, seed: int, dtype: torch.dtype) -> list[list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator).to(dtype) for shape in shapes] for _ in range(n_ranks)]


def assert_equal_to_the_formula(found: list[list[Tensor]], wanted: list[Tensor], tolerance: float = 1e-5) -> None:
    for rank in found:
        for value, first, reference in zip(rank, found[0], wanted, strict=True):
            assert torch.equal(value, first), "all ranks hold the same bits"
            torch.testing.assert_close(value.double(), reference, rtol=tolerance, atol=tolerance)


# --- Golden --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_full_formula(path: Path) -> None:
    meta, arrays = load_npz(path)
    compared = 0
    for case in meta["cases"]:
        index = case["index"]
        values = torch.from_numpy(arrays[f"{index}/in"])
        found = adasum_tree(list(values)).numpy()
        recorded = [arrays[f"{index}/full_formula"]]
        if case.get("equals_full_formula"):  # so do the reference's own nodes, and at times the mean
            recorded += [*arrays[f"{index}/halving"], *([arrays[f"{index}/mean"]] if case["equals_mean"] else [])]
            compared += 1
        for value in recorded:
            np.testing.assert_allclose(found, value, rtol=1e-4, atol=1e-5, err_msg=f"case {index}")
        # In float64 nothing but the order of sums is left.
        exact = adasum_tree(list(values.double())).numpy()
        np.testing.assert_allclose(exact, recorded[0], rtol=1e-9, atol=1e-9, err_msg=f"case {index}")
    assert compared


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_collective(path: Path) -> None:
    meta, arrays = load_npz(path)
    for case in meta["cases"]:
        index = case["index"]
        values = [[value] for value in torch.from_numpy(arrays[f"{index}/in"])]
        found, _ = on_threads(values, len(values), 1)
        assert_equal_to_the_formula(found, [torch.from_numpy(arrays[f"{index}/full_formula"])])


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_golden_numbers_of_ranks_at_which_it_is_in_effect(path: Path) -> None:
    config = BoostConfig.from_dict({"boost": {"mode": "manual", "adasum": True}, "compatibility": "mindspore-2.7"})
    for case in load_npz(path)[0]["enable_rule"]:
        assert config.resolve("O0", case["rank_size"]).adasum is case["enabled"], case


# --- Laws of the formula -------------------------------------------------------------------------------------------


# Squares stay far above the constant of 1e-12, which would weaken both laws by what it is to them.
finite = st.floats(0.1, 10).flatmap(lambda size: st.sampled_from([size, -size]))
vectors = st.lists(finite, min_size=1, max_size=6)


@settings(max_examples=30)
@given(st.data(), st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
def test_a_pair_is_symmetric_bit_for_bit(data: st.DataObject, dtype: torch.dtype) -> None:
    first = data.draw(vectors)
    second = data.draw(st.lists(finite, min_size=len(first), max_size=len(first)))
    a, b = torch.tensor(first, dtype=dtype), torch.tensor(second, dtype=dtype)
    assert torch.equal(adasum_pair(a, b), adasum_pair(b, a))
    assert adasum_pair(a, b).dtype == dtype


@settings(max_examples=30)
@given(vectors, finite)
@example([1.0, -2.0], -1.0)
@example([0.1], 0.1)
@example([0.1], 10.0)
def test_parallel_vectors_are_averaged(values: list[float], factor: float) -> None:
    a = torch.tensor(values, dtype=torch.float64)
    torch.testing.assert_close(adasum_pair(a, factor * a), a * (1 + factor) / 2, rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(vectors, vectors)
def test_orthogonal_vectors_are_added(first: list[float], second: list[float]) -> None:
    a = torch.tensor(first + [0.0] * len(second), dtype=torch.float64)
    b = torch.tensor([0.0] * len(first) + second, dtype=torch.float64)
    torch.testing.assert_close(adasum_pair(a, b), a + b, rtol=1e-6, atol=1e-6)


@settings(max_examples=30)
@given(vectors, st.sampled_from([2, 4, 8, 16]))
def test_equal_values_stay_as_they_are(values: list[float], n_groups: int) -> None:
    value = torch.tensor(values)
    assert torch.equal(adasum_tree([value] * n_groups), value)


def test_a_tree_pairs_neighbours_and_counts_the_constant_once_per_node() -> None:
    a, b, c, d = torch.tensor([[3e-6, 1e-6], [1e-6, -2e-6], [0.0, 4e-6], [-1e-6, 1e-6]], dtype=torch.float64)
    left, right = adasum_pair(a, b), adasum_pair(c, d)
    assert torch.equal(adasum_tree([a, b, c, d]), adasum_pair(left, right, n_nodes=4))
    assert not torch.allclose(adasum_pair(left, right, n_nodes=4), adasum_pair(left, right), rtol=1e-3, atol=0)
    # By hand: a.b = 1e-12, a.a = 10e-12, b.b = 5e-12, each with 2e-12 more.
    torch.testing.assert_close(left, (1 - 3 / 24) * a + (1 - 3 / 14) * b, rtol=1e-12, atol=0)


def test_zeros_are_averaged_nan_spreads_and_products_of_float16_do_not_overflow() -> None:
    zeros = torch.zeros(3)
    assert torch.equal(adasum_pair(zeros, zeros), zeros)
    assert adasum_pair(torch.tensor([1.0, float("nan")]), torch.ones(2)).isnan().all()
    a, b = torch.tensor([3000.0, 0.0]).half(), torch.tensor([0.0, 3000.0]).half()
    assert torch.equal(adasum_pair(a, b), a + b)


def test_products_of_long_tensors_stay_accurate() -> None:
    # One float32 dot product loses 6e-5 of a.a here, and a's factor, which is small, 3e-4. b has one entry, so that a.b
    # and b.b are exact.
    a = torch.randn(4 * 10**6, generator=torch.Generator().manual_seed(0))
    a[0] = 1.0
    b = torch.zeros_like(a)
    b[0] = 1e7
    exact = adasum_pair(a.double(), b.double())
    torch.testing.assert_close(adasum_pair(a, b)[1:].double(), exact[1:], rtol=1e-5, atol=0)


@pytest.mark.parametrize("number", [0, 1, 6])
def test_a_tree_or_servers_of_another_number_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=rf"power of two from 2 on .*got {number}$"):
        adasum_tree([torch.ones(2)] * number)
    with pytest.raises(ValueError, match=rf"`group_number` must be a power of two from 2 on .*got {number}$"):
        AdaSum(0, 1, number, (torch.ones(2),))


def test_a_pair_that_does_not_match_is_refused() -> None:
    with pytest.raises(ValueError, match=r"agree in shape and dtype, got \(2,\) torch.float32 and \(1, 2\)"):
        adasum_pair(torch.ones(2), torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"torch.float32 and .* torch.float64"):
        adasum_pair(torch.ones(2), torch.ones(2).double())
    with pytest.raises(TypeError, match=r"floating-point dtype, got torch.int64"):
        adasum_pair(torch.tensor([1]), torch.tensor([1]))


# --- The collective ------------------------------------------------------------------------------------------------


def test_the_collective_counts_the_constant_once_per_server() -> None:
    values = [[value * 1e-6 for value in tensors] for tensors in drawn([(1,), (3,)], 8, 7, torch.float64)]
    found, _ = on_threads(values, 8, 1)
    scaled = [[value * 1e6 for value in tensors] for tensors in found]
    assert_equal_to_the_formula(scaled, [value * 1e6 for value in expected(values, 8, 1)], tolerance=1e-9)


@settings(max_examples=15)
@given(
    st.lists(st.lists(st.integers(0, 9), max_size=2).map(tuple), min_size=1, max_size=5),
    st.sampled_from([(2, 1), (4, 1), (8, 1), (2, 2), (2, 3), (4, 3), (8, 2)]),
    st.integers(0, 1000),
)
@example([(0,), (1,), (0,), (0,), (2,)], (4, 1), 0)
@example(SHAPES, (8, 3), 7)
def test_the_collective_equals_the_formula_for_every_shape(
    shapes: list[tuple[int, ...]], counts: tuple[int, int], seed: int
) -> None:
    values = drawn(shapes, counts[0] * counts[1], seed, torch.float64)
    found, _ = on_threads(values, *counts)
    assert_equal_to_the_formula(found, expected(values, *counts), tolerance=1e-9)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float16, 1e-2), (torch.bfloat16, 6e-2)], ids=["float16", "bfloat16"]
)
def test_the_collective_rounds_low_precision_once_per_round(dtype: torch.dtype, tolerance: float) -> None:
    values = drawn(SHAPES, 8, 3, dtype)
    found, _ = on_threads(values, 4, 2)
    assert found[0][5].dtype == dtype
    assert_equal_to_the_formula(found, expected(values, 4, 2), tolerance)


def test_the_number_of_messages_does_not_grow_with_the_number_of_tensors() -> None:
    _, one = on_threads(drawn([(256,)], 4, 0, torch.float32), 4, 1)
    _, many = on_threads(drawn([(4,)] * 64, 4, 0, torch.float32), 4, 1)
    assert [len(links.sent) for links in one] == [len(links.sent) for links in many] == [7] * 4
    # Halves out, products, quarters out, products twice, and both back.
    assert many[0].sent == [128, 192, 64, 192, 192, 64, 128]


def test_room_for_what_comes_is_kept_and_grows() -> None:
    links = ServerLinks(0, 0, 4, 1)
    like = torch.zeros(1)
    first = links.room(like, 10)
    assert links.room(like, 6).data_ptr() == first.data_ptr()
    assert links.room(like.double(), 6).dtype == torch.float64
    assert len(links.room(like, 20)) == 20


def test_a_bucket_without_padding_is_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of the number of ranks \(4\), got 6"):
        adasum_reduce_(torch.ones(6), [6], ServerLinks(0, 0, 4, 1))
    with pytest.raises(ValueError, match=r"must hold the 9 elements"):
        adasum_reduce_(torch.ones(8), [9], ServerLinks(0, 0, 4, 1))


# --- Arguments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "sentence"),
    [
        ((0, 0, 2), ValueError, "`device_number` must be at least 1"),
        ((0, 1.0, 2), TypeError, "`device_number` must be an integer, got 1.0"),
        (("0", 1, 2), TypeError, "`rank` must be an integer, got '0'"),
        ((0, 1, 2), RuntimeError, "init_process_group"),
    ],
    ids=["no device", "a float", "a string", "no process group"],
)
def test_bad_numbers_are_refused(arguments: tuple[int, int, int], error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        AdaSum(*arguments, (torch.ones(2),))


def test_parameters_that_are_no_numbers_of_the_reals_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`parameter_tuple\[1\]` must be of a floating-point dtype, got torch.int64"):
        AdaSum(0, 1, 2, (torch.ones(2), torch.tensor([1])))


def test_counts_are_checked_against_the_process_group(one_rank: None) -> None:
    with pytest.raises(ValueError, match=r"must be the number of ranks, got 4 \* 3 with 1 ranks; start 12 or"):
        connect_servers(0, 3, 4)
    with pytest.raises(ValueError, match="`group_number` must be a power of two"):
        AdaSumState()
    with pytest.raises(ValueError, match="`device_number` must be at least 1"):
        AdaSumState(0)


# --- Real processes ------------------------------------------------------------------------------------------------


def _begin(rank: int, n_ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=n_ranks)


def spawned(worker: Callable[..., None], n_ranks: int, folder: Path) -> list[dict[str, list[Tensor]]]:
    """Run a worker on every rank and return what each has saved."""
    method = forkserver().get_start_method()
    torch.multiprocessing.start_processes(worker, (n_ranks, str(folder)), nprocs=n_ranks, start_method=method)
    return [torch.load(folder / f"rank{rank}.pt") for rank in range(n_ranks)]


def old_weights() -> list[Tensor]:
    (float32,) = drawn(SHAPES, 1, 99, torch.float32)
    (float64,) = drawn([(3,), (128, 3)], 1, 98, torch.float64)
    return [*float32, *float64]


def updates(n_ranks: int) -> list[list[Tensor]]:
    float32 = drawn(SHAPES, n_ranks, 1, torch.float32)
    float64 = drawn([(3,), (128, 3)], n_ranks, 2, torch.float64)
    return [[*a, *b] for a, b in zip(float32, float64, strict=True)]


def _update_weights(rank: int, n_ranks: int, folder: str) -> None:
    _begin(rank, n_ranks, folder)
    results = {}
    for n_devices in [count for count in (1, 2) if n_ranks // count > 1]:
        old, deltas = old_weights(), updates(n_ranks)[rank]
        parameters = [nn.Parameter(weight - delta) for weight, delta in zip(old, deltas, strict=True)]
        combine = AdaSum(rank, n_devices, n_ranks // n_devices, tuple(parameters))
        returned = combine(tuple(deltas), tuple(parameters), tuple(old))
        assert all(a is b for a, b in zip(returned, parameters, strict=True))
        results[str(n_devices)] = [parameter.detach() for parameter in returned]
        with pytest.raises(ValueError, match=r"`delta_weights` must hold one tensor per parameter \(11\), got 10"):
            combine(tuple(deltas[1:]), tuple(parameters), tuple(old))
        with pytest.raises(
            ValueError, match=r"`old_parameters\[0\]` must have the parameter's shape \(1,\), got \(2,\)"
        ):
            combine(tuple(deltas), tuple(parameters), (torch.ones(2), *old[1:]))
        with pytest.raises(ValueError, match=rf"`rank` must be this process's rank, {rank}, got {rank ^ 1}"):
            AdaSum(rank ^ 1, n_devices, n_ranks // n_devices, tuple(parameters))
    if n_ranks == 4:
        results["odd ranks"] = _update_among_odd_ranks(rank)
    torch.save(results, f"{folder}/rank{rank}.pt")
    leave_together()


def _update_among_odd_ranks(rank: int) -> list[Tensor]:
    """Combine the updates of ranks 1 and 3 in a process group of their own; the others keep their old weights."""
    group = distributed.new_group([1, 3])
    parameters = old_weights()
    if rank % 2:
        combine = AdaSum(rank // 2, 1, 2, parameters, process_group=group)
        combine(updates(4)[rank], parameters, old_weights())
    return parameters


@pytest.mark.parametrize("n_ranks", [pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.long)])
def test_processes_update_weights_by_the_formula(tmp_path: Path, n_ranks: int) -> None:
    ranks = spawned(_update_weights, n_ranks, tmp_path)
    if n_ranks == 4:
        among_odd = [rank.pop("odd ranks") for rank in ranks]
        combined = expected([updates(4)[1], updates(4)[3]], 2, 1)
        wanted = [old.double() - delta for old, delta in zip(old_weights(), combined, strict=True)]
        assert_equal_to_the_formula(among_odd[1::2], wanted)
        assert all(torch.equal(a, b) for a, b in zip(among_odd[0], old_weights(), strict=True))
    assert set(ranks[0]) == ({"1"} if n_ranks == 2 else {"1", "2"})
    for devices in ranks[0]:
        combined = expected(updates(n_ranks), n_ranks // int(devices), int(devices))
        wanted = [old.double() - delta for old, delta in zip(old_weights(), combined, strict=True)]
        assert_equal_to_the_formula([rank[devices] for rank in ranks], wanted)


def small_network() -> nn.Sequential:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 1))


def gradients_of(net: nn.Module, rank: int, step: int) -> list[Tensor]:
    """Run a backward pass on a rank's own data and return the gradients."""
    generator = torch.Generator().manual_seed(10 * step + rank)
    net.zero_grad()
    net(torch.randn(4, 3, generator=generator)).square().mean().backward()
    return [parameter.grad.clone() for parameter in net.parameters()]


def _train_with_hook(rank: int, n_ranks: int, folder: str) -> None:
    _begin(rank, n_ranks, folder)
    # So small a bucket that there are several; DDP arranges them anew after the first step.
    wrapped = DistributedDataParallel(small_network(), bucket_cap_mb=1e-4)
    wrapped.register_comm_hook(AdaSumState(), adasum_hook)
    results = {str(step): gradients_of(wrapped, rank, step) for step in range(3)}
    torch.save(results, f"{folder}/rank{rank}.pt")
    leave_together()


@pytest.mark.long
def test_the_hook_combines_gradients_under_distributed_data_parallel(tmp_path: Path) -> None:
    ranks = spawned(_train_with_hook, 2, tmp_path)
    for step in range(3):
        alone = [gradients_of(copy.deepcopy(small_network()), rank, step) for rank in (0, 1)]
        wanted = expected(alone, 2, 1)
        assert_equal_to_the_formula([rank[str(step)] for rank in ranks], wanted)
        averages = [(a + b).double() / 2 for a, b in zip(*alone, strict=True)]
        assert not any(torch.allclose(a, b, rtol=1e-3) for a, b in zip(wanted[:1], averages[:1], strict=True))


def test_sets_are_combined_tensor_by_tensor_in_place_of_the_first() -> None:
    torch.manual_seed(0)
    shapes = [(3, 4), (1,), (0,), (70_001,), (2, 3, 5)]
    ours, theirs = ([torch.randn(shape) for shape in shapes] for _ in range(2))
    expected = [adasum_pair(a, b) for a, b in zip(ours, theirs, strict=True)]
    adasum_sets_(ours, theirs)
    for combined, pair in zip(ours, expected, strict=True):
        assert torch.allclose(combined, pair, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spoiled", [math.nan, -math.inf])
def test_what_is_not_finite_in_either_set_makes_nan(spoiled: float) -> None:
    for side in (0, 1):
        sets = [torch.ones(5)], [torch.full((5,), 2.0)]
        sets[side][0][2] = spoiled
        adasum_sets_(*sets)
        assert sets[0][0][2].isnan()
    ours, theirs = [torch.ones(200_000)], [torch.ones(200_000)]
    ours[0][0], ours[0][-1] = math.inf, -math.inf
    adasum_sets_(ours, theirs)
    assert ours[0][[0, -1]].isnan().all()
