"""The figures of a study, drawn from its answer: report and panel show the same ones."""

from __future__ import annotations

import math
from typing import Any

from workbench.core.records import StudyResult, objective_title
from workbench.figures.attribution import attribution_drawing
from workbench.figures.contour import contour_drawing
from workbench.figures.drawing import Drawing, figure_of
from workbench.figures.importance import importance_drawing
from workbench.figures.labels import MetricScale
from workbench.figures.parallel_coordinates import parallel_coordinates_drawing
from workbench.figures.slices import slice_drawing
from workbench.figures.speed_accuracy import speed_accuracy_drawing
from workbench.figures.study_history import study_history_drawing
from workbench.figures.trial_curves import trial_curves_drawing


def study_drawing(study: StudyResult, name: str, **look: Any) -> Drawing:
    """Draw ``"speed"``, ``"history"``, ``"parameters"``, ``"importance"``, ``"trial curves"``, or one of something.

    Where the gain of an export comes from is asked for as ``"gain o1"``, a slice as ``"slice optimizer.lr"``, a contour
    as ``"contour optimizer.lr batch.factor"``; ``look`` are ``theme`` and ``height``, where the figure has one.
    """
    objective, drops, plain = objective_title(study.objective), study.allowed_drops, study.fair_baselines
    match name:
        case "speed":
            shown: dict[str, Any] = {"metric": MetricScale.of(study), "allowed_drops": drops, "per": study.per}
            shown |= {"choices": list(study.choices.values()), "tuned_plain": plain}
            return speed_accuracy_drawing(study.trials, study.candidates, **shown, **look)
        case "history":
            return study_history_drawing(study.trials, objective=objective, allowed_drops=drops, **look)
        case "parameters":
            return parallel_coordinates_drawing(study.trials, importance=study.importance, objective=objective, **look)
        case "importance":
            of = study.metric_name if study.objective == "time_to_quality" else "objective"
            return importance_drawing(study.importance, of=of, **look)
        case "trial curves":
            return trial_curves_drawing(study.trials, metric=MetricScale.of(study), allowed_drops=drops, **look)
    kind, _, target = name.partition(" ")
    if kind == "slice":
        return slice_drawing(study.trials, target, objective=objective, allowed_drops=drops, **look)
    if kind == "contour":
        x, y = target.split(" ")
        return contour_drawing(study.trials, x, y, objective=objective, **look)
    taken = study.choices[target].candidate if target in study.choices else None
    _, speed = plain.get(target, (None, math.nan))
    return attribution_drawing(study.attribution.get(target, ()), taken, speed, **look)


study_figure = figure_of(study_drawing)
