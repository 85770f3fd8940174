"""Files around the PCA matrix: weight snapshots read, the matrix saved, loaded and waited for.

A snapshot is one ``.safetensors`` file of tensors by parameter name. A PCA matrix is ``[k, n_weights]``, one component
per row, columns in the order of the parameters, each flattened row by row; it lies in a ``.npy`` file (never pickled)
or under the name ``pca_mat`` in a ``.safetensors`` file. Which share of the snapshots' variance every component
explains is stored with it: in ``<name>.json`` next to a ``.npy``, under ``explained_variance_ratio`` in a
``.safetensors`` file; it is for people only, and may be missing.

As in MindSpore 2.7.0 a stored matrix is used where there is one, otherwise one rank computes it from the snapshots of a
folder while the others wait. Deliberately different: there is one file with all rows, written whole, whose name says
from which snapshots it was made.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from workbench.core.checksums import SEAL, crc_of_arrays
from workbench.core.files import replacing, write_text_atomically
from workbench.core.warning import warn
from workbench.methods.dim_reduce.pca import principal_components

TENSOR_NAME = "pca_mat"
EXPLAINED = "explained_variance_ratio"
SUFFIXES = (".npy", ".safetensors")
POLL_SECONDS = 0.5  # upstream looks every 5 s

Shapes = Mapping[str, Sequence[int]]  # parameter name -> shape, in the order of the columns


def list_snapshots(folder: str | Path) -> list[Path]:
    """Return a folder's ``*.safetensors`` files, sorted; names that begin with a dot and PCA matrices do not count."""
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"`weight_load_dir` must be an existing folder with weight snapshots, got {folder}")
    found = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith((".", TENSOR_NAME)))
    if not found:
        others = sorted({path.suffix for path in folder.iterdir() if path.is_file() and path.suffix})
        hint = f"it has files of type {', '.join(others)}" if others else "it is empty"
        raise ValueError(f"`weight_load_dir` must hold weight snapshots (*.safetensors), {folder} holds none; {hint}")
    return found


def load_snapshots(folder: str | Path, shapes: Shapes, *, n_components: int = 1) -> NDArray[Any]:
    """Read at least ``n_components`` snapshots of a folder into ``[n_snapshots, n_weights]``, a row per sorted file."""
    paths = _enough_snapshots(folder, n_components)
    if not shapes:
        raise ValueError("`shapes` must name the parameters that the columns belong to, got none")
    width = sum(math.prod(shape) for shape in shapes.values())
    matrix = np.empty((len(paths), width), np.float32)
    for row, path in zip(matrix, paths, strict=True):
        _read_snapshot(path, shapes, row)
        if not np.isfinite(row).all():
            raise ValueError(f"snapshot {path} must be finite, it holds inf or NaN; remove it from the folder")
    return matrix


def save_pca_matrix(path: str | Path, matrix: NDArray[Any], explained_variance: NDArray[Any] | None = None) -> Path:
    """Write a PCA matrix, which appears complete or not at all, and what share of the variance each row explains."""
    path = Path(path)
    _check_suffix(path)
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.floating):
        raise ValueError(f"`matrix` must be a floating point matrix, got {matrix.dtype} of shape {matrix.shape}")
    if not np.isfinite(matrix).all():
        raise ValueError("`matrix` must be finite, got inf or NaN")
    shares = None if explained_variance is None else np.asarray(explained_variance, np.float64)
    if shares is not None and (shares.shape != (len(matrix),) or not np.isfinite(shares).all()):
        raise ValueError(f"`explained_variance` must be one finite share per component ({len(matrix)}), got {shares}")
    if path.suffix == ".npy":
        if shares is None:  # those of an older matrix of this name would be wrong
            path.with_suffix(".json").unlink(missing_ok=True)
        else:  # first: who waits for the matrix finds both
            write_text_atomically(path.with_suffix(".json"), json.dumps({EXPLAINED: shares.tolist()}) + "\n")
    with replacing(path) as temporary:
        if path.suffix == ".npy":
            np.save(temporary, matrix, allow_pickle=False)
        else:
            more = {} if shares is None else {EXPLAINED: shares}
            save_file({TENSOR_NAME: np.ascontiguousarray(matrix), **more}, temporary)
    return path


