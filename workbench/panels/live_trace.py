"""What a running training has reported so far, as the tables that figures read.

Steps arrive in blocks and are written behind each other, into arrays that double when they are full; a table is a view
of them, so that looking costs the same after a million steps as after ten. Only what live figures draw is kept: the
whole record is in the run directory.
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
_FIRST_ROOM: Final = 256  # steps


class LiveTrace:
    """Steps and events of one run; filled and read from any thread, and changed by `add` alone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._columns: dict[str, np.ndarray] = {}  # with room for more than there is
        self._n = 0
        self._table: pd.DataFrame | None = None
        self.events: list[Event] = []  # evaluations apart
        self.evaluations: list[tuple[int, float]] = []  # micro-batches done, and the metric

    def add(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Take what was drained: steps, in order, after those that came before, and what happened in them."""
        block = {}
        if records:
            block = {name: np.array([getattr(record, name) for record in records]) for name in _KEPT}
            own = {name for record in records for name in record.columns if name.startswith(_KEPT_PREFIXES)}
            for name in sorted(own):
                block[name] = np.array([record.columns.get(name, np.nan) for record in records])
        with self._lock:
            if block:
                self._append(block, len(records))
            for event in events:
                if event.kind is EventKind.EVALUATION:
                    self.evaluations.append((event.step + 1, event.value))
                else:
                    self.events.append(event)

    def _append(self, block: dict[str, np.ndarray], n: int) -> None:
        """Write behind what is there; what tables were made of stays as it is."""
        end = self._n + n
        for name in {**self._columns, **block}:
            held, new = self._columns.get(name), block.get(name)
            if new is None:
                new = np.full(n, np.nan)
            if held is None:
                held = np.full(self._n, np.nan) if self._n else new[:0]
            kind = np.result_type(held, new)
            if len(held) < end or held.dtype != kind:
                larger = np.empty(max(end, 2 * len(held), _FIRST_ROOM), dtype=kind)
                larger[: self._n] = held[: self._n]
                held = larger
            held[self._n : end] = new
            self._columns[name] = held
        self._n, self._table = end, None

    @property
    def steps(self) -> pd.DataFrame:
        """The steps so far; to be read, not to be changed."""
        with self._lock:
            if self._table is None:
                known = {name: column[: self._n] for name, column in self._columns.items()}
                self._table = pd.DataFrame(known, copy=False) if known else pd.DataFrame(columns=list(_KEPT))
            return self._table
