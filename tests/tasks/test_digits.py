"""The handwritten digits: a clean split, networks that can be traced, and accuracies that are reached."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits
from torch import Tensor, nn

from tests.kit.plain_training import trained
from workbench.tasks import load_task
from workbench.tasks.digits import ResNet, load_images, read_digits, split_indices

TASKS = ["digits-lenet", "digits-resnet"]


@pytest.fixture
def unread() -> Iterator[None]:
    """Let the digits be read anew."""
    read_digits.cache_clear()
    yield
    read_digits.cache_clear()


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_the_digits_are_scikit_learns_also_of_a_release_that_keeps_its_data_elsewhere(
    is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if is_elsewhere:
        elsewhere = importlib.util.find_spec("sklearn")
        assert elsewhere is not None
        elsewhere.submodule_search_locations = [str(tmp_path)]
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    pixels, classes = read_digits()
    np.testing.assert_array_equal(pixels, load_digits().data)
    np.testing.assert_array_equal(classes, load_digits().target)
    assert classes.dtype == np.int64


@pytest.mark.long
def test_scikit_learn_is_not_imported_for_them() -> None:
    program = "import sys, workbench.tasks.digits as digits; digits.read_digits(); print(*sys.modules)"
    said = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert "numpy" in said
    assert "sklearn" not in said


@settings(max_examples=30, deadline=None)
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5), seed=st.integers(0, 2**40))
def test_a_split_is_a_partition_with_the_same_share_of_every_class(counts: list[int], seed: int) -> None:
    targets = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    if len(targets) == 0:
        return
    training, evaluation = split_indices(targets, seed, evaluation_share=0.25)
    assert sorted(torch.cat([training, evaluation]).tolist()) == list(range(len(targets)))
    for value, count in enumerate(counts):
        assert int((targets[evaluation] == value).sum()) == round(0.25 * count)


def test_the_seed_chooses_the_split() -> None:
    _, targets = load_images()
    first, again, other = (split_indices(targets, seed)[1].tolist() for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 450


@pytest.mark.parametrize(("name", "n_batches"), [("digits-resnet", 120), ("digits-autoencoder", 20)])
def test_training_never_sees_an_evaluation_image(name: str, n_batches: int) -> None:
    task = load_task(name)
    kept = torch.cat([x for x, _ in task.evaluation_batches(4)]).flatten(1)
    assert len(kept) == 450
    stream = task.batches(4)
    seen = torch.cat([next(stream)[0] for _ in range(n_batches)]).flatten(1)  # nearly two epochs and more
    images = load_images()[0].flatten(1)
    assert len(images.unique(dim=0)) == len(images)  # else the next line would prove nothing
    assert torch.cdist(seen, kept, compute_mode="donot_use_mm_for_euclid_dist").min() > 0


def test_images_are_centred_and_scaled() -> None:
    images, targets = load_images()
    assert images.shape == (1797, 1, 8, 8)
    assert targets.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images.mean().item() == pytest.approx(0.0, abs=1e-3)
    assert images.std().item() == pytest.approx(1.0, abs=1e-3)


def test_the_resnet_is_a_resnet20() -> None:
    model = ResNet()
    kinds = [type(module) for module in model.modules()]
    n_convolutions = sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in model.modules())
    assert n_convolutions + kinds.count(nn.Linear) == 20
    assert kinds.count(nn.BatchNorm2d) == 21  # 9 in the middle of a block and 2 behind a projection: LessBN takes 11
    assert sum(p.numel() for p in model.parameters()) == 272_186


@pytest.mark.parametrize("name", TASKS)
def test_a_model_depends_on_the_seed_before_it_alone(name: str) -> None:
    def weights(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(task.new_model().parameters())

    task = load_task(name)
    assert torch.equal(weights(0), weights(0))
    assert not torch.equal(weights(0), weights(1))


def test_the_lenet_learns() -> None:
    assert trained(load_task("digits-lenet"), seed=0, n_steps=300)[1] >= 0.96


@pytest.mark.slow
def test_the_resnet_learns_fast() -> None:
    assert trained(load_task("digits-resnet"), seed=0, n_steps=60)[1] >= 0.9


@pytest.mark.long
def test_the_resnet_reaches_97_percent_within_200_steps() -> None:
    assert trained(load_task("digits-resnet"), seed=0, n_steps=200)[1] >= 0.97


def test_the_same_seed_gives_the_same_bits() -> None:
    task = load_task("digits-resnet")
    first, second = (nn.utils.parameters_to_vector(trained(task, 1, 4)[0].parameters()) for _ in range(2))
    assert torch.equal(first, second)
