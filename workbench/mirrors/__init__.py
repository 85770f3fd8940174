"""Runs in the tools that others use: TensorBoard and MLflow, by their own libraries (``[mirrors]``).

A mirror shows a run elsewhere; the record stays the run directory. ``workbench train --mirror tensorboard=logs`` and
``workbench.train(..., mirrors=["mlflow"])`` send a run while it goes on, `mirror_runs` and ``workbench runs mirror``
one that is recorded, `MirrorCallback` what a ``Model`` trains.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from workbench.mirrors.errors import MirrorError, MirrorFailedError, MirrorWarning
from workbench.mirrors.live import LiveMirrors
from workbench.mirrors.mirror import Mirror, MirroredRun
from workbench.mirrors.mlflow_mirror import MlflowMirror
from workbench.mirrors.named import mirrors_named
from workbench.mirrors.recorded import mirror_runs
from workbench.mirrors.tensorboard_mirror import TensorBoardMirror

if TYPE_CHECKING:
    from workbench.mirrors.model_callback import MirrorCallback

__all__ = [
    "LiveMirrors",
    "Mirror",
    "MirrorCallback",
    "MirrorError",
    "MirrorFailedError",
    "MirrorWarning",
    "MirroredRun",
    "MlflowMirror",
    "TensorBoardMirror",
    "mirror_runs",
    "mirrors_named",
]


def __getattr__(name: str) -> Any:
    if name != "MirrorCallback":  # the only one that needs torch
        raise AttributeError(f"module 'workbench.mirrors' has no attribute {name!r}")
    return importlib.import_module("workbench.mirrors.model_callback").MirrorCallback
