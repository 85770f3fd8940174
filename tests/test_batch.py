"""Batches of any structure: moved as they are, counted by their first tensor."""

from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest
import torch

from workbench.core.batch import batch_size_of, move_batch


def test_a_batch_moves_with_its_structure() -> None:
    point = namedtuple("point", ["x", "y"])  # untyped on purpose: users have such batches
    batch = {"pair": (torch.ones(2), [torch.zeros(1), "text"]), "named": point(torch.ones(1), 3)}
    moved = move_batch(batch, "meta")
    assert moved["pair"][0].device.type == moved["pair"][1][0].device.type == moved["named"].x.device.type == "meta"
    assert moved["pair"][1][1] == "text"
    assert isinstance(moved["pair"], tuple)
    assert isinstance(moved["named"], point)
    assert moved["named"].y == 3


def test_a_batch_already_there_is_not_copied() -> None:
    tensor = torch.ones(2)
    assert move_batch((tensor,), "cpu")[0] is tensor


@pytest.mark.parametrize(
    "batch",
    [torch.ones(4, 2), (torch.ones(4), torch.ones(9)), OrderedDict(text="a", x=torch.ones(4)), [[torch.ones(4)]]],
    ids=["tensor", "pair", "mapping", "nested"],
)
def test_the_batch_size_is_the_first_dimension_of_the_first_tensor(batch: object) -> None:
    assert batch_size_of(batch) == 4


def test_a_batch_without_tensors_has_no_size() -> None:
    with pytest.raises(ValueError, match="at least one tensor, got dict"):
        batch_size_of({"text": "a"})
