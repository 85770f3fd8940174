"""Adam on bfloat16 moments by our kernel: what torch's operations give, and of no tensor that it cannot go through."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from workbench.core import kernels
from workbench.core.kernels.library import kernel_library
from workbench.optim.adam_offload.host_adam import AdamNumbers, RoundedAdam, corrected_rate

pytestmark = pytest.mark.skipif(kernel_library() is None, reason="no C compiler on this machine (Debian: gcc)")


def drawn(sizes: list[int], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator) for size in sizes]


def trained(steps: int = 4) -> list[list[Tensor]]:
    sizes = [3, 65_536, 70_001, 200_000]
    weights, rounding = drawn(sizes, 0), RoundedAdam(seed=7)
    first, second = ([torch.zeros(size, dtype=torch.bfloat16) for size in sizes] for _ in range(2))
    for step in range(1, steps + 1):
        numbers = AdamNumbers(corrected_rate(1e-3, 0.9, 0.999, step), (0.9, 0.999), 1e-8, weight_decay=0.1)
        rounding.step_(weights, drawn(sizes, step), first, second, numbers)
    return [weights, first, second, [rounding.generator.get_state()]]


def test_rounded_moments_are_those_of_torchs_operations(request: pytest.FixtureRequest) -> None:
    ours = trained()
    request.getfixturevalue("without_kernels")
    for of_ours, of_torch in zip(ours, trained(), strict=True):
        for one, other in zip(of_ours, of_torch, strict=True):
            # The last elements of a tensor are rounded otherwise by torch, once in some thousand.
            assert (one != other).sum() <= 3
            assert torch.allclose(one.double(), other.double(), rtol=1e-2, atol=1e-6)


def test_any_number_of_threads_gives_the_same_bits() -> None:
    one, before = trained(), torch.get_num_threads()
    torch.set_num_threads(3 - before)
    other = trained()
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for pair in zip(one, other, strict=True) for a, b in zip(*pair, strict=True))


def test_autograd_hears_of_what_changes() -> None:
    weight = nn.Parameter(torch.ones(3))
    loss = (weight * weight).sum()
    first, second = ([torch.zeros(3, dtype=torch.bfloat16)] for _ in range(2))
    with torch.no_grad():
        RoundedAdam().step_([weight], [torch.ones(3)], first, second, AdamNumbers(0.1, (0.9, 0.999), 1e-8))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Sharded(Tensor):
    """Stands for tensors whose memory is only a part of them."""


def without_memory() -> Tensor:
    tensor = torch.ones(3)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("weights", "fit"),
    [
        ([], True),
        ([torch.ones(3), torch.ones(2, 2)], True),
        ([torch.ones(0)], True),
        ([torch.ones(9)[2:5]], True),
        ([nn.Parameter(torch.ones(3))], True),
        ([torch.ones(3, dtype=torch.float64)], False),
        ([torch.ones(3), torch.ones(2, dtype=torch.float16)], False),
        ([torch.ones(2, 3).t()], False),
        ([torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last)], False),
        ([torch.ones(3).to_sparse()], False),
        ([torch.ones(3), torch.ones(3, device="meta")], False),
        ([torch.ones(3).as_subclass(Sharded)], False),
        ([torch._neg_view(torch.ones(3))], False),
        ([without_memory()], False),
    ],
    ids=[
        *("none", "plain", "empty", "part", "parameter", "double", "mixed", "transposed", "channels-last", "sparse"),
        *("elsewhere", "sharded", "negated", "no-memory"),
    ],
)
def test_only_what_the_kernel_can_go_through_is_listed(weights: list[Tensor], fit: bool) -> None:
    gradients = [torch.ones(weight.shape) for weight in weights]
    moments = [[torch.zeros(weight.shape, dtype=torch.bfloat16) for weight in weights] for _ in range(2)]
    assert (kernels.adam_lists(weights, gradients, *moments) is not None) is fit


def test_lists_of_other_lengths_make_no_step() -> None:
    one, moment = [torch.ones(3)], [torch.zeros(3, dtype=torch.bfloat16)]
    assert kernels.adam_lists(one, one, moment, moment) is not None
    assert kernels.adam_lists(one, one, moment, [torch.zeros(4, dtype=torch.bfloat16)]) is None
    assert kernels.adam_lists(one, one, moment, moment * 2) is None
    assert kernels.adam_lists(one, one, moment, one) is None
