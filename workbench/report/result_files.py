"""The answer of a study as files that a repository can keep: a page of tables, CSV, and small still pictures.

``results.md`` is what a README quotes; every line of it is written from the study's records. Nothing here is trained or
measured, so the files can be written again from the storage at any time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.files import write_text_atomically
from workbench.core.records import StudyResult, TrialRecord
from workbench.core.text import format_interval, format_number
from workbench.core.trial_counts import WITHIN, outcome_of
from workbench.report.sources import hardware_of
from workbench.report.svg_chart import Panel, Point, chart

__all__ = ["results_page", "write_result_files"]

_MOST_TRIALS = 40
_FEWEST_FOR_IMPORTANCE = 10  # below, every parameter gets about the same share
_COLORS = {"O0": "grey", WITHIN: "blue"}  # any other outcome is orange
_FREEZE_TYPES = {0: "continuous", 1: "interval"}


def write_result_files(folder: Path, study: StudyResult) -> list[Path]:
    """Write ``results.md``, ``trials.csv``, pictures, and a table of every check that the study made.

    Returns:
        The files. A check or picture of an earlier run that this study has no more is removed.

    Raises:
        OSError: When a file cannot be written; the old one is untouched then.
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


# -- the page ----------------------------------------------------------------------------------------------------------


def results_page(study: StudyResult) -> str:
    """Return ``results.md``."""
    parts = [
        f"# {study.name}: result\n\nWritten by `workbench tune {study.directory}`, which replaces it; every table "
        "comes from the study's records.\n",
        f"* Task `{study.task}`, metric {study.metric_name}, objective {study.objective}.",
        f"* {study.counts.n_finished} of {study.n_trials} trials finished: {study.counts.text()}.",
        f"* {_hardware(study)}.",
        "",
    ]
    sections = (_exported, _candidates, _gains, _left_out, _trials, _policies, _freezing, _importance)
    parts += [section for make in sections if (section := make(study))]
    return "\n".join(parts).rstrip() + "\n"


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


def _exported(study: StudyResult) -> str:
    if not study.choices:
        return ""
    headlines = [f"**{target}: {told}**\n" for target, told in study.headlines.items()]
    return "\n".join(["## Exported\n", *headlines, *(f"* {told}" for told in study.choice_sentences), ""])


def _candidates(study: StudyResult) -> str:
    if not study.candidates:
        return ""
    speed = f"speed {study.per}, x O0 (95 %)"
    head = ["for", "candidate", "in effect", speed, "drop", "95 % bound", "allowed", "seeds", "verdict", "exported"]
    rows = [
        [
            one.target,
            one.label,
            one.summary,
            format_interval(one.speedup, one.speedup_low, one.speedup_high),
            *map(format_number, (one.drop, one.drop_bound, one.allowed_drop)),
            str(one.n_seeds),
            str(one.verdict),
            "yes" if study.chosen.get(one.target) == one.label else "",
        ]
        for one in study.candidates
    ]
    for target, (tuned, times) in study.fair_baselines.items():
        told = [target, "tuned plain", tuned.summary, format_interval(times, None, None), format_number(tuned.drop)]
        rows.append([*told, "", "", "", "reference", ""])
    return f"## Candidates, trained again beside O0\n\n{_table(head, rows)}"


def _gains(study: StudyResult) -> str:
    """Return what each part of each export contributes."""
    sections = []
    head = ["part", "factor, x", "95 % interval", "alone, x", "note"]
    for target, parts in ((target, parts) for target, parts in study.attribution.items() if parts):
        rows = []
        for one in parts:
            alone = f"{one.alone:.2f}" if math.isfinite(one.alone) else ""
            interval = _ends(one.low, one.high) or "not measured by itself"
            rows.append([one.part, f"{one.factor:.2f}", interval, alone, one.note])
        rows.append(["all parts together", f"{math.prod(one.factor for one in parts):.2f}", "", "", ""])
        taken = study.choices[target].candidate if target in study.choices else None
        if taken is not None:
            measured = [f"{taken.speedup:.2f}", _ends(taken.speedup_low, taken.speedup_high)]
            rows.append([f"whole runs of {taken.label}, measured", *measured, "", ""])
        sections.append(f"## Where the gain of {target} comes from\n\n{_table(head, rows)}")
    if not sections:
        return ""
    told = (
        "Factor: time of a run to the same quality without the part / with it, each on top of the parts above it. "
        "Alone: the same, the part left out of the whole set-up.\n"
    )
    return "\n".join([*sections, told])


