"""Section ``snapshots``: when a run keeps its weights, from which a subspace is computed."""

from __future__ import annotations

from workbench.config.conditions import is_not
from workbench.config.section import Section, described

_KEPT = is_not("snapshots.count", 0, "no snapshots are kept (snapshots.count is 0)")


class SnapshotConfig(Section, use_attribute_docstrings=True):
    """Section ``snapshots``."""

    every_steps: int = described(
        100, "Steps between snapshots", unit="steps", low=1, high=500, log=True, ge=1, when=_KEPT
    )
    """Distance of two snapshots."""

    count: int = described(0, "Snapshots", unit="snapshots", low=8, high=128, log=True, ge=0)
    """How many are kept; 0 keeps none."""

    start_step: int = described(0, "First snapshot", unit="steps", low=0, high=1000, ge=0, when=_KEPT)
    """Steps before the first one; 0 keeps the initial weights."""
