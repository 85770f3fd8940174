"""The answer of a study as files that a repository can keep: a page of tables, CSV, and small still pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.files import write_text_atomically
from workbench.core.metric_scale import MetricScale
from workbench.core.records import StudyResult, TrialRecord
from workbench.core.trial_counts import WITHIN, best_first, outcome_of
from workbench.report.page import render, within
from workbench.report.sources import hardware_of
from workbench.report.svg_chart import Panel, Point, chart

_MOST_TRIALS = 40
_COLORS = {"O0": "grey", WITHIN: "blue"}  # any other outcome is orange


def write_result_files(folder: Path, study: StudyResult) -> list[Path]:
    """Write ``results.md``, ``trials.csv``, pictures, and a table of every check that the study made; return the files.

    A check or picture of an earlier run that this study no longer has is removed.
    """
    contents = {
        "results.md": results_page(study),
        "trials.csv": _csv([_trial_row(trial) for trial in study.ended]),
        "speed_accuracy.svg": _speed_accuracy(study),
        "parameters.svg": _parameters(study),
        "replay_check.csv": _csv(_checked(study)),
        "replay_check.svg": _replay_check(study),
        "freezing_limit.csv": _csv(study.freezing_limits),
        "freezing_limit.svg": _freezing_limit(study),
    }
    for name, content in contents.items():
        if content:
            write_text_atomically(folder / name, content)
        else:
            (folder / name).unlink(missing_ok=True)
    return [folder / name for name, content in contents.items() if content]


def results_page(study: StudyResult) -> str:
    """Return ``results.md``."""
    shown = study.ended
    if len(shown) > _MOST_TRIALS:
        best = sorted(shown[1:], key=best_first)
        shown = [shown[0], *best[: _MOST_TRIALS - 1]]
    page = render(
        "results.md.j2",
        study=study,
        metric=MetricScale.of(study),
        hardware=_hardware(study),
        shown=shown,
        searched=_searched(study),
        checked=_checked(study),
        steps_of=_steps,
        outcome_of=outcome_of,
        product=lambda parts: math.prod(one.factor for one in parts),
    )
    return page.rstrip() + "\n"


def _searched(study: StudyResult) -> list[str]:
    """Return the parameters that differ between the trials, in the order in which they were first drawn."""
    drawn = [trial.parameters for trial in study.ended[1:]]
    names = dict.fromkeys(name for parameters in drawn for name in parameters)
    return [name for name in names if len({repr(one[name]) if name in one else None for one in drawn}) > 1]


def _checked(study: StudyResult) -> list[Mapping[str, Any]]:
    """Return the loss-scale policies that were judged by replay and trained, with ``observed`` overflows."""
    return list((study.loss_scale_policy or {}).get("checked", []))


def _hardware(study: StudyResult) -> str:
    shown = ("device", "cpu cores", "torch threads", "memory")  # the rest is in environment.json
    known = hardware_of(study)
    hardware = [f"{key} {known[key]}" for key in shown if key in known]
    versions = [f"{key} {value}" for key, value in (study.environment.get("versions") or {}).items()]
    return "; ".join(part for part in (", ".join(hardware), ", ".join(versions)) if part) or "Hardware unknown"


def _steps(trial: TrialRecord) -> str:
    """Return the steps to the target, plus those of a warm-up."""
    if trial.state != "complete":
        return trial.state
    if not math.isfinite(trial.steps_to_target):
        return "never"
    return f"{trial.steps_to_target:.0f}" + (f" + {trial.warm_up_steps}" if trial.warm_up_steps else "")


def _speed_accuracy(study: StudyResult) -> str:
    points = []
    for trial in (one for one in study.ended if one.relative_step_time > 0.0):
        speed, low, high = trial.speed
        text = f"trial {trial.number}: {trial.summary}"
        points.append(Point(speed, trial.metric, (low, high), color=_color(study, trial), text=text))
    if not points:
        return ""
    base, speeds = study.baseline_metric, [point.x for point in points]
    lines = [((min(speeds), base), (max(speeds), base))] if math.isfinite(base) else []
    fair = {speed: tuned for tuned, speed in study.fair_baselines.values() if lines and math.isfinite(tuned.drop)}
    sign = 1.0 if study.higher_is_better else -1.0
    for speed, tuned in fair.items():
        points.append(Point(speed, base - sign * tuned.drop, color="green", text=f"tuned plain: {tuned.summary}"))
    note = "; green: tuned plain" if fair else ""
    panel = Panel(study.name, f"speed {study.per_trial}, x O0", study.metric_name, points, lines)
    return chart([panel], note=f"grey: O0; blue: within the allowed drop of every export; orange: not{note}")


def _parameters(study: StudyResult) -> str:
    panels = []
    for name in _searched(study):
        found = [(trial, trial.parameters.get(name)) for trial in study.ended[1:]]
        numbers = [(trial, float(value)) for trial, value in found if type(value) is int or type(value) is float]
        values = {value for _, value in numbers}
        if len(values) < 3:
            continue
        log = min(values) > 0.0 and max(values) / min(values) > 30.0
        points = [Point(at, one.value, color=_color(study, one), text=f"trial {one.number}") for one, at in numbers]
        panels.append(Panel(name, name, f"objective ({study.objective})", points, log_x=log))
    return chart(panels, note="blue: within the allowed drop of every export; smaller is better") if panels else ""


def _color(study: StudyResult, trial: TrialRecord) -> str:
    return _COLORS.get(outcome_of(trial, study.allowed_drops), "orange")


def _replay_check(study: StudyResult) -> str:
    checked = _checked(study)
    if not checked:
        return ""
    points = []
    for one in checked:
        text = f"{one['kind']}, 2^{math.log2(one['init']):g}, factor {one['factor']:g}, window {one['window']:g}"
        ends, color = (one["overflows_low"], one["overflows_high"]), "blue" if within(one) else "orange"
        points.append(Point(one["observed"], one["overflows"], None, ends, color, text))

    def panel(title: str, shown: Sequence[Point]) -> Panel:
        end = max(max(point.x, point.y) for point in shown)
        return Panel(title, "observed, steps", "predicted, steps", shown, [((0.0, 0.0), (end, end))])

    panels = [panel("Wasted steps", points)]
    most = max(max(point.x, point.y) for point in points)
    few = [point for point in points if max(point.x, point.y) <= 0.3 * most]
    if len(few) > 1:  # a scale that wastes nearly every step squeezes all others into a corner
        panels.append(panel("The fewest of them", few))
    return chart(panels, note="blue: within the stated range; orange: outside")


def _freezing_limit(study: StudyResult) -> str:
    if not study.freezing_limits:
        return ""
    points = []
    for one in study.freezing_limits:
        if None not in (one["limit"], one["realised"]):
            text = f"trial {one['trial']}: freeze_p {one['freeze_p']:.2f}, {one['param_groups']} groups"
            across, upward = (one["limit_low"], one["limit_high"]), (one["realised_low"], one["realised_high"])
            color = "blue" if one["freeze_type"] == 1 else "green"
            points.append(Point(one["limit"], one["realised"], across, upward, color, text))
    ends = [value for point in points for value in (point.x, point.y)]
    lines = [((min(ends), min(ends)), (max(ends), max(ends)))] if ends else []
    panel = Panel("Freezing", "limit of the schedule, x O0", "realised, x O0", points, lines)
    return chart([panel], note="blue: interval; green: continuous; dashed: the whole limit")


def _trial_row(trial: TrialRecord) -> dict[str, Any]:
    names = ("number", "state", "level", "summary", "value", "metric", "metric_deficit", "relative_step_time")
    more = ("relative_low", "relative_high", "steps_to_target", "overflows", "feasible", "seconds")
    return {name: getattr(trial, name) for name in (*names, *more)} | dict(trial.parameters)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    return str(pd.DataFrame(list(rows)).to_csv(index=False, lineterminator="\n", float_format="%.6g"))
