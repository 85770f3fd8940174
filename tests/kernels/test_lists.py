"""Our kernels against torch's operations: same bits, whatever the sizes, layouts and numbers of threads."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW

from workbench.core import kernels
from workbench.core.kernels.library import kernel_library
from workbench.loss_scale.gradient_statistics import EXPONENT_BINS, exponent_counts
from workbench.optim.adam_offload.host_adam import AdamNumbers, RoundedAdam, corrected_rate

pytestmark = pytest.mark.skipif(kernel_library() is None, reason="no C compiler on this machine (Debian: gcc)")

SIZES = {
    "one": [1],
    "odd": [3, 17, 400, 31],
    "large": [70_001, 8, 200_000],
    "empty": [0, 5],
    "vectors": [64, 1024],
    "rests": list(range(1, 34)),
}


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def drawn(sizes: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize(("kind", "maximize"), [(Adam, True), (AdamW, False)])
def test_a_step_has_the_bits_of_torchs_on_one_thread(sizes: list[int], kind: type[Adam], maximize: bool) -> None:
    parameters = [nn.Parameter(tensor) for tensor in drawn(sizes, 0)]
    optimizer = kind(parameters, lr=1e-3, weight_decay=0.1, maximize=maximize, fused=True)
    weights = drawn(sizes, 0)
    first, second = [torch.zeros(size) for size in sizes], [torch.zeros(size) for size in sizes]
    for step in range(1, 6):
        gradients = drawn(sizes, step)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # with more, torch rounds some elements at the seams of its parts otherwise
        optimizer.step()
        torch.set_num_threads(threads)
        settings = kernels.AdamSettings(
            first_weight=1 - 0.9,
            beta2=0.999,
            second_weight=1 - 0.999,
            correction=math.sqrt(1 - 0.999**step),
            eps=1e-8,
            step=1e-3 / (1 - 0.9**step),
            decay=0.1 if kind is Adam else 0.0,
            shrink=1.0 if kind is Adam else 1 - 1e-3 * 0.1,
            sign=-1.0 if maximize else 1.0,
        )
        lists = kernels.adam_lists(weights, gradients, first, second)
        kernels.adam_(lists, settings)
    for parameter, weight, m, v in zip(parameters, weights, first, second, strict=True):
        assert torch.equal(parameter, weight)
        assert torch.equal(optimizer.state[parameter]["exp_avg"], m)
        assert torch.equal(optimizer.state[parameter]["exp_avg_sq"], v)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("spoiled", [None, -math.inf, math.nan])
def test_unscaling_finds_what_torch_finds(sizes: list[int], spoiled: float | None) -> None:
    ours, theirs = drawn(sizes, 0), drawn(sizes, 0)
    for tensors in (ours, theirs):
        if spoiled is not None:
            tensors[-1][-1] = spoiled
    found = torch.zeros(())
    torch._amp_foreach_non_finite_check_and_unscale_(theirs, found, torch.tensor(1 / 1024))
    assert any(kernels.unscale_and_check_(kernels.listed(ours), [1 / 1024] * len(ours))) == bool(found)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def test_every_tensor_has_its_factor_and_its_flag() -> None:
    largest = torch.finfo(torch.float32).max
    assert list(kernels.unscale_and_check_(kernels.listed([torch.tensor([largest, -largest, 0.0])]), [1.0])) == [0]
    values = [torch.ones(5), torch.tensor([math.inf, 1.0]), torch.ones(0), torch.ones(3)]
    assert list(kernels.unscale_and_check_(kernels.listed(values), [2.0, 3.0, 4.0, 5.0])) == [0, 1, 0, 0]
    assert [value.tolist() for value in values] == [[2.0] * 5, [math.inf, 3.0], [], [5.0] * 3]


@pytest.mark.usefixtures("threads")
def test_rounded_moments_are_those_of_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [3, 65_536, 70_001, 200_000]
    results = []
    for with_kernel in (True, False):
        if not with_kernel:
            monkeypatch.setattr("workbench.core.kernels.tensors.kernel_library", lambda: None)
        weights, rounding = drawn(sizes, 0), RoundedAdam(seed=7)
        moments = [[torch.zeros(size, dtype=torch.bfloat16) for size in sizes] for _ in range(2)]
        for step in range(1, 5):
            numbers = AdamNumbers(corrected_rate(1e-3, 0.9, 0.999, step), (0.9, 0.999), 1e-8)
            rounding.step_(weights, drawn(sizes, step), *moments, numbers)
        results.append((weights, *moments, [rounding.generator.get_state()]))
    for ours, theirs in zip(*results, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            # The last elements of a tensor are rounded otherwise by torch, once in some thousand.
            assert (one != other).sum() <= 3
            assert torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-6)


@pytest.mark.parametrize("sizes", [[1], [3, 17, 400, 31], [0, 5], [16, 32, 70_001]], ids=str)
def test_norm_and_maximum_are_those_of_all_elements(sizes: list[int]) -> None:
    values = drawn(sizes, 0)
    everything = torch.cat(values).double()
    norm, maximum = kernels.norm_and_maximum(kernels.listed(values))
    assert norm == pytest.approx(everything.norm().item(), rel=1e-6)
    assert maximum == everything.abs().max().item()


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_exponents_are_counted_as_torchs_operations_count_them(sizes: list[int]) -> None:
    values = [torch.randn(size) * 10.0 ** torch.randint(-44, 38, (size,)) for size in sizes]
    values.append(torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-40, 3.4e38]))
    counts = torch.zeros(3, EXPONENT_BINS, dtype=torch.int64)
    kernels.count_exponents(kernels.listed(values), [0] * len(sizes) + [2], counts)
    kernels.count_exponents(kernels.listed(values[:1]), [1], counts)
    assert counts[0].equal(exponent_counts(values[:-1]))
    assert counts[1].equal(exponent_counts(values[:1]))
    assert counts[2].equal(exponent_counts(values[-1:]))
    assert counts.sum() == 2 * sizes[0] + sum(sizes[1:]) + 8


@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
def test_inner_products_and_mixtures_do_not_depend_on_threads(sizes: list[int]) -> None:
    results, before = [], torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        ours, theirs = drawn(sizes, 0), drawn(sizes, 1)
        products = kernels.inner_products(kernels.listed(ours), kernels.listed(theirs))
        for a, b, found in zip(ours, theirs, products, strict=True):
            wide = a.double(), b.double()
            expected = [torch.dot(x, y).item() for x, y in ((wide[0], wide[1]), (wide[0], wide[0]), (wide[1], wide[1]))]
            assert found == pytest.approx(expected, rel=1e-6, abs=1e-6 * len(a))
        kernels.mix_(kernels.listed(ours), kernels.listed(theirs), [0.25] * len(sizes), [0.5] * len(sizes))
        results.append((products, ours))
    torch.set_num_threads(before)
    (products, mixed), (again, mixed_again) = results
    assert products == again
    for one, other, a, b in zip(mixed, mixed_again, drawn(sizes, 0), drawn(sizes, 1), strict=True):
        assert torch.equal(one, other)
        assert torch.allclose(one, 0.25 * a + 0.5 * b, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("spoiled", "place"), [(math.inf, 0), (-math.inf, 20), (math.nan, 20)])
def test_what_is_not_finite_makes_the_maximum_nan(spoiled: float, place: int) -> None:
    values = drawn([7, 21], 0)
    values[1][place] = spoiled
    assert math.isnan(kernels.norm_and_maximum(kernels.listed(values))[1])


def test_autograd_hears_of_what_changes() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    with torch.no_grad():
        settings = kernels.AdamSettings(correction=1.0, eps=1e-8, step=0.1, shrink=1.0, sign=1.0, first_weight=0.1)
        lists = kernels.adam_lists([weight], *([row] for row in torch.ones(3, 3)))
        kernels.adam_(lists, settings)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("rows", [1, 4, 37])
@pytest.mark.parametrize("columns", [1, 4096, 70_001])
def test_rows_are_combined_as_a_product_would(rows: int, columns: int) -> None:
    matrix, factors = drawn([rows * columns, 2 * rows], 0)
    matrix, factors = matrix.view(rows, columns), factors.view(2, rows)
    out = torch.full((2, columns), math.nan)
    version = out._version
    assert kernels.combine_rows(matrix, factors, out)
    assert out._version > version
    torch.testing.assert_close(out, (factors.double() @ matrix.double()).float(), rtol=1e-5, atol=1e-5)
    before, threads = out.clone(), torch.get_num_threads()
    torch.set_num_threads(3 - threads)
    out.fill_(math.nan)
    assert kernels.combine_rows(matrix, factors, out)
    torch.set_num_threads(threads)
    assert torch.equal(out, before)


def test_rows_of_another_number_are_not_combined_and_lists_of_other_lengths_make_no_step() -> None:
    for factors, out in ((torch.ones(2, 4), torch.ones(2, 5)), (torch.ones(2, 3), torch.ones(2, 6))):
        with pytest.raises(ValueError, match=r"\[2, rows\] and \[2, columns\]"):
            kernels.combine_rows(torch.ones(3, 5), factors, out)
    one = [torch.ones(3)]
    assert kernels.adam_lists(one, one, one, [torch.ones(4)]) is None
    assert kernels.adam_lists(one, one, one, [torch.ones(3), torch.ones(1)]) is None
    assert kernels.adam_lists(one, one, one, [torch.ones(3).double()]) is None


def test_lists_serve_again_until_something_moves_and_gradients_are_let_go() -> None:
    weights, first, second = ([nn.Parameter(torch.ones(3)), torch.ones(2)] for _ in range(3))
    lists = kernels.adam_lists(weights, drawn([3, 2], 0), first, second)
    gradient = weakref.ref(lists.gradients.tensors[0])
    lasting = lists.lasting
    lists = kernels.adam_lists(weights, drawn([3, 2], 1), first, second, before=lasting)
    assert gradient() is None
    assert all(one is other for one, other in zip(lists.lasting, lasting, strict=True))
    weights[0].data, first[1] = torch.zeros(3), torch.zeros(2)
    lists = kernels.adam_lists(weights, drawn([3, 2], 2), first, second, before=lasting)
    assert list(lists.weights.addresses) == [tensor.data_ptr() for tensor in weights]
    assert list(lists.first.addresses) == [tensor.data_ptr() for tensor in first]
    assert lists.second is lasting[2]
