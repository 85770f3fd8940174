"""Report of a study: one HTML file that answers its question and shows why.

The report is drawn from plain records, so it can be written again from a study's files on a machine that has
neither the data nor the accelerator. What a study did not do has no section; one line at the end names it. Which
candidate is exported is not decided here: the page shows the study's choices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import pandas as pd

from workbench.config import GradFreezeConfig
from workbench.core.files import write_text_atomically
from workbench.core.records import (
    CandidateRecord,
    Choice,
    TrialRecord,
    Verdict,
)
from workbench.figures import (
    MetricScale,
    RunCurve,
    frozen_layers_figure,
    gradient_exponents_figure,
    importance_figure,
    loss_curves_figure,
    loss_scale_figure,
    loss_scale_numbers,
    replay_policies_figure,
    speed_accuracy_figure,
    study_history_figure,
)
from workbench.figures.labels import compact, counted, percent
from workbench.figures.speed_accuracy import VERDICT_SYMBOLS
from workbench.report.page import (
    card,
    code,
    details,
    document,
    embed,
    missing,
    pretty_json,
    section,
    table,
    text,
    word_list,
)

__all__ = ["StudyReport", "parameter_text", "study_report_html", "write_study_report"]

_SECTIONS = (
    ("speed", "Speed against accuracy"),
    ("candidates", "Candidates"),
    ("history", "The search"),
    ("loss-scale", "Loss scale"),
    ("exponents", "Gradients in float16"),
    ("freezing", "Freezing schedule"),
    ("exports", "Exported files"),
    ("use", "How to use them"),
    ("reproduce", "Reproduce"),
)


@dataclass(frozen=True, eq=False)
class StudyReport:
    """Everything a report shows; whatever is missing stays at its default and is named on the page.

    Args:
        title: Name of the study for a person.
        question: What the study asks, one sentence.
        task_name: Task it ran.
        metric_name: Name of the metric.
        metric_unit: Its unit; see ``figures.MetricScale``.
        direction: Which way the metric improves.
        baseline_metric: Metric of O0 in the task's unit.
        allowed_drops: Target (``"o1"``) -> allowed deficit in the task's unit.
        trials: Every trial; number 0 is O0.
        candidates: Those that went through confirmation.
        objective: Axis title of the objective, with its unit.
        per: What a candidate's speed-up is of: ``"per step"`` or ``"to the target"``.
        importance: Config path -> importance.
        steps: Step table of the float16 recording.
        events: Event table of the same run.
        replayed: One row per replayed policy; see ``figures.replay_policies_numbers``.
        replay_traces: A few of them, name -> scale at every recorded step.
        chosen_policy: Name of the policy that was chosen.
        replay_note: Assumption and error bar of the replay, one sentence.
        freeze_schedule: Number of leading frozen groups per step of an exported configuration.
        freeze_n_groups: Number of groups of that schedule.
        freeze_label: Whose schedule it is, for example ``"boost_config.o1.json"``.
        exported: File name -> exported JSON.
        choices: What each export takes and why.
        hardware: What it ran on.
        versions: Package -> version.
        notes: Sentences a reader should know.
        commands: Command lines that reproduce the study.
        created: When the report was written, as text.
    """

    title: str
    question: str
    task_name: str
    metric_name: str
    metric_unit: str = ""
    direction: Literal["maximize", "minimize"] = "maximize"
    baseline_metric: float = float("nan")
    allowed_drops: Mapping[str, float] = field(default_factory=dict)
    trials: Sequence[TrialRecord] = ()
    candidates: Sequence[CandidateRecord] = ()
    objective: str = "Objective, smaller is better"
    per: str = "per step"
    importance: Mapping[str, float] = field(default_factory=dict)
    steps: pd.DataFrame | None = None
    events: pd.DataFrame | None = None
    replayed: pd.DataFrame | None = None
    replay_traces: Mapping[str, npt.ArrayLike] = field(default_factory=dict)
    chosen_policy: str | None = None
    replay_note: str = ""
    freeze_schedule: Sequence[int] | None = None
    freeze_n_groups: int | None = None
    freeze_label: str = ""
    exported: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    choices: Sequence[Choice] = ()
    hardware: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    created: str = ""

    @property
    def metric(self) -> MetricScale:
        """How the metric is written."""
        return MetricScale(self.metric_name, self.metric_unit, self.direction == "maximize")


def write_study_report(path: Path, study: StudyReport) -> Path:
    """Write the report as one self-contained HTML file, whole or not at all.

    Args:
        path: File to write; its folder must exist.
        study: What to show.

    Returns:
        The path.

    Raises:
        OSError: When the folder is missing, not writable, or the disk is full; an old report is then unchanged.
    """
    write_text_atomically(path, study_report_html(study))
    return path


def study_report_html(study: StudyReport) -> str:
    """Return the report as HTML text."""
    bodies: dict[str, tuple[str, str]] = {
        "speed": _speed(study),
        "candidates": _candidates(study),
        "history": _history(study),
        "loss-scale": _loss_scale(study),
        "exponents": _exponents(study),
        "freezing": _freezing(study),
        "exports": _exports(study),
        "use": _use(study),
        "reproduce": _reproduce(study),
    }
    shown = [(anchor, title) for anchor, title in _SECTIONS if bodies[anchor][1]]
    left_out = [title for anchor, title in _SECTIONS if not bodies[anchor][1]]
    links = "".join(f'<a href="#{anchor}">{text(title)}</a>' for anchor, title in shown)
    body = _header(study) + f'<nav aria-label="Sections">{links}</nav>'
    body += "".join(section(anchor, title, bodies[anchor][1], bodies[anchor][0]) for anchor, title in shown)
    if left_out:
        body += missing(f"Not part of this study: {', '.join(title.lower() for title in left_out)}.")
    when = text(f" on {study.created}") if study.created else ""
    body += (
        f"<footer>Written by Boost Workbench{when}. Figures need JavaScript, which is part of this file; "
        "nothing is loaded from a network.</footer>"
    )
    return document(f"{study.title}: study report", body, with_plotly='class="plot"' in body)


def parameter_text(path: str, value: Any) -> str:
    """Write one searched parameter as a person would say it.

    Args:
        path: Config path, for example ``"grad_freeze.freeze_p"``.
        value: Its value.
    """
    if path.endswith("freeze_p") and isinstance(value, int | float):
        return f"frozen steps: {percent(1 - float(value))}"  # freeze_p is the share of FULL steps
    if isinstance(value, bool):
        return f"{path.removeprefix('boost.')}: {'on' if value else 'off'}"
    return f"{path}: {compact(value) if isinstance(value, float) else value}"


def _header(study: StudyReport) -> str:
    answers = "".join(_answer(study, name) for name in study.exported) or missing(
        "Nothing has been exported yet: the study has not come to its end."
    )
    return (
        f'<header><p class="kicker">Study report · {text(study.task_name)}</p><h1>{text(study.title)}</h1>'
        f'<p class="question">{text(study.question)}</p><div class="answers">{answers}</div>'
        f'<div class="cards">{_key_figures(study)}</div></header>'
    )


def _choice_of(study: StudyReport, name: str) -> Choice | None:
    """Return the choice that an exported file was made from; its name holds the target."""
    return next((choice for choice in study.choices if choice.target in name.lower().split(".")), None)


def _answer(study: StudyReport, name: str) -> str:
    choice = _choice_of(study, name)
    taken = None if choice is None else choice.candidate
    if taken is None:
        big, effect = "1.00 ×", "nothing is boosted"
        pill = '<span class="verdict none">O0</span>'
    else:
        big, effect = f"{taken.speedup:.2f} ×", taken.summary
        pill = _verdict(taken.verdict)
    sentence = "Exported as it stands." if choice is None else choice.sentence
    why_not = allowed = ""
    if choice is not None and choice.target in study.allowed_drops:
        drop = study.metric.difference_text(study.allowed_drops[choice.target])
        allowed = f'<span class="note">Where {text(study.metric_name)} may be worse by {text(drop)} at most.</span>'
    if choice is not None and choice.others:
        others = "".join(f"<li>{text(other)}</li>" for other in choice.others)
        why_not = details("Why not the others", f"<ul>{others}</ul>")
    return (
        f'<div class="answer"><div class="top"><span class="file">{text(name)}</span>{pill}</div>{allowed}'
        f'<span class="big">{text(big)} <small>the speed of O0</small></span><p>{text(sentence)}</p>'
        f'<p class="effect">In effect: {text(effect)}.{_frozen_steps(study.exported[name], effect)}</p>{why_not}</div>'
    )


def _frozen_steps(config: Mapping[str, Any], said: str) -> str:
    if "frozen steps" in said:
        return ""
    freezing = config.get("grad_freeze")
    switched = config.get("boost")
    if not (isinstance(freezing, Mapping) and isinstance(switched, Mapping) and switched.get("grad_freeze")):
        return ""
    share = GradFreezeConfig.model_validate(dict(freezing)).frozen_share()
    return f" Frozen steps: {text(percent(share))}."


def _key_figures(study: StudyReport) -> str:
    states = [t.state for t in study.trials]
    feasible = sum(t.feasible for t in study.trials if t.state == "complete" and t.number)
    seconds = sum(t.seconds for t in study.trials if math.isfinite(t.seconds))
    cards = [
        card(
            f"{study.metric_name[:1].upper()}{study.metric_name[1:]} of O0",
            study.metric.value_text(study.baseline_metric),
            "the baseline",
        ),
        card(
            "Allowed drop",
            _drops(study) or "none set",
            "for " + ", ".join(study.allowed_drops) if study.allowed_drops else "",
        ),
        card(
            "Trials",
            f"{len(states)}",
            f"{feasible} within the allowed drop, {states.count('pruned')} pruned, {states.count('failed')} failed",
        ),
        card("Search time", _duration(seconds) if seconds else "unknown", "all trials together"),
    ]
    if study.steps is not None and len(study.steps):
        numbers = loss_scale_numbers(study.steps)
        cards.append(card("Wasted steps", percent(numbers.wasted_share), "of the float16 recording"))
    return "".join(cards)


def _drops(study: StudyReport) -> str:
    """Write all allowed drops, with the unit they share once: ``0.5 / 3 points``."""
    texts = [study.metric.difference_text(drop) for drop in study.allowed_drops.values()]
    shared = (" points", " point")
    return " / ".join([t.removesuffix(shared[0]).removesuffix(shared[1]) for t in texts[:-1]] + texts[-1:])


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _verdict(verdict: Verdict) -> str:
    return f'<span class="verdict {text(verdict)}">{VERDICT_SYMBOLS[verdict]} {text(verdict)}</span>'


def _speed(study: StudyReport) -> tuple[str, str]:
    figure = speed_accuracy_figure(
        study.trials,
        study.candidates,
        metric=study.metric,
        baseline_metric=study.baseline_metric,
        allowed_drops=study.allowed_drops,
        choices=study.choices,
    )
    if not study.candidates and not any(t.number and t.relative_step_time > 0 for t in study.trials):
        return "", ""
    lead = (
        "Every trial once. Filled circles stay within the allowed drop after one run; only candidates with intervals "
        "were run again over paired seeds."
    )
    return lead, embed(figure, "figure-speed-accuracy")


def _candidates(study: StudyReport) -> tuple[str, str]:
    lead = (
        "Each candidate and O0 ran side by side over the same seeds. Speed is O0's time over the candidate's, of what "
        "the study minimises; the bound on the drop is one-sided at 95 %. Confirmed means faster and as good."
    )
    if not study.candidates:
        return lead, ""
    taken = {(choice.target, choice.label) for choice in study.choices}
    reach = _speed_reach(study.candidates)
    rows = [
        [
            f'<span class="strong">{text(c.label)}</span><span class="under">for {text(c.target)}</span>'
            + ('<span class="verdict none">exported</span>' if (c.target, c.label) in taken else ""),
            f'{text(c.summary)}<span class="under">{text(c.sentence)}</span>',
            _speed_cell(c, reach),
            _drop_cell(c, study.metric),
            f'{_verdict(c.verdict)}<span class="under">{text(counted(c.n_seeds, "seed"))}</span>',
        ]
        for c in study.candidates
    ]
    head = ["Candidate", "In effect, and what the confirmation says", f"Speed {study.per}", "Metric drop", "Verdict"]
    return lead, table(head, rows, label="Candidates with intervals and verdicts")


def _speed_reach(candidates: Sequence[CandidateRecord]) -> tuple[float, float]:
    ends = [v for c in candidates for v in (c.speedup_low, c.speedup_high, c.speedup) if math.isfinite(v)]
    low, high = min([1.0, *ends]), max([1.0, *ends])
    margin = 0.08 * (high - low) or 0.1
    return low - margin, high + margin


def _speed_cell(c: CandidateRecord, reach: tuple[float, float]) -> str:
    words = f'<span class="strong nowrap">{text(f"{c.speedup:.2f} ×")}</span>'
    if not (math.isfinite(c.speedup_low) and math.isfinite(c.speedup_high)):
        return words
    return f'{words} <span class="nowrap">({c.speedup_low:.2f} to {c.speedup_high:.2f})</span>' + _interval(
        c.speedup_low, c.speedup, c.speedup_high, mark=1.0, reach=reach, words="dashed line: O0"
    )


def _drop_cell(c: CandidateRecord, metric: MetricScale) -> str:
    words = f'<span class="strong nowrap">{text(metric.difference_text(c.drop))}</span>'
    if not math.isfinite(c.drop_bound):
        return words
    top = max(c.allowed_drop, c.drop_bound, c.drop) * 1.15
    low = min(0.0, c.drop, c.drop_bound)
    picture = ""
    if math.isfinite(top) and top > low:
        picture = _interval(
            c.drop, c.drop, c.drop_bound, mark=c.allowed_drop, reach=(low, top), words="dashed line: allowed drop"
        )
    return (
        f'{words}<span class="under">at most {text(metric.difference_text(c.drop_bound))}, '
        f"allowed {text(metric.difference_text(c.allowed_drop))}</span>{picture}"
    )


def _interval(low: float, middle: float, high: float, *, mark: float, reach: tuple[float, float], words: str) -> str:
    """Return an interval as a small drawing: a bar from low to high, a dot at the middle, a dashed line at mark."""

    def place(value: float) -> str:
        return f"{4 + 182 * (value - reach[0]) / (reach[1] - reach[0]):.1f}"

    return (
        f'<svg class="interval" viewBox="0 0 190 22" role="img" aria-label="{text(words)}"><title>{text(words)}</title>'
        '<line x1="4" x2="186" y1="11" y2="11" stroke="var(--bar)" stroke-width="1"/>'
        f'<line x1="{place(low)}" x2="{place(high)}" y1="11" y2="11" stroke="var(--accent)" stroke-width="4" '
        'stroke-linecap="round"/>'
        f'<circle cx="{place(middle)}" cy="11" r="5" fill="var(--accent)"/>'
        f'<line x1="{place(mark)}" x2="{place(mark)}" y1="2" y2="20" stroke="var(--ink)" stroke-width="1.4" '
        'stroke-dasharray="3 2"/></svg>'
    )


def _history(study: StudyReport) -> tuple[str, str]:
    lead = "What each trial scored, which parameters explain it, and how the best ones learned."
    if not any(math.isfinite(t.value) for t in study.trials):
        return lead, ""
    content = embed(study_history_figure(study.trials, objective=study.objective), "figure-history")
    if study.importance:
        content += embed(importance_figure(study.importance), "figure-importance")
    curves = _learning_curves(study)
    if curves:
        content += embed(
            loss_curves_figure(curves, x="relative_time", metric=study.metric, height=600), "figure-curves"
        )
    if study.trials:
        content += details(f"All {counted(len(study.trials), 'trial')}", _trial_table(study))
    return lead, content


def _learning_curves(study: StudyReport, most: int = 4) -> list[RunCurve]:
    done = [t for t in study.trials if t.curve and t.state == "complete"]
    best = sorted((t for t in done if t.number and t.feasible and math.isfinite(t.value)), key=lambda t: t.value)
    taken = {choice.candidate.trial_number for choice in study.choices if choice.candidate is not None}
    exported = [t for t in done if t.number in taken]
    others = [t for t in best if t.number not in taken]
    chosen = [t for t in done if t.number == 0] + (exported + others)[:most]
    return [
        RunCurve(
            label="O0" if t.number == 0 else f"trial {t.number}",
            steps=[],
            evaluations=_since_warm_up(t),
            relative_step_time=t.relative_step_time if t.relative_step_time > 0 else 1.0,
        )
        for t in chosen
    ]


def _since_warm_up(trial: TrialRecord) -> list[tuple[int, float]]:
    """Return a trial's evaluations counted from the beginning of its warm-up, in micro-batches of its own length."""
    ratio = trial.relative_step_time if trial.relative_step_time > 0 else 1.0
    return [(step + round(trial.warm_up_steps / ratio), metric) for step, metric in trial.curve]


