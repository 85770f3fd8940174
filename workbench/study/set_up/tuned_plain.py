"""Tuned plain: the task as given with a shorter schedule and another learning rate, and nothing else.

It is what a fair baseline can do, so it stands beside every result; and it competes as a candidate. Its two parameters
are searched as the whole set-up is, with a regression of the quality over both and a time that is known. Runs of both
in turn, on the seeds of the confirmation, show how much faster an export is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import optuna
from optuna.trial import TrialState

from workbench.config import BoostConfig
from workbench.core.paired_bounds import paired_drops, run_time_ratio
from workbench.core.records import CandidateRecord, TunedPlain
from workbench.study.answer.confirmation_rounds import ConfirmationRounds
from workbench.study.ask.search_space import GIVEN, Dimension
from workbench.study.ask.sections import TARGETS
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import plain, read_record
from workbench.study.run.objective import finished_baseline
from workbench.study.set_up.standing import LIKELY, Standing, TrainedPlan, standing_of
from workbench.study.set_up.total_time import compile_seconds
from workbench.study.store.stored_records import allowed_drop_of, keep

PLAIN = "tuned_plain"  # user attribute of a trial of tuned plain

_STORED = "tuned_plain_beside"
_LENGTH = "schedule.length"
_SHORTEST, _N_LENGTHS, _N_RATES = 0.1, 24, 9
_FIRST_LENGTHS = (0.6, 0.5, 0.4)
_MOST_PAIRS = 10
_FEWEST_PAIRS = 5  # an interval from fewer spans everything where a machine is busy, and the predicted time is better
_ERROR = 0.025  # of each end of the interval of a ratio of times


def plain_standing(
    study: optuna.Study, file: StudyFile, allowed: float | None = None, also: TrainedPlan | None = None
) -> Standing:
    """Judge the trials of tuned plain by themselves, as bold as the allowed drop lets them be.

    What is compared with tuned plain must not look better because that was cautious.
    """
    attributes, trials, rates = study.user_attrs, study.get_trials(deepcopy=False), file.set_up.plain_rates
    own = [trial for trial in trials if trial.user_attrs.get(PLAIN) or trial.user_attrs.get("baseline")]
    varied = [Dimension(_LENGTH, "float", low=_SHORTEST, high=1.0, log=True)]
    varied += [Dimension(file.set_up.plain_rate, "float", low=min(rates), high=max(rates), log=True)] if rates else []
    allowed = allowed_drop_of(attributes) if allowed is None else allowed
    return standing_of(own, varied, allowed, file.confirm.usual_seeds, attributes, also, margin=0.0)


def best_plain(study: optuna.Study, file: StudyFile) -> int | None:
    """Return the trial of tuned plain that is fastest among those that keep the quality; None where none does."""
    standing = plain_standing(study, file)
    likely = [number for number, sure in standing.sure.items() if sure >= LIKELY and standing.times[number] < 1.0]
    return standing.leader if standing.leader is not None else min(likely, key=standing.times.__getitem__, default=None)


def next_plain(study: optuna.Study, file: StudyFile) -> dict[str, Any] | None:
    """Return the parameters of the next run of tuned plain; None where none is left that could be faster."""
    rates: Sequence[float | None] = file.set_up.plain_rates or [None]
    own = [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get(PLAIN)]
    begun = sum(trial.state != TrialState.WAITING for trial in own)
    if begun < len(_FIRST_LENGTHS):
        return _given(file, _FIRST_LENGTHS[begun], rates[min(begun, len(rates) - 1)])
    standing, path = plain_standing(study, file), file.set_up.plain_rate
    # Those that failed, too: they would again.
    given = [trial.user_attrs[GIVEN] for trial in own if trial.state != TrialState.WAITING]
    tried = {(round(float(one[_LENGTH]), 4), one.get(path)) for one in given}
    points: list[tuple[float, float | None]] = []
    for length in (round(float(one), 4) for one in np.geomspace(_SHORTEST, 1.0, _N_LENGTHS, endpoint=False)):
        if length < standing.best_time:
            points += [(length, rate) for rate in _between(rates) if (length, rate) not in tried]
    if not points:
        return None
    sure = standing.model.probability([{_LENGTH: length, path: rate} for length, rate in points])
    lengths = np.array([length for length, _ in points])
    promise = sure * np.log(standing.best_time / lengths) / (lengths + 0.5)
    return _given(file, *points[int(np.argmax(promise))])


def _given(file: StudyFile, length: float, rate: float | None) -> dict[str, Any]:
    base = file.base_config().leaves()
    runtime = {path: base[path] for path in file.set_up.runtime}  # as given: no choice of the runtime either
    given = {**runtime, _LENGTH: length, "schedule.shape": file.set_up.plain_shape}
    return given if rate is None else {**given, file.set_up.plain_rate: rate}


def _between(rates: Sequence[float | None]) -> list[float | None]:
    """Return the given rates and those between them, to three digits."""
    known = [rate for rate in rates if rate is not None]
    if len(known) < 2:
        return list(rates)
    return [float(f"{rate:.3g}") for rate in np.geomspace(min(known), max(known), _N_RATES)]


# Beside what is exported


def compare_with_plain(confirmation: ConfirmationRounds, exported: Sequence[CandidateRecord]) -> None:
    """Train tuned plain in turn with what is exported, on seeds of the confirmation, and keep the comparison.

    A candidate that tuned plain took turns with in the confirmation already is not trained again. Where no time was
    left to try tuned plain, its time is NaN: the task as given would be too weak a baseline.
    """
    study, file, runs = confirmation.study, confirmation.file, confirmation.runs
    trials = study.get_trials(deepcopy=False)
    n_runs = sum(len(one.user_attrs.get("deficits", ())) for one in trials if one.user_attrs.get(PLAIN))
    if not n_runs:
        unknown = TunedPlain("not tried", {}, math.nan)
        keep(study, _STORED, plain({one.target: unknown for one in exported}))
        return
    # Where no shorter plain run keeps the quality, the task as given is the fair baseline itself.
    best = best_plain(study, file)
    found = finished_baseline(study) if best is None else trials[best]
    plan = file.plans.resolve(BoostConfig.from_dict(found.user_attrs["config"]), found.user_attrs["level"])
    relative = float(found.user_attrs["speed"]["ratio"])
    known = TunedPlain(plan.summary(), plan.config.to_dict(), relative, n_runs=n_runs)
    answers: dict[str, TunedPlain] = {}
    for one in exported:
        taken = file.plans.resolve(BoostConfig.from_dict(one.config), TARGETS[one.target])
        both, seeds = {plan.key(): plan, taken.key(): taken}, runs.seeds(0, _MOST_PAIRS)
        confirmation.train({at: both for at in seeds if runs.run(taken.key(), at) and not runs.together(at, *both)})
        # All that took turns: of the task as given, where nothing plainer is faster, those of the verdict.
        every = runs.seeds(0, max([_MOST_PAIRS, *(planned.test.end for planned in runs.tests(one.target))]))
        # Metrics do not depend on the minute, so O0's may be of another round.
        beside = [(runs.run(runs.baseline_key, seed), runs.run(plan.key(), seed)) for seed in every]
        metrics = [(a.metric, b.metric) for a, b in beside if a and b and a.is_usable and b.is_usable]
        drops = paired_drops(metrics, higher_is_better=confirmation.metric.higher_is_better)
        answer = replace(known, drop=sum(drops) / len(drops) if drops else math.nan)
        compiling = file.share_of_today * compile_seconds(taken, file, study.user_attrs)
        in_turn = [pair for seed in every if (pair := runs.together(seed, plan.key(), taken.key()))]
        seconds = [(a.seconds, b.seconds + compiling) for a, b in in_turn if a.is_usable and b.is_usable]
        if len(seconds) >= _FEWEST_PAIRS:
            ratio = run_time_ratio(seconds, error=_ERROR)
            answer = replace(answer, speedup=ratio.ratio, speedup_low=ratio.low, speedup_high=ratio.high)
        answers[one.target] = answer
    keep(study, _STORED, plain(answers))


def tuned_plain_of(attributes: Mapping[str, Any]) -> dict[str, TunedPlain]:
    """Return what a study keeps of the comparison among its attributes: export -> tuned plain beside it."""
    return {target: read_record(TunedPlain, one) for target, one in attributes.get(_STORED, {}).items()}
