"""The figures of a study, drawn from its answer: report and panel show the same ones."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from workbench.core.records import StudyResult, objective_title
from workbench.figures.attribution import attribution_figure
from workbench.figures.importance import importance_figure
from workbench.figures.labels import MetricScale
from workbench.figures.parallel_coordinates import parallel_coordinates_figure
from workbench.figures.speed_accuracy import speed_accuracy_figure
from workbench.figures.study_history import study_history_figure


def study_figure(study: StudyResult, name: str, **look: Any) -> go.Figure:
    """Draw ``"speed"``, ``"history"``, ``"parameters"``, ``"importance"``, or where the gain of an export comes from.

    The last is asked for as ``"gain o1"``; ``look`` are ``theme`` and ``height``, where the figure has one.
    """
    objective, drops, plain = objective_title(study.objective), study.allowed_drops, study.fair_baselines
    match name:
        case "speed":
            shown: dict[str, Any] = {"metric": MetricScale.of(study), "allowed_drops": drops, "per": study.per}
            shown |= {"choices": list(study.choices.values()), "tuned_plain": plain}
            return speed_accuracy_figure(study.trials, study.candidates, **shown, **look)
        case "history":
            return study_history_figure(study.trials, objective=objective, allowed_drops=drops, **look)
        case "parameters":
            return parallel_coordinates_figure(study.trials, importance=study.importance, objective=objective, **look)
        case "importance":
            return importance_figure(study.importance, **look)
    target = name.removeprefix("gain ")
    taken = study.choices[target].candidate if target in study.choices else None
    _, speed = plain.get(target, (None, math.nan))
    return attribution_figure(study.attribution.get(target, ()), taken, speed, **look)
