"""Rows to Arrow tables, Parquet files and DataFrames, with one explicit schema.

Types are never guessed from the data: an empty run, a run whose loss was inf from the first step and a run whose
``dim_reduce.rho`` appeared on its last step all read back with the same column types.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
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
from workbench.runs.errors import RunError
from workbench.runs.json_lines import field_defaults, read_rows
from workbench.runs.schema import (
    COLUMNS,
    EVENT_COLUMNS,
    SCHEMA_VERSION,
    ColumnInfo,
    column_info,
    is_method_column,
)

__all__ = ["compact", "event_schema", "read_json_table", "read_parquet_table", "step_schema", "to_frame"]

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
_REPEATING = frozenset({"loss_scale", "loss_scale_after", "learning_rate"})
_STEP_DEFAULTS = field_defaults(StepRecord)
_EVENT_DEFAULTS = field_defaults(Event)


def step_schema(method_columns: Iterable[str] = ()) -> pa.Schema:
    """Return the Arrow schema of steps: the fixed columns, then the methods' own, sorted by name."""
    return _schema({**COLUMNS, **{name: column_info(name) for name in sorted(method_columns)}})


def event_schema() -> pa.Schema:
    """Return the Arrow schema of events."""
    return _schema(EVENT_COLUMNS)


def read_json_table(path: Path, fixed: pa.Schema) -> pa.Table:
    """Read the whole lines of a JSON-lines file.

    Args:
        path: ``steps.jsonl`` or ``events.jsonl``, possibly still growing or torn.
        fixed: ``step_schema()`` or ``event_schema()``; only steps may carry further (method) columns.

    Raises:
        RunError: When a line is damaged or holds a value of the wrong type.
        FileNotFoundError: When there is no such file.
    """
    tables = list(_json_tables(path, fixed))
    names = set().union(*(table.column_names for table in tables)) - set(fixed.names)
    schema = step_schema(names) if names else fixed
    table = pa.concat_tables([schema.empty_table(), *tables], promote_options="default")
    _check_complete(path, table, fixed)
    return table


def read_parquet_table(path: Path, fixed: pa.Schema, *, unread: Collection[str] = ()) -> pa.Table:
    """Read a Parquet file that ``compact`` wrote.

    Args:
        path: ``steps.parquet`` or ``events.parquet``.
        fixed: Columns that must be there, with their types.
        unread: List columns that are not read: empty in every row, whatever the file holds.

    Raises:
        RunError: When the file cannot be read as Parquet, is larger than the memory that is free, or a column is
            missing, of another type, twice there or no step's.
        FileNotFoundError: When there is no such file.
    """
    try:
        # Not read_table, which reads a folder as one table, and a folder's name `lr=0.1` as one more column.
        with pq.ParquetFile(path) as file:
            _check_schema(path, file.schema_arrow, fixed)
            _check_size(path, file.metadata)
            names = file.schema_arrow.names
            table = file.read(columns=[name for name in names if name not in unread])
        table = table.replace_schema_metadata()  # notes that pandas would follow are not for strangers to write
        table.validate(full=True)
        for name in unread:
            kind = fixed.field(name).type
            starts, values = np.zeros(len(table) + 1, np.int32), pa.array([], kind.value_type)
            nothing = pa.ListArray.from_arrays(pa.array(starts), values, type=kind)
            table = table.add_column(names.index(name), fixed.field(name), nothing)
    except (FileNotFoundError, RunError):
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise RunError(f"{path}: not a readable Parquet file ({_first_line(error)}); restore it or rerun") from error
    _check_complete(path, table, fixed)
    return table


def compact(source: Path, target: Path, schema: pa.Schema) -> None:
    """Write a JSON-lines file as Parquet, replacing the target as a whole; the source stays.

    Args:
        source: ``steps.jsonl`` or ``events.jsonl``.
        target: Parquet file to write.
        schema: All columns the source may hold, the methods' own included.

    Raises:
        RunError: When a line of the source is damaged.
        OSError: When the target cannot be written; it is then as it was.
    """
    # A dictionary pays where values repeat; for measured numbers it makes the file a third larger and slower to read.
    repeating = [
        field.name
        for field in schema
        if field.name in _REPEATING or (not pa.types.is_floating(field.type) and not pa.types.is_list(field.type))
    ]
    options = {"compression": "zstd", "use_dictionary": repeating}
    with replacing(target) as temporary, pq.ParquetWriter(temporary, schema, **options) as writer:
        for rows in read_rows(source):
            writer.write_table(_table(source, rows, schema))


