"""How much faster an export is than tuned plain: both trained on the seeds of the confirmation."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import optuna

from workbench.config import BoostConfig
from workbench.core.paired_bounds import paired_drops, run_time_ratio
from workbench.core.records import TunedPlain
from workbench.study.answer.confirmation_runs import ConfirmationRuns, metric_of
from workbench.study.ask.plans import explicit_config
from workbench.study.ask.search_space import all_off
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import Monitor, TrainJob, plain
from workbench.study.run.objective import baseline_trial
from workbench.study.run.runner import Experimenter
from workbench.study.run.stopping import end_if_over
from workbench.study.set_up.standing import read_record
from workbench.study.set_up.tuned_plain import PLAIN, best_plain

__all__ = ["compare_with_plain", "tuned_plain_of"]

_STORED = "tuned_plain_beside"
_MOST_PAIRS = 10
_ERROR = 0.025


def compare_with_plain(
    study: optuna.Study,
    file: StudyFile,
    experimenter: Experimenter,
    exported: Mapping[str, str],
    *,
    monitor: Monitor,
    deadline: float | None,
) -> None:
    """Train tuned plain on the seeds on which exports were confirmed, as far as the time goes, and keep the comparison.

    ``exported`` has for each export the key of the plan that it would take.
    """
    trials = study.get_trials(deepcopy=False)
    # Where no shorter plain run keeps the quality, the task as given is the fair baseline itself.
    best = best_plain(study, file)
    found = baseline_trial(study) if best is None else trials[best]
    if found is None:
        return
    plan = file.plans.resolve(BoostConfig.from_dict(found.user_attrs["config"]), found.user_attrs["level"])
    steps = file.confirm.steps or file.study.budget_steps
    baseline = file.plans.resolve(all_off(file.base_config()), "O0").key()
    runs = ConfirmationRuns(study, baseline, file.study.seed, steps, steps)
    relative = float(found.user_attrs["speed"]["ratio"])
    n_runs = sum(len(one.user_attrs.get("deficits", ())) for one in trials if one.user_attrs.get(PLAIN))
    known = TunedPlain(plan.summary(), plan.config.to_dict(), relative, n_runs=n_runs)
    answers: dict[str, TunedPlain] = {}
    for target, key in exported.items():
        with contextlib.suppress(OutOfTimeError):
            for seed in runs.seeds(0, _MOST_PAIRS):
                if runs.run(key, seed) is None or runs.run(plan.key(), seed) is not None:
                    continue
                end_if_over(deadline, relative * runs.seconds(baseline))
                job = TrainJob(explicit_config(plan), plan.level, seed=seed, steps=steps, evaluate_every=steps)
                runs.keep_run(plan.key(), seed, experimenter.run(job, monitor))
        answers[target] = _beside(known, runs, plan.key(), key, higher_is_better=experimenter.higher_is_better)
    study.set_user_attr(_STORED, {target: plain(asdict(one)) for target, one in answers.items()})


def _beside(
    known: TunedPlain, runs: ConfirmationRuns, own: str, exported: str, *, higher_is_better: bool
) -> TunedPlain:
    seeds = runs.seeds(0, _MOST_PAIRS)
    both = [(runs.run(own, seed), runs.run(exported, seed)) for seed in seeds]
    seconds = [(mine.seconds, its.seconds) for mine, its in both if mine is not None and its is not None]
    if len(seconds) < 2:
        return known
    metrics = [(metric_of(reference), metric_of(mine)) for reference, mine in runs.pairs(own, 0, _MOST_PAIRS)]
    finite = [pair for pair in metrics if all(map(math.isfinite, pair))]
    drops = paired_drops(finite, higher_is_better=higher_is_better)
    ratio = run_time_ratio(seconds, error=_ERROR)
    drop = sum(drops) / len(drops) if drops else math.nan
    return replace(known, speedup=ratio.ratio, speedup_low=ratio.low, speedup_high=ratio.high, drop=drop)


def tuned_plain_of(attributes: Mapping[str, Any]) -> dict[str, TunedPlain]:
    """Return what a study keeps of the comparison among its attributes: export -> tuned plain beside it."""
    return {target: read_record(TunedPlain, one) for target, one in attributes.get(_STORED, {}).items()}
