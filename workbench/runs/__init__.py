"""Run directories: what happened in a run, kept so that a kill loses one block at most.

``RunRecorder`` writes one, ``read_run`` reads it back as DataFrames, ``list_runs`` and ``prune_runs`` keep a folder of
them tidy. Nothing here imports torch.
"""

from __future__ import annotations

from workbench.runs.environment import collect_environment
from workbench.runs.errors import RunError, TelemetryError
from workbench.runs.recorder import RunRecorder, new_run_id
from workbench.runs.run_directory import Run, find_runs, list_runs, prune_runs, read_run
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
]
