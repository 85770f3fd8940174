"""Snapshots for serving: the bits of the model, few bytes per version, and one version at every moment."""

from __future__ import annotations

import json
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.kit.processes import wait_until
from tests.online.recommender import new_recommender, stream
from workbench.online import Published, SnapshotPublisher, load_published, publishing
from workbench.online.publishing import changed_rows


class Table(nn.Module):
    def __init__(self, rows: int = 64) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, 3)
        self.bias = nn.Parameter(torch.zeros(()))
        self.register_buffer("age", torch.zeros(rows, dtype=torch.int64))
        self.register_buffer("narrow", torch.zeros(rows, 2, dtype=torch.bfloat16))
        self.register_buffer("used", torch.zeros(rows, dtype=torch.bool))

    @torch.no_grad()
    def set_all(self, version: int) -> None:
        self.table.weight.fill_(version)
        self.bias.fill_(version)
        self.age.fill_(version)  # type: ignore[operator]


def same_bits(tensors: dict[str, Tensor], module: nn.Module) -> bool:
    def content(of: dict[str, Tensor]) -> dict[str, tuple[Any, ...]]:
        return {
            name: (value.dtype, value.shape, value.reshape(-1).view(torch.uint8).tolist()) for name, value in of.items()
        }

    return content(tensors) == content(module.state_dict())


@settings(max_examples=12)  # each writes up to seven versions to the disk, and waits for it
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 63), st.floats(width=32)), max_size=6), max_size=7),
    st.integers(0, 3),
    st.sampled_from([1, 10, 64, 65]),
)
def test_every_version_has_the_bits_of_the_model(
    versions: list[list[tuple[int, float]]], full_every: int, delta_rows: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        module = Table()
        publisher = SnapshotPublisher(folder, full_every=full_every, delta_rows=delta_rows)
        follower: Published | None = None
        for number, changes in enumerate([[], *versions], 1):
            for row, value in changes:
                with torch.no_grad():
                    module.table.weight[row, row % 3] = value
                    module.age[row] += 1  # type: ignore[index,operator]
                    module.used[row] = True  # type: ignore[index,operator]
            assert publisher.publish(module, n_steps=10 * number, wait=True) == number
            published = load_published(folder)
            assert (published.version, published.step) == (number, 10 * number)
            assert same_bits(published.tensors, module)
            follower = load_published(folder, since=follower)
            assert follower.version == number
            assert same_bits(follower.tensors, module)


def test_zero_and_minus_zero_differ_and_nan_is_itself() -> None:
    last = torch.tensor([[0.0], [float("nan")], [1.0]])
    assert changed_rows(last.clone(), last).tolist() == []
    assert changed_rows(torch.tensor([[-0.0], [float("nan")], [2.0]]), last).tolist() == [0, 2]
    assert changed_rows(torch.tensor(1.0), torch.tensor(2.0)).tolist() == [0]
    assert changed_rows(torch.zeros(0, 3), torch.zeros(0, 3)).tolist() == []


def test_rows_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "_CHUNK_ROWS", 4)
    last, now = torch.zeros(11, 2), torch.zeros(11, 2)
    now[[0, 3, 4, 10], 1] = 1
    assert changed_rows(now, last).tolist() == [0, 3, 4, 10]


def test_a_delta_holds_the_touched_rows_only(tmp_path: Path) -> None:
    module = nn.Embedding(10_000, 16)
    publisher = SnapshotPublisher(tmp_path)
    publisher.publish(module, 1, wait=True)
    with torch.no_grad():
        module.weight[[3, 9000]] += 1
    publisher.publish(module, 2, wait=True)
    delta = load_file(tmp_path / "delta-000000000002.safetensors")
    assert delta["rows:weight"].tolist() == [3, 9000]
    assert torch.equal(delta["values:weight"], module.weight.detach()[[3, 9000]])
    assert (tmp_path / "delta-000000000002.safetensors").stat().st_size < 1000
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest.pop("files").keys() == {manifest["base"], *manifest["deltas"]}
    assert isinstance(manifest.pop("crc32"), int)
    assert manifest == {
        "format": 1,
        "version": 2,
        "step": 2,
        "base": "full-000000000001.safetensors",
        "deltas": ["delta-000000000002.safetensors"],
    }


def test_a_row_that_goes_back_is_published_again_and_a_row_that_rests_is_not(tmp_path: Path) -> None:
    module = nn.Embedding(2000, 2)
    publisher = SnapshotPublisher(tmp_path)
    before = module.weight.detach().clone()
    touched: list[list[int]] = []
    for changes in ([], [5, 7], [7], []):
        with torch.no_grad():
            module.weight.copy_(before)
            module.weight[changes] += 1
        version = publisher.publish(module, 1, wait=True)
        assert same_bits(load_published(tmp_path).tensors, module)
        if version > 1:
            delta = load_file(tmp_path / f"delta-{version:012d}.safetensors")
            touched.append(delta["rows:weight"].tolist())
    assert touched == [[5, 7], [5], [7]]


