"""Whether the allowed drop is 0, or so small beside what seeds differ by that next to nothing can be confirmed."""

from __future__ import annotations

import optuna

from workbench.core.metric_scale import MetricScale
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.objective import baseline_trial

# Standard deviations of O0 to the allowed drop: twenty pairs then confirm what is better by more than the drop.
_TIGHT = 4.0


def tight_drop(study: optuna.Study, file: StudyFile) -> str:
    """Say so where it is, as the default is for a metric near 0, of which it is a share; empty where it is not."""
    trial = baseline_trial(study)
    spread = 0.0 if trial is None else float(trial.user_attrs.get("spread", 0.0))
    drop = float(study.user_attrs["allowed_drops"][file.allowed_drop.target])
    metric = str(study.user_attrs["metric_name"])
    written = MetricScale(metric).difference_text
    if drop == 0.0:  # what ends as the task as given does is as likely worse as better, if seeds differ or not
        why = f"No drop of the {metric} is allowed"
    elif spread > _TIGHT * drop:
        why = (
            f"From seed to seed the {metric} of the task as given differs by {written(spread)} (standard deviation), "
            f"and {written(drop)} may be lost"
        )
    else:
        return ""
    return (
        f"{why}: only set-ups that end clearly better can be confirmed. A larger allowed drop (`--allowed-drop`, or in "
        "study.toml) lets the search be bolder."
    )
