"""What the samplers are compared on: one surrogate of recorded trials, two functions as a control; all on one space.

Each problem has a *truth* (value and constraint, at most 0 when allowed) and an *observation*, which adds noise. Values
are shares of O0's: 1 is O0, smaller is sooner.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import cross_val_predict

from workbench.study.ask.search_space import SearchedSpace
from workbench.study.run.objective import steps_to_target

ALLOWED_DROP = 0.01
TREES = 100
FREEZE_P, LR, MOMENTUM = "grad_freeze.freeze_p", "optimizer.lr", "optimizer.momentum"
DECAY, GROUPS, WINDOW = "optimizer.weight_decay", "grad_freeze.param_groups", "grad_accumulation.grad_accumulation_step"


@dataclass(frozen=True)
class Seen:
    """Value as a share of O0's, and constraint."""

    value: float
    constraint: float


class Problem(Protocol):
    """Something to minimise."""

    name: str

    def truth(self, parameters: Mapping[str, Any]) -> Seen:
        """Return what holds on average."""

    def observe(self, parameters: Mapping[str, Any], rng: np.random.Generator) -> Seen:
        """Return one noisy measurement."""


class Recorded:
    """Extra-trees regression on recorded trials, plus a recorded run's distance from its trial's mean.

    Three things are predicted from what was in effect: relative step time, steps to the target and final deficit. The
    noise of an observation is that of one seed, drawn from the seeds of the three nearest recorded trials, steps and
    deficit of the same run together: noisy where training was.

    Args:
        space: What is searched.
        path: ``recorded.json``.
        budget: Micro-batches of a trial.
    """

    name = "recorded digits-lenet"

    def __init__(self, space: SearchedSpace, path: Path, budget: int) -> None:
        self._space = space
        self._budget = budget
        rows = json.loads(path.read_text())["rows"]
        o0 = [curve for curve in rows[0]["curves"] if curve[-1] is not None]
        self._metric = float(np.mean([curve[-1] for curve in o0]))
        steps = rows[0]["steps"]
        self._o0_cost = float(np.mean([self._steps(steps, curve) for curve in o0]))
        trials = [row for row in rows[1:] if row["curves"]]
        self.n_trials, self.n_runs = len(trials), sum(len(row["curves"]) for row in trials)
        self.points = np.array([self._encoded(row["parameters"]) for row in trials])
        runs = [[self._scored(row, curve) for curve in row["curves"]] for row in trials]
        means = np.array([np.mean(of, axis=0) for of in runs])
        self.targets = np.column_stack([[row["ratio"] for row in trials], means])
        self._noise = [np.array(of) - mean for of, mean in zip(runs, means, strict=True)]
        self._model = ExtraTreesRegressor(TREES, min_samples_leaf=2, random_state=0).fit(self.points, self.targets)

    def truth(self, parameters: Mapping[str, Any]) -> Seen:
        """Return the prediction."""
        ratio, steps, deficit = self._predicted(parameters)
        return self._seen(ratio, steps, deficit)

    def observe(self, parameters: Mapping[str, Any], rng: np.random.Generator) -> Seen:
        """Return the prediction and the noise of a recorded run nearby."""
        ratio, steps, deficit = self._predicted(parameters)
        distance = np.abs(self.points - self._encoded(parameters)).sum(axis=1)
        near = int(rng.choice(np.argsort(distance)[:3]))
        off = self._noise[near][int(rng.integers(len(self._noise[near])))]
        return self._seen(ratio, min(max(steps + off[0], 1.0), self._budget), deficit + off[1])

    def explained(self) -> dict[str, float]:
        """Return the share of the variance that five-fold cross-validation explains, per predicted quantity."""
        model = ExtraTreesRegressor(TREES, min_samples_leaf=2, random_state=0)
        told = cross_val_predict(model, self.points, self.targets, cv=5)
        left = ((self.targets - told) ** 2).sum(axis=0) / ((self.targets - self.targets.mean(axis=0)) ** 2).sum(axis=0)
        return dict(zip(("relative step time", "steps to the target", "deficit"), (1.0 - left).tolist(), strict=True))

    def _predicted(self, parameters: Mapping[str, Any]) -> tuple[float, float, float]:
        ratio, steps, deficit = self._model.predict(self._encoded(parameters)[None, :])[0]
        return float(ratio), float(steps), float(deficit)

    def _seen(self, ratio: float, steps: float, deficit: float) -> Seen:
        return Seen(ratio * steps / self._o0_cost, deficit - ALLOWED_DROP)

    def _scored(self, row: Mapping[str, Any], curve: list[float | None]) -> tuple[float, float]:
        if curve[-1] is None or row["steps"] is None or len(curve) != len(row["steps"]):  # it diverged
            return float(self._budget), self._metric
        return self._steps(row["steps"], curve), self._metric - curve[-1]

    def _steps(self, steps: list[int], curve: list[Any]) -> float:
        curve = list(zip(steps, curve, strict=True))
        return min(steps_to_target(curve, self._metric - ALLOWED_DROP, higher_is_better=True), float(self._budget))

    def _encoded(self, parameters: Mapping[str, Any]) -> np.ndarray:
        """Return one column per number, one per choice, and the middle for what was not in effect."""
        columns: list[float] = []
        for path, distribution in self._space.distributions.items():
            value = parameters.get(path)
            if isinstance(distribution, CategoricalDistribution):
                columns += [float(value == choice) for choice in distribution.choices]
            else:
                columns.append(0.5 if value is None else _share(distribution, value))
        return np.array(columns)


