"""The trials of a study as a table: pandas in a program, Parquet or CSV in a file.

One row per trial, in the order of their numbers; a Parquet file has the meaning and unit of a column (`TRIAL_COLUMNS`)
in its metadata. After these come the searched values, one column per path of ``[space]``, empty where a trial did not
draw it because it was not in effect.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.credentials import hide_passwords
from workbench.core.files import replacing
from workbench.study.answer.result import open_begun
from workbench.study.ask.search_space import Dimension
from workbench.study.errors import StudyError
from workbench.study.store import storage as kept
from workbench.study.store.stored_records import trials_of

TRIAL_COLUMNS: dict[str, tuple[str, str, str]] = {
    "trial": ("int64", "", "Number of the trial, from 0; trial 0 is O0."),
    "state": ("str", "", "complete, pruned, failed, running or waiting."),
    "level": ("str", "", "Boost level it was resolved at."),
    "in_effect": ("str", "", "What was in effect, in words."),
    "feasible": ("bool", "", "Whether it ran to its end and its drop is an allowed one."),
    "speed": ("float64", "times O0", "Steps per second relative to O0's, measured side by side."),
    "speed_low": ("float64", "times O0", "Lower end of the 95 % interval of the speed."),
    "speed_high": ("float64", "times O0", "Upper end of the 95 % interval of the speed."),
    "metric_name": ("str", "", "Name of the metric."),
    "metric": (
        "float64",
        "unit of the metric",
        "Last evaluation, the mean over its seeds; empty when a run diverged or there is none yet.",
    ),
    "drop": ("float64", "unit of the metric", "How much worse than O0 on the same seeds, positive = worse."),
    "allowed_drop": ("float64", "unit of the metric", "Drop that the study's target allows."),
    "value": ("float64", "unit of the objective", "What the study minimises; for a Pareto study the step time."),
    "steps_to_target": (
        "float64",
        "micro-batches",
        "Micro-batches to O0's final metric less the allowed drop; inf when not reached.",
    ),
    "warm_up_steps": ("int64", "micro-batches", "Micro-batches of O0 before the trial's own first one."),
    "seconds": ("float64", "s", "Time the trial took."),
    "started": ("datetime64[us, UTC]", "UTC", "When it began."),
    "ended": ("datetime64[us, UTC]", "UTC", "When it ended."),
    "message": ("str", "", "Why it was pruned, failed or diverged, in a sentence."),
    "run": ("str", "", "Run directory, below the study's folder."),
}
"""Fixed columns in their order: type, unit and meaning."""

TABLE_SUFFIXES = (".parquet", ".csv")


def trial_table(study_dir: str | Path, *, storage: str | None = None) -> pd.DataFrame:
    """Return one row per trial of a study, whatever its state; study and storage are as in `read_result`.

    Columns are those of ``TRIAL_COLUMNS``, then the searched paths. It never contains a storage URL's password.
    """
    with kept.quiet_optuna():
        study, file, _ = open_begun(study_dir, storage)
        records = trials_of(study)
        stored = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
        metric_name = str(study.user_attrs.get("metric_name", ""))
    rows = [
        {
            **{name: getattr(record, name) for name in TRIAL_COLUMNS if hasattr(record, name)},
            "trial": record.number,
            "in_effect": record.summary,
            **dict(zip(("speed", "speed_low", "speed_high"), record.speed, strict=True)),
            "metric_name": metric_name,
            "drop": record.metric_deficit,
            "started": _in_utc(stored[record.number].datetime_start),
            "ended": _in_utc(stored[record.number].datetime_complete),
            "message": hide_passwords(record.message),
            "run": record.run_path,
        }
        for record in records
    ]
    types = {name: kind for name, (kind, _, _) in TRIAL_COLUMNS.items()}
    frame = pd.DataFrame(rows, columns=list(types)).astype(types)
    by_path = {dimension.path: dimension for dimension in file.dimensions if dimension.path not in types}
    drawn = [path for record in records for path in record.parameters if path not in types]
    for path in dict.fromkeys([*by_path, *drawn]):
        frame[path] = _column([record.parameters.get(path) for record in records], by_path.get(path))
    return frame


def write_trial_table(table: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write what `trial_table` gave as ``.parquet`` or ``.csv``, by the file's suffix, replacing the file as a whole.

    Another suffix is a StudyError. If the file cannot be written (OSError), an old one stays untouched.
    """
    path = Path(path)
    check_table_path(path)
    with replacing(path) as temporary:
        if path.suffix.lower() == ".csv":
            table.to_csv(temporary, index=False)
        else:
            _write_parquet(table, temporary)


def check_table_path(path: Path) -> None:
    """Raise StudyError when no table can be written to a file of this name."""
    if path.suffix.lower() not in TABLE_SUFFIXES:
        raise StudyError(f"a table of trials must be a file named *{' or *'.join(TABLE_SUFFIXES)}, got {path.name!r}")


def _column(values: Sequence[Any], dimension: Dimension | None) -> pd.Series:
    """Return drawn values as a column whose type depends on what could be drawn, not on what was."""
    if dimension is not None and dimension.kind == "float":
        return pd.Series(values, dtype="float64")
    possible = [*values, *(() if dimension is None else dimension.extremes)]
    kinds = {type(value) for value in possible if value is not None}
    for among, dtype in (({bool}, "boolean"), ({int}, "Int64"), ({int, float}, "float64")):
        if kinds and kinds <= among:
            return pd.Series(values, dtype=dtype)
    # Words stay as they are; a list (betas) or a mixture is written as JSON.
    texts = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
    return pd.Series(texts, dtype="str")


def _write_parquet(table: pd.DataFrame, path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    plain = pa.Table.from_pandas(table, preserve_index=False)
    described = []
    for field in plain.schema:
        drawn = ("", "", f"Value drawn for `{field.name}`; empty where it was not in effect.")
        _, unit, meaning = TRIAL_COLUMNS.get(field.name, drawn)
        described.append(field.with_metadata({"unit": unit, "description": meaning}))
    # The table's own metadata let pandas read its types back.
    pq.write_table(plain.cast(pa.schema(described, metadata=plain.schema.metadata)), path)


def _in_utc(local: datetime.datetime | None) -> datetime.datetime | None:
    return None if local is None else local.astimezone(datetime.UTC)  # Optuna keeps local times without a zone
