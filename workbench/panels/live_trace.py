"""What a running training has told so far, as the tables that figures read.

Steps arrive in blocks; each block becomes arrays once, and blocks are joined when somebody looks. Only what live
figures draw is kept: the whole record is in the run directory.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from workbench.records import Event, EventKind, StepRecord

__all__ = ["LiveTrace"]

_KEPT: Final = (
    "step",
    "seconds",
    "step_ms",
    "loss",
    "loss_scale",
    "loss_scale_after",
    "overflow",
    "skipped",
    "accumulated",
    "frozen_groups",
)


class LiveTrace:
    """Steps and events of one run; filled and read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[pd.DataFrame] = []
        self._events: list[Event] = []
        self._evaluations: list[tuple[int, float]] = []

    def add(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Take what was drained.

        Args:
            records: Steps, in order, after those that came before.
            events: What happened in them.
        """
        block = None
        if records:
            columns = {name: np.array([getattr(record, name) for record in records]) for name in _KEPT}
            times = {name for record in records for name in record.columns if name.startswith("time.")}
            for name in sorted(times):
                columns[name] = np.array([record.columns.get(name, np.nan) for record in records])
            block = pd.DataFrame(columns)
        with self._lock:
            if block is not None:
                self._blocks.append(block)
            # Evaluations are drawn from their own list; of the rest, what the loss scale did.
            self._events += [event for event in events if event.kind is not EventKind.EVALUATION]
            self._evaluations += [
                (event.step + 1, event.value) for event in events if event.kind is EventKind.EVALUATION
            ]

    @property
    def steps(self) -> pd.DataFrame:
        """The steps so far."""
        with self._lock:
            if len(self._blocks) > 1:
                self._blocks = [pd.concat(self._blocks, ignore_index=True)]
            return self._blocks[0] if self._blocks else pd.DataFrame(columns=list(_KEPT))

    @property
    def events(self) -> list[Event]:
        """What happened so far, evaluations apart."""
        with self._lock:
            return list(self._events)

    @property
    def evaluations(self) -> list[tuple[int, float]]:
        """Pairs (micro-batches done, metric)."""
        with self._lock:
            return list(self._evaluations)
