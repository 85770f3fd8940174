"""Set-ups of known truth taken apart many times: runs are drawn, and nothing is stored or fitted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import optuna

from workbench.core.records import GainPart
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import SpeedMeasured
from workbench.study.set_up.attribution import Attributor, _Needed
from workbench.study.set_up.parts import Part

ALLOWED = 0.01
ADAMW = {"optimizer.name": "AdamW", "optimizer.lr": 0.005}
MERGED = {"batch.factor": 2.0}
SMOOTHED = {"regularization.label_smoothing": 0.1}


@dataclass(frozen=True)
class Truth:
    """What runs come to: a part multiplies the worth of every step, and what is lost is a power of their number."""

    adamw: float = 1.75
    merged: float = 1.25
    smoothed: float = 1.0
    power: float = 1.0  # of the length; the larger, the more curved is quality over its logarithm
    noise: float = 0.005  # standard deviation of one run's deficit
    margin: float = 0.8  # the length that the whole needs, relative to its own
    n_seeds: int = 8  # of the whole
    expected: float = 0.15  # standard deviation of the logarithm of a length that the search expects to suffice

    def needed(self, values: Mapping[str, Any]) -> float:
        """Return the length at which a set-up loses just what is allowed."""
        parts = ((ADAMW, self.adamw), (MERGED, self.merged), (SMOOTHED, self.smoothed))
        return 0.9 / math.prod(worth for part, worth in parts if part.items() <= values.items())

    def deficit(self, values: Mapping[str, Any], length: float) -> float:
        """Return the mean deficit of a set-up at a length."""
        return ALLOWED + 0.04 * ((length / self.needed(values)) ** -self.power - 1.0) / self.power

    def factor(self, part: str) -> float:
        """Return what a bar of the waterfall is in truth; NaN for the schedule."""
        known = {"AdamW": self.adamw, "batch x 2": self.merged, "label smoothing 0.1": self.smoothed}
        return {**known, "safety margin": self.margin}.get(part, math.nan)


class SimulatedAttributor(Attributor):
    """Takes a set-up apart, which is trial 0, by runs that it draws."""

    def __init__(self, file: StudyFile, whole: Mapping[str, Any], truth: Truth, seed: int) -> None:
        study = optuna.create_study()
        study.set_user_attr("allowed_drops", {"o1": ALLOWED})
        study.set_user_attr("target", "o1")
        super().__init__(study, file, None, self._train, None)  # type: ignore[arg-type]  # no step is timed
        self.truth, self.random = truth, np.random.default_rng(seed)
        self.runs: list[tuple[float, ...]] = []
        self.add(whole, truth.needed(whole) / truth.margin)

    def add(self, values: Mapping[str, Any], length: float) -> None:
        """Add a trial of a set-up."""
        self._train({**values, "schedule.length": length}, {"n_seeds": self.truth.n_seeds})
        config = self._ground.with_values({**values, "schedule.length": length}).to_dict()
        attributes = {"config": config, "speed": {"ratio": length}}
        self.study.add_trial(optuna.create_trial(value=length, user_attrs=attributes))

    def _train(self, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        mean = self.truth.deficit(values, float(values["schedule.length"]))
        self.runs.append(tuple(self.random.normal(mean, self.truth.noise, int(attributes["n_seeds"]))))
        return len(self.runs) - 1

    def _run(self, values: Mapping[str, Any], attributes: Mapping[str, Any]) -> int:
        return self._train(values, attributes)

    def _deficits(self, number: int) -> tuple[float, ...]:
        return self.runs[number]

    def _timed(self, values: Mapping[str, Any]) -> tuple[SpeedMeasured, SpeedMeasured]:
        length = float(values["schedule.length"])
        return SpeedMeasured(1.0, 1.0, 1.0, 20.0, 0.0), SpeedMeasured(length, length, length, 20.0, 0.0)

    def _expected(self, values: Mapping[str, Any], sure: float = 0.5) -> _Needed:
        aim = 1.15 * self.truth.needed(values)  # a search aims below the allowed drop
        return self._needed_at(values, min(aim * math.exp(self.random.normal(0.0, self.truth.expected)), 1.0))

    def _trained_without(self, idle: Sequence[Part], values: Mapping[str, Any], number: int) -> tuple[int, float]:
        without = dict(values)
        for part in idle:
            without = part.taken_out(without, self._plain)
        longer = self.truth.needed(without) / self.truth.needed(values)
        return number, longer * math.exp(self.random.normal(0.0, self.truth.expected))


def true_and_shown(truth: Truth, bars: Sequence[GainPart]) -> dict[str, tuple[float, bool]]:
    """Return for each part how far the logarithm of its factor is off, and whether its interval holds the true one."""
    known = {bar: truth.factor(bar.part) for bar in bars if math.isfinite(truth.factor(bar.part))}
    return {bar.part: (math.log(bar.factor / true), bar.low <= true <= bar.high) for bar, true in known.items()}