def test_readers_see_one_version_at_every_moment_whether_they_follow_or_not(tmp_path: Path) -> None:
    module, is_over = Table(rows=2000), threading.Event()
    publisher = SnapshotPublisher(tmp_path, full_every=3, delta_rows=10)
    module.set_all(1)
    publisher.publish(module, 1, wait=True)
    seen: dict[bool, list[int]] = {True: [], False: []}
    errors: list[BaseException] = []

    def read(follows: bool) -> None:
        published: Published | None = None
        try:
            while not is_over.is_set() or not seen[follows]:
                published = load_published(tmp_path, published if follows else None)
                filled = [tensor for tensor in published.tensors.values() if tensor.any()]
                values = {float(end) for tensor in filled for end in (tensor.min(), tensor.max())}
                assert values == {float(published.version)} == {float(published.step)}
                seen[follows].append(published.version)
        except BaseException as error:
            errors.append(error)

    readers = [threading.Thread(target=read, args=(follows,)) for follows in seen]
    for reader in readers:
        reader.start()
    for version in range(2, 16):
        module.set_all(version)
        publisher.publish(module, version, wait=version % 5 == 0)
        if version % 5 == 0:
            wait_until(lambda version=version: errors or all(version in versions for versions in seen.values()))
    publisher.close()
    is_over.set()
    for reader in readers:
        reader.join()
    assert not errors, errors
    assert load_published(tmp_path).version == 15
    assert len(list(tmp_path.iterdir())) <= 9  # what neither this manifest nor the one before names is gone


def test_a_kill_between_file_and_manifest_leaves_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Table()
    publisher = SnapshotPublisher(tmp_path)
    publisher.publish(module, 1, wait=True)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}

    def killed(*_: Any) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(publishing, "write_text_atomically", killed)
        module.set_all(5)
        publisher.publish(module, 2)
        with pytest.warns(RuntimeWarning, match="a snapshot could not be written: no space left"):
            publisher.publish(module, 3)  # it cannot build on what nobody saw
        with pytest.warns(RuntimeWarning, match="a snapshot could not be written"):
            publisher.close()
    published = load_published(tmp_path)
    assert published.version == 1
    assert all(torch.equal(published.tensors[name], tensor) for name, tensor in before.items())
    publisher.publish(module, 4, wait=True)
    assert load_published(tmp_path).base == "full-000000000004.safetensors"
    assert same_bits(load_published(tmp_path).tensors, module)


def test_versions_go_on_where_another_process_left_off(tmp_path: Path) -> None:
    module = Table()
    SnapshotPublisher(tmp_path).publish(module, 1, wait=True)
    (tmp_path / "full-000000000009.safetensors").touch()  # a killed process's
    other = SnapshotPublisher(tmp_path)
    assert other.publish(module, 2, wait=True) == 2
    assert load_published(tmp_path).base == "full-000000000002.safetensors"
    assert not (tmp_path / "full-000000000009.safetensors").exists()


def test_a_table_that_grew_is_published_as_a_whole(tmp_path: Path) -> None:
    publisher = SnapshotPublisher(tmp_path)
    publisher.publish(Table(64), 1, wait=True)
    larger = Table(128)
    publisher.publish(larger, 2, wait=True)
    assert same_bits(load_published(tmp_path).tensors, larger)


def test_a_folder_without_anything_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing was published"):
        load_published(tmp_path)
    (tmp_path / "manifest.json").write_text('{"format": 7}')
    with pytest.raises(ValueError, match="not a manifest of format 1"):
        load_published(tmp_path)


def test_a_state_that_is_no_tensor_is_refused(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"n": 1}

        def set_extra_state(self, state: object) -> None:
            pass

    with pytest.raises(ValueError, match="'_extra_state' of the model's state is a dict"):
        SnapshotPublisher(tmp_path).publish(Extra(1, 1), 1)


def averaging(**sections: Any) -> dict[str, Any]:
    return {"boost_level": "O1", "boost_config_dict": {"boost": {"mode": "disable_all"}, **sections}}


@pytest.mark.parametrize(
    ("sparse", "options"),
    [
        (False, {}),
        (True, {}),
        (False, averaging(regularization={"weight_average": "ema", "decay": 0.99})),
        (False, averaging(optimizer={"name": "ScheduleFreeAdamW", "lr": 0.01})),
    ],
    ids=["dense gradients", "sparse gradients", "a method averages", "the optimizer averages"],
)
def test_training_publishes_the_weights_that_predict(sparse: bool, options: dict[str, Any], tmp_path: Path) -> None:
    model, served = new_recommender(sparse, **options), new_recommender(sparse)
    publisher = SnapshotPublisher(tmp_path, every_steps=5, full_every=3, delta_rows=10)
    model.online_train(stream(seed=1, start=0, n=42), publisher=publisher)
    published = load_published(tmp_path)
    assert published.step == 42
    served.predict_network.load_state_dict(published.tensors)
    inputs, _ = next(stream(seed=9, start=0))
    assert torch.equal(served.predict(inputs), model.predict(inputs))


def test_a_folder_that_was_emptied_and_begun_anew_is_read_anew(tmp_path: Path) -> None:
    def publish(value: int) -> Table:
        module, publisher = Table(), SnapshotPublisher(tmp_path)
        module.set_all(value)
        for version in range(2):
            module.bias.data.fill_(value + version)
            publisher.publish(module, version, wait=True)
        return module

    publish(1)
    seen = load_published(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    module = publish(100)
    assert same_bits(load_published(tmp_path, since=seen).tensors, module)
