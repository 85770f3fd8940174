"""Run directories: what happened in a run, kept so that a kill loses one block at most.

``RunRecorder`` writes one, ``read_run`` reads it back as DataFrames, ``list_runs`` and ``prune_runs`` keep a folder of
them tidy. Nothing here imports torch, and the names below are loaded on first use: an overview needs no table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workbench.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from workbench.runs.environment import collect_environment
    from workbench.runs.errors import RunError, TelemetryError
    from workbench.runs.overview import find_runs, prune_runs, run_overviews
    from workbench.runs.recorder import RunRecorder, new_run_id
    from workbench.runs.run_directory import Run, list_runs, read_run
    from workbench.runs.schema import COLUMNS, EVENT_COLUMNS, METHOD_COLUMNS, SCHEMA_VERSION, ColumnInfo, column_info

__all__ = [
    "COLUMNS",
    "EVENT_COLUMNS",
    "METHOD_COLUMNS",
    "SCHEMA_VERSION",
    "ColumnInfo",
    "Run",
    "RunError",
    "RunRecorder",
    "TelemetryError",
    "collect_environment",
    "column_info",
    "find_runs",
    "list_runs",
    "new_run_id",
    "prune_runs",
    "read_run",
    "run_overviews",
]

_HOME = {
    "collect_environment": "workbench.runs.environment",
    **dict.fromkeys(("RunError", "TelemetryError"), "workbench.runs.errors"),
    **dict.fromkeys(("RunRecorder", "new_run_id"), "workbench.runs.recorder"),
    **dict.fromkeys(("find_runs", "prune_runs", "run_overviews"), "workbench.runs.overview"),
    **dict.fromkeys(("Run", "list_runs", "read_run"), "workbench.runs.run_directory"),
    **dict.fromkeys(
        ("COLUMNS", "EVENT_COLUMNS", "METHOD_COLUMNS", "SCHEMA_VERSION", "ColumnInfo", "column_info"),
        "workbench.runs.schema",
    ),
}

__getattr__ = lazy_names(__name__, _HOME)
