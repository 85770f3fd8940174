"""Whether the task as given learns anything: without that the fastest training to its quality is none at all."""

from __future__ import annotations

import math

import optuna

from workbench.core.metric_scale import MetricScale
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import Trained
from workbench.study.run.objective import baseline_trial, metric_deficit

_DEVIATIONS = 2.0  # of a run: the untrained network is evaluated for one seed only


def learns_nothing(study: optuna.Study, file: StudyFile) -> str:
    """Say so where O0 ends no better than without learning: within the allowed drop, or what seeds differ by.

    Empty where it does learn, and where what it reaches without learning is not known.
    """
    trial = baseline_trial(study)
    if trial is None:
        return ""
    trained, attributes = Trained.from_json(trial.user_attrs["trained"]), study.user_attrs
    higher, metric = bool(attributes["higher_is_better"]), MetricScale(str(attributes["metric_name"]))
    gain = metric_deficit(trained.metric, trained.untrained, higher_is_better=higher)
    drop = float(attributes["allowed_drops"][file.allowed_drop.target])
    luck = _DEVIATIONS * float(trial.user_attrs.get("spread", 0.0))
    if not math.isfinite(gain) or gain > max(drop, luck):
        return ""
    return (
        f"The task as given learns nothing in {file.study.budget_steps} batches: it ends with {metric.name} "
        f"{metric.value_text(trained.metric)}, and without learning it has {metric.value_text(trained.untrained)}. "
        "A faster way to that quality means nothing; train it longer, or see why it does not learn."
    )
