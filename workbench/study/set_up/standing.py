"""How a search for the fastest set-up stands: what was tried, what of it keeps the quality, and which plan leads.

Everything is read from the study's trials, so several processes see the same, and an interrupted search goes on where
it was.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.study.ask.search_space import Dimension
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.quality import Features, QualityModel, Tried, noise_of

__all__ = ["FURTHER", "SURE", "Standing", "allowed_by", "further_of", "standing_now", "standing_of"]

FURTHER = "further_deficits"
"""User attribute of a study: deficits of leaders on further seeds."""

SURE = 0.8
"""A plan leads only if it keeps the quality with at least this probability."""

_MARGIN = 2.6
"""How far below the allowed drop the search aims, in standard errors of the confirmation.

A plan there is confirmed four times in five; with 2.0 it was three times in five, and one quickstart in three ended
undecided."""

_FEWEST_SEEDS = 2
"""Nor by a single run."""


_JUDGED: dict[Hashable, Standing] = {}
"""The last standing: drawing, training and watching ask for the same one."""


@dataclass(frozen=True)
class Standing:
    """The trials of a search, judged together.

    Args:
        tried: Plans that were trained, by the number of their trial.
        times: Their total time relative to the baseline's.
        sure: Their probability of keeping the quality.
        model: The regression behind it.
        noise: Standard deviation of one run's deficit.
    """

    tried: Mapping[int, Tried]
    times: Mapping[int, float]
    sure: Mapping[int, float]
    model: QualityModel
    noise: float

    @property
    def ranking(self) -> list[int]:
        """Numbers of the trials that may lead, fastest first: faster than the baseline, and sure enough."""
        able = [
            number
            for number, one in self.tried.items()
            if self.times[number] < 1.0 and self.sure[number] >= SURE and len(one.deficits) >= _FEWEST_SEEDS
        ]
        return sorted(able, key=self.times.__getitem__)

    @property
    def leader(self) -> int | None:
        """Number of the trial that leads; None while none does."""
        return next(iter(self.ranking), None)

    @property
    def best_time(self) -> float:
        """The leader's total time relative to the baseline's; 1 while nothing leads."""
        return 1.0 if self.leader is None else self.times[self.leader]


def standing_of(
    trials: Sequence[FrozenTrial],
    dimensions: Sequence[Dimension],
    allowed: float,
    n_confirming: int,
    further: Mapping[int, Sequence[float]] = MappingProxyType({}),
    also: tuple[int, Tried, float] | None = None,
) -> Standing:
    """Judge the trials of a search.

    Args:
        trials: All trials of the study; those that were trained to the end count.
        dimensions: What is searched.
        allowed: Allowed drop, in the metric's unit.
        n_confirming: Seeds that a confirmation takes: a plan whose drop comes close to the allowed one cannot be
            confirmed with them, so the search aims at one that can.
        further: Deficits on further seeds, by the number of the trial (`further_of`).
        also: A trial that still runs: its number, what it has tried and its total time.

    Returns:
        The standing.
    """
    tried: dict[int, Tried] = {}
    times: dict[int, float] = {}
    spread, n_baseline = 0.0, 1
    for trial in trials:
        attributes = trial.user_attrs
        if attributes.get("baseline"):
            spread = float(attributes.get("spread", 0.0))
            n_baseline = len(attributes.get("run_seconds", [0.0]))
        elif trial.state == TrialState.COMPLETE and "deficits" in attributes:
            deficits = deficits_of(attributes) + tuple(further.get(trial.number, ()))
            tried[trial.number] = Tried(attributes["parameters"], deficits)
            times[trial.number] = float(attributes["speed"]["ratio"])
    if also is not None:
        tried[also[0]], times[also[0]] = also[1], also[2]
    noise = noise_of(list(tried.values()), math.sqrt(2.0) * spread or allowed)
    asked = (tuple(dimensions), allowed, n_confirming, noise, tuple(times.items()), _deficits(tried))
    known = _JUDGED.get(asked)  # one look: another thread may judge meanwhile
    if known is not None:
        return known
    aim = max(allowed - _MARGIN * noise / math.sqrt(n_confirming), -allowed)
    shared = noise / math.sqrt(2.0 * n_baseline)  # half of a deficit's variance is its baseline run's
    model = QualityModel(Features(dimensions), list(tried.values()), aim, noise, shared)
    sure = model.probability([one.values for one in tried.values()])
    standing = Standing(tried, times, dict(zip(tried, map(float, sure), strict=True)), model, noise)
    _JUDGED.clear()
    _JUDGED[asked] = standing
    return standing


def standing_now(study: optuna.Study, file: StudyFile) -> Standing:
    """Return how a study stands.

    Args:
        study: The study, with a finished baseline.
        file: Its file.
    """
    attributes = study.user_attrs
    trials, allowed = study.get_trials(deepcopy=False), allowed_by(attributes)
    return standing_of(trials, file.dimensions, allowed, file.confirm.usual_seeds, further_of(attributes))


def _deficits(tried: Mapping[int, Tried]) -> tuple[tuple[float, ...], ...]:
    return tuple(one.deficits for one in tried.values())


def allowed_by(attributes: Mapping[str, Any]) -> float:
    """Return the drop that a study's target allows, in the metric's unit; NaN while it is a share of an unknown value.

    Args:
        attributes: The study's user attributes.
    """
    return float(attributes["allowed_drops"][attributes["target"]])


def further_of(attributes: Mapping[str, Any]) -> dict[int, list[float]]:
    """Return what a study keeps of leaders on further seeds: number of the trial -> deficits.

    Args:
        attributes: The study's user attributes.
    """
    stored = attributes.get(FURTHER, {})
    return {int(number): [math.inf if one is None else one for one in row] for number, row in stored.items()}


def deficits_of(attributes: Mapping[str, Any]) -> tuple[float, ...]:
    """Return a trial's deficits, one per seed; inf where it diverged."""
    return tuple(math.inf if value is None else float(value) for value in attributes["deficits"])
