"""``criteo:PATH``: click logs in the form Criteo published, read line by line without an end in sight.

Criteo's Display Advertising Challenge (Kaggle 2014) and Terabyte logs: one record per line, 40 columns between tabs, a
label (0 or 1), 13 whole numbers and 26 categories of up to 8 hexadecimal digits, all but the label perhaps empty. PATH
is a file or a folder of files, read in the order of their names; ``.gz`` is unpacked.

A batch is ``((ids, numbers), labels)`` as that of ``clicks``: ids are int64 ``[n, 26]`` with the column's number in
the bits from 40 up, an empty one an id of its own; numbers float32 ``[n, 13]``, ``log(1 + x)`` for x > 0 and x itself
below (Criteo's counts go down to about -3; empty is 0); labels float32 ``[n]``. A line that is none of this is
rejected; more than ``limit`` of them end the reading with the last one's number and reason: the file is something else.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from workbench.tasks.batches import digest_of_batches
from workbench.tasks.click_law import FIELD_SHIFT
from workbench.tasks.clicks import ClickBatch, ClickModel, row_wise_adam
from workbench.tasks.errors import TaskError
from workbench.tasks.task import Task

N_NUMBERS, N_CATEGORIES = 13, 26
N_COLUMNS = 1 + N_NUMBERS + N_CATEGORIES
EMPTY_CATEGORY = 1 << 32
"""What stands for an empty category: one more than eight hexadecimal digits can say."""

BATCH_SIZE = 64
N_EVALUATION_LINES = 16_384
EVALUATION_BATCH_SIZE = 1024
_BLOCK_LINES = 4096
_LONGEST_LINE = 4096  # bytes; a real one has up to 400, and without a bound one line could be the whole of a file
_HEXADECIMAL = b"0123456789abcdefABCDEF"


class CriteoReader:
    """Reads batches from Criteo's files, any number of times."""

    def __init__(
        self,
        source: str | Path,  # a file, or a folder of files
        batch_size: int = BATCH_SIZE,  # the last one may be shorter
        *,
        limit: int | None = 1000,  # rejected lines that are too many; None for no limit
    ) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("limit", limit, 0)):
            if value is not None and value < least:
                raise TaskError(f"`{name}` must be at least {least}, got {value}")
        self.batch_size, self.limit = batch_size, limit
        self.n_rejected = 0
        self._files = _files_of(Path(source).expanduser())

    def __iter__(self) -> Iterator[ClickBatch]:
        return self.batches()

    def batches(self, start_line: int = 0, stop_line: int | None = None) -> Iterator[ClickBatch]:
        """Yield the batches of the lines from ``start_line`` up to, not including, ``stop_line`` (None: to the end)."""
        return (batch for _, batch in self.numbered_batches(start_line, stop_line))

    def numbered_batches(self, start_line: int = 0, stop_line: int | None = None) -> Iterator[tuple[int, ClickBatch]]:
        """Yield pairs (lines read up to the end of the batch, batch): where to begin again after the batch."""
        if start_line < 0:
            raise TaskError(f"`start_line` must be at least 0, got {start_line}")
        lines = islice(self._lines(), start_line, stop_line)
        number, size = start_line, self.batch_size
        kept: list[Tensor] = []  # line numbers, ids, numbers, labels
        while block := list(islice(lines, _BLOCK_LINES)):
            ids, values, labels, bad = parse_lines(block)
            for index in sorted(bad):
                self._reject(number + index, bad[index])
            good = np.setdiff1d(np.arange(len(block)), list(bad))
            parts = [torch.from_numpy(part) for part in (number + good, ids[good], values[good], labels[good])]
            kept = [torch.cat(pair) for pair in zip(kept, parts, strict=True)] if kept else parts
            number += len(block)
            n_whole = len(kept[0]) // size * size
            yield from _cut(kept, n_whole, size)
            kept = [part[n_whole:] for part in kept]
        if kept:
            yield from _cut(kept, len(kept[0]), size)

    def _lines(self) -> Iterator[bytes]:
        """Yield the lines of all files; a line that is too long is cut off."""
        for path in self._files:
            try:
                with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                    yield from _bounded_lines(file)
            except (OSError, EOFError, zlib.error) as error:
                raise TaskError(f"{path} cannot be read: {error}") from error

    def _reject(self, number: int, reason: str) -> None:
        self.n_rejected += 1
        if self.limit is not None and self.n_rejected > self.limit:
            raise TaskError(
                f"more than {self.limit} lines are no records of Criteo's form, the last one line {number}: {reason}; "
                "raise `limit` if the rest is worth reading"
            )