def _trial_table(study: StudyReport) -> str:
    def speed(t: TrialRecord) -> str:
        return f"{1 / t.relative_step_time:.2f} ×" if t.relative_step_time > 0 else "–"

    rows = [
        [
            text(t.number),
            text(t.level),
            text(t.state if t.state != "complete" else "within" if t.feasible or t.number == 0 else "beyond the drop"),
            text(speed(t)),
            text(study.metric.value_text(t.metric) if math.isfinite(t.metric) else "–"),
            text(compact(t.value) if math.isfinite(t.value) else "–"),
            text(t.summary)
            + f'<span class="under">{text("; ".join(parameter_text(p, v) for p, v in t.parameters.items()))}</span>'
            + (f'<span class="under">{text(t.message)}</span>' if t.message else "")
            + (f'<span class="under">{text(_warm_up_text(t))}</span>' if t.warm_up_steps else ""),
        ]
        for t in study.trials
    ]
    head = [
        "Trial",
        "Level",
        "State",
        "Speed per step",
        study.metric_name,
        "Objective",
        "In effect and searched values",
    ]
    return table(head, rows, numeric=(3, 4, 5), label="All trials")


def _warm_up_text(trial: TrialRecord) -> str:
    return f"after a warm-up of {trial.warm_up_steps} micro-batches of O0, which count into the time to the target"


