"""Snapshots for serving: a full one now and then, in between the rows that changed, and never half of either.

A folder holds files that are never changed once written, and ``manifest.json``, which is replaced in one move and names
the files that make up the newest version::

    manifest.json                       version 7 = full-...5 + delta-...6 + delta-...7
    full-000000000005.safetensors       every tensor of the model's state
    delta-000000000006.safetensors      what differs from version 5
    delta-000000000007.safetensors      what differs from version 6

A delta holds, for a tensor with many rows, ``rows:<name>`` (numbers of the rows that changed, int64) and
``values:<name>``; for any other that changed ``whole:<name>``. What changed is found by comparing bits with what was
published before, so it holds for every optimizer, for sparse and dense gradients, and for rows that were evicted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from workbench.core.arguments import checked_count
from workbench.core.checksums import crc_of_file, is_intact, sealed
from workbench.core.files import replacing, write_text_atomically
from workbench.training.background_writer import BackgroundWriter

_FORMAT = 1
_MANIFEST = "manifest.json"
_FILES = "files"  # of a manifest: the checksum of each file that it names
_ROWS, _VALUES, _WHOLE = "rows:", "values:", "whole:"
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}
_CHUNK_ROWS = 1 << 16  # rows compared at a time: the mask of a whole table would be a quarter of its size
_TRIES = 20
_FULL, _DELTA = re.compile(r"full-\d{12}\.safetensors"), re.compile(r"delta-\d{12}\.safetensors")


@dataclass
class Published:
    """One version, as a reader sees it."""

    version: int  # grows by one with each that is published
    step: int  # training steps behind it
    tensors: dict[str, Tensor]  # the model's state, on the CPU
    base: str  # file it was read from first
    deltas: tuple[str, ...]  # files applied to it
    crcs: Mapping[str, int] = field(
        default_factory=dict
    )  # checksum of each file; names repeat once a folder was emptied


class SnapshotPublisher:
    """Publishes the state of a model in a folder.

    It keeps a copy in host memory of what was published last, as large as the model.

    Args:
        folder: Made when it is missing. Versions go on growing where another publisher left off.
        every_steps: Steps between two versions, at least 1; None for none by step.
        every_seconds: Seconds between two versions; None for none by time.
        full_every: Deltas after which the next version is a full one, at least 0.
        delta_rows: Tensors with at least so many rows are published by row.
    """

    def __init__(
        self,
        folder: Path | str,
        every_steps: int | None = None,
        every_seconds: float | None = 60.0,
        full_every: int = 30,
        delta_rows: int = 1024,
    ) -> None:
        self._writer = BackgroundWriter("a snapshot", every_steps, every_seconds)
        self.folder = Path(folder)
        self.full_every = checked_count("full_every", full_every, 0)
        self.delta_rows = checked_count("delta_rows", delta_rows)
        self._last: dict[str, Tensor] = {}
        self._base = ""
        self._deltas: list[str] = []
        self._version: int | None = None

    def is_due(self, n_steps: int) -> bool:
        """Return whether to publish after so many steps; while a version is being written, the next one waits."""
        return self._writer.is_due(n_steps)

    def publish(self, model: nn.Module, n_steps: int, *, wait: bool = False) -> int:
        """Publish the state of a model, written in the background unless ``wait`` is set, and return the version.

        What changed is copied before this returns; a ValueError says that the state holds something else than tensors.
        """
        state = _tensors_of(model)
        self._finish_writing()
        if self._version is None:
            published = _read_manifest(self.folder)
            self._version = 0 if published is None else int(published["version"])
        self._version += 1
        forms = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
        same = forms == {name: (tensor.shape, tensor.dtype) for name, tensor in self._last.items()}
        if not same or len(self._deltas) >= self.full_every:
            self._last = {
                name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
                for name, tensor in state.items()
            }
            content, self._deltas = self._last, []
            file = self._base = f"full-{self._version:012d}.safetensors"
        else:
            content = self._difference(state)
            file = f"delta-{self._version:012d}.safetensors"
            self._deltas.append(file)
        files = {"base": self._base, "deltas": list(self._deltas)}
        manifest = {"format": _FORMAT, "version": self._version, "step": n_steps, **files}
        self._writer.start(lambda: self._write(file, content, manifest))
        if wait:
            self._finish_writing()
        return self._version

    def close(self) -> None:
        """Wait until everything is on the disk; warn when the last version could not be written."""
        self._finish_writing()

    def _finish_writing(self) -> None:
        if not self._writer.finish():
            self._last = {}  # readers never saw what it says, so the next version cannot build on it

    def _difference(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what changed since the last version, and remember it."""
        content: dict[str, Tensor] = {}
        for name, tensor in state.items():
            now, last = tensor.to("cpu").contiguous(), self._last[name]
            rows = changed_rows(now, last)
            if not len(rows):
                continue
            if now.ndim and len(now) >= self.delta_rows:
                values = now[rows]
                last[rows] = values
                content[_ROWS + name], content[_VALUES + name] = rows, values
            else:
                last.copy_(now)
                content[_WHOLE + name] = now.clone()
        return content

    def _write(self, file: str, content: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        before = _read_manifest(self.folder)
        with replacing(self.folder / file) as temporary:
            save_file(dict(content), temporary)
        files = [manifest["base"], *manifest["deltas"]]
        known = {} if before is None else before.get(_FILES, {})
        crcs = {
            name: known[name] if name in known and name != file else crc_of_file(self.folder / name) for name in files
        }
        whole = sealed({**manifest, _FILES: crcs})
        write_text_atomically(self.folder / _MANIFEST, json.dumps(whole, indent=2) + "\n")
        # A reader that has just read the manifest before finds its files; one that is slower reads the new manifest.
        needed = {name for one in (manifest, before) if one for name in (one["base"], *one["deltas"])}
        for path in self.folder.glob("*.safetensors"):
            if path.name.startswith(("full-", "delta-")) and path.name not in needed:
                path.unlink(missing_ok=True)


def load_published(folder: Path | str, since: Published | None = None) -> Published:
    """Return the newest version in a folder, whole, whatever is being published meanwhile.

    ``model.load_state_dict(published.tensors)`` takes it. Where it builds on ``since``, which an earlier call returned,
    only new deltas are read and applied to its tensors in place, and it is returned itself.

    Raises:
        FileNotFoundError: When nothing was published yet, or a file that the manifest names is missing.
        ValueError: When the manifest is not of this format, or a file is damaged or of another model; ``since`` is then
            as it was.
    """
    folder = Path(folder)
    for attempt in range(_TRIES):
        manifest = _read_manifest(folder)
        if manifest is None:
            raise FileNotFoundError(f"{folder} holds no {_MANIFEST}: nothing was published there yet")
        try:
            return _load(folder, manifest, since)
        except FileNotFoundError as error:
            # The files of this manifest were cleared away after a newer one had come, which is there by now.
            if attempt == _TRIES - 1 or _read_manifest(folder) == manifest:
                raise FileNotFoundError(
                    f"{folder / _MANIFEST}: names a file that is not there ({error}); copy the whole folder, or "
                    "publish it again"
                ) from None
    raise AssertionError("the loop returns or raises")


def _load(folder: Path, manifest: Mapping[str, Any], since: Published | None) -> Published:
    base, deltas, crcs = manifest["base"], tuple(manifest["deltas"]), manifest.get(_FILES, {})
    applied = () if since is None else (since.base, *since.deltas)
    follows = since is not None and applied == (base, *deltas)[: len(applied)]
    if since is not None and follows and all(since.crcs.get(name) == crcs.get(name) for name in applied):
        published = since
    else:
        published = Published(0, 0, _read_tensors(folder / base, crcs.get(base)), base, ())
    # All files are read and checked before anything is changed, so that a missing or wrong one leaves `since` as it is.
    new = {name: _read_tensors(folder / name, crcs.get(name)) for name in deltas[len(published.deltas) :]}
    updates: list[tuple[Tensor, Any, Tensor]] = []
    for name, delta in new.items():
        try:
            updates += _updates(published.tensors, delta)
        except ValueError as error:
            raise ValueError(f"{folder / name}: {error}; it is damaged or belongs to another model") from None
    for tensor, rows, values in updates:
        tensor[rows] = values
    published.deltas, published.crcs = deltas, crcs
    published.version, published.step = manifest["version"], manifest["step"]
    return published


def _read_tensors(path: Path, crc: int | None) -> dict[str, Tensor]:
    try:
        if crc is not None and crc_of_file(path) != crc:  # manifests of earlier versions have none
            raise ValueError("it was damaged after it was written")
        return load_file(path)
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be read as safetensors ({error})") from error


def _updates(tensors: Mapping[str, Tensor], delta: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, Any, Tensor]]:
    """Yield what a delta sets in a state: the tensor, which rows of it or all, and to what; ValueError if it cannot."""
    for key, value in delta.items():
        kind = next((kind for kind in (_ROWS, _VALUES, _WHOLE) if key.startswith(kind)), "")
        name = key.removeprefix(kind)
        if not kind or name not in tensors:
            raise ValueError(f"the model has no tensor for {key!r}")
        if kind == _VALUES:
            if _ROWS + name not in delta:
                raise ValueError(f"{key!r} comes without its rows")
            continue  # its rows name it
        whole, shape = tensors[name], tensors[name].shape
        rows: Any = ...
        if kind == _ROWS:
            if _VALUES + name not in delta or whole.ndim == 0 or value.dtype != torch.int64 or value.ndim != 1:
                raise ValueError(f"{key!r} must be int64 row numbers with values of a table")
            if len(value) and not 0 <= int(value.min()) <= int(value.max()) < len(whole):
                raise ValueError(f"{key!r} names a row that the table of {len(whole)} rows lacks")
            rows, value = value, delta[_VALUES + name]
            shape = torch.Size((len(rows), *shape[1:]))
        if value.dtype != whole.dtype or value.shape != shape:
            raise ValueError(f"{name!r} is {value.dtype} {tuple(value.shape)}, not {whole.dtype} {tuple(shape)}")
        yield whole, rows, value


