"""What a running training has reported so far, as the tables that figures read.

Only what live figures draw is kept: the whole record is in the run directory. In a long run one step stands for several
like it, evenly spread, so that a panel takes no more memory after a million steps than after a hundred thousand.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.records import Event, EventKind, StepRecord
from workbench.figures.frames import STANDS_FOR, flags

_KEPT: Final = (
    *("step", "seconds", "step_ms", "loss", "loss_scale", "loss_scale_after", "overflow", "skipped"),
    *("accumulated", "frozen_groups"),
)
# Columns of methods: times of the parts of a step, and what second-order and offloading optimizers report.
_KEPT_PREFIXES: Final = ("time.", "thor.", "offload.")

_MOST_STEPS: Final = 40_000  # rows; figures draw a tenth of them


class LiveTrace:
    """Steps and events of one run; filled and read from any thread, and changed by `add` alone.

    Beyond 40 000 steps one stands for a number of neighbours of its kind (``stands_for``): steps in which something
    happened, an overflow or a change of the scale, are thinned among themselves, and only when they are too many.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: list[pd.DataFrame] = []  # joined when they are looked at, or as many as are kept
        self._n_waiting = 0  # rows of the blocks that are not joined
        self._chance = np.random.default_rng(0)
        self._every = [1, 1]  # steps that one stands for: of usual ones, of those in which something happened
        self.events: list[Event] = []  # evaluations apart
        self.evaluations: list[tuple[int, float]] = []  # micro-batches done, and the metric

    def add(self, records: Sequence[StepRecord], events: Sequence[Event]) -> None:
        """Add what was drained: steps, in order after earlier ones, and their events."""
        block = {name: np.array([getattr(record, name) for record in records]) for name in _KEPT}
        for name in sorted({name for record in records for name in record.columns if name.startswith(_KEPT_PREFIXES)}):
            block[name] = np.array([record.columns.get(name, np.nan) for record in records])
        with self._lock:
            if records:
                self._blocks.append(pd.DataFrame(block | {STANDS_FOR: np.ones(len(records), dtype=np.int64)}))
                self._n_waiting += len(records)
                if self._n_waiting > _MOST_STEPS:
                    self._join()
            for event in events:
                if event.kind is EventKind.EVALUATION:
                    self.evaluations.append((event.step + 1, event.value))
                else:
                    self.events.append(event)

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been reported yet."""
        return not (self._blocks or self.evaluations)

    @property
    def steps(self) -> pd.DataFrame:
        """The steps so far; to be read, not to be changed."""
        with self._lock:
            self._join()
            return self._blocks[0] if self._blocks else pd.DataFrame(columns=[*_KEPT, STANDS_FOR])

    def _join(self) -> None:
        if len(self._blocks) > 1 or self._n_waiting > _MOST_STEPS:
            table = _thinned(pd.concat(self._blocks, ignore_index=True), self._every, self._chance)
            while len(table) > _MOST_STEPS:
                happened = _happened(table)
                self._every[int(2 * happened.sum() > len(table))] *= 2
                table = _thinned(table, self._every, self._chance)
            self._blocks = [table]
        self._n_waiting = 0


def _happened(table: pd.DataFrame) -> npt.NDArray[np.bool_]:
    """Return in which steps something happened that a reader looks for, ``[n]``."""
    is_other = table["loss_scale_after"].to_numpy() != table["loss_scale"].to_numpy()
    marked = flags(table, "overflow") | flags(table, "skipped") | flags(table, "thor.refreshed")
    found: npt.NDArray[np.bool_] = marked | is_other | ~np.isfinite(table["loss"].to_numpy())
    return found


def _thinned(table: pd.DataFrame, every: Sequence[int], chance: np.random.Generator) -> pd.DataFrame:
    """Return one random step of each full stride of its kind, to stand for all of it; steps left over stay.

    Always taking the last might pick, say, only the steps that update, which take longer.
    """
    if max(every) == 1:
        return table
    happened, stands_for = _happened(table), table[STANDS_FOR].to_numpy().copy()
    for kind, stride in enumerate(every):
        (rows,) = np.nonzero(happened == bool(kind))
        so_far = np.cumsum(stands_for[rows])
        n_full = so_far[-1] // stride if rows.size else 0
        # All are powers of two, so no row reaches over a multiple of the stride.
        ends = np.searchsorted(so_far, np.arange(n_full + 1) * stride, side="right")
        chosen = rows[chance.integers(ends[:-1], ends[1:])]
        stands_for[rows[: ends[-1]]] = 0
        stands_for[chosen] = stride
    (kept,) = np.nonzero(stands_for)
    return table.iloc[kept].assign(**{STANDS_FOR: stands_for[kept]}).reset_index(drop=True)
