"""What makes a question doubtful, as soon as O0 has been trained: sentences, empty where there is no doubt."""

from __future__ import annotations

import math

import optuna

from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import Trained
from workbench.study.run.objective import baseline_trial, finished_baseline, metric_deficit, metric_scale_of
from workbench.study.store.stored_records import allowed_drop_of

_DEVIATIONS = 2.0  # of a run: the untrained network is evaluated for one seed only
# Standard deviations of O0 to the allowed drop: twenty pairs then confirm what is better by more than the drop.
_TIGHT = 4.0
_BY_FACTORS = 0.5  # standard deviation to mean from which on runs differ by factors


def learns_nothing(study: optuna.Study, file: StudyFile) -> str:
    """Say so if O0 ends hardly better than an untrained network: by the allowed drop or the noise of seeds at most.

    The fastest training to its quality is then none at all. Empty, too, if the untrained network's metric is unknown.
    """
    trial = baseline_trial(study)
    if trial is None:
        return ""
    trained, attributes = Trained.from_json(trial.user_attrs["trained"]), study.user_attrs
    metric = metric_scale_of(attributes)
    gain = metric_deficit(trained.metric, trained.untrained, higher_is_better=metric.higher_is_better)
    drop = allowed_drop_of(attributes)
    spread = float(trial.user_attrs.get("spread", 0.0))
    luck = _DEVIATIONS * spread
    if not math.isfinite(gain) or gain > max(drop, luck):
        return ""
    apart = f" ({metric.difference_text(spread)} apart from seed to seed)" if gain > drop else ""
    ends = (
        f"ends with {metric.name} {metric.value_text(trained.metric)}{apart}, and without learning it has "
        f"{metric.value_text(trained.untrained)}"
    )
    if -gain > max(drop, luck):  # learning made it surely worse
        ends += f', which direction="{"maximize" if metric.higher_is_better else "minimize"}" calls better'
    budget, today = file.study.budget_steps, file.set_up.todays_steps
    if file.study.objective != "time_to_quality" and today is not None:
        return (
            f"In {budget} of today's {today} batches the task as given hardly learns: it {ends}. Nothing so short "
            "shows whether a whole training keeps its quality."
        )
    if today is not None:  # cut by the search, which had too little time for today's training
        little = "less than may be lost" if gain > luck else "nothing"
        return (
            f"The task as given learns {little} in {budget} of its {today} batches: it {ends}. Only what makes a step "
            "faster is searched. For the rest, give the search more minutes, so that its runs are longer, and start "
            "over (--minutes, --fresh)."
        )
    if gain > luck:
        return (
            f"The task as given learns less than may be lost: it {ends}; {metric.difference_text(drop)} may be lost. "
            "No training at all would do; allow a smaller drop (`--allowed-drop`, or in study.toml)."
        )
    return (
        f"The task as given learns nothing in {budget} batches: it {ends}. A faster way to that quality means "
        "nothing; train it longer, or see why it does not learn."
    )


def needs_no_training(study: optuna.Study, file: StudyFile) -> bool:
    """Return whether the least time to O0's quality is none: a search for the fastest set-up has its answer, O0."""
    return file.set_up.todays_steps is None and _has_no_quality(study, file)


def finds_steps_alone(study: optuna.Study, file: StudyFile) -> bool:
    """Return whether a search has faster steps alone to find: it asks for no more, or runs cut for it learn nothing."""
    return file.finds_steps_alone or (file.set_up.todays_steps is not None and _has_no_quality(study, file))


def _has_no_quality(study: optuna.Study, file: StudyFile) -> bool:
    return file.study.objective == "time_to_quality" and bool(learns_nothing(study, file))


def tight_drop(study: optuna.Study) -> str:
    """Say so if no drop is allowed, or one far below the noise of seeds: hardly anything can be confirmed then.

    The default is small for a metric near 0, of which it is a share.
    """
    spread = float(finished_baseline(study).user_attrs.get("spread", 0.0))
    drop = allowed_drop_of(study.user_attrs)
    metric = metric_scale_of(study.user_attrs)
    if drop == 0.0:  # a set-up as good as the task as given is as likely to seem worse as better
        why = f"No drop of the {metric.name} is allowed"
    elif spread > _TIGHT * drop:
        why = (
            f"From seed to seed the {metric.name} of the task as given differs by {metric.difference_text(spread)} "
            f"(standard deviation), and {metric.difference_text(drop)} may be lost"
        )
    else:
        return ""
    mean = Trained.from_json(finished_baseline(study).user_attrs["trained"]).metric
    advice = (
        f" Its runs differ by factors: with the logarithm of the {metric.name} as the metric, a function of outputs "
        "and targets, fewer runs are needed to compare set-ups."
    )
    return (
        f"{why}: only set-ups that end clearly better can be confirmed. A larger allowed drop (`--allowed-drop`, or in "
        f"study.toml) lets the search be bolder.{advice if spread > _BY_FACTORS * mean > 0.0 else ''}"
    )