def load_explained_variance(path: str | Path) -> NDArray[np.float64] | None:
    """Read which share of the variance every component of a stored matrix explains; None where it cannot be read."""
    path = Path(path)
    try:
        if path.suffix == ".npy":
            shares = np.array(json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))[EXPLAINED], np.float64)
        else:
            with safe_open(path, framework="np") as stored:
                shares = np.array(stored.get_tensor(EXPLAINED), np.float64)
    except Exception:  # numbers beyond a float, nesting beyond the parser, a broken file: all the same here
        return None
    return shares if shares.ndim == 1 and np.isfinite(shares).all() else None


def load_pca_matrix(
    path: str | Path, *, n_components: int | None = None, n_weights: int | None = None, rows: slice | None = None
) -> NDArray[Any]:
    """Read the first ``n_components`` of a PCA matrix of so many columns, or the rows of those that one rank holds."""
    path = Path(path)
    _check_suffix(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no PCA matrix at {path}")
    matrix = _open_npy(path) if path.suffix == ".npy" else _open_safetensors(path)
    if matrix.ndim != 2 or not np.issubdtype(matrix.dtype, np.floating):
        raise ValueError(
            f"{path} must hold a floating point matrix, one component per row, "
            f"got {matrix.dtype} of shape {matrix.shape}"
        )
    if n_weights is not None and matrix.shape[1] != n_weights:
        raise ValueError(
            f"{path} must have one column per trained weight ({n_weights}), got {matrix.shape[1]}; "
            "it was made for another network"
        )
    if n_components is not None and not n_components <= len(matrix):
        raise ValueError(
            f"`n_components` must not exceed the components in {path} ({len(matrix)}), got {n_components}; "
            "compute more components or lower it"
        )
    taken = np.array(matrix[:n_components][rows if rows is not None else slice(None)])  # a copy: the file may go
    if not np.isfinite(taken).all():
        raise ValueError(f"{path} must be finite, it holds inf or NaN; compute it again")
    return taken


def pca_matrix_path(
    pca_mat_path: str | Path | None, weight_load_dir: str | Path | None, shapes: Shapes, n_components: int
) -> tuple[Path, bool]:
    """Return the file that holds the matrix, and whether it has yet to be computed from the folder's snapshots."""
    if pca_mat_path is not None:
        stored = Path(pca_mat_path)
        if stored.is_file() and stored.suffix in SUFFIXES:
            return stored, False
        problem = "does not exist" if not stored.is_file() else f"is no {' or '.join(SUFFIXES)} file"
        if weight_load_dir is None:
            raise ValueError(
                f"`pca_mat_path` {stored} {problem}, and `weight_load_dir` names no snapshots to use instead"
            )
        warn(f"`pca_mat_path` {stored} {problem}; the matrix is made from the snapshots in {weight_load_dir}")
    if weight_load_dir is None:
        raise ValueError(
            "dim_reduce needs a PCA matrix (`pca_mat_path`) or a folder of weight snapshots (`weight_load_dir`), "
            "got neither"
        )
    facts: list[Any] = [(name, tuple(shape)) for name, shape in shapes.items()]
    snapshots = [(path.name, path.stat()) for path in _enough_snapshots(weight_load_dir, n_components)]
    facts += [(name, stat.st_size, stat.st_mtime_ns) for name, stat in snapshots]
    fingerprint = hashlib.sha256(repr((n_components, facts)).encode()).hexdigest()[:16]
    computed = Path(weight_load_dir) / f"{TENSOR_NAME}_{fingerprint}.npy"
    return computed, not computed.is_file()


def prepare_pca_matrix(
    pca_mat_path: str | Path | None,
    weight_load_dir: str | Path | None,
    shapes: Shapes,
    n_components: int,
    *,
    rank: int = 0,
    timeout: float = 1800.0,
) -> Path:
    """Return the file of a stored matrix, or that of one computed from snapshots by rank 0 while the others wait."""
    path, missing = pca_matrix_path(pca_mat_path, weight_load_dir, shapes, n_components)
    if not missing:
        return path
    if rank != 0:
        return wait_for_pca_matrix(path, timeout)
    snapshots = load_snapshots(path.parent, shapes, n_components=n_components)
    found = principal_components(snapshots, n_components, overwrite=True)
    return save_pca_matrix(path, found.components, found.explained_variance_ratio)


def wait_for_pca_matrix(path: str | Path, timeout: float) -> Path:
    """Wait, for ``timeout`` seconds at most, until another process has written a PCA matrix; return its path."""
    if not timeout >= 0:
        raise ValueError(f"`timeout` must be a number of seconds of at least 0, got {timeout}")
    path, deadline = Path(path), time.monotonic() + timeout
    while not path.is_file():
        left = deadline - time.monotonic()
        if left <= 0:
            raise RuntimeError(
                f"waited {timeout:g} s for the PCA matrix {path}, which rank 0 did not write; see its messages, "
                "or raise `timeout`"
            )
        time.sleep(min(POLL_SECONDS, left))
    return path


def _enough_snapshots(folder: str | Path, n_components: int) -> list[Path]:
    paths = list_snapshots(folder)
    if len(paths) < n_components:
        raise ValueError(
            f"`n_components` must not exceed the number of snapshots ({len(paths)} in {folder}), got {n_components}; "
            "record more snapshots or lower it"
        )
    return paths


def _read_snapshot(path: Path, shapes: Shapes, row: NDArray[Any]) -> None:
    try:
        with safe_open(path, framework="pt") as snapshot:  # numpy's reader knows no bfloat16
            names, start = set(snapshot.keys()), 0
            _check_intact(path, snapshot)
            for name, shape in shapes.items():
                if name not in names:
                    raise ValueError(
                        f"snapshot {path} must hold every trained parameter, it lacks {name}; record with the network "
                        "as it is trained (level O0 does not change it)"
                    )
                tensor = snapshot.get_tensor(name)
                if tuple(tensor.shape) != tuple(shape):
                    raise ValueError(
                        f"snapshot {path} must be of the network that is trained: {name} has shape "
                        f"{tuple(tensor.shape)} there, {tuple(shape)} here"
                    )
                if not tensor.is_floating_point():
                    raise ValueError(f"snapshot {path} must hold floating point weights, {name} has {tensor.dtype}")
                row[start : start + tensor.numel()] = tensor.double().numpy().reshape(-1)
                start += tensor.numel()
    except (SafetensorError, OSError) as error:
        raise ValueError(f"snapshot {path} cannot be read as safetensors: {error}") from error


def _check_intact(path: Path, snapshot: Any) -> None:
    """Compare a snapshot of ours with its checksum; those of other programs and of earlier versions have none."""
    expected = (snapshot.metadata() or {}).get(SEAL)
    if expected is None:
        return
    tensors = {name: snapshot.get_tensor(name) for name in snapshot.keys()}  # noqa: SIM118  # no mapping
    if expected != str(crc_of_arrays({name: tensor.numpy() for name, tensor in tensors.items()})):
        raise ValueError(f"snapshot {path} was damaged after it was written; remove it from the folder")


def _open_npy(path: Path) -> NDArray[Any]:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # np.load would take an archive for an array
    except Exception as error:  # numpy's reader of headers lets through what Python's tokenizer and parser raise
        try:
            with path.open("rb") as file:
                version = np.lib.format.read_magic(file)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                pickled = read(file)[2].hasobject
        except Exception:
            raise ValueError(f"{path} must be an array saved by numpy.save, it is not") from error
        if pickled:
            raise ValueError(
                f"{path} holds pickled objects, which could run foreign code; save a plain array (allow_pickle=False)"
            ) from error
        raise ValueError(f"{path} is incomplete or broken: {error}") from error


def _open_safetensors(path: Path) -> NDArray[Any]:
    try:
        with safe_open(path, framework="np") as stored:
            if TENSOR_NAME not in stored.keys():  # noqa: SIM118  # not a mapping
                raise ValueError(f"{path} must hold the matrix under the name {TENSOR_NAME}, it lacks that")
            return stored.get_tensor(TENSOR_NAME)  # type: ignore[no-any-return]
    except (SafetensorError, OSError, TypeError, AttributeError) as error:  # the last two: a type that numpy lacks
        raise ValueError(f"{path} cannot be read as safetensors: {error}") from error


def _check_suffix(path: Path) -> None:
    if path.suffix not in SUFFIXES:
        raise ValueError(f"a PCA matrix lies in a {' or '.join(SUFFIXES)} file, got {path.name}")