def changed_rows(now: Tensor, last: Tensor) -> Tensor:
    """Return the numbers of the rows whose bits differ, int64, ascending; both contiguous on the CPU, and alike."""
    if now.numel() == 0:
        return torch.empty(0, dtype=torch.int64)
    rows = len(now) if now.ndim else 1
    bits = _BITS[now.element_size()]
    one, other = (tensor.reshape(rows, -1).view(bits) for tensor in (now, last))
    found = [
        (one[start : start + _CHUNK_ROWS] != other[start : start + _CHUNK_ROWS]).any(1).nonzero().reshape(-1) + start
        for start in range(0, rows, _CHUNK_ROWS)
    ]
    return torch.cat(found)


def _tensors_of(model: nn.Module) -> dict[str, Tensor]:
    state = model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"a snapshot holds tensors only, and {name!r} of the model's state is a {type(value).__name__}"
            )
    return {name: value.detach() for name, value in state.items()}


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(f"{folder / _MANIFEST}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{folder / _MANIFEST}: not a manifest, it is no JSON ({error})") from error
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise ValueError(f"{folder / _MANIFEST}: not a manifest of format {_FORMAT}")
    if not is_intact(manifest) or not isinstance(manifest.get(_FILES, {}), dict):
        raise ValueError(f"{folder / _MANIFEST}: it was damaged after it was written")
    base, deltas = manifest.get("base"), manifest.get("deltas")
    named = isinstance(deltas, list) and all(isinstance(name, str) and _DELTA.fullmatch(name) for name in deltas)
    if not named or not isinstance(base, str) or not _FULL.fullmatch(base):  # files of this folder, and no others
        raise ValueError(f"{folder / _MANIFEST}: not a manifest, `base` and `deltas` must name published files")
    if not all(type(manifest.get(key)) is int and 0 <= manifest[key] < 10**12 for key in ("version", "step")):
        raise ValueError(f"{folder / _MANIFEST}: not a manifest, `version` and `step` must be whole numbers")
    return manifest
