"""Names of version 0.6; everything is defined in :mod:`workbench.runs`."""

from workbench.runs import Run, RunError, RunRecorder, collect_environment, list_runs, new_run_id, prune_runs, read_run

__all__ = ["Run", "RunError", "RunRecorder", "collect_environment", "list_runs", "new_run_id", "prune_runs", "read_run"]
