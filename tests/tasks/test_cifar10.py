"""CIFAR-10 from a folder: what the published form says, and nothing that a pickle might want beside."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from workbench.tasks import TaskError, load_task
from workbench.tasks.cifar10 import read_batch

FILES = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]


def write(path: Path, **changes: Any) -> None:
    random = np.random.default_rng(len(path.name) + path.name.encode()[-1])
    content = {"data": random.integers(0, 256, (30, 3072), dtype=np.uint8), "labels": [n % 10 for n in range(30)]}
    path.write_bytes(pickle.dumps({k.encode(): v for k, v in (content | changes).items()}, protocol=2))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cifar-10-batches-py").mkdir()
    for name in FILES:
        write(tmp_path / "cifar-10-batches-py" / name)
    return tmp_path


def test_pixels_lie_in_planes_of_colour(tmp_path: Path) -> None:
    data = np.zeros((1, 3072), dtype=np.uint8)
    data[0, 1024 + 32 * 5 + 7] = 200
    write(tmp_path / "batch", data=data, labels=[3])
    images, targets = read_batch(tmp_path / "batch")
    assert images[0, 1, 5, 7] == 200
    assert images.sum() == 200
    assert targets.tolist() == [3]


def test_a_task_is_found_by_its_folder_and_can_be_trained(folder: Path) -> None:
    task = load_task(f"cifar10:{folder}")
    assert load_task(task.spec).data_hash == task.data_hash
    model = task.new_model()
    images, targets = next(task.batches(0))
    assert images.shape == (128, 3, 32, 32)
    task.compute_loss(model, (images[:8], targets[:8])).backward()  # type: ignore[no-untyped-call]
    assert sum(len(y) for _, y in task.evaluation_batches(0)) == 30
    assert torch.equal(next(task.batches(1, start=5))[0], list(zip(range(6), task.batches(1), strict=False))[5][1][0])


@pytest.mark.long
def test_training_images_are_shifted_and_mirrored_ones(folder: Path) -> None:
    task = load_task(f"cifar10:{folder}")
    mean, spread = torch.tensor([0.4914, 0.4822, 0.4465]), torch.tensor([0.2470, 0.2435, 0.2616])
    images, targets = next(task.batches(0))
    seen = (images * spread.view(3, 1, 1) + mean.view(3, 1, 1)) * 255
    known = [read_batch(folder / "cifar-10-batches-py" / name) for name in FILES[:5]]
    padded = torch.nn.functional.pad(torch.cat([i for i, _ in known]).float(), (4, 4, 4, 4))
    candidates = torch.stack(
        [p for d in range(9) for r in range(9) for c in [padded[..., d : d + 32, r : r + 32]] for p in (c, c.flip(-1))]
    )
    labels = torch.cat([t for _, t in known])
    for image, target in list(zip(seen, targets, strict=True))[:5]:
        difference = (candidates - image).abs().amax(dim=(2, 3, 4))
        kind, index = divmod(int(difference.argmin()), len(labels))
        assert difference[kind, index] < 0.01
        assert labels[index] == target


class Evil:
    """Would run a command."""

    def __reduce__(self) -> Any:
        return os.system, ("echo never",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": Evil()}, "it asks for 'posix.system'"),
        ({"data": np.zeros((30, 10), dtype=np.uint8)}, r"`data` must be uint8 \[n, 3072\]"),
        ({"data": [1, 2]}, r"`data` must be uint8 \[n, 3072\]"),
        ({"labels": [11] * 30}, "`labels` must be 30 numbers from 0 to 9"),
        ({"labels": [1]}, "`labels` must be 30 numbers"),
    ],
    ids=["code", "shape", "kind", "range", "count"],
)
def test_a_file_that_is_something_else_is_refused(folder: Path, changes: dict[str, Any], words: str) -> None:
    path = folder / "cifar-10-batches-py" / "data_batch_3"
    write(path, **changes)
    with pytest.raises(TaskError, match=rf"data_batch_3 is no python batch of CIFAR-10: {words}"):
        load_task(f"cifar10:{folder}")


def test_missing_and_damaged_files_say_so(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    with pytest.raises(TaskError, match="a folder of CIFAR-10 must hold test_batch"):
        load_task(f"cifar10:{tmp_path_factory.mktemp('empty')}")
    path = folder / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(TaskError, match="data_batch_2 is no python batch"):
        load_task(f"cifar10:{folder}")
    path.unlink()
    with pytest.raises(TaskError, match="data_batch_2 cannot be read: No such file"):
        load_task(f"cifar10:{folder}")
