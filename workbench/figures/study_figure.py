"""The figures of a study, drawn from its answer: report and panel show the same ones."""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go

from workbench.core.records import StudyResult, objective_title
from workbench.figures.attribution import attribution_figure
from workbench.figures.contour import contour_figure
from workbench.figures.importance import importance_figure
from workbench.figures.labels import MetricScale
from workbench.figures.parallel_coordinates import parallel_coordinates_figure
from workbench.figures.slices import slice_figure
from workbench.figures.speed_accuracy import speed_accuracy_figure
from workbench.figures.study_history import study_history_figure
from workbench.figures.trial_curves import trial_curves_figure


def study_figure(study: StudyResult, name: str, **look: Any) -> go.Figure:
    """Draw ``"speed"``, ``"history"``, ``"parameters"``, ``"importance"``, ``"trial curves"``, or one of something.

    Where the gain of an export comes from is asked for as ``"gain o1"``, a slice as ``"slice optimizer.lr"``, a contour
    as ``"contour optimizer.lr batch.factor"``; ``look`` are ``theme`` and ``height``, where the figure has one.
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
        case "trial curves":
            return trial_curves_figure(study.trials, metric=MetricScale.of(study), allowed_drops=drops, **look)
    kind, _, target = name.partition(" ")
    if kind == "slice":
        return slice_figure(study.trials, target, objective=objective, allowed_drops=drops, **look)
    if kind == "contour":
        x, y = target.split(" ")
        return contour_figure(study.trials, x, y, objective=objective, **look)
    taken = study.choices[target].candidate if target in study.choices else None
    _, speed = plain.get(target, (None, math.nan))
    return attribution_figure(study.attribution.get(target, ()), taken, speed, **look)
