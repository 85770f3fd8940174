"""The trials of a study as the table of trials reads them: plain values for JSON, from the study's one answer.

Report, view page and Tune tab show one table, ``trial_table.js``. A row carries only what its trial changes of O0's
configuration, which is in the data once; the whole configuration is put together again when it is asked for.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from workbench.config import BoostConfig, describe_parameters
from workbench.core.records import StudyResult, TrialRecord, objective_title
from workbench.core.trial_counts import BEYOND, outcome_of
from workbench.figures import MetricScale
from workbench.figures.slices import scored_trials
from workbench.methods.registry import METHODS

Values: TypeAlias = dict[str, Any]  # plain ones: numbers that JSON has, texts, truth values, lists and dictionaries

_MOST_CURVE_POINTS = 100
_DIGITS = 5  # significant ones: enough for a table, and a third of the bytes


def trial_data(study: StudyResult, *, rounded: bool = False) -> Values:
    """Return what the table shows of a study; ``rounded`` to five digits, thousands of trials fit into one file.

    Returns:
        ``columns`` in their order, each with ``key``, ``title``, ``kind`` (``"number"`` or ``"text"``), ``unit``,
        ``factor`` (of the shown value) and whether it is ``shown`` at first; ``trials``, each with a value per column
        and the details shown when it is opened; ``base``, the configuration that a trial changes, by path;
        ``reference``, the trial that others are compared with; ``exported``, export -> trial; ``rounded``. A number
        that is not known is None.
    """
    metric = MetricScale.of(study)
    base = _by_path(next((trial.config for trial in study.trials if trial.number == 0), {}))
    paths = _searched(study)
    return {
        "metric": metric.title,
        "factor": metric.factor,
        "columns": [*_columns(study, metric), *(_parameter_column(path) for path in paths)],
        "base": base,
        "reference": reference_of(study),
        "exported": {target: candidate.trial_number for target, candidate in study.taken.items()},
        "rounded": rounded,
        "trials": [_row(trial, study, base, paths, rounded=rounded) for trial in study.trials],
    }


def reference_of(study: StudyResult) -> int | None:
    """Return the number of the trial that others are compared with: an exported one, else the best, else O0."""
    for candidate in study.taken.values():
        return candidate.trial_number
    known = scored_trials(study.trials)
    good = [one for one in known if one.feasible] or [one for one in known if one.number == 0]
    return min(good, key=lambda one: one.value).number if good else None


def _searched(study: StudyResult) -> list[str]:
    """Return the searched paths, the most important first, then in the order in which they were first drawn."""
    drawn = dict.fromkeys(path for trial in study.trials for path in trial.parameters if path != "level")
    return sorted(drawn, key=lambda path: -study.importance.get(path, 0.0))


def _columns(study: StudyResult, metric: MetricScale) -> list[Values]:
    several = len({trial.level for trial in study.trials}) > 2  # O0 and one more are not a choice
    times: Values = {"kind": "number", "unit": "x"}
    value: Values = {"kind": "number", "unit": metric.shown_unit, "factor": metric.factor}
    difference: Values = {**value, "unit": "points" if metric.shown_unit == "%" else metric.shown_unit}
    has_own_value = study.objective in {"time_to_target", "pareto"}  # else it is the speed again
    return [
        _column("number", "Trial", kind="number"),
        _column("came_to", "Outcome"),
        _column("level", "Level", shown=several),
        _column("speed", f"Speed {study.per_trial}", **times),
        _column("speed_low", "Speed, at least", shown=False, **times),
        _column("speed_high", "Speed, at most", shown=False, **times),
        _column("metric", metric.name[:1].upper() + metric.name[1:], **value),
        _column("drop", "Drop", **difference),
        _column("value", objective_title(study.objective), kind="number", shown=has_own_value),
        _column("seconds", "Took", shown=False, kind="number", unit="s"),
        _column("summary", "In effect"),
    ]


def _column(key: str, title: str, *, kind: str = "text", shown: bool = True, **more: Any) -> Values:
    return {"key": key, "title": title, "kind": kind, "shown": shown, "unit": "", "factor": 1, **more}


def _parameter_column(path: str) -> Values:
    about = describe_parameters().get(path)
    if about is not None and about.share is not None:  # freeze_p itself does not say whether it freezes or not
        return _column(path, about.share_name, kind="number", shown=False, unit="%", factor=100)
    return _column(path, path, shown=False)


def _row(trial: TrialRecord, study: StudyResult, base: Values, paths: Sequence[str], *, rounded: bool) -> Values:
    # Interrupted, or never begun: after a search nothing is waited for any more.
    came_to = "not begun" if trial.state == "waiting" else outcome_of(trial, study.allowed_drops)
    config = _by_path(trial.config)
    changes = {path: config.get(path) for path in [*base, *config] if base.get(path) != config.get(path)}
    parts, effective = _in_effect(json.dumps(trial.config, sort_keys=True, default=str), trial.level)
    speed, low, high = map(_known, trial.speed)
    warm_up = f"After a warm-up of {trial.warm_up_steps} batches of O0, which count into the time to the target."
    return {
        "number": trial.number,
        "state": "finished" if trial.state == "complete" else trial.state,
        "came_to": came_to,
        "feasible": trial.state == "complete" and came_to != BEYOND and (trial.feasible or came_to == "O0"),
        "level": trial.level,
        "speed": speed,
        "speed_low": low,
        "speed_high": high,
        "metric": _known(trial.metric),
        "drop": _known(trial.metric_deficit),
        "value": _known(trial.value),
        "seconds": _known(trial.seconds),
        "summary": trial.summary,
        **{path: _cell(path, trial) for path in paths if path in trial.parameters},
        "parts": parts,
        "changes": {path: _known(one) if rounded and isinstance(one, float) else one for path, one in changes.items()},
        "idle": [path for path in changes if path not in effective],
        "curve": [[step, _known(metric)] for step, metric in _thinned(trial.curve)],
        "notes": [*([trial.message] if trial.message else []), *([warm_up] if trial.warm_up_steps else [])],
        "note": trial.note,
        "run": trial.run_path,
    }


def _cell(path: str, trial: TrialRecord) -> Any:
    """Return a searched value, or the share that it amounts to where people read it as one."""
    value = trial.parameters[path]
    about = describe_parameters().get(path)
    if about is None or about.share is None or not isinstance(value, int | float):
        return _known(value) if isinstance(value, float) else value
    section, _, name = path.partition(".")
    return _known(about.share(BoostConfig.from_dict({section: {**trial.config.get(section, {}), name: value}})))


@functools.lru_cache(maxsize=20_000)
def _in_effect(config: str, level: str) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the parts that act under a configuration, by their titles, and the paths that matter there."""
    try:
        plan = BoostConfig.from_dict(json.loads(config)).resolve(level)
    except ValueError:  # of another version
        return (), frozenset()
    acting = set(plan.in_effect())
    parts = [method.title for method in METHODS if method.name in acting]
    if plan.config.amp.level != "O0":
        parts.append(f"amp {plan.config.amp.level}")
    if plan.config.optimizer is not None and plan.config.optimizer.name:
        parts.append(plan.config.optimizer.name)
    return tuple(parts), frozenset(plan.parameters_in_effect())


def _by_path(config: Mapping[str, Any]) -> Values:
    """Return a configuration as path -> value: a section's values under ``section.name``, others under their name."""
    found: Values = {}
    for section, values in config.items():
        if isinstance(values, Mapping):
            found |= {f"{section}.{name}": value for name, value in values.items()}
        else:
            found[section] = values
    return found


def _thinned(curve: Sequence[tuple[int, float]]) -> Sequence[tuple[int, float]]:
    if len(curve) <= _MOST_CURVE_POINTS:
        return curve if len(curve) > 1 else ()  # one evaluation is not a curve
    last = len(curve) - 1
    return [curve[round(i * last / (_MOST_CURVE_POINTS - 1))] for i in range(_MOST_CURVE_POINTS)]


def _known(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
