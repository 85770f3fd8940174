"""Batches of any structure: moved as they are, counted by their first tensor."""

from __future__ import annotations

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from workbench.core.batch import batch_size_of, mapped, move_batch
from workbench.methods.batch.method import concatenated, parts_of


def test_a_batch_moves_with_its_structure() -> None:
    point = namedtuple("point", ["x", "y"])  # untyped on purpose: users have such batches
    batch = {"pair": (torch.ones(2), [torch.zeros(1), "text"]), "named": point(torch.ones(1), 3)}
    moved = move_batch(batch, "meta")
    assert moved["pair"][0].device.type == moved["pair"][1][0].device.type == moved["named"].x.device.type == "meta"
    assert moved["pair"][1][1] == "text"
    assert isinstance(moved["pair"], tuple)
    assert isinstance(moved["named"], point)
    assert moved["named"].y == 3


def test_a_packed_sequence_moves_itself() -> None:
    packed = nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(2, 2)])
    moved = move_batch((packed, torch.ones(2)), "meta")[0]
    assert isinstance(moved, nn.utils.rnn.PackedSequence)
    assert (moved.data.device.type, moved.batch_sizes.device.type) == ("meta", "cpu")


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


class Encoding(UserDict[str, Any]):
    """A mapping whose entries are attributes, too, as those of Hugging Face's tokenizers."""

    lengths: tuple[int, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name == "data" or name not in self.data:
            raise AttributeError(name)
        return self.data[name]


def test_a_mapping_stays_of_its_kind() -> None:
    batch = Encoding(input_ids=torch.arange(4))
    batch.lengths = (2, 2)
    for changed in (move_batch(batch, "cpu"), *parts_of(batch, 2), concatenated([batch, batch])):
        assert type(changed) is Encoding
        assert changed.lengths == (2, 2)
    assert [part.input_ids.tolist() for part in parts_of(batch, 2)] == [[0, 1], [2, 3]]
    assert batch.input_ids.tolist() == [0, 1, 2, 3]
    defaults = defaultdict(lambda: torch.zeros(1), x=torch.ones(2))
    assert concatenated([defaults, defaults])["another"].tolist() == [0]
    assert type(mapped(MappingProxyType({"x": torch.ones(2)}), Tensor.double)) is dict  # it cannot be copied
    assert move_batch(batch, "cpu") is batch  # where it is already


class Graph:
    """Holds tensors where nobody looks for them, as the objects of graph libraries do."""

    def __init__(self) -> None:
        self.x = torch.ones(3, 2)


def test_a_batch_without_tensors_has_no_size() -> None:
    with pytest.raises(ValueError, match="at least one tensor, got dict"):
        batch_size_of({"text": "a"})
    with pytest.raises(ValueError, match=r"got Graph; .* let the loader's collate_fn return one of them"):
        batch_size_of(Graph())