def _loss_scale(study: StudyReport) -> tuple[str, str]:
    lead = (
        "A float16 run recorded once; every other policy is replayed on it without training. "
        "A skipped update is a wasted step, a scale that is too low loses gradients to zero."
    )
    if study.steps is None or not len(study.steps):
        return lead, ""
    content = embed(loss_scale_figure(study.steps, study.events, policies=study.replay_traces), "figure-loss-scale")
    if study.replayed is None or not len(study.replayed):
        return lead, content + missing("No other loss-scale policy was replayed on this recording.")
    content += embed(replay_policies_figure(study.replayed, study.chosen_policy), "figure-replay")
    if study.chosen_policy:
        content += f"<p>Chosen policy: <strong>{text(study.chosen_policy)}</strong>. {text(study.replay_note)}</p>"
    elif study.replay_note:
        content += f"<p>{text(study.replay_note)}</p>"
    return lead, content


def _exponents(study: StudyReport) -> tuple[str, str]:
    lead = (
        "Where the gradients lie before scaling. Between the solid lines float16 holds them at the scale in force; "
        "below the dashed line they lose bits."
    )
    if study.steps is None or not len(study.steps):
        return lead, ""
    return lead, embed(gradient_exponents_figure(study.steps), "figure-exponents")


def _freezing(study: StudyReport) -> tuple[str, str]:
    lead = "Frozen groups skip their backward pass. Groups are nested from the input upwards."
    if study.freeze_schedule is None:
        return lead, ""
    whose = f"<p>Schedule of <code>{text(study.freeze_label)}</code>.</p>" if study.freeze_label else ""
    return lead, whose + embed(frozen_layers_figure(study.freeze_schedule, study.freeze_n_groups), "figure-freezing")


