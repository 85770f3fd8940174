"""What of a run is mirrored: which numbers under which names, and how many points.

Names have two parts, as TensorBoard and MLflow group by the first. A method's own columns keep theirs, with a slash
for the dot (``time/forward``). A viewer draws about a thousand points of a curve, so in a long run only every k-th
step is mirrored, or the first one there is of k; steps that overflowed always are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from workbench.core.records import Event, EventKind, StepRecord
from workbench.runs.schema import COLUMNS, ColumnInfo, column_info

FROZEN = COLUMNS["frozen_groups"].mirror  # shown once there are any
SCALARS = {column: info.mirror for column, info in COLUMNS.items() if info.mirror and info.mirror != FROZEN}
"""Fixed column of a run -> name in a mirror."""
OVERFLOWS = "loss_scale/overflows"

_DESCRIBED = {info.mirror: info for info in COLUMNS.values() if info.mirror}
_DESCRIBED[OVERFLOWS] = ColumnInfo("float64", "updates", "Updates whose gradients overflowed, so far.")


@dataclass(frozen=True, slots=True)
class Point:
    """The numbers of one step, all finite, by their name in the mirror."""

    step: int
    seconds: float  # time since the run began when the step ended
    values: Mapping[str, float]


class Selection:
    """Turn the blocks of one run into points.

    ``most`` is roughly the most points of a run: beyond the planned ``steps`` the distance between points doubles, and
    again after half as many more.
    """

    def __init__(self, most: int, steps: int | None = None) -> None:
        self._most = max(most, 2)
        self._every = max(1, math.ceil(steps / self._most)) if steps else 1
        self._chosen = 0
        self._last = -1  # step of the last one of these
        self._overflows = 0
        self._freezes = False
        self._seconds = 0.0
        self._step_ended: dict[int, float] = {}
        self._latest: dict[str, float] = {}

    def points(self, records: Iterable[StepRecord], events: Iterable[Event] = ()) -> list[Point]:
        """Return the points of a block and of its evaluations, in the order of steps."""
        points = list(self._of_steps(records))
        for event in events:
            if event.kind is EventKind.EVALUATION and math.isfinite(event.value):
                values = {f"evaluation/{event.subject or 'metric'}": event.value}
                points.append(Point(event.step, self.seconds_at(event.step), values))
        return sorted(points, key=lambda point: point.step)

    def seconds_at(self, step: int) -> float:
        """Return when a step of the last block ended, seconds; the end of the block for another step."""
        return self._step_ended.get(step, self._seconds)

    def _of_steps(self, records: Iterable[StepRecord]) -> Iterator[Point]:
        self._step_ended = {}
        for record in records:
            self._overflows += record.overflow
            self._freezes = self._freezes or record.frozen_groups > 0
            self._seconds = record.seconds + (record.step_ms / 1e3 if record.step_ms == record.step_ms else 0.0)
            self._step_ended[record.step] = self._seconds
            # Between two points the latest number counts: a norm exists only where a window of micro-batches ended.
            self._latest |= self._values(record)
            # Not every multiple of k: a mirror that is too slow lacks steps, say all the even ones.
            is_due = record.step // self._every != self._last // self._every
            if is_due:
                self._last = record.step
            if is_due or record.overflow:
                yield Point(record.step, self._seconds, self._latest)
                self._latest = {}
                self._chosen += not record.overflow
            if self._chosen >= self._most:
                self._every, self._chosen = 2 * self._every, self._most // 2

    def _values(self, record: StepRecord) -> dict[str, float]:
        values = {name: float(getattr(record, column)) for column, name in SCALARS.items()}
        values[OVERFLOWS] = float(self._overflows)
        if self._freezes:
            values[FROZEN] = float(record.frozen_groups)
        for column, value in record.columns.items():  # whose names leave out what their documentation says
            values[column.replace(".", "/") + ("_ms" if column.startswith("time.") else "")] = value
        return {name: value for name, value in values.items() if math.isfinite(value)}


def described(names: Sequence[str]) -> dict[str, ColumnInfo]:
    """Return unit and meaning of mirrored numbers; names that no column explains are left out."""
    explained = [name for name in names if not name.startswith(("evaluation/", "summary/"))]
    return {name: _DESCRIBED.get(name) or column_info(name.replace("/", ".")) for name in explained}