def _ends(low: float, high: float) -> str:
    return f"{low:.2f} to {high:.2f}" if math.isfinite(low) and math.isfinite(high) else ""


def _left_out(study: StudyResult) -> str:
    told = [f"* {sentence}" for sentence in study.left_out]
    return "\n".join(["## What was left out, and why\n", *told, ""]) if told else ""


def _trials(study: StudyResult) -> str:
    shown = study.ended
    told = ""
    if len(shown) > _MOST_TRIALS:
        best = sorted(shown[1:], key=lambda t: (not t.feasible, t.value if math.isfinite(t.value) else math.inf))
        shown = [shown[0], *best[: _MOST_TRIALS - 1]]
        told = f"The best {len(shown) - 1} of {len(study.ended) - 1} beside O0; all: `trials.csv`.\n\n"
    names = _searched(study)
    overflows = any(trial.overflows for trial in study.ended)
    timed = study.objective == "time_to_target"
    head = ["trial", "in effect", *names, f"speed {study.per_trial}, x O0 (95 %)", study.metric_name, "drop"]
    head += ["steps to target"] * timed + ["wasted steps"] * overflows
    rows = []
    for trial in shown:
        relative = (trial.relative_step_time, trial.relative_high, trial.relative_low)
        middle, low, high = (1.0 / time if time > 0.0 else math.nan for time in relative)
        row = [str(trial.number), trial.summary, *(_value(trial.parameters.get(name)) for name in names)]
        row += [format_interval(middle, low, high), format_number(trial.metric), format_number(trial.metric_deficit)]
        row += [_steps(trial)] * timed + [str(trial.overflows)] * overflows
        rows.append([*row, outcome_of(trial, study.allowed_drops)])
    return f"## Trials, one run each\n\n{told}{_table([*head, 'came to'], rows)}"


def _steps(trial: TrialRecord) -> str:
    """Return the steps to the target, those of a warm-up beside them."""
    if trial.state != "complete":
        return trial.state
    if not math.isfinite(trial.steps_to_target):
        return "never"
    return f"{trial.steps_to_target:.0f}" + (f" + {trial.warm_up_steps}" if trial.warm_up_steps else "")


def _policies(study: StudyResult) -> str:
    policy, checked = study.loss_scale_policy or {}, _checked(study)
    sentence = str(policy.get("sentence", policy.get("failed", "")))
    if not sentence:
        return ""
    if not checked:
        return f"## Loss scale by replay\n\n{sentence}\n"
    rows = [
        [
            str(one["kind"]),
            f"2^{math.log2(one['init']):g}",
            f"{one['factor']:g}" if one["kind"] == "dynamic" else "",
            f"{one['window']:g}" if one["kind"] == "dynamic" else "",
            f"{one['overflows']:g} ({one['overflows_low']:g} to {one['overflows_high']:g})",
            f"{one['observed']:g}",
            "yes" if _within(one) else "no",
            format_number(one["underflow_share"]),
            "diverged" if one["diverged"] else format_number(one["metric"]),
        ]
        for one in checked
    ]
    head = ["kind", "init", "factor", "window", "wasted steps, predicted", "observed", "within", "underflow"]
    return (
        f"## Loss scale by replay\n\n{sentence}\n\n{_table([*head, study.metric_name], rows)}"
        "Underflow: share of gradient elements that float16 loses, predicted from the recording.\n"
    )


def _within(policy: Mapping[str, Any]) -> bool:
    return bool(policy["overflows_low"] <= policy["observed"] <= policy["overflows_high"])