def to_frame(table: pa.Table, most_histograms: int | None = None) -> pd.DataFrame:
    """Return a table as a DataFrame whose column types do not depend on its content.

    Numbers and truth values are NumPy columns, text is pandas' ``str``. The list columns hold one tuple per row,
    of floats or of ``{group, lowest, counts, zeros, nonfinite}`` dictionaries, empty on rows without.

    Args:
        table: Steps or events.
        most_histograms: Keep the dictionaries of at most so many rows, evenly chosen; None keeps all.
    """
    lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
    frame: pd.DataFrame = table.drop_columns(lists).to_pandas()
    for name in lists:
        # By hand: to_pandas makes an array object per row, a million of them where a run kept ten thousand lists.
        most = most_histograms if pa.types.is_struct(table.schema.field(name).type.value_type) else None
        frame.insert(table.column_names.index(name), name, pd.Series(_tuples(table.column(name), most), dtype=object))
    return frame


def _schema(columns: Mapping[str, ColumnInfo]) -> pa.Schema:
    described = [
        pa.field(name, _TYPES[info.kind], metadata={"unit": info.unit, "description": info.description})
        for name, info in columns.items()
    ]
    return pa.schema(described, metadata={"workbench_schema_version": str(SCHEMA_VERSION)})


def _json_tables(path: Path, fixed: pa.Schema) -> Iterator[pa.Table]:
    may_grow = fixed.names == list(COLUMNS)
    known = set(fixed.names)
    for rows in read_rows(path):
        names: set[str] = set().union(*rows) - known
        if wrong := sorted(name for name in names if not may_grow or not is_method_column(name)):
            raise RunError(f"{path}: unknown column `{wrong[0]}`; a method's column is named like `dim_reduce.rho`")
        yield _table(path, rows, step_schema(names) if names else fixed)


def _table(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    defaults = _EVENT_DEFAULTS if schema.names == list(EVENT_COLUMNS) else _STEP_DEFAULTS
    arrays = []
    for field in schema:
        default = defaults.get(field.name)
        values = [row.get(field.name, default) for row in rows]
        try:
            arrays.append(_array(values, field.type))
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            raise RunError(f"{path}: column `{field.name}` must hold {field.type} ({_first_line(error)})") from error
    return pa.Table.from_arrays(arrays, schema=schema)


def _check_schema(path: Path, schema: pa.Schema, fixed: pa.Schema) -> None:
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise RunError(f"{path}: column `{name}` must be there once, got {schema.names.count(name)} of the name")
    for field in fixed:
        found = schema.field(field.name).type if field.name in schema.names else None
        if found is None or not found.equals(field.type):
            raise RunError(
                f"{path}: column `{field.name}` must have type {field.type}, got {found or 'no such column'}"
            )
    for name in schema.names:
        may_be = name in fixed.names or (fixed.names == list(COLUMNS) and is_method_column(name))
        if not may_be or (name not in fixed.names and not schema.field(name).type.equals(pa.float64())):
            raise RunError(f"{path}: column `{name}` of type {schema.field(name).type} is none of a run's")


def _check_size(path: Path, metadata: pq.FileMetaData) -> None:
    """Refuse a file that unpacks into more than there is memory for: repeated values take next to nothing in a file."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    needed = sum(8 * max(group.column(i).num_values, 0) for group in groups for i in range(group.num_columns))
    free = psutil.virtual_memory().available
    if needed > free:
        raise RunError(
            f"{path}: needs at least {needed / 2**30:.1f} GiB of memory to be read, {free / 2**30:.1f} GiB are free"
        )


def _check_complete(path: Path, table: pa.Table, fixed: pa.Schema) -> None:
    """Refuse a value that is missing: only a method's column has steps without one."""
    for name in fixed.names:
        if any(_has_null(chunk) for chunk in table.column(name).chunks):
            raise RunError(f"{path}: column `{name}` must have a value in every row, some have none")


def _has_null(array: pa.Array) -> bool:
    if array.null_count:
        return True
    if pa.types.is_list(array.type):
        return _has_null(array.flatten())
    if pa.types.is_struct(array.type):
        return any(_has_null(part) for part in array.flatten())
    return False


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except pa.ArrowInvalid:
        # Arrow refuses a whole number beyond 2**53 as a double; a loss scale given as the int 2**60 is one.
        if not pa.types.is_floating(kind) or not all(
            value is None or isinstance(value, int | float) for value in values
        ):
            raise
        return pa.array([None if value is None else float(value) for value in values], kind)


def _tuples(column: pa.ChunkedArray, most: int | None) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    filled = np.empty(len(column), dtype=object)
    filled.fill(())
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy()
    at = np.flatnonzero(lengths)
    if most is not None and len(at) > most:
        at = at[np.linspace(0, len(at) - 1, most).round().astype(int)]
    for index, value in zip(at.tolist(), column.take(pa.array(at)).to_pylist(), strict=True):
        filled[index] = tuple(value)
    return filled


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")[:300]
