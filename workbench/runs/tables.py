"""Rows to Arrow tables, Parquet files and DataFrames, with one explicit schema.

Types are never guessed from the data: an empty run, a run whose loss was inf from the first step and a run whose
``time.forward`` appeared on its last step all read back with the same column types.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.core.files import replacing
from workbench.core.records import Event, StepRecord
from workbench.core.text import first_line
from workbench.runs.errors import RunError
from workbench.runs.json_lines import field_defaults, read_rows
from workbench.runs.schema import (
    COLUMNS,
    EVENT_COLUMNS,
    NAMED_LIKE,
    SCHEMA_VERSION,
    ColumnInfo,
    column_info,
    is_method_column,
)

_HISTOGRAM = pa.struct(
    [
        ("group", pa.string()),
        ("lowest", pa.int32()),
        ("counts", pa.list_(pa.int64())),
        ("zeros", pa.int64()),
        ("nonfinite", pa.int64()),
    ]
)
_TYPES = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "list of float64": pa.list_(pa.float64()),
    "list of histograms": pa.list_(_HISTOGRAM),
}


@dataclass(frozen=True)
class RunTable:
    """One of the two tables of a run: ``<name>.jsonl`` while it goes on, ``<name>.parquet`` afterwards."""

    name: str
    columns: Mapping[str, ColumnInfo]
    defaults: Mapping[str, Any]  # what a field left out of a line stands for
    may_grow: bool  # whether methods may add their own columns

    def schema(self, extra: Iterable[str] = ()) -> pa.Schema:
        """Return the Arrow schema: the fixed columns, then the methods' own, sorted by name."""
        columns = {**self.columns, **{name: column_info(name) for name in sorted(extra)}}
        described = [
            pa.field(name, _TYPES[info.kind], metadata={"unit": info.unit, "description": info.description})
            for name, info in columns.items()
        ]
        return pa.schema(described, metadata={"workbench_schema_version": str(SCHEMA_VERSION)})

    def may_hold(self, name: str) -> bool:
        """Whether a column of this name can belong to it."""
        return name in self.columns or (self.may_grow and is_method_column(name))


STEPS = RunTable("steps", COLUMNS, field_defaults(StepRecord), may_grow=True)
EVENTS = RunTable("events", EVENT_COLUMNS, field_defaults(Event), may_grow=False)


def read_frame(
    folder: Path, kind: RunTable, most_histograms: int | None = None, wanted: Collection[str] | None = None
) -> pd.DataFrame:
    """Return a table of a run, going on or finished, as a DataFrame whose column types do not depend on its content.

    The list columns hold one tuple per row, of floats or of ``{group, lowest, counts, zeros, nonfinite}`` dictionaries,
    the latter in at most ``most_histograms`` rows, evenly chosen. Only the columns ``wanted`` are read, None reads all.
    A RunError if something is missing, damaged, or larger than the memory.
    """
    try:
        # The lines first: they are removed only after the Parquet file is in place, so one of the two is always there.
        with contextlib.suppress(FileNotFoundError):
            return _read_lines(folder / f"{kind.name}.jsonl", kind, most_histograms, wanted)
        return _read_parquet(folder / f"{kind.name}.parquet", kind, most_histograms, wanted)
    except FileNotFoundError as error:
        missing = f"it has neither {kind.name}.jsonl nor {kind.name}.parquet"
        raise RunError(f"{folder} is not a whole run: {missing}") from error
    except OSError as error:
        raise RunError(f"{folder}: its {kind.name} cannot be read ({error.strerror or error})") from error


def compact(folder: Path, kind: RunTable, method_columns: Iterable[str]) -> None:
    """Write the lines of a table as Parquet, replacing that file as a whole or not at all; the lines stay."""
    schema = kind.schema(method_columns if kind.may_grow else ())
    # A dictionary pays where values repeat; for measured numbers it makes the file a third larger and slower to read.
    repeating = [
        field.name
        for field in schema
        if (field.name in kind.columns and kind.columns[field.name].repeats)
        or not (pa.types.is_floating(field.type) or pa.types.is_list(field.type))
    ]
    source, options = folder / f"{kind.name}.jsonl", {"compression": "zstd", "use_dictionary": repeating}
    with (
        replacing(folder / f"{kind.name}.parquet") as temporary,
        pq.ParquetWriter(temporary, schema, **options) as writer,
    ):
        for rows in read_rows(source):
            writer.write_table(_table(source, rows, kind, schema))


def _read_lines(path: Path, kind: RunTable, most: int | None, wanted: Collection[str] | None) -> pd.DataFrame:
    tables, extra = [], set[str]()
    for rows in read_rows(path):
        names = set[str]().union(*rows) - kind.columns.keys()
        if wrong := sorted(name for name in names if not kind.may_hold(name)):
            raise RunError(f"{path}: unknown column `{wrong[0]}`; a method's column is {NAMED_LIKE}")
        tables.append(_table(path, rows, kind, _only(wanted, kind.schema(names))))
        extra |= names
    schema = _only(wanted, kind.schema(extra))
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    return _frame(path, kind, table.schema, table.column, most)


