"""Tuned plain: the task as given with a shorter schedule and another learning rate, and nothing else.

It is what a fair baseline can do, so it stands beside every result; and it competes as a candidate. Its two parameters
are searched as the whole set-up is, with a regression of the quality over both and a time that is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from workbench.study.ask.search_space import Dimension
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.standing import Standing, Trying, allowed_by, standing_of

__all__ = ["PLAIN", "best_plain", "next_plain", "plain_dimensions", "plain_standing"]

PLAIN = "tuned_plain"
"""User attribute of a trial of tuned plain."""

_LENGTH, _RATE = "schedule.length", "optimizer.lr"
_SHORTEST, _N_LENGTHS, _N_RATES = 0.1, 24, 9
_FIRST_LENGTHS = (0.6, 0.5, 0.4)
_LIKELY = 0.5


def plain_dimensions(file: StudyFile) -> tuple[Dimension, ...]:
    """Return the two things that tuned plain varies."""
    rates = file.set_up.plain_rates
    length = Dimension(_LENGTH, "float", low=_SHORTEST, high=1.0, log=True)
    return (length, Dimension(_RATE, "float", low=min(rates), high=max(rates), log=True)) if rates else (length,)


def plain_standing(
    study: optuna.Study, file: StudyFile, allowed: float | None = None, also: Trying | None = None
) -> Standing:
    """Judge the trials of tuned plain by themselves, as bold as the allowed drop lets them be.

    What is compared with tuned plain shall not look better because that was cautious.
    """
    attributes, trials = study.user_attrs, study.get_trials(deepcopy=False)
    own = [trial for trial in trials if trial.user_attrs.get(PLAIN) or trial.user_attrs.get("baseline")]
    allowed = allowed_by(attributes) if allowed is None else allowed
    return standing_of(own, plain_dimensions(file), allowed, file.confirm.usual_seeds, attributes, also, margin=0.0)


def best_plain(study: optuna.Study, file: StudyFile) -> int | None:
    """Return the trial of tuned plain that is fastest among those that keep the quality; None where none does."""
    standing = plain_standing(study, file)
    likely = [number for number, sure in standing.sure.items() if sure >= _LIKELY and standing.times[number] < 1.0]
    return standing.leader if standing.leader is not None else min(likely, key=standing.times.__getitem__, default=None)


def next_plain(study: optuna.Study, file: StudyFile) -> dict[str, Any] | None:
    """Return the parameters of the next run of tuned plain; None where none is left that could be faster."""
    rates: Sequence[float | None] = file.set_up.plain_rates or [None]
    own = [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get(PLAIN)]
    begun = sum(trial.state != TrialState.WAITING for trial in own)
    if begun < len(_FIRST_LENGTHS):
        return _given(file, _FIRST_LENGTHS[begun], rates[min(begun, len(rates) - 1)])
    standing = plain_standing(study, file)
    tried = {(round(float(one.values[_LENGTH]), 4), one.values.get(_RATE)) for one in standing.tried.values()}
    points: list[tuple[float, float | None]] = []
    for length in (round(float(one), 4) for one in np.geomspace(_SHORTEST, 1.0, _N_LENGTHS, endpoint=False)):
        if length < standing.best_time:
            points += [(length, rate) for rate in _between(rates) if (length, rate) not in tried]
    if not points:
        return None
    values: list[Mapping[str, Any]] = [{_LENGTH: length, _RATE: rate} for length, rate in points]
    sure = standing.model.probability(values)
    lengths = np.array([length for length, _ in points])
    promise = sure * np.log(standing.best_time / lengths) / (lengths + 0.5)
    return _given(file, *points[int(np.argmax(promise))])


def _given(file: StudyFile, length: float, rate: float | None) -> dict[str, Any]:
    base = file.base_config().leaves()
    runtime = {path: base[path] for path in file.set_up.runtime}  # as given: no choice of the runtime either
    given = {**runtime, _LENGTH: length, "schedule.shape": file.set_up.plain_shape}
    return given if rate is None else {**given, _RATE: rate}


def _between(rates: Sequence[float | None]) -> list[float | None]:
    """Return the given rates and those between them, to three digits."""
    known = [rate for rate in rates if rate is not None]
    if len(known) < 2:
        return list(rates)
    grid = np.geomspace(min(known), max(known), _N_RATES)
    return [float(f"{rate:.3g}") for rate in grid if math.isfinite(rate)]
