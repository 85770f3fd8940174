"""Time every freezing trial again beside its limit: the same layers at rest for good.

One measurement per trial, stored when done; see `workbench.training.freezing_limit` for what is timed.
"""

from __future__ import annotations

from typing import Any

import optuna

from workbench.config import BoostConfig
from workbench.methods.registry import METHODS
from workbench.study.ask.plans import explicit_config
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import FreezingLimitJob
from workbench.study.run.runner import Experimenter
from workbench.study.store.stored_records import trials_of

_PREFIX = "freezing_limit:"


def measure_freezing_limits(study: optuna.Study, file: StudyFile, experimenter: Experimenter) -> None:
    """Measure what has not been measured yet, if the study asks for it."""
    section = file.freezing_limit
    if section is None or not section.enabled:
        return
    for trial in trials_of(study):
        if trial.state != "complete" or trial.seconds == 0.0 or f"{_PREFIX}{trial.number}" in study.user_attrs:
            continue
        plan = file.plans.resolve(BoostConfig.from_dict(trial.config), trial.level)
        method = next((one for one in METHODS if one.schedules_groups and one.is_in_effect(plan)), None)
        if method is None:
            continue
        side, seed = (explicit_config(plan), plan.level), file.study.seed
        job = FreezingLimitJob(side, seed=seed, rounds=section.rounds, steps_per_block=section.steps_per_block)
        measured = experimenter.run(job)
        schedule = getattr(plan.config, method.section)
        row = {"trial": trial.number, **dict(schedule), "frozen_share": schedule.frozen_share(), **measured.to_json()}
        study.set_user_attr(f"{_PREFIX}{trial.number}", row)


def freezing_limits_of(study: optuna.Study) -> list[dict[str, Any]]:
    """Return what was measured, one row per trial: its schedule, and ``realised``, ``limit`` and ``reached``.

    Each of these also comes with ``_low`` and ``_high``; None means unknown.
    """
    rows = [dict(value) for name, value in study.user_attrs.items() if name.startswith(_PREFIX)]
    return sorted(rows, key=lambda row: int(row["trial"]))
