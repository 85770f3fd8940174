"""Factors, blocks and inverses against their definitions, in float64.

curvlinops 3.0.1 (KFAC of the empirical Fisher matrix, expanded) has the same products of factors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from tests.optimizers.thor_formulas import block_inverse, dense, precondition
from workbench.optim.thor.collection import find_layers, patches, same_padding
from workbench.optim.thor.matrices import FactorBlocks, block_ranges
from workbench.optim.thor.optimizer import Thor

CPU = torch.device("cpu")
Ints = tuple[int, ...]


def covariance(size: int, seed: int) -> Tensor:
    rows = torch.randn(size, size + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return rows @ rows.T / size


@given(st.integers(1, 700), st.integers(1, 200))
@example(128, 128)
@example(129, 128)
def test_blocks_cover_every_row_once(size: int, block_size: int) -> None:
    ranges = block_ranges(size, block_size)
    assert [row for begin, end in ranges for row in range(begin, end)] == list(range(size))
    assert all(end - begin == block_size for begin, end in ranges[:-1])


@settings(max_examples=20)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.integers(1, 20), st.floats(1e-3, 10.0))
@example([1], 1, 1.0)
@example([16, 17, 15], 16, 0.1)
def test_padded_blocks_have_the_inverses_of_the_blocks(sizes: list[int], block_size: int, damping: float) -> None:
    blocks = FactorBlocks(sizes, block_size, CPU, torch.float64)
    factors = [covariance(size, seed) for seed, size in enumerate(sizes)]
    for number, factor in enumerate(factors):
        blocks.add(number, torch.linalg.cholesky(factor))
    everything = torch.ones(len(sizes), dtype=torch.bool)
    dampings = torch.full((len(sizes),), damping, dtype=torch.float64)
    failed = blocks.invert_(dampings, torch.ones_like(dampings), everything)
    assert not failed.any()
    traces = blocks.traces()
    for number, factor in enumerate(factors):
        whole = torch.zeros_like(factor)
        for begin, end in block_ranges(len(factor), block_size):
            damped = factor[begin:end, begin:end] + damping * torch.eye(end - begin, dtype=torch.float64)
            whole[begin:end, begin:end] = torch.linalg.inv(damped)
        torch.testing.assert_close(dense(blocks, number, blocks.inverses), whole, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(block_inverse(factor, damping, block_size), whole, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(traces[number], factor.trace())
    assert all(values.isfinite().all() for values in blocks.inverses.values())  # padding stays what it was


def test_only_the_chosen_factors_change_and_a_failed_one_keeps_its_inverse() -> None:
    blocks = FactorBlocks([6, 6, 6], 4, CPU, torch.float64)
    good, bad = covariance(6, 0), covariance(6, 1)
    bad[1, 1] = -5.0  # in the first block
    for number, factor in enumerate((good, bad, good)):
        for begin, end, view in blocks.views(number, blocks.factors):
            view.copy_(factor[begin:end, begin:end])
    ones = torch.ones(3, dtype=torch.float64)
    failed = blocks.invert_(ones, ones, torch.tensor([True, True, False]))
    assert failed.tolist() == [False, True, False]
    torch.testing.assert_close(dense(blocks, 0, blocks.inverses), block_inverse(good, 1.0, 4))
    unit = torch.eye(6, dtype=torch.float64)
    assert torch.equal(dense(blocks, 2, blocks.inverses), unit)
    kept = dense(blocks, 1, blocks.inverses)
    assert torch.equal(kept[:4, :4], unit[:4, :4])
    torch.testing.assert_close(kept[4:, 4:], block_inverse(bad[4:, 4:], 1.0))
    damping = blocks.rescue_(1, 1.0, 1.0)
    assert damping == 10.0
    rescued = dense(blocks, 1, blocks.inverses)
    torch.testing.assert_close(rescued[:4, :4], block_inverse(bad[:4, :4], 10.0))
    torch.testing.assert_close(rescued[4:, 4:], kept[4:, 4:])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_factor_that_is_not_finite_never_becomes_an_inverse(value: float) -> None:
    blocks = FactorBlocks([3], 4, CPU, torch.float32)
    for _, _, view in blocks.views(0, blocks.factors):
        view.copy_(torch.diag(torch.tensor([1.0, value, 1.0])))
    assert blocks.invert_(torch.ones(1), torch.ones(1), torch.tensor([True])).tolist() == [True]
    assert torch.equal(dense(blocks, 0, blocks.inverses), torch.eye(3))


@settings(max_examples=30)
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(5, 20), st.integers(5, 20)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
)
def test_patches_are_those_of_unfold(shape: Ints, kernel: Ints, stride: Ints, dilation: Ints, padding: Ints) -> None:
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    seen = patches(images, kernel, stride, dilation, (padding[1], padding[1], padding[0], padding[0]))
    unfolded = F.unfold(images, kernel, dilation, padding, stride)
    found = seen.permute(3, 0, 1, 2, 4, 5).reshape(unfolded.shape)
    assert torch.equal(found, unfolded)


@given(st.integers(1, 9), st.integers(1, 40), st.integers(1, 40))
def test_every_so_many_positions_are_kept_and_at_least_one(every: int, down: int, across: int) -> None:
    images = torch.arange(float(down * across)).view(1, 1, down, across)
    kept = patches(images, (1, 1), every=every)[0, 0, 0, 0]
    begin = [min((every - 1) // 2, length - 1) for length in (down, across)]
    assert torch.equal(kept, images[0, 0, begin[0] :: every, begin[1] :: every])
    assert kept.numel() >= 1


@given(st.integers(1, 30), st.integers(1, 7), st.integers(1, 4))
def test_same_padding_gives_a_position_per_stride(size: int, kernel: int, stride: int) -> None:
    before, after = same_padding(size, kernel, stride)
    assert 0 <= after - before <= 1
    if kernel >= stride:
        assert (size + before + after - kernel) // stride + 1 == -(-size // stride)


CONVOLUTIONS: list[dict[str, Any]] = [
    {"kernel_size": 3},
    {"kernel_size": 3, "padding": 1, "stride": 2},
    {"kernel_size": (3, 1), "padding": "same"},
    {"kernel_size": 2, "padding": "same", "dilation": 2},
    {"kernel_size": 3, "padding": 2, "padding_mode": "reflect"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "circular", "stride": 3},
]


@pytest.mark.parametrize("options", CONVOLUTIONS, ids=str)
def test_a_convolutions_step_is_that_of_explicit_factors(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(2, 3, **options).double()
    images = torch.randn(5, 2, 9, 8, dtype=torch.float64)
    target = torch.randn_like(conv(images))
    output = conv(images)
    output.retain_grad()
    loss = (output - target).square().sum() / len(images)
    loss.backward()
    # The definition: the kernel's gradient for one position is dy x^T, whatever the padding.
    rows = []
    for k in range(conv.weight[0].numel()):  # what meets weight k at each position, by asking the convolution
        probe = torch.zeros_like(conv.weight[:1])
        probe.view(-1)[k] = 1.0
        rows.append(conv._conv_forward(images, probe.repeat(3, 1, 1, 1), None)[:, 0].reshape(-1))
    x = torch.stack(rows)
    dy = output.grad.transpose(0, 1).reshape(3, -1)
    torch.testing.assert_close(dy @ x.T, conv.weight.grad.flatten(1))
    a, g = x @ x.T / x.shape[1], len(images) * dy @ dy.T
    pi = ((a.trace() / len(a)) / (g.trace() / len(g))).sqrt().item()
    floor = float(a.trace() / len(a)) * float(g.trace() / len(g)) / 2
    root = max(0.2, floor) ** 0.5
    expected = precondition(conv.weight.grad, block_inverse(a, root * pi, 5), block_inverse(g, root / pi, 5))

    before, gradient = conv.weight.detach().clone(), conv.weight.grad.clone()
    again = conv(images)
    optimizer = Thor(conv, 1.0, 0.2, 0.0, block_size=5, kl_clip=float("inf"), damping_floor=0.5)
    conv.zero_grad()
    ((conv(images) - target).square().sum() / len(images)).backward()
    del again
    torch.testing.assert_close(conv.weight.grad, gradient)
    optimizer.step()
    torch.testing.assert_close(before - conv.weight.detach(), expected, rtol=1e-9, atol=1e-11)


def test_rows_that_are_sampled_estimate_the_same_factors() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(2), nn.Linear(400, 3)).double()
    images = torch.randn(64, 1, 20, 20, dtype=torch.float64)
    found = []
    for max_rows in (None, 3000):
        optimizer = Thor(net, 0.0, 0.1, 0.0, max_rows=max_rows)
        net.zero_grad()
        net(images).square().mean().backward()
        tallies = [layer.tally for layer in optimizer.preconditioner.layers]
        assert max_rows is None or all(0 < tally.g_used <= max_rows for tally in tallies)
        optimizer.step()
        blocks = optimizer.preconditioner.blocks
        found.append([dense(blocks, number, blocks.factors) for number in range(len(blocks.sizes))])
        optimizer.preconditioner.release()
    for exact, sampled in zip(*found, strict=True):
        # 3000 of 25600 positions: a few hundredths of the largest entry
        assert (exact - sampled).abs().max() < 0.15 * exact.abs().max()
        assert not torch.equal(exact, sampled) or len(exact) in (3, 400)


def test_every_layer_is_sorted_with_a_reason() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 3)
            self.grouped = nn.Conv2d(4, 4, 3, groups=2)
            self.up = nn.ConvTranspose2d(4, 4, 2)
            self.line = nn.Conv1d(4, 4, 3)
            self.bn = nn.BatchNorm2d(4)
            self.norm = nn.LayerNorm(4)
            self.table = nn.Embedding(10, 4)
            self.head = nn.Linear(4, 10, bias=False)
            self.head.weight = self.table.weight
            self.attention = nn.MultiheadAttention(4, 1)
            self.plain = nn.Linear(4, 4)
            self.patched = nn.Linear(4, 4)
            self.patched.forward = lambda x: x  # type: ignore[method-assign]
            self.frozen = nn.Linear(4, 4)
            self.frozen.requires_grad_(False)
            self.turning = nn.Linear(4, 4, bias=False, dtype=torch.complex64)
            self.scale = nn.Parameter(torch.ones(()))

    net = Odd()
    layers, normalizations, others = find_layers(net, [p for p in net.parameters() if p.requires_grad])
    assert [(layer.name, layer.kind) for layer in layers] == [("conv", "conv"), ("plain", "linear")]
    assert [id(p) for p in normalizations] == [id(net.norm.weight), id(net.norm.bias)]
    biased = ("conv", "grouped", "up", "line", "bn", "attention.out_proj", "plain", "patched")
    assert {entry.name: entry.reason for entry in others} == {
        **{f"{name}.bias": "bias" for name in biased},
        "scale": "parameter of a Odd",
        "grouped.weight": "grouped convolution",
        "up.weight": "parameter of a ConvTranspose2d",
        "line.weight": "parameter of a Conv1d",
        "bn.weight": "parameter of a BatchNorm2d",
        "table.weight": "shared by several layers",
        "attention.in_proj_weight": "parameter of a MultiheadAttention",
        "attention.in_proj_bias": "parameter of a MultiheadAttention",
        "attention.out_proj.weight": "MultiheadAttention uses it without calling its layer",
        "patched.weight": "its module's forward was replaced",
        "turning.weight": "complex weight",
    }
