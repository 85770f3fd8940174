"""Batches of any structure: moved as they are, counted by their first tensor."""

from __future__ import annotations

import copy
import itertools
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.kit.tasks import task_of
from workbench import Task, train
from workbench.core.batch import batch_size_of, held_by_object, mapped, move_batch
from workbench.methods.batch.method import concatenated, parts_of
from workbench.tasks.batches import digest_of_batches
from workbench.training.task_look import look_at


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


class Held(MutableMapping[str, Any]):
    """A mapping that is no dict: it keeps its entries in one."""

    def __init__(self, **parts: Any) -> None:
        self.parts = parts

    def __getitem__(self, key: str) -> Any:
        return self.parts[key]

    def __setitem__(self, key: str, part: Any) -> None:
        self.parts[key] = part

    def __delitem__(self, key: str) -> None:
        del self.parts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


def test_a_mapping_of_one_s_own_class_stays_as_it_is_when_batches_are_made_of_it() -> None:
    batch = Held(x=torch.ones(2))
    merged, (half, _) = concatenated([batch, batch]), parts_of(batch, 2)
    assert (type(merged), type(half)) == (Held, Held)
    assert [len(one["x"]) for one in (merged, half, batch)] == [4, 1, 2]
    assert mapped(batch, Tensor.double)["x"].dtype == torch.float64


def test_the_data_set_of_a_loader_is_told_which_epoch_it_is() -> None:
    class Told(torch.utils.data.TensorDataset):
        epochs: list[int] = []  # noqa: RUF012

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data = Told(torch.ones(4, 3), torch.ones(4, 1))
    loader = torch.utils.data.DataLoader(data, batch_size=2)
    task = task_of(lambda: nn.Linear(3, 1), loader, loss=nn.MSELoss(), metric="loss")
    assert len([*itertools.islice(task.batches(0), 6)]) == 6
    assert data.epochs == [0, 1, 2]


class Graphs:
    """Some graphs as one: ``x [nodes, 2]``, ``batch [nodes]`` is the graph of each, and ``y [graphs]``."""

    def __init__(self, sizes: Sequence[int], **more: Any) -> None:
        self.x = torch.ones(sum(sizes), 2)
        self.batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.y = torch.arange(len(sizes)) % 2
        self.x[:, 0] = 2.0 * self.y[self.batch] - 1.0
        self._cache = torch.zeros(1)
        for name, value in more.items():
            setattr(self, name, value)

    def to(self, device: str) -> Graphs:
        moved = copy.copy(self)
        vars(moved).update({name: mapped(part, lambda one: one.to(device)) for name, part in vars(self).items()})
        return moved


class Listed(Graphs):
    """Graphs that are taken apart and put together by their class, as PyTorch Geometric's."""

    def to_data_list(self) -> list[int]:
        return torch.bincount(self.batch).tolist()

    @classmethod
    def from_data_list(cls, sizes: list[int]) -> Listed:
        return cls(sizes)


class Whole(nn.Module):
    """Takes a batch as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, batch: Any) -> Tensor:
        return self.pooled(batch.x, batch.batch)

    def pooled(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.head(torch.zeros(int(batch.max()) + 1, 2).index_add(0, batch, x))


class ByName(Whole):
    """Takes a part of a batch by name."""

    def forward(self, x: Tensor, batch: Tensor) -> Tensor:
        return self.pooled(x, batch)


def test_an_object_is_a_batch_that_says_what_it_holds() -> None:
    graphs = Graphs([3, 5])
    assert set(held_by_object(graphs) or {}) == {"x", "batch", "y"}
    assert batch_size_of(graphs) == batch_size_of((graphs, torch.zeros(2))) == 2
    assert batch_size_of(Graphs([3, 5], num_graphs=7)) == 7
    assert batch_size_of(SimpleNamespace(x=torch.ones(3, 2))) == 3
    assert move_batch(graphs, "meta").x.device.type == "meta"
    assert digest_of_batches([graphs]) == digest_of_batches([Graphs([3, 5])]) != digest_of_batches([Graphs([4, 4])])
    for other in (nn.Linear(2, 2), torch.ones(2), {"x": torch.ones(2)}, SimpleNamespace(x=3), 3, "text", None):
        assert held_by_object(other) is None


def test_what_a_library_gives_as_a_dictionary_is_what_an_object_holds() -> None:
    graphs = SimpleNamespace(store=torch.ones(9), to_dict=lambda: {"x": torch.ones(3), ("a", "to", "b"): {"y": 1}})
    assert set(held_by_object(graphs) or {}) == {"x", ("a", "to", "b")}
    broken = SimpleNamespace(store=torch.ones(9), to_dict=lambda orient: {})
    assert held_by_object(broken) is None


@pytest.mark.parametrize("model", [Whole, ByName])
@pytest.mark.parametrize("is_function", [False, True], ids=["criterion", "function"])
def test_a_task_trains_and_is_judged_on_objects(model: type[Whole], is_function: bool, tmp_path: Path) -> None:
    criterion = nn.CrossEntropyLoss()
    batches = [Graphs([3, 5, 2]), Graphs([4, 4])]

    def loss(network: Whole, batch: Graphs) -> Tensor:
        scores: Tensor = criterion(network.pooled(batch.x, batch.batch), batch.y)
        return scores

    task = Task(
        name="graphs",
        model=model,
        loss=loss if is_function else criterion,
        optimizer=lambda named: torch.optim.SGD([one for _, one in named], lr=0.1),
        train=batches,
        evaluate=batches,
        metric="accuracy",
    )
    assert train(task, steps=40, out=tmp_path).metric == 1.0
    assert "cannot be concatenated without a method joined(batches)" in look_at(task, torch.device("cpu"), 4).no_merging


def test_objects_are_put_together_by_their_own_methods_or_not_at_all() -> None:
    one, other = Listed([3, 5]), Listed([2])
    both = concatenated([one, other])
    assert type(both) is Listed
    assert both.batch.tolist() == [0] * 3 + [1] * 5 + [2] * 2
    joinable = Graphs([3])
    joinable.joined = len  # type: ignore[attr-defined]
    assert concatenated([joinable, joinable]) == 2
    for change in (lambda: concatenated([Graphs([1])] * 2), lambda: list(parts_of(Graphs([1, 1]), 2))):
        with pytest.raises(ValueError, match=r"batches of class Graphs cannot be concatenated without .* nor be cut"):
            change()


def test_a_batch_without_tensors_has_no_size() -> None:
    with pytest.raises(ValueError, match="at least one tensor, got dict"):
        batch_size_of({"text": "a"})
    with pytest.raises(ValueError, match=r"got SimpleNamespace; .* let the loader's collate_fn return one of them"):
        batch_size_of(SimpleNamespace(text="a"))