def _freezing(study: StudyResult) -> str:
    if not study.freezing_limits:
        return ""
    rows = [
        [
            str(one["trial"]),
            _FREEZE_TYPES.get(one["freeze_type"], str(one["freeze_type"])),
            format_number(one["freeze_p"]),
            str(one["param_groups"]),
            f"{100.0 * one['frozen_share']:.3g} %",
            *(
                format_interval(one[name], one[f"{name}_low"], one[f"{name}_high"])
                for name in ("realised", "limit", "reached")
            ),
        ]
        for one in study.freezing_limits
    ]
    head = ["trial", "type", "freeze_p", "groups", "frozen steps", "speed, x O0 (95 %)", "limit (95 %)", "reached"]
    return (
        f"## Freezing beside its limit\n\n{_table(head, rows)}"
        "Limit: the same schedule with layers that rest for good. Reached: share of the time it saves that is saved.\n"
    )


def _importance(study: StudyResult) -> str:
    if not study.importance or len(study.ended) < _FEWEST_FOR_IMPORTANCE:
        return ""
    ranked = sorted(study.importance.items(), key=lambda item: -item[1])
    return f"## What matters\n\n{_table(['parameter', 'share'], [[name, f'{share:.2f}'] for name, share in ranked])}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
    lines += [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


# -- pictures and tables -----------------------------------------------------------------------------------------------


def _speed_accuracy(study: StudyResult) -> str:
    points = [
        Point(
            1.0 / trial.relative_step_time,
            trial.metric,
            (1.0 / trial.relative_high, 1.0 / trial.relative_low),
            color=_color(study, trial),
            text=f"trial {trial.number}: {trial.summary}",
        )
        for trial in study.ended
        if trial.relative_step_time > 0.0
    ]
    if not points:
        return ""
    base = [trial.metric for trial in study.ended if trial.number == 0 and math.isfinite(trial.metric)]
    speeds = [point.x for point in points]
    lines = [((min(speeds), base[0]), (max(speeds), base[0]))] if base else []
    fair = {speed: tuned for tuned, speed in study.fair_baselines.values() if base and math.isfinite(tuned.drop)}
    sign = 1.0 if study.higher_is_better else -1.0
    for speed, tuned in fair.items():
        told = f"tuned plain: {tuned.summary}"
        points.append(Point(speed, base[0] - sign * tuned.drop, None, None, "green", told))
    note = "; green: tuned plain" if fair else ""
    panel = Panel(study.name, f"speed {study.per_trial}, x O0", study.metric_name, points, lines)
    return chart([panel], note=f"grey: O0; blue: within the allowed drop of every export; orange: not{note}")


def _parameters(study: StudyResult) -> str:
    """Return the objective over every searched number."""
    panels = []
    for name in _searched(study):
        found = [(trial, trial.parameters.get(name)) for trial in study.ended[1:]]
        numbers = [(trial, float(value)) for trial, value in found if type(value) is int or type(value) is float]
        values = {value for _, value in numbers}
        if len(values) < 3:
            continue
        log = min(values) > 0.0 and max(values) / min(values) > 30.0
        points = [
            Point(value, trial.value, color=_color(study, trial), text=f"trial {trial.number}")
            for trial, value in numbers
        ]
        panels.append(Panel(name, name, f"objective ({study.objective})", points, log_x=log))
    return chart(panels, note="blue: within the allowed drop of every export; smaller is better") if panels else ""


def _color(study: StudyResult, trial: TrialRecord) -> str:
    return _COLORS.get(outcome_of(trial, study.allowed_drops), "orange")


def _replay_check(study: StudyResult) -> str:
    checked = _checked(study)
    if not checked:
        return ""
    points = [
        Point(
            float(one["observed"]),
            float(one["overflows"]),
            None,
            (float(one["overflows_low"]), float(one["overflows_high"])),
            "blue" if _within(one) else "orange",
            f"{one['kind']}, 2^{math.log2(one['init']):g}, factor {one['factor']:g}, window {one['window']:g}",
        )
        for one in checked
    ]

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
    points = [
        Point(
            one["limit"],
            one["realised"],
            (one["limit_low"], one["limit_high"]),
            (one["realised_low"], one["realised_high"]),
            "blue" if one["freeze_type"] == 1 else "green",
            f"trial {one['trial']}: freeze_p {one['freeze_p']:.2f}, {one['param_groups']} groups",
        )
        for one in study.freezing_limits
        if None not in (one["limit"], one["realised"])
    ]
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
