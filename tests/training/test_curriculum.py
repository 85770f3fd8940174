"""Inputs that grow: which sizes there are, when, what becomes of a batch, and what a network says to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import workbench
from tests.config.config_strategies import repeatable
from tests.kit.tasks import images, task_of
from workbench.config import BoostConfig
from workbench.methods.curriculum.method import (
    accepted_sizes,
    growing,
    resized_images,
    shortened,
    size_at,
    stage_of,
    stages_of,
    why_not_smaller,
)
from workbench.methods.curriculum.section import CurriculumSection
from workbench.tasks import Task
from workbench.training.task_look import network_facts

shares = st.floats(0.01, 1)


@repeatable
@given(full=st.integers(1, 600), relative=shares)
def test_sizes_are_whole_within_the_full_one_and_grow(full: int, relative: float) -> None:
    size = size_at(full, relative)
    assert 1 <= size <= full
    assert size <= size_at(full, min(1.0, 1.1 * relative))
    assert size_at(full, 1.0) == full
    twos = full & -full  # the largest power of two that divides the full size
    assert size == full or size % min(twos, 2 ** ((full // 4).bit_length() - 1) if full >= 4 else 1) == 0


@repeatable
@given(passes=st.integers(1, 300), start=st.floats(0.05, 0.95), until=st.floats(0.01, 1), stages=st.integers(1, 5))
def test_predicted_shares_are_those_of_the_passes(passes: int, start: float, until: float, stages: int) -> None:
    section = CurriculumSection(kind="resolution", start=start, until=until, stages=stages)
    predicted = stages_of(section, passes)
    counted: dict[float, int] = {}
    for index in range(passes):
        stage = stage_of(index, passes, until, stages)
        relative = start + (1 - start) * stage / stages if stage < stages else 1.0
        counted[relative] = counted.get(relative, 0) + 1
    assert predicted == [(size, n / passes) for size, n in counted.items()]
    assert [size for size, _ in predicted] == sorted(counted)


def test_a_whole_run_may_be_at_one_size_so_that_a_stage_can_be_timed() -> None:
    section = CurriculumSection(kind="resolution", start=0.5, until=1.0, stages=1)
    assert stages_of(section, 10_000) == [(0.5, 1.0)]
    assert stages_of(CurriculumSection(), 7) == [(1.0, 1.0)]


class Pair(NamedTuple):
    image: Tensor
    mask: Tensor


def test_images_and_the_maps_that_belong_to_them_are_resized_in_any_form() -> None:
    image = torch.arange(2 * 3 * 8 * 8.0).reshape(2, 3, 8, 8)
    mask = torch.arange(8)[:, None].expand(2, 8, 8)
    batch = {"pair": Pair(image, mask), "more": [torch.ones(2, 8), torch.ones(2, 8, 8), "kept"], "y": torch.ones(2)}
    small = resized_images(batch, 0.5)
    assert small["pair"].image.shape == (2, 3, 4, 4)
    torch.testing.assert_close(small["pair"].image.mean(), image.mean())  # pixels are averaged, not dropped
    assert small["pair"].mask[0, :, 0].tolist() == [1, 3, 5, 7]
    assert [getattr(one, "shape", one) for one in small["more"]] == [(2, 8), (2, 4, 4), "kept"]
    assert small["y"] is batch["y"]
    assert resized_images((torch.ones(2, 8), torch.ones(2)), 0.5) is None


def test_sequences_and_their_targets_keep_their_first_tokens() -> None:
    tokens = torch.arange(64).reshape(2, 32)
    batch = (tokens, tokens + 1, torch.ones(2, 32), torch.zeros(2, 5, dtype=torch.long), tokens > 3)
    short = shortened(batch, 0.5)
    assert torch.equal(short[0], tokens[:, :16])
    assert torch.equal(short[1], tokens[:, :16] + 1)
    assert [one.shape[1] for one in short[2:]] == [32, 5, 16]
    assert short[0].is_contiguous()
    assert shortened(torch.ones(2, 32), 0.5) is None
    sound = {"input_values": torch.ones(2, 32), "attention_mask": torch.ones(2, 32, dtype=torch.long), "labels": tokens}
    assert shortened(sound, 0.5) is None, "a shorter mask is no shorter input"


def test_inputs_grow_with_the_passes_and_end_at_full_size() -> None:
    batches = [torch.ones(1, 1, 32, 32)] * 12
    seen = [one.shape[2] for one in growing(batches, 10, "resolution", start=0.5, until=0.6, stages=2)]
    assert seen == [16] * 3 + [24] * 3 + [32] * 6


def test_batches_without_anything_to_shrink_are_told_of_once() -> None:
    with pytest.warns(UserWarning, match="the curriculum had no effect: the batches hold no token sequences") as told:
        assert [one.shape for one in growing([torch.ones(2, 4)] * 3, 3, "sequence")] == [(2, 4)] * 3
    assert len(told) == 1


class Fixed(nn.Module):
    """Takes one size only, or multiples of one."""

    def __init__(self, *, multiple: int = 0) -> None:
        super().__init__()
        self.multiple = multiple
        self.conv, self.norm, self.head = nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Linear(4, 2)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[2] % (self.multiple or 16):
            raise ValueError("another size")
        return self.head(self.dropout(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def test_sizes_are_tried_without_a_trace() -> None:
    torch.manual_seed(0)
    network = Fixed(multiple=8)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    network.norm.eval()
    drawn = torch.get_rng_state()
    found = accepted_sizes(cross_entropy, network, images(6)[0], "resolution", [0.25, 0.5, 0.75, 1.0])
    assert found == [0.5, 1.0]
    assert torch.equal(torch.get_rng_state(), drawn)
    assert network.training
    assert not network.norm.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    reason = why_not_smaller(cross_entropy, network, images(6)[0], "resolution", [0.5, 0.75])
    assert reason == "the loss can be computed with inputs of 8 x 8, 16 x 16, but not of 12 x 12"


def test_maps_go_with_their_images_and_where_they_cannot_the_size_stays() -> None:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        scores, target = model(batch[0]), batch[1]
        if target.is_floating_point():
            return F.binary_cross_entropy_with_logits(scores, target.view(scores.shape))
        return F.cross_entropy(torch.cat([scores, -scores], 1), target)

    network, x = nn.Conv2d(1, 1, 3, padding=1), torch.randn(2, 1, 16, 16)
    for target in (torch.ones(2, 16, 16, dtype=torch.long), torch.ones(2, 1, 16, 16), torch.ones(2, 16, 16)):
        assert why_not_smaller(loss, network, (x, target), "resolution") == ""
    channels_behind = why_not_smaller(loss, network, (x, torch.ones(2, 16, 16, 1)), "resolution")
    assert channels_behind == "the loss can be computed with inputs of 16 x 16, but not of 8 x 8"


def test_columns_of_integers_are_not_called_tokens() -> None:
    def takes_three(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        store, day, promotion = batch["columns"].unbind(1)
        return (store + day + promotion).float().mean()

    table = {"columns": torch.zeros(4, 3, dtype=torch.long), "target": torch.zeros(4)}
    reason = why_not_smaller(takes_three, nn.Linear(1, 1), table, "sequence")
    assert reason == "the loss can be computed with inputs of length 3, but not of length 2"


@pytest.mark.parametrize("fewest", [1, 3])
def test_two_samples_are_tried_and_the_whole_batch_where_they_have_no_loss(fewest: int) -> None:
    seen: list[int] = []

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        seen.append(len(batch[1]))
        if len(batch[1]) < fewest:
            raise ValueError("this loss compares samples")
        return cross_entropy(model, batch)

    assert why_not_smaller(loss, Fixed(multiple=8), images(6)[0], "resolution", [0.5]) == ""
    assert seen == ([2, 2] if fewest == 1 else [2, 2, len(images(6)[0][1]), len(images(6)[0][1])])


def task(multiple: int, seen: list[Any] | None = None) -> Task:
    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        if seen is not None:
            seen.append((model.training, batch[0].shape[2]))
        return cross_entropy(model, batch)

    return task_of(lambda: Fixed(multiple=multiple), images(6), loss=loss, evaluate=images(2))


GROWING = BoostConfig.from_dict(
    {"boost": {"mode": "disable_all"}, "curriculum": {"kind": "resolution", "start": 0.5, "until": 0.5, "stages": 1}}
)


def test_a_run_trains_on_growing_inputs_and_evaluates_at_full_size() -> None:
    seen: list[tuple[bool, int]] = []
    result = workbench.train(task(4, seen), GROWING, level="O0", steps=12, out=None, evaluate_every=3)
    assert result.plan.in_effect() == ("curriculum",)
    assert [size for training, size in seen if training][-12:] == [8] * 6 + [16] * 6
    first = next(index for index, (training, _) in enumerate(seen) if training)
    assert {size for _, size in seen[:first]} == {16, 8}  # tried before training
    assert {size for training, size in seen[first:] if not training} == {16}


def test_a_network_of_one_size_trains_at_full_size_and_says_so() -> None:
    seen: list[tuple[bool, int]] = []
    with pytest.warns(UserWarning, match="curriculum is not in effect because the loss can be computed with inputs of"):
        result = workbench.train(task(0, seen), GROWING, level="O0", steps=4, out=None)
    assert result.plan.in_effect() == ()
    assert {size for training, size in seen if training} == {16}


def test_facts_tell_a_search_what_grows_here() -> None:
    facts = network_facts(task(4))
    assert facts.no_resolution == ""
    assert facts.no_sequence == "the batches hold no token sequences (2-D integer tensors as first input)"
    assert not GROWING.resolve("O0", network=facts).dropped
    one_size = network_facts(task(0))
    assert GROWING.resolve("O0", network=one_size).in_effect() == ()
