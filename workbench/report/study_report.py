"""Report of a study: one HTML file that answers its question and shows why.

The page is drawn from the study's answer and the files beside it, so it can be written again on a machine
that has neither the data nor the accelerator. What a study did not do has no section; one line at the end names it.
Which candidate is exported is not decided here: the page shows the study's choices.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import plotly.graph_objects as go
from markupsafe import Markup

from workbench.config import BoostConfig, describe_parameters
from workbench.core.files import write_text_atomically
from workbench.core.records import CandidateRecord, StudyResult
from workbench.core.text import format_duration
from workbench.figures import (
    MetricScale,
    RunCurve,
    contour_pair,
    frozen_layers_figure,
    gradient_exponents_figure,
    loss_curves_figure,
    loss_scale_figure,
    loss_scale_numbers,
    replay_policies_figure,
    sliced_parameters,
)
from workbench.figures.labels import percent
from workbench.figures.study_figure import study_figure
from workbench.methods.registry import METHODS
from workbench.report.page import Served, data_script, embed, render
from workbench.report.result_files import write_result_files
from workbench.report.sources import Sources, hardware_of, read_sources
from workbench.report.trial_data import trial_data

_OF_TRIALS = frozenset({"speed", "history", "trials", "slice", "contour"})  # first words; their points are trials
_MANY = 1000  # trials, above which a file has to be brief: the table has what figures leave out
_MOST_CURVES = 4  # besides that of O0


def write_report(answer: StudyResult) -> StudyResult:
    """Write report.html, and the tables and pictures that a repository keeps, beside the exported files.

    Return the answer with the report's path. A file that cannot be written is an OSError, and the old one untouched.
    """
    folder = next((path.parent for path in answer.exported.values()), answer.directory / "result")
    folder.mkdir(parents=True, exist_ok=True)
    report = write_study_report(folder / "report.html", answer, read_sources(answer))
    write_result_files(folder, answer)
    return replace(answer, report=report)


def write_study_report(path: Path, answer: StudyResult, sources: Sources) -> Path:
    """Write the report as one self-contained HTML file, whole or not at all (OSError), and return its path."""
    write_text_atomically(path, study_report_html(answer, sources, created=time.strftime("%Y-%m-%d %H:%M")))
    return path


def study_report_html(answer: StudyResult, sources: Sources, *, created: str = "", served: Served | None = None) -> str:
    """Return the report as HTML text; ``created`` is when it is written, ``served`` the server that shows it live."""
    metric = MetricScale.of(answer)
    brief = len(answer.trials) > _MANY
    few_words = [replace(one, summary="") for one in answer.trials] if brief else answer.trials
    drawn = _figures(replace(answer, trials=few_words), sources, metric)
    placed = {
        name: embed(figure, f"figure-{name}", of_trials=name.partition("-")[0] in _OF_TRIALS)
        for name, figure in drawn.items()
    }
    return render(
        "study_report.html.j2",
        title=f"{answer.name}: study report",
        answer=answer,
        sources=sources,
        metric=metric,
        figures=defaultdict(Markup, placed),
        slices=[name for name in drawn if name.startswith("slice-")],
        key_figures=_key_figures(answer, sources, metric),
        speed_reach=_speed_reach(answer.candidates),
        o0_over_seeds=_o0_over_seeds(answer),
        trial_table=_trial_table(answer, served),
        shares_of=shares_of,
        notes=[one for one in answer.messages if one not in answer.choice_sentences],
        hardware=hardware_of(answer),
        created=created,
        served=served,
    )


def _trial_table(answer: StudyResult, served: Served | None) -> Markup:
    """Return the element for the table of trials with its data; empty while there is no trial."""
    if not answer.trials:
        return Markup("")
    data = trial_data(answer, rounded=served is None and len(answer.trials) > _MANY)
    is_served = Markup("") if served is None else Markup(" data-served")
    return Markup('<div class="trials"{}>{}</div>').format(is_served, data_script(data))


def shares_of(config: BoostConfig) -> dict[str, float]:
    """Return the shares that parameters amount to, by name, for the methods that a configuration has on."""
    sections = {method.section for method in METHODS if getattr(config.boost, method.name, None)}
    infos = (about for path, about in describe_parameters().items() if path.partition(".")[0] in sections)
    return {about.share_name: about.share(config) for about in infos if about.share is not None}


def _figures(answer: StudyResult, sources: Sources, metric: MetricScale) -> dict[str, go.Figure]:
    drawn: dict[str, go.Figure] = {}
    if answer.candidates or any(t.number and t.relative_step_time > 0 for t in answer.trials):
        drawn["speed-accuracy"] = study_figure(answer, "speed")
    for target, parts in answer.attribution.items():
        if parts:
            drawn[f"attribution-{target}"] = study_figure(answer, f"gain {target}")
    if any(t.number and math.isfinite(t.value) for t in answer.trials):
        drawn["history"] = study_figure(answer, "history")
        if answer.importance:
            drawn["importance"] = study_figure(answer, "importance")
        for index, path in enumerate(sliced_parameters(answer.trials, answer.importance)):
            drawn[f"slice-{index}"] = study_figure(answer, f"slice {path}", height=320)
        pair = contour_pair(answer.trials, answer.importance)
        if pair is not None:
            drawn["contour"] = study_figure(answer, f"contour {' '.join(pair)}")
        if sum(len(one.curve) > 1 for one in answer.trials) > _MOST_CURVES:
            drawn["trials-curves"] = study_figure(answer, "trial curves")
        curves = _learning_curves(answer)
        if curves:
            drawn["curves"] = loss_curves_figure(curves, x="relative_time", metric=metric, height=600)
    recording, freezing = sources.recording, sources.freezing
    if recording is not None and len(recording.steps):
        drawn["loss-scale"] = loss_scale_figure(recording.steps, recording.events, policies=recording.traces)
        drawn["replay"] = replay_policies_figure(recording.replayed, recording.chosen)
        drawn["exponents"] = gradient_exponents_figure(recording.steps)
    if freezing is not None:
        drawn["freezing"] = frozen_layers_figure(freezing.frozen, freezing.n_groups, share=freezing.share)
    return drawn


def _key_figures(answer: StudyResult, sources: Sources, metric: MetricScale) -> list[tuple[str, str, str]]:
    """Return label, value and note of each number at the top of the page."""
    counts = answer.counts
    seconds = sum(t.seconds for t in answer.trials if math.isfinite(t.seconds))
    name, drops = answer.metric_name, answer.allowed_drops
    drop_texts = [metric.difference_text(drop) for drop in drops.values()]
    # The unit that they share stands once: "0.5 / 3 points".
    short = [text.removesuffix(" points").removesuffix(" point") for text in drop_texts[:-1]] + drop_texts[-1:]
    how_often = "mean of its runs in the search" if answer.objective == "time_to_quality" else "the baseline, one run"
    figures = [
        (f"{name[:1].upper()}{name[1:]} of O0", metric.value_text(answer.baseline_metric), how_often),
        ("Allowed drop", " / ".join(short) or "none set", "for " + ", ".join(drops) if drops else ""),
        ("Trials", f"{counts.n_finished}", counts.text()),
        ("Search time", format_duration(seconds) if seconds else "unknown", "all trials together"),
    ]
    recording = sources.recording
    if recording is not None and len(recording.steps):
        wasted = percent(loss_scale_numbers(recording.steps).wasted_share)
        figures.append(("Wasted steps", wasted, "of the float16 recording"))
    return figures


def _o0_over_seeds(answer: StudyResult) -> float:
    """Return the mean metric of O0 over the confirmation's seeds, or that of its one run without a confirmation."""
    pairs = max((candidate.metrics for candidate in answer.candidates), key=len, default=())
    metrics = [one for one, _ in pairs if math.isfinite(one)]
    return sum(metrics) / len(metrics) if metrics else answer.baseline_metric


