"""Batches of any form, concatenated and cut: every sample stays whole, or the batch is refused with a sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from workbench.core.batch import batch_size_of
from workbench.methods.batch.method import concatenated, parts_of, resized


def detection(n_samples: int, begin: int = 0, first_boxes: int = 1) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """Return images of the value of their number, and one target each, with one more box than the last."""
    numbers = range(begin, begin + n_samples)
    targets = [{"boxes": torch.full((first_boxes + i, 4), 1.0 * number)} for i, number in enumerate(numbers)]
    return torch.arange(begin, begin + n_samples, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, 8, 8), targets


def numbers_of(images: Any) -> list[float]:
    return [float(image.flatten()[0]) for image in images]


def test_every_image_keeps_its_own_target() -> None:
    batches = [detection(4), detection(4, begin=4), detection(2, begin=8, first_boxes=2)]
    images, targets = concatenated(batches)
    assert numbers_of(images) == numbers_of(one["boxes"] for one in targets) == list(range(10))
    assert [len(one["boxes"]) for one in targets] == [1, 2, 3, 4, 1, 2, 3, 4, 2, 3]
    for (images, targets), numbers in zip(parts_of(batches[0], 2), ([0, 1], [2, 3]), strict=True):
        assert numbers_of(images) == numbers_of(one["boxes"] for one in targets) == numbers
        assert [len(one["boxes"]) for one in targets] == [number + 1 for number in numbers]


def test_images_of_several_sizes_come_in_tuples_of_samples() -> None:
    def batch(begin: int) -> tuple[tuple[Tensor, ...], tuple[dict[str, Tensor], ...]]:
        images, targets = detection(4, begin)
        return tuple(image[:, : 5 + i] for i, image in enumerate(images)), tuple(targets)

    assert batch_size_of(batch(0)) == 4
    images, targets = concatenated([batch(0), batch(4)])
    assert isinstance(images, tuple)
    assert numbers_of(images) == numbers_of(one["boxes"] for one in targets) == list(range(8))
    assert [numbers_of(images) for images, _ in parts_of(batch(0), 2)] == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    "values",
    [list("abcd"), tuple("abcd"), np.arange(4), [torch.ones(n + 1) for n in range(4)], [np.ones(2)] * 4, [None] * 4],
    ids=["texts", "tuple", "array", "tensors", "arrays", "nothing"],
)
def test_what_is_as_long_as_the_batch_is_regrouped_by_sample(values: Any) -> None:
    batch = {"x": torch.arange(4), "values": values}
    both = concatenated([batch, batch])
    assert type(both["values"]) is type(values)
    assert len(both["x"]) == len(both["values"]) == 8
    for part, place in zip(parts_of(both, 4), range(0, 8, 2), strict=True):
        assert len(part["x"]) == len(part["values"]) == 2
        assert all(one is two or one == two for one, two in zip(part["values"], both["values"][place:], strict=False))


def test_several_inputs_and_several_targets_are_taken_whole() -> None:
    x, y = torch.arange(8), torch.arange(8.0)
    for batch in (((x, x), y), ((x, x), (y, y)), [{"a": x}, {"a": y}], ([{"a": x}, {"a": x}], y)):
        both, half = concatenated([batch, batch]), next(iter(parts_of(batch, 2)))
        assert batch_size_of(batch) == 8
        assert len(both[0]) == len(half[0]) == len(batch[0])
        assert (batch_size_of(both), batch_size_of(half)) == (16, 4)


def test_what_belongs_to_no_sample_is_kept_where_all_batches_agree() -> None:
    batch = {"mask": torch.ones(1, 3), "x": torch.ones(8, 3), "size": (224, 224), "share": torch.tensor(0.5), "n": 3}
    for regrouped in (concatenated([batch, batch]), *parts_of(batch, 2)):
        assert regrouped["mask"].shape == (1, 3)
        assert (regrouped["size"], regrouped["share"].item(), regrouped["n"]) == ((224, 224), 0.5, 3)
    with pytest.raises(ValueError, match=r"batch\['mask'\] holds Tensor values that differ from batch to batch"):
        concatenated([batch, batch | {"mask": torch.zeros(1, 3)}])
    with pytest.raises(ValueError, match="holds dict entries that differ from batch to batch"):
        concatenated([batch, {"x": batch["x"]}])
    with pytest.raises(ValueError, match="holds NoneType values that differ from batch to batch"):
        concatenated([batch | {"n": None}, batch])


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        ((torch.ones(4, 3, 8, 8), torch.ones(10, 6)), r"4 rows holds a Tensor of shape \(10, 6\) at batch\[1\]"),
        (
            {"x": torch.ones(4, 2), "loss": {"weights": torch.ones(3)}},
            r"shape \(3,\) at batch\['loss'\]\['weights'\], .*give it a first dimension of 1 if it is the same for all",
        ),
        ((torch.ones(4, 2), np.ones(3)), r"4 rows holds a ndarray of shape \(3,\)"),
        ((torch.ones(4, 2), [torch.ones(4), torch.ones(5)]), r"4 rows holds a Tensor of shape \(5,\)"),
        ((torch.ones(7, 4, 2), torch.ones(4)), r"7 rows holds a Tensor of shape \(4,\)"),
        ((nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(2)]), torch.ones(2)), "packed sequences cannot be"),
        ((torch.ones(4), [torch.ones(4) for _ in range(4)]), "a list of 4 tensors of that length may hold 4 samples"),
    ],
    ids=["boxes of all images", "class weights", "array", "list", "time first", "packed", "ambiguous"],
)
def test_what_cannot_be_divided_is_refused_both_ways(batch: Any, why: str) -> None:
    with pytest.raises(ValueError, match=f"{why}.*leave `batch.factor` at 1"):
        concatenated([batch, batch])
    with pytest.raises(ValueError, match=f"{why}.*leave `batch.factor` at 1"):
        list(parts_of(batch, 2))


def test_another_batch_tells_several_inputs_from_samples() -> None:
    inputs = [((torch.ones(n), torch.ones(n)), torch.ones(n)) for n in (4, 2)]
    assert [len(one) for one in concatenated(inputs)[0]] == [6, 6]
    samples = [(torch.ones(2), [torch.ones(n), torch.ones(2)]) for n in (2, 3)]
    assert [len(one) for one in concatenated(samples)[1]] == [2, 2, 3, 2]


@pytest.mark.parametrize(
    ("full", "last", "sizes"),
    [(8, 5, [2, 3]), (8, 3, [3]), (8, 1, [1]), (32, 13, [3, 3, 4, 3]), (4, 3, [1, 1, 1]), (1, 1, [1])],
    ids=["two parts", "one part", "single", "all parts", "single samples asked for", "no smaller ones"],
)
def test_a_short_last_batch_is_not_cut_into_single_samples(full: int, last: int, sizes: list[int]) -> None:
    parts = [len(part) for part in resized([torch.ones(full), torch.ones(last)], 0.25)]
    assert parts == [max(full // 4, 1)] * min(full, 4) + sizes
