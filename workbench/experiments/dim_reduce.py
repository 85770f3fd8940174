"""Names of version 0.6; everything is defined in :mod:`workbench.training.subspace_runs`."""

from workbench.training.subspace_runs import subspace_table, train_in_subspace

__all__ = ["subspace_table", "train_in_subspace"]