def _exports(study: StudyReport) -> tuple[str, str]:
    lead = "One click selects a whole file for copying. The same files lie beside this report."
    if not study.exported:
        return lead, ""
    blocks = []
    for name, content in study.exported.items():
        choice = _choice_of(study, name)
        taken = None if choice is None else choice.candidate
        note = f' <span class="note">{text(taken.summary)}</span>' if taken is not None else ""
        blocks.append(details(f"<code>{text(name)}</code>{note}", code(pretty_json(content))))
    return lead, "".join(blocks)


def _use(study: StudyReport) -> tuple[str, str]:
    boosting = {choice.target for choice in study.choices if choice.candidate is not None}
    named = [name for name in study.exported if boosting & set(name.lower().split("."))]
    name = next(iter(named or study.exported), "boost_config.o1.json")
    level = "O2" if "o2" in name.lower().split(".") else "O1"
    here = (
        "from workbench import BoostConfig, apply\n\n"
        f'config = BoostConfig.from_json("{name}")\n'
        "boosted = apply(config, model, optimizer, criterion=loss_fn)\n"
        "for x, y in batches:\n"
        "    with boosted.autocast():\n"
        "        loss = loss_fn(boosted.model(x), y)\n"
        "    boosted.backward(loss)\n"
        "    boosted.step()"
    )
    there = (
        "import json\nfrom mindspore.train import Model\n\n"
        f'with open("{name}") as file:\n'
        "    boost_config = json.load(file)\n"
        "model = Model(\n    network, loss_fn, optimizer,\n"
        f'    boost_level="{level}", boost_config_dict=boost_config,\n)'
    )
    content = (
        '<div class="columns wide"><div><h3>In PyTorch, with this package</h3>' + code(here) + "</div>"
        '<div><h3>In MindSpore</h3>' + code(there) + "</div></div>"
        f"<p>In MindSpore pass the level that the file is for, here <code>boost_level=\"{level}\"</code>: with O0 "
        "Model does not read the file. What is switched on is said by the file itself (mode manual).</p>"
    )  # fmt: skip
    return "", content


def _reproduce(study: StudyReport) -> tuple[str, str]:
    commands = code("\n".join(study.commands)) if study.commands else missing("No commands were recorded.")
    notes = "<h3>Notes</h3><ul>" + "".join(f"<li>{text(n)}</li>" for n in study.notes) + "</ul>" if study.notes else ""
    hardware = word_list(study.hardware) if study.hardware else missing("The hardware was not recorded.")
    versions = word_list(study.versions) if study.versions else missing("The versions were not recorded.")
    return "", (
        f'{commands}{notes}<div class="columns"><div><h3>Hardware</h3>{hardware}</div>'
        f"<div><h3>Versions</h3>{versions}</div></div>"
    )