def _speed_reach(candidates: Sequence[CandidateRecord]) -> tuple[float, float]:
    """Return the values at the ends of the small drawings, the same for every candidate."""
    ends = [v for c in candidates for v in (c.speedup_low, c.speedup_high, c.speedup) if math.isfinite(v)]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    margin = 0.08 * (high - low) or 0.1
    return low - margin, high + margin


def _learning_curves(answer: StudyResult) -> list[RunCurve]:
    """Return O0's curve, those of the exported trials, then the best others.

    A curve begins with its trial's warm-up, in micro-batches of its own length.
    """
    # Where only the end of a run counts, a trial has no more than that.
    done = [t for t in answer.trials if len(t.curve) > 1 and t.state == "complete"]
    best = sorted((t for t in done if t.number and t.feasible and math.isfinite(t.value)), key=lambda t: t.value)
    taken = {candidate.trial_number for candidate in answer.taken.values()}
    exported = [t for t in done if t.number in taken]
    others = [t for t in best if t.number not in taken]
    curves = []
    for trial in [t for t in done if t.number == 0] + (exported + others)[:_MOST_CURVES]:
        ratio = trial.relative_step_time if trial.relative_step_time > 0 else 1.0
        evaluations = [(step + round(trial.warm_up_steps / ratio), metric) for step, metric in trial.curve]
        curves.append(RunCurve(label=trial.label, steps=[], evaluations=evaluations, relative_step_time=ratio))
    return curves