def _read_parquet(path: Path, kind: RunTable, most: int | None, wanted: Collection[str] | None) -> pd.DataFrame:
    """Read a file that ``compact`` wrote, one column after the other: besides the result it takes a column's memory."""
    try:
        # Not read_table, which reads a folder as one table, and a folder's name `lr=0.1` as one more column.
        with pq.ParquetFile(path) as file:
            _check_schema(path, file.schema_arrow, kind)
            schema = _only(wanted, file.schema_arrow)
            _check_size(path, file.metadata, schema.names)

            def column(name: str) -> pa.ChunkedArray:
                field, n_rows = schema.field(name), file.metadata.num_rows
                if most == 0 and _holds_histograms(field):  # empty lists, whatever the file holds
                    starts, nothing = pa.array(np.zeros(n_rows + 1, np.int32)), pa.array([], field.type.value_type)
                    return pa.chunked_array([pa.ListArray.from_arrays(starts, nothing, type=field.type)])
                values = file.read(columns=[name]).column(name)
                values.validate(full=True)
                if len(values) != n_rows:
                    raise ValueError(f"column `{name}` has {len(values)} of {n_rows} rows")
                return values

            frame = _frame(path, kind, schema, column, most)
        pa.default_memory_pool().release_unused()  # what the columns lay in for a moment
        return frame
    except (FileNotFoundError, RunError):
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunError(f"{path}: not a readable Parquet file ({first_line(error)}); restore it or rerun") from error


def _only(wanted: Collection[str] | None, schema: pa.Schema) -> pa.Schema:
    return schema if wanted is None else pa.schema([field for field in schema if field.name in wanted])


def _frame(
    path: Path, kind: RunTable, schema: pa.Schema, column: Callable[[str], pa.ChunkedArray], most: int | None
) -> pd.DataFrame:
    series = {}
    for field in schema:
        values = column(field.name)
        # Only a method's column has steps without a value.
        if field.name in kind.columns and any(_has_null(chunk) for chunk in values.chunks):
            raise RunError(f"{path}: column `{field.name}` must have a value in every row, some have none")
        if pa.types.is_list(field.type):
            # By hand: to_pandas makes an array object per row, a million of them where a run kept ten thousand lists.
            tuples = _tuples(values, most if _holds_histograms(field) else None)
            series[field.name] = pd.Series(tuples, dtype=object)
        else:
            found: pd.Series[Any] = values.to_pandas()
            # Of one piece it may be Arrow's own memory, which is read-only.
            series[field.name] = found.copy() if values.num_chunks == 1 else found
    return pd.DataFrame(series, copy=False)


def _holds_histograms(field: pa.Field) -> bool:
    return bool(pa.types.is_list(field.type) and pa.types.is_struct(field.type.value_type))


def _table(path: Path, rows: list[dict[str, Any]], kind: RunTable, schema: pa.Schema) -> pa.Table:
    arrays = []
    for field in schema:
        default = kind.defaults.get(field.name)
        try:
            arrays.append(_array([row.get(field.name, default) for row in rows], field.type))
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            raise RunError(f"{path}: column `{field.name}` must hold {field.type} ({first_line(error)})") from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _check_schema(path: Path, found: pa.Schema, kind: RunTable) -> None:
    for name in found.names:
        if found.names.count(name) > 1:
            raise RunError(f"{path}: column `{name}` must be there once, got {found.names.count(name)} of the name")
    for field in kind.schema():
        there = found.field(field.name).type if field.name in found.names else None
        if there is None or not there.equals(field.type):
            raise RunError(
                f"{path}: column `{field.name}` must have type {field.type}, got {there or 'no such column'}"
            )
    for field in found:
        is_number = field.name in kind.columns or field.type.equals(pa.float64())
        if not (kind.may_hold(field.name) and is_number):
            raise RunError(f"{path}: column `{field.name}` of type {field.type} is not one of a run's")


def _check_size(path: Path, metadata: pq.FileMetaData, names: Collection[str]) -> None:
    """Refuse columns that unpack to more than the free memory: repeated values take next to nothing in a file."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    parts = [group.column(i) for group in groups for i in range(group.num_columns)]
    needed = sum(8 * max(part.num_values, 0) for part in parts if part.path_in_schema.split(".list.")[0] in names)
    free = psutil.virtual_memory().available
    if needed > free:
        raise RunError(
            f"{path}: needs at least {needed / 2**30:.1f} GiB of memory to be read, {free / 2**30:.1f} GiB are free"
        )


def _has_null(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if pa.types.is_list(array.type):
        return _has_null(array.flatten())
    return pa.types.is_struct(array.type) and any(_has_null(part) for part in array.flatten())


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        # Arrow refuses a whole number beyond 2**53 as a double; a loss scale given as the int 2**60 is one.
        is_plain = all(value is None or isinstance(value, int | float) for value in values)
        if not (pa.types.is_floating(kind) and is_plain):
            raise
        return pa.array([None if value is None else float(value) for value in values], kind)


def _tuples(column: pa.ChunkedArray, most: int | None) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    filled = np.empty(len(column), dtype=object)
    filled.fill(())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    at = np.flatnonzero(lengths)
    if most is not None and len(at) > most:
        at = at[np.linspace(0, len(at) - 1, most).round().astype(int)]
    begin = 0
    for chunk in column.chunks:  # one at a time: as plain values they take ten times the memory
        some = at[(at >= begin) & (at < begin + len(chunk))]
        for index, value in zip(some.tolist(), chunk.take(pa.array(some - begin)).to_pylist(), strict=True):
            filled[index] = tuple(value)
        begin += len(chunk)
    return filled
