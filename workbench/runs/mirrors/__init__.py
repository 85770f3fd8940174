"""Runs in other people's tools: TensorBoard and MLflow, by their own libraries (``[mirrors]``).

A mirror shows a run elsewhere; the record stays the run directory. ``workbench train --mirror tensorboard=logs`` and
``workbench.train(..., mirrors=["mlflow"])`` send a run while it goes on; `mirror_runs` and ``workbench runs mirror``
send a recorded one, `MirrorCallback` (in ``workbench.mindspore``) what a ``Model`` trains.
"""

from __future__ import annotations

from workbench.runs.mirrors.live import LiveMirrors, live_mirrors, mirrors_named
from workbench.runs.mirrors.mirror import Mirror, MirroredRun, MirrorError, MirrorFailedError, MirrorWarning
from workbench.runs.mirrors.mlflow_mirror import MlflowMirror
from workbench.runs.mirrors.recorded import mirror_runs
from workbench.runs.mirrors.tensorboard_mirror import TensorBoardMirror

__all__ = [
    "LiveMirrors",
    "Mirror",
    "MirrorError",
    "MirrorFailedError",
    "MirrorWarning",
    "MirroredRun",
    "MlflowMirror",
    "TensorBoardMirror",
    "live_mirrors",
    "mirror_runs",
    "mirrors_named",
]
