"""Names of version 0.6; everything is defined in :mod:`workbench.runs.mirrors` and :mod:`workbench.mindspore`."""

from workbench.mindspore.mirror_callback import MirrorCallback
from workbench.runs.mirrors import Mirror, mirror_runs

__all__ = ["Mirror", "MirrorCallback", "mirror_runs"]
