"""How a task's metric is written, alone and as a difference: one unit wherever it is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from workbench.core.text import compact


class _Measured(Protocol):
    @property
    def metric_name(self) -> str: ...

    @property
    def higher_is_better(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class MetricScale:
    """How a task's metric is written: its name, its unit, and which way is better."""

    name: str  # for example "accuracy"
    # "%", "bits per byte", ...; "share" for a number in [0, 1] that people read in percent, as are accuracies without
    # a unit; else a bare number.
    unit: str = ""
    higher_is_better: bool = True

    @classmethod
    def of(cls, measured: _Measured) -> MetricScale:
        """Return how the metric of a study, a task or a run is written."""
        return cls(measured.metric_name, higher_is_better=measured.higher_is_better)

    @property
    def is_share(self) -> bool:
        """Whether values are shares in [0, 1], shown in percent; accuracies without a unit are, and no other names."""
        name = self.name.lower()
        return self.unit in {"share", "fraction"} or (not self.unit and ("accuracy" in name or name == "acc"))

    @property
    def factor(self) -> float:
        """What a value is multiplied by before it is shown."""
        return 100.0 if self.is_share else 1.0

    @property
    def shown_unit(self) -> str:
        """Unit of the shown value; may be empty."""
        return "%" if self.is_share else self.unit

    @property
    def title(self) -> str:
        """Axis title: name and unit."""
        name = self.name[:1].upper() + self.name[1:]
        return f"{name} ({self.shown_unit})" if self.shown_unit else name

    def value_text(self, value: float) -> str:
        """Write a metric, for example ``97.3 %`` or ``1.82 bits per byte``."""
        if not math.isfinite(value):
            return "unknown"
        digits = f"{value * self.factor:.2f}" if self.shown_unit == "%" else compact(value)
        return f"{digits} {self.shown_unit}".strip()

    def change_text(self, drop: float) -> str:
        """Write a drop as a change: ``0.5 points worse``, ``0.2 points better``, ``as good``."""
        text = self.difference_text(abs(drop))
        if text in {"unknown", self.difference_text(0.0)}:
            return text if text == "unknown" else "as good"
        return f"{text} {'worse' if drop > 0.0 else 'better'}"

    def difference_text(self, difference: float) -> str:
        """Write a difference of two metrics; percentages differ by points, never by percent."""
        if not math.isfinite(difference):
            return "unknown"
        if self.shown_unit != "%":
            return f"{compact(difference)} {self.shown_unit}".strip()
        text = f"{difference * self.factor:.2f}".rstrip("0").rstrip(".")
        text = "0" if text in {"-0", ""} else text
        return f"{text} point" if text in {"1", "-1"} else f"{text} points"