def parse_lines(
    lines: list[bytes],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32], dict[int, str]]:
    """Turn lines into ids ``[n, 26]``, numbers ``[n, 13]``, labels ``[n]``, and the reasons of bad lines by index."""
    bad: dict[int, str] = {}
    rows: list[list[bytes]] = []
    for index, line in enumerate(lines):
        columns = line.rstrip(b"\r\n").split(b"\t")
        if len(columns) != N_COLUMNS:
            too_long = f"longer than {_LONGEST_LINE} bytes" if len(line) > _LONGEST_LINE else ""
            bad[index] = too_long or f"not {N_COLUMNS} columns, got {len(columns)}"
            columns = _NOTHING
        rows.append(columns)
    behind = 1 + N_NUMBERS
    labels = _read_cells(rows, slice(0, 1), {b"0": 0, b"1": 1}.get, bad, "a label that is neither 0 nor 1")
    counts = _read_cells(rows, slice(1, behind), _count, bad, "no whole number").astype(np.float64)
    what = "no category of up to 8 hexadecimal digits"
    categories = _read_cells(rows, slice(behind, N_COLUMNS), _category, bad, what)
    numbers = np.where(counts > 0, np.log1p(np.maximum(counts, 0.0)), counts).astype(np.float32)
    ids = categories | (np.arange(N_CATEGORIES, dtype=np.int64) << FIELD_SHIFT)
    return ids, numbers, labels[:, 0].astype(np.float32), bad


def criteo_task(place: str) -> Task:
    """Return the task of a log in Criteo's form: the recommender of ``clicks``, larger, judged by its ROC curve.

    The first lines are kept for evaluation, training reads the others in their order, again and again.
    """
    reader = CriteoReader(place, EVALUATION_BATCH_SIZE)
    read = list(reader.numbered_batches(0, 5 * N_EVALUATION_LINES))
    if not read:
        raise TaskError("a click log must hold at least one record of Criteo's form, got none")
    n_lines, _ = read[-1]
    if n_lines < 2:
        raise TaskError("a click log must hold at least two records, one for training and one for evaluation, got 1")
    n_kept = max(n_lines // 5, 1)  # all that are to be kept, or a fifth of a short log
    return Task(
        name=f"criteo-{Path(place).expanduser().resolve().stem}",
        model=partial(ClickModel, N_CATEGORIES, N_NUMBERS, n_rows=1 << 20),
        loss=nn.BCEWithLogitsLoss(),
        optimizer=row_wise_adam,
        train=_CriteoLines(place, BATCH_SIZE, n_kept, None),
        evaluate=_CriteoLines(place, EVALUATION_BATCH_SIZE, 0, n_kept),
        metric="auroc",
        data_hash=f"first {n_kept} lines sha256:{digest_of_batches(reader.batches(0, n_kept), 64)}",
        description="recommender on a click log in Criteo's form",
    )


@dataclass(frozen=True)
class _CriteoLines:
    """A part of the lines, re-iterable."""

    place: str
    batch_size: int
    start: int
    stop: int | None

    def __iter__(self) -> Iterator[ClickBatch]:
        return CriteoReader(self.place, self.batch_size).batches(self.start, self.stop)


def _cut(kept: list[Tensor], n: int, size: int) -> Iterator[tuple[int, ClickBatch]]:
    """Yield the first n records as batches, each with the line after its last."""
    for first in range(0, n, size):
        lines, ids, values, labels = (part[first : min(first + size, n)] for part in kept)
        yield int(lines[-1]) + 1, ((ids, values), labels)


def _files_of(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.is_dir():
        raise TaskError(f"a click log must be a file or a folder of files, and {place} is not there")
    files = sorted(path for path in place.iterdir() if path.is_file() and not path.name.startswith("."))
    if not files:
        raise TaskError(f"a folder of click logs must hold at least one file, got the empty {place}")
    return files


def _bounded_lines(file: BufferedIOBase) -> Iterator[bytes]:
    """Yield lines; of one that is too long its beginning, the rest being read in pieces and dropped."""
    while line := file.readline(_LONGEST_LINE + 1):
        piece = line
        while len(piece) > _LONGEST_LINE and not piece.endswith(b"\n"):
            piece = file.readline(_LONGEST_LINE + 1)
        yield line


_NOTHING = [b"0", *[b""] * (N_NUMBERS + N_CATEGORIES)]  # stands in for a line that has no columns


def _count(cell: bytes) -> int | None:
    if not cell:
        return 0
    # int() alone would take blanks, underscores and numbers that no int64 holds.
    return int(cell) if cell.removeprefix(b"-").isdigit() and len(cell) <= 18 else None


def _category(cell: bytes) -> int | None:
    if not cell:
        return EMPTY_CATEGORY
    return int(cell, 16) if len(cell) <= 8 and not cell.translate(None, _HEXADECIMAL) else None


def _read_cells(
    rows: list[list[bytes]], columns: slice, value_of: Callable[[bytes], int | None], bad: dict[int, str], what: str
) -> npt.NDArray[np.int64]:
    """Return the values of some columns, shape ``[n, columns]``; note lines with a wrong cell and no reason yet."""
    cells = [cell for row in rows for cell in row[columns]]
    width = columns.stop - columns.start
    values = {cell: value_of(cell) for cell in set(cells)}  # a block repeats itself: each text is read once
    if None in values.values():
        for index, cell in enumerate(cells):
            if values[cell] is None:
                bad.setdefault(index // width, f"{what}, got {cell[:40]!r}")
    known = {cell: value or 0 for cell, value in values.items()}
    return np.fromiter(map(known.__getitem__, cells), dtype=np.int64, count=len(cells)).reshape(-1, width)
