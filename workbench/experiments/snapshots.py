"""Names of version 0.6; everything is defined in :mod:`workbench.training.snapshots`."""

from workbench.training.snapshots import SnapshotRecorder

__all__ = ["SnapshotRecorder"]
