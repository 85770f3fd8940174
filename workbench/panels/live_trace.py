"""What a running training has reported so far, as the tables that figures read.

Only what live figures draw is kept: the whole record is in the run directory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from workbench.core.records import Event, EventKind, StepRecord

_KEPT: Final = (
    *("step", "seconds", "step_ms", "loss", "loss_scale", "loss_scale_after", "overflow", "skipped"),
    *("accumulated", "frozen_groups"),
)
# Columns of methods: times of the parts of a step, and what second-order and offloading optimizers report.
_KEPT_PREFIXES: Final = ("time.", "thor.", "offload.")


class LiveTrace:
    """Steps and events of one run; filled and read from any thread, and changed by `add` alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[pd.DataFrame] = []  # joined when they are looked at
        self.events: list[Event] = []  # evaluations apart
        self.evaluations: list[tuple[int, float]] = []  # micro-batches done, and the metric

    def add(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Take what was drained: steps, in order, after those that came before, and what happened in them."""
        block = {name: np.array([getattr(record, name) for record in records]) for name in _KEPT}
        for name in sorted({name for record in records for name in record.columns if name.startswith(_KEPT_PREFIXES)}):
            block[name] = np.array([record.columns.get(name, np.nan) for record in records])
        with self._lock:
            if records:
                self._blocks.append(pd.DataFrame(block))
            for event in events:
                if event.kind is EventKind.EVALUATION:
                    self.evaluations.append((event.step + 1, event.value))
                else:
                    self.events.append(event)

    @property
    def steps(self) -> pd.DataFrame:
        """The steps so far; to be read, not to be changed."""
        with self._lock:
            if len(self._blocks) > 1:
                self._blocks = [pd.concat(self._blocks, ignore_index=True)]
            return self._blocks[0] if self._blocks else pd.DataFrame(columns=list(_KEPT))
