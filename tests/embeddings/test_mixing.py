"""The mixing hash: the published numbers, the same from all three implementations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workbench.optim.embeddings.mixing import (
    mix64,
    mix64_array,
    mix64_number,
    uniform_from,
)

INT64 = st.integers(-(2**63), 2**63 - 1)


def test_the_numbers_are_those_of_splitmix64() -> None:
    golden = 0x9E3779B97F4A7C15
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # splitmix64.c from state 0
    assert [mix64_number(i * golden) for i in range(3)] == published


@given(ids=st.lists(INT64, min_size=1, max_size=5), seed=st.integers(0, 2**70))
def test_arrays_and_tensors_are_mixed_like_python_numbers(ids: list[int], seed: int) -> None:
    expected = [mix64_number(i, seed) for i in ids]
    assert mix64_array(np.array(ids, dtype=np.int64), seed).tolist() == expected
    tensor = torch.tensor(ids)
    signed = [value - 2**64 if value >= 2**63 else value for value in expected]
    assert mix64(tensor, seed).tolist() == signed
    assert tensor.tolist() == ids
    assert uniform_from(mix64(tensor, seed)).tolist() == [(value >> 40) / 2**24 for value in expected]


@given(ids=st.lists(INT64, min_size=1, max_size=5), seed=st.integers(0, 9))
def test_the_arithmetic_for_other_devices_agrees(ids: list[int], seed: int) -> None:
    class Elsewhere(torch.Tensor):
        """A tensor of the CPU that says that it is not."""

        device = torch.device("meta")

    away = torch.tensor(ids).as_subclass(Elsewhere)
    mixed = torch.Tensor.as_subclass(mix64(away, seed), torch.Tensor)
    assert torch.equal(mixed, mix64(torch.tensor(ids), seed))


def test_no_two_ids_mix_to_the_same_and_every_bit_spreads() -> None:
    ids = torch.arange(-5000, 5000)
    mixed = mix64(ids, 3)
    assert len(set(mixed.tolist())) == 10_000
    flipped = mix64_array((ids ^ 1).numpy(), 3) ^ mixed.numpy().view(np.uint64)
    share = np.unpackbits(flipped.view(np.uint8)).mean()
    assert share == pytest.approx(0.5, abs=0.005)


def test_other_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"`ids` must be int64, got torch.int32"):
        mix64(torch.tensor([1], dtype=torch.int32))
