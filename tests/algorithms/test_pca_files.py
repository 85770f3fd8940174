"""PCA files: what was written is read back, broken files are told in one sentence, ranks wait for one file."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.golden_files import golden_paths, load_json
from workbench.methods.dim_reduce.pca import PrincipalComponents, principal_components
from workbench.methods.dim_reduce.pca_files import (
    list_snapshots,
    load_explained_variance,
    load_pca_matrix,
    load_snapshots,
    pca_matrix_path,
    prepare_pca_matrix,
    save_pca_matrix,
    wait_for_pca_matrix,
)

SHAPES = {"b": (2, 3), "a": (4,), "scalar": ()}
WIDTH = 11


def write_snapshot(folder: Path, name: str, seed: int, **changes: torch.Tensor | None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tensors = {key: torch.randn(shape, generator=generator) for key, shape in SHAPES.items()}
    tensors["bn.running_mean"] = torch.ones(3)  # a buffer: passed over
    for key, value in changes.items():
        tensors.pop(key) if value is None else tensors.update({key: value})
    save_file(tensors, folder / name)
    return tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in (3, 1, 2, 10):  # written in another order than sorted
        write_snapshot(tmp_path, f"step_{number:04d}.safetensors", number)
    return tmp_path


def test_rows_are_files_in_sorted_order_and_columns_follow_the_parameters(folder: Path) -> None:
    found = load_snapshots(folder, SHAPES)
    assert found.dtype == np.float32
    assert [path.stem for path in list_snapshots(folder)] == ["step_0001", "step_0002", "step_0003", "step_0010"]
    for row, number in zip(found, (1, 2, 3, 10), strict=True):
        tensors = write_snapshot(folder, f"step_{number:04d}.safetensors", number)
        wanted = torch.cat([tensors[name].reshape(-1) for name in ("b", "a", "scalar")])
        np.testing.assert_array_equal(row, wanted.numpy())


def test_half_precision_snapshots_are_widened(folder: Path) -> None:
    write_snapshot(folder, "step_0001.safetensors", 1, a=torch.full((4,), 0.1, dtype=torch.bfloat16))
    np.testing.assert_array_equal(load_snapshots(folder, SHAPES)[0, 6:10], np.float32(0.10009765625))


@pytest.mark.parametrize("path", golden_paths("pca_files*.json"), ids=lambda path: path.stem)
def test_golden_shapes_sources_and_errors(path: Path, tmp_path: Path) -> None:
    results = load_json(path)["results"]
    n_snapshots, width = results["load_weights_shape"]
    k = results["full"][0][0]
    shapes = {"w": (width - 5, 1), "b": (5,)}
    for number in range(n_snapshots):
        generator = torch.Generator().manual_seed(number)
        values = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        save_file(values, tmp_path / f"ck{number}.safetensors")
    assert load_snapshots(tmp_path, shapes).shape == (n_snapshots, width)

    made = prepare_pca_matrix(None, tmp_path, shapes, k)
    assert made.parent == tmp_path
    matrix = load_pca_matrix(made)
    assert list(matrix.shape) == results["full"][0]
    assert matrix.dtype == np.float32  # as the snapshots; the reference widens them
    assert list(load_pca_matrix(made, n_components=k, n_weights=width).shape) == results["load_local"]
    fewer = results["n_component_smaller_than_file"][1]
    assert list(load_pca_matrix(made, n_components=fewer[0]).shape) == fewer
    np.testing.assert_array_equal(load_pca_matrix(made, n_components=fewer[0]), matrix[: fewer[0]])
    # A stored matrix wins; a missing one leads to the folder.
    stored = save_pca_matrix(tmp_path / "full.npy", matrix)
    assert prepare_pca_matrix(stored, None, shapes, k) == stored
    with pytest.warns(UserWarning, match="does not exist; the matrix is made from the snapshots"):
        assert prepare_pca_matrix(tmp_path / "none.npy", tmp_path, shapes, k) == made
    # Recorded as errors, errors here: of the same kind, in our words.
    empty = tmp_path / "empty"
    empty.mkdir()
    file = tmp_path / "ck0.safetensors"
    neither = "does not exist, and `weight_load_dir` names no snapshots"

    def preparing(matrix: Path | None, snapshots: Path | None, n_components: int = k) -> Callable[[], object]:
        return lambda: prepare_pca_matrix(matrix, snapshots, shapes, n_components)

    more, many = k + 2, n_snapshots + 1
    cases: dict[str, tuple[Callable[[], object], str]] = {
        "n_component_larger_than_file": (
            lambda: load_pca_matrix(made, n_components=more),
            rf"the components in .* \({k}\), got {more}",
        ),
        "path_none_none": (preparing(None, None), r"needs a PCA matrix \(`pca_mat_path`\) or a folder"),
        "path_missing_dir": (preparing(None, tmp_path / "nowhere"), "must be an existing folder"),
        "path_file_as_dir": (preparing(None, file), "must be an existing folder"),
        "path_pca_wrong_suffix_and_no_dir": (preparing(file.with_suffix(".ckpt"), None), neither),
        "path_pca_missing_and_no_dir": (preparing(tmp_path / "none.npy", None), neither),
        "too_many_components": (preparing(None, tmp_path, many), rf"snapshots \({n_snapshots} in .*\), got {many}"),
        "empty_dir": (preparing(None, empty), "holds none; it is empty"),
        "load_local_timeout": (lambda: wait_for_pca_matrix(tmp_path / "none.npy", 0.01), "waited 0.01 s"),
    }
    for name, (call, words) in cases.items():
        kind = {"ValueError": ValueError, "RuntimeError": RuntimeError}[results[name].split()[1].rstrip(":")]
        with pytest.raises(kind, match=words):
            call()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
@pytest.mark.parametrize(("k", "width"), [(1, 1), (1, 9), (5, 1), (3, 8)])
def test_a_matrix_is_read_back_as_it_was_written(tmp_path: Path, suffix: str, dtype: Any, k: int, width: int) -> None:
    matrix = np.random.default_rng(k).normal(size=(k, width)).astype(dtype)
    path = save_pca_matrix(tmp_path / f"matrix{suffix}", matrix)
    found = load_pca_matrix(path, n_weights=width)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, matrix)
    np.testing.assert_array_equal(load_pca_matrix(path, n_components=k, rows=slice(1, k)), matrix[1:])
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]  # no temporary file stays


def test_a_second_run_takes_the_computed_file_and_new_snapshots_make_another(folder: Path) -> None:
    first = prepare_pca_matrix(None, folder, SHAPES, 3)
    written = first.stat().st_mtime_ns
    assert prepare_pca_matrix(None, folder, SHAPES, 3) == first
    assert first.stat().st_mtime_ns == written  # not computed again
    shares = principal_components(load_snapshots(folder, SHAPES), 3).explained_variance_ratio
    np.testing.assert_allclose(load_explained_variance(first), shares, rtol=1e-12)
    assert pca_matrix_path(None, folder, SHAPES, 2)[1]
    assert pca_matrix_path(None, folder, {"a": (4,)}, 3)[1]
    write_snapshot(folder, "step_0011.safetensors", 11)
    assert pca_matrix_path(None, folder, SHAPES, 3) == (pca_matrix_path(None, folder, SHAPES, 3)[0], True)
    second = prepare_pca_matrix(None, folder, SHAPES, 3)
    assert second != first
    os.utime(folder / "step_0011.safetensors", ns=(1, 1))  # another file under the same name
    assert pca_matrix_path(None, folder, SHAPES, 3)[1]


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_explained_variance_stays_with_its_matrix(tmp_path: Path, suffix: str) -> None:
    path = save_pca_matrix(tmp_path / f"pca{suffix}", np.eye(2, 3), np.array([0.7, 0.2]))
    np.testing.assert_array_equal(load_explained_variance(path), [0.7, 0.2])
    assert load_pca_matrix(path).shape == (2, 3)
    save_pca_matrix(path, np.eye(2, 3))  # another matrix under the same name: the shares are not its own
    assert load_explained_variance(path) is None
    assert load_explained_variance(tmp_path / f"none{suffix}") is None
    for wrong in ([0.7], [0.7, float("nan")]):
        with pytest.raises(ValueError, match=r"`explained_variance` must be one finite share per component \(2\)"):
            save_pca_matrix(path, np.eye(2, 3), np.array(wrong))


@pytest.mark.parametrize("text", ["", '{"explained_variance_ratio": "much"}', '{"explained_variance_ratio": 1}'])
def test_unreadable_shares_do_not_stop_anybody(tmp_path: Path, text: str) -> None:
    path = save_pca_matrix(tmp_path / "pca.npy", np.eye(2, 3))
    (tmp_path / "pca.json").write_text(text)
    assert load_explained_variance(path) is None


def test_other_ranks_wait_for_rank_0(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.methods.dim_reduce.pca_files.POLL_SECONDS", 0.02)

    def slowly(*args: Any, **options: Any) -> PrincipalComponents:
        time.sleep(0.1)
        return principal_components(*args, **options)

    monkeypatch.setattr("workbench.methods.dim_reduce.pca_files.principal_components", slowly)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(prepare_pca_matrix, None, folder, SHAPES, 3, rank=1, timeout=60)
        made = prepare_pca_matrix(None, folder, SHAPES, 3)
    assert waiting.result() == made
    assert load_pca_matrix(made, n_weights=WIDTH).shape == (3, WIDTH)


def test_waiting_ends_with_a_sentence(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(RuntimeError, match=r"waited 0\.05 s for the PCA matrix .*, which rank 0 did not write"):
        wait_for_pca_matrix(tmp_path / "pca.npy", 0.05)
    assert 0.05 <= time.monotonic() - begun < 5
    with pytest.raises(ValueError, match="`timeout` must be a number of seconds"):
        wait_for_pca_matrix(tmp_path / "pca.npy", float("nan"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"a": None}, "step_0002.safetensors must hold every trained parameter, it lacks a"),
        ({"a": torch.ones(5)}, r"a has shape \(5,\) there, \(4,\) here"),
        ({"a": torch.full((4,), float("nan"))}, "step_0002.safetensors must be finite"),
    ],
    ids=["missing", "shape", "NaN"],
)
def test_a_wrong_snapshot_is_named(folder: Path, changes: dict[str, torch.Tensor | None], words: str) -> None:
    write_snapshot(folder, "step_0002.safetensors", 2, **changes)
    with pytest.raises(ValueError, match=words):
        load_snapshots(folder, SHAPES)


def test_wrong_folders_are_told_in_one_sentence(folder: Path) -> None:
    for rank in (0, 1):  # on every rank at once
        with pytest.raises(ValueError, match=r"number of snapshots \(4 in .*\), got 5; record more snapshots"):
            prepare_pca_matrix(None, folder, SHAPES, 5, rank=rank, timeout=1000)
    with pytest.raises(ValueError, match="`shapes` must name the parameters"):
        load_snapshots(folder, {})
    (folder / "step_0002.safetensors").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"step_0002\.safetensors cannot be read as safetensors"):
        load_snapshots(folder, SHAPES)
    (folder / "other").mkdir()
    (folder / "other" / "weights.ckpt").touch()
    with pytest.raises(ValueError, match=r"holds none; it has files of type \.ckpt"):
        list_snapshots(folder / "other")


@pytest.mark.parametrize("suffix", [".npy", ".safetensors"])
def test_a_wrong_matrix_is_told_in_one_sentence(tmp_path: Path, suffix: str) -> None:
    path = save_pca_matrix(tmp_path / f"pca{suffix}", np.eye(3, 5))
    words = r"one column per trained weight \(7\), got 5; it was made for another network"
    with pytest.raises(ValueError, match=words):
        load_pca_matrix(path, n_weights=7)
    with pytest.raises(ValueError, match=r"must not exceed the components in .* \(3\), got 4"):
        load_pca_matrix(path, n_components=4)
    for wrong, words in ((np.full((2, 2), np.nan), "finite"), (np.ones(3), "matrix"), (np.eye(2, dtype=int), "matrix")):
        with pytest.raises(ValueError, match=f"`matrix` must be .*{words}"):
            save_pca_matrix(path, wrong)
    path.write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"must be an array saved by numpy\.save|cannot be read as safetensors"):
        load_pca_matrix(path)


def test_files_that_others_wrote_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "pca.npy"
    np.save(path, np.array([[1.0, np.nan]]))
    with pytest.raises(ValueError, match="must be finite, it holds inf or NaN"):
        load_pca_matrix(path)
    np.save(path, np.ones(4))
    with pytest.raises(ValueError, match=r"must hold a floating point matrix, .* got float64 of shape \(4,\)"):
        load_pca_matrix(path)
    np.save(path, np.array([{"any": "object"}], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match="holds pickled objects, which could run foreign code"):
        load_pca_matrix(path)
    path.write_bytes(pickle.dumps([1.0]))
    with pytest.raises(ValueError, match=r"must be an array saved by numpy\.save"):
        load_pca_matrix(path)
    np.save(path, np.ones((4, 400)))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match="is incomplete or broken"):
        load_pca_matrix(path)
    save_file({"other": torch.ones(2, 2)}, tmp_path / "pca.safetensors")
    with pytest.raises(ValueError, match="under the name pca_mat, it lacks that"):
        load_pca_matrix(tmp_path / "pca.safetensors")
    with pytest.raises(FileNotFoundError, match="there is no PCA matrix at"):
        load_pca_matrix(tmp_path / "none.npy")
    with pytest.raises(ValueError, match=r"lies in a \.npy or \.safetensors file, got pca\.txt"):
        load_pca_matrix(tmp_path / "pca.txt")
