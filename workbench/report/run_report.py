"""Pages about runs: one run by itself, the curves of several laid over each other, and what a folder holds."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import plotly.graph_objects as go
from markupsafe import Markup

from workbench.core.records import EventKind
from workbench.core.text import format_duration
from workbench.figures import (
    MetricScale,
    RunCurve,
    gradient_exponents_figure,
    loss_curves_figure,
    loss_scale_figure,
    step_time_figure,
)
from workbench.figures.frames import events_of
from workbench.figures.labels import grouped
from workbench.figures.loss_curves import LOSS_CURVE_COLUMNS, Axis
from workbench.report.page import Served, embed, render
from workbench.runs import Run, read_run

MOST_HISTOGRAMS = 200
"""Gradient histograms that a page draws at most: more take seconds to read, and cannot be seen."""
_MOST_EVENTS = 200  # listed, the last ones
_AXES = ("step", "seconds")


def run_report_html(run: Run, *, served: Served | None = None) -> str:
    """Return the page of one run, whether it has finished, was killed, or goes on.

    What the run lacks has no section.
    """
    scale = metric_of(run)
    drawn: dict[str, go.Figure] = {}
    if len(run.steps):
        curve = curve_of_run(run, run.name)
        drawn["curves"] = loss_curves_figure([curve], metric=scale)
        if (run.steps["loss_scale"] != 1.0).any():  # float32 has none
            drawn["loss-scale"] = loss_scale_figure(run.steps, run.events)
        if any(str(name).startswith("time.") for name in run.steps.columns):
            drawn["step-time"] = step_time_figure({run.name: run.steps})
        if any(len(cell) for cell in run.steps["grad_exponents"]):
            drawn["exponents"] = gradient_exponents_figure(run.steps)
    figures = defaultdict(Markup, {name: embed(figure, f"figure-{name}") for name, figure in drawn.items()})
    return render(
        "run_report.html.j2",
        title=f"{run.name}: run",
        run=run,
        key_figures=_key_figures(run, scale),
        figures=figures,
        events=run.events.iloc[-_MOST_EVENTS:].iloc[::-1].to_dict("records"),
        environment=_known(run.environment),
        served=served,
    )


def overlay_html(runs: Mapping[str, Path], *, window: int = 1, x: str = "step") -> Markup:
    """Return the curves of some runs, label -> directory, over each other.

    The loss is averaged over a ``window`` of steps, >= 1; ``x`` is ``"step"`` or ``"seconds"``. Another value is a
    ValueError, and a run that cannot be read is a RunError.
    """
    if x not in _AXES:
        raise ValueError(f"`x` must be one of {', '.join(_AXES)}, got {x!r}")
    read = {label: read_run(path, columns=LOSS_CURVE_COLUMNS) for label, path in runs.items()}
    scales = {metric_of(run) for run in read.values()}
    curves = [curve_of_run(run, label) for label, run in read.items()]
    metric = scales.pop() if len(scales) == 1 else None
    figure = loss_curves_figure(curves, x=cast("Axis", x), window=window, metric=metric)
    return embed(figure, "figure-overlay")


def folder_page_html(
    title: str,
    *,
    studies: Sequence[Mapping[str, Any]] = (),
    runs: Sequence[Mapping[str, Any]] = (),
    n_runs: int = 0,
    note: str = "",
    served: Served,
) -> str:
    """Return the page of a folder: the studies and runs in it, and its runs over each other.

    Rows of ``studies`` have name, address, task, trials, objective and state, those of ``runs`` what `list_runs` gives
    and their address; there are ``n_runs``, listed or not. An empty folder gets the ``note``, or else a sentence that
    explains how studies and runs come to be.
    """
    template = "folder_page.html.j2"
    return render(template, title=title, studies=studies, runs=runs, n_runs=n_runs, note=note, served=served)


def curve_of_run(run: Run, label: str) -> RunCurve:
    """Return what a run has recorded of its loss and its metric."""
    evaluated = events_of(run.events, EventKind.EVALUATION)
    steps, values = evaluated["step"].tolist(), evaluated["value"].tolist()
    evaluations = [(int(step) + 1, float(value)) for step, value in zip(steps, values, strict=True)]
    return RunCurve(label, run.steps, evaluations)


def metric_of(run: Run) -> MetricScale:
    """Return how the metric of a run is written, as its summary or its first evaluation names it."""
    evaluated = events_of(run.events, EventKind.EVALUATION)
    name = run.summary.get("metric_name") or next(iter(evaluated["subject"]), "") or "metric"
    return MetricScale(str(name), higher_is_better=bool(run.summary.get("higher_is_better", True)))


def _key_figures(run: Run, scale: MetricScale) -> list[tuple[str, str, str]]:
    """Return label, value and note of each number at the top of the page."""
    evaluations = curve_of_run(run, "").evaluations
    last = evaluations[-1][1] if evaluations else math.nan
    name = scale.name[:1].upper() + scale.name[1:]
    losses = run.steps["loss"].dropna()
    is_last = len(losses) and losses.index[-1] == run.steps.index[-1]
    of_which = "of the last step" if is_last else "the last before it was NaN"
    times = run.steps["step_ms"].dropna()
    found = [
        ("Steps", grouped(len(run.steps)), "finished" if run.finished else "not finished"),
        (name, scale.value_text(last), f"after {evaluations[-1][0]} steps") if evaluations else None,
        ("Training loss", f"{losses.iloc[-1]:.4g}", of_which) if len(losses) else None,
        ("Time", format_duration(run.duration), f"{times.median():.3g} ms per step" if len(times) else ""),
        ("Overflows", f"{len(run.overflow_steps)}", "steps") if len(run.overflow_steps) else None,
    ]
    return [one for one in found if one is not None]


def _known(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known of where a run ran, in words; unknown values are left out."""
    listed = [key for key in environment if not key.endswith("checksum") and key != "schema_version"]
    return {key.replace("_", " "): environment[key] for key in listed if environment[key] not in (None, "", {}, [])}
