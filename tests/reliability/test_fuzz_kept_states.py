"""Checkpoints and published snapshots from anywhere: loaded whole, or refused in one sentence."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import save
from torch import nn

from tests.reliability.guarded import FUZZ, result_or_sentence
from tests.reliability.mutations import json_texts, mutated
from workbench.config import BoostConfig
from workbench.online import Published, SnapshotPublisher, load_published
from workbench.training import load_checkpoint, save_checkpoint
from workbench.training.apply import apply
from workbench.training.checkpoint import read_checkpoint

CPU = torch.device("cpu")


def boosted() -> Any:
    model = nn.Linear(3, 2)
    return apply(BoostConfig(), model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), level="O0")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("checkpoint") / "c.pt"
    save_checkpoint(path, boosted())
    return path.read_bytes()


@FUZZ
@given(data=st.data())
def test_a_damaged_checkpoint_is_loaded_or_refused(data: st.DataObject, checkpoint: bytes, tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    path.write_bytes(data.draw(mutated(checkpoint)))
    state = result_or_sentence(lambda: read_checkpoint(path, CPU), ValueError)
    if not isinstance(state, str):
        result_or_sentence(lambda: load_checkpoint(path, boosted()), ValueError)


def members(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@FUZZ
@given(data=st.data())
def test_a_checkpoint_with_a_damaged_member_is_loaded_or_refused(
    data: st.DataObject, checkpoint: bytes, tmp_path: Path
) -> None:
    parts = members(checkpoint)
    name = data.draw(st.sampled_from([*(name for name in parts if name.endswith("data.pkl"))] * 3 + sorted(parts)))
    parts[name] = data.draw(mutated(parts[name]))
    path = tmp_path / "c.pt"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in parts.items():
            archive.writestr(member, content)
    result_or_sentence(lambda: load_checkpoint(path, boosted()), ValueError)


def test_what_torch_repeats_of_a_damaged_checkpoint_is_cut(checkpoint: bytes, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "c.pt", "w") as archive:
        for member, content in members(checkpoint).items():
            archive.writestr(member, b"[" * 20_000 if member.endswith("byteorder") else content)
    assert "not a checkpoint" in result_or_sentence(lambda: read_checkpoint(tmp_path / "c.pt", CPU), ValueError)


@pytest.mark.parametrize("missing", ["boosted", "scheduler", "torch_rng", "device_rng"])
def test_a_checkpoint_that_lacks_a_part_is_refused(missing: str, checkpoint: bytes, tmp_path: Path) -> None:
    state = torch.load(io.BytesIO(checkpoint), weights_only=True)
    for content in ({key: value for key, value in state.items() if key != missing}, {**state, missing: 3}):
        torch.save(content, tmp_path / "c.pt")
        told = result_or_sentence(lambda: load_checkpoint(tmp_path / "c.pt", boosted()), ValueError)
        assert isinstance(told, str)
        assert "c.pt" in told


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> Any:
            return __import__("os").system, ("true",)

    for new in (True, False):
        torch.save({"format": 1, "boosted": Calls()}, tmp_path / "c.pt", _use_new_zipfile_serialization=new)
        told = result_or_sentence(lambda: read_checkpoint(tmp_path / "c.pt", CPU), ValueError)
        assert "not a checkpoint" in told


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "p"
    model = nn.Sequential(nn.Embedding(6, 2), nn.Linear(2, 1))
    publisher = SnapshotPublisher(folder, every_steps=1, full_every=5, delta_rows=4)
    for step in range(3):
        with torch.no_grad():
            model[0].weight[step] += 1.0
            model[1].bias += 1.0
        publisher.publish(model, step, wait=True)
    publisher.close()
    # As of an earlier version: what was changed on purpose has the checksums that belong to it.
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["crc32"], manifest["files"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


def load_and_compare(folder: Path, since: Published | None = None) -> Any:
    return result_or_sentence(lambda: load_published(folder, since), ValueError, FileNotFoundError)


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    return shutil.copytree(source, target)


@FUZZ
@given(data=st.data())
def test_a_damaged_publication_is_loaded_or_refused(data: st.DataObject, published: Path, tmp_path: Path) -> None:
    folder = copied(published, tmp_path / "p")
    name = data.draw(st.sampled_from(sorted(path.name for path in folder.iterdir())))
    (folder / name).write_bytes(data.draw(mutated((folder / name).read_bytes())))
    load_and_compare(folder)


MANIFEST = {
    "format": 1,
    "version": 3,
    "step": 2,
    "base": "full-000000000001.safetensors",
    "deltas": ["delta-000000000002.safetensors", "delta-000000000003.safetensors"],
}
"""What `published` publishes."""


@FUZZ
@given(text=json_texts(MANIFEST))
@example(text=json.dumps(MANIFEST))
@example(text=json.dumps({**MANIFEST, "deltas": ["delta-000000000009.safetensors"]}))  # once called a bug of ours
@example(text=json.dumps({**MANIFEST, "base": "full-000000000009.safetensors"}))
def test_a_manifest_with_odd_values_is_read_or_refused(text: str, published: Path, tmp_path: Path) -> None:
    folder = copied(published, tmp_path / "p")
    assert json.loads((folder / "manifest.json").read_bytes()) == MANIFEST
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    load_and_compare(folder)
    publisher = SnapshotPublisher(folder, every_steps=1)
    result_or_sentence(lambda: publisher.publish(nn.Linear(2, 1), 1, wait=True), ValueError)


@pytest.mark.parametrize(
    "delta",
    [
        {"rows:0.weight": torch.tensor([99]), "values:0.weight": torch.zeros(1, 2)},
        {"rows:0.weight": torch.tensor([-1]), "values:0.weight": torch.zeros(1, 2)},
        {"rows:0.weight": torch.tensor([0.5]), "values:0.weight": torch.zeros(1, 2)},
        {"rows:0.weight": torch.tensor([0])},
        {"rows:0.weight": torch.tensor([0]), "values:0.weight": torch.zeros(1, 3)},
        {"whole:1.bias": torch.zeros(7)},
        {"whole:1.bias": torch.zeros(1, dtype=torch.int64)},
        {"whole:gone": torch.zeros(1)},
        {"strange": torch.zeros(1)},
    ],
    ids=range(9),
)
def test_a_delta_of_another_model_is_refused_and_changes_nothing(
    delta: dict[str, torch.Tensor], published: Path, tmp_path: Path
) -> None:
    folder = copied(published, tmp_path / "p")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    last = manifest["deltas"].pop()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    since = load_published(folder)
    before = {name: value.clone() for name, value in since.tensors.items()}
    (folder / last).write_bytes(save(delta))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "deltas": [*manifest["deltas"], last]}))
    told = load_and_compare(folder, since)
    assert isinstance(told, str)
    assert last in told
    assert all(torch.equal(value, since.tensors[name]) for name, value in before.items())


@pytest.mark.parametrize("missing", ["the full state", "a delta"])
def test_a_manifest_that_names_a_missing_file_is_refused(missing: str, published: Path, tmp_path: Path) -> None:
    folder = copied(published, tmp_path / "p")
    manifest = json.loads((folder / "manifest.json").read_bytes())
    name = manifest["base"] if missing == "the full state" else manifest["deltas"][0]
    (folder / name).unlink()
    told = load_and_compare(folder)
    assert "manifest.json: names a file that is not there" in told
    assert name in told


@pytest.mark.parametrize(
    "name", ["../elsewhere.safetensors", "/etc/passwd", "full-1.safetensors/../x", "manifest.json", "."]
)
def test_a_manifest_names_no_file_outside_its_folder(name: str, published: Path, tmp_path: Path) -> None:
    folder = copied(published, tmp_path / "p")
    (tmp_path / "elsewhere.safetensors").write_bytes(save({"a": torch.zeros(1)}))
    manifest = json.loads((folder / "manifest.json").read_bytes())
    for changed in ({**manifest, "base": name}, {**manifest, "deltas": [name]}):
        (folder / "manifest.json").write_text(json.dumps(changed))
        told = load_and_compare(folder)
        assert "manifest" in told
