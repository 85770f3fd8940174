"""Who competes for an export: the search's best trials with what they mean at its boost level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna

from workbench.config import BoostConfig, Plan
from workbench.core.records import TrialRecord
from workbench.study.answer.selection import TARGETS, aimed_at, competing_trials, with_policy
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.contending import ranked
from workbench.study.store.stored_records import baseline_record, trials_of

__all__ = ["Contender", "contenders"]


@dataclass(frozen=True, slots=True)
class Contender:
    """A trial that competes for an export, ``"o1"`` or ``"o2"``."""

    trial: TrialRecord
    target: str
    config: BoostConfig  # with the chosen loss-scale policy
    plan: Plan  # what that means at its boost level
    allowed_drop: float
    baseline_steps: float = math.nan  # in which O0 reached this export's target in the search; NaN when unknown

    @property
    def key(self) -> str:
        """Key of its plan."""
        return self.plan.key()


def contenders(study: optuna.Study, file: StudyFile, policy: Mapping[str, Any] | None) -> dict[str, list[Contender]]:
    """Return who competes for each export, best first, with the loss-scale policy that was chosen, if one was."""
    trials = trials_of(study)
    baseline = baseline_record(study, trials)
    higher = bool(study.user_attrs["higher_is_better"])
    searched = [dimension.path for dimension in file.dimensions]
    pools: dict[str, list[Contender]] = {}
    for target, drop in study.user_attrs["allowed_drops"].items():
        allowed_drop = float(drop)
        if file.study.objective == "time_to_quality":
            ordered = iter(ranked(study, trials, file, allowed_drop))
        else:
            options: Any = {"objective": file.study.objective, "higher_is_better": higher, "plans": file.plans}
            ordered = competing_trials(trials, baseline, target, allowed_drop, **options)
        baseline_steps = aimed_at(baseline, baseline, allowed_drop, higher_is_better=higher).steps_to_target
        pools[target] = []
        for trial in ordered:
            config = with_policy(BoostConfig.from_dict(trial.config), policy, searched)
            plan = file.plans.resolve(config, trial.level)
            if file.plans.resolve(config, TARGETS[target]).key() != plan.key():
                config = plan.explicit_config()  # means this plan at any level
            pools[target].append(Contender(trial, target, config, plan, allowed_drop, baseline_steps))
    return pools