class Bowl:
    """A smooth bowl per combination of switches; the best lies behind two of them.

    Freezing and accumulation each take something off and bring parameters that must be right; the optimizers differ in
    how low they go and where. Too little training costs accuracy: full steps below a third break the constraint.
    """

    name = "smooth"
    noise = (0.03, 0.004)
    ripples = 0.0

    def __init__(self, space: SearchedSpace) -> None:
        self._space = space

    def truth(self, parameters: Mapping[str, Any]) -> Seen:
        """Return the function."""
        at = self._shares(parameters)
        name = parameters["optimizer.name"]
        value = {"SGD": 0.70, "Adam": 0.75, "RMSprop": 0.90}[name]
        lr = {"SGD": 0.75, "Adam": 0.35, "RMSprop": 0.25}[name]
        off = at[LR] - lr
        if MOMENTUM in at:  # a valley: more momentum wants a smaller rate
            off += 0.5 * (at[MOMENTUM] - 0.6)
            value += 0.3 * (at[MOMENTUM] - 0.6) ** 2
        value += 3.0 * off**2 + 0.1 * (at[DECAY] - 0.4) ** 2
        deficit = -0.01 + 0.1 * max(off, 0.0) ** 2
        if parameters["boost.grad_freeze"]:
            value += -0.2 + 0.5 * at[FREEZE_P] + 0.3 * (at[GROUPS] - 0.7) ** 2
            value += 0.05 * (parameters.get("grad_freeze.freeze_type") == 0)
            deficit += 0.06 * max(0.5 - at[FREEZE_P], 0.0)
        if parameters["boost.grad_accumulation"]:
            value += -0.1 + 0.5 * (at[WINDOW] - 0.3) ** 2
        value += self.ripples * sum(1.0 - math.cos(6.0 * math.pi * (share - 0.4)) for share in at.values()) / len(at)
        return Seen(value, deficit)

    def observe(self, parameters: Mapping[str, Any], rng: np.random.Generator) -> Seen:
        """Return the function and normal noise, more of it where the value is large."""
        true = self.truth(parameters)
        value = true.value + self.noise[0] * max(true.value, 0.2) * rng.standard_normal()
        return Seen(value, true.constraint + self.noise[1] * rng.standard_normal())

    def _shares(self, parameters: Mapping[str, Any]) -> dict[str, float]:
        numbers = self._space.numbers
        return {path: _share(numbers[path], value) for path, value in parameters.items() if path in numbers}


class Ripples(Bowl):
    """The bowl with ripples in every number and three times the noise: many local minima."""

    name = "rippled"
    noise = (0.09, 0.008)
    ripples = 0.15


def _share(distribution: FloatDistribution | IntDistribution, value: float) -> float:
    low, high = float(distribution.low), float(distribution.high)
    if distribution.log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)
