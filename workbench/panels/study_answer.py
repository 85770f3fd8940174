"""What a study has found: its answer in words, with the exported files, and a trial's curves."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any, Final

from workbench.core.records import StudyResult, TrialRecord
from workbench.figures import RunCurve
from workbench.figures.speed_accuracy import VERDICT_SYMBOLS
from workbench.panels.style import bullets, error_html, faint, file_link, words

TARGETS: Final = ("o1", "o2")
ANSWERS: Final = (
    "o1 and o2 are a study's answers, one for each allowed drop; boost levels and precisions only share the names."
)


def curve_of(trial: TrialRecord, directory: Path, objective: str = "time_to_target") -> RunCurve:
    """Read a trial's curves from the study's folder; without its run directory there are only the evaluations."""
    from workbench.runs import read_run

    time = trial.relative_step_time if math.isfinite(trial.relative_step_time) else 1.0
    steps: Any = []
    if trial.run_path and (directory / trial.run_path).exists():  # unless the folder was tidied up
        steps = read_run(directory / trial.run_path).steps
    evaluations = trial.curve
    if objective == "time_to_quality" and len(steps) and evaluations:
        # The time is of a whole run then, and the evaluation stands at the end of the task's own length.
        own, whole = int(steps["step"].iloc[-1]) + 1, evaluations[-1][0]
        time *= whole / own
        evaluations = tuple((round(step * own / whole), metric) for step, metric in evaluations)
    return RunCurve(trial.label, steps, evaluations, time)


def answer_html(study: StudyResult) -> str:
    """Return what each export takes, why, and why not the others."""
    parts = [f"<p>{error_html(study.doubt)}</p>"] if study.doubt else []
    first: dict[str, str] = {}
    for target, choice in study.choices.items():
        same = first.setdefault(choice.sentence, target)
        sentence = choice.sentence if same == target else f"The same as for {same}, for the same reason."
        path = study.exported.get(target)
        mark = "" if choice.candidate is None else VERDICT_SYMBOLS[choice.candidate.verdict]
        name = target if path is None else path.name
        title = f"<b>{html.escape(name)}</b>: {words(choice.label)}{f' {mark} {choice.verdict}' if mark else ''}"
        others = bullets(choice.others)
        why_not = others and f"<details><summary>Why not the others</summary>{others}</details>"
        where = "" if path is None else f"<br>{faint(str(path))}"
        headline = f"<br><b>{words(study.headlines[target])}</b>" if target in study.headlines else ""
        parts.append(f"<p>{title}{headline}<br>{words(sentence)}{where}</p>{why_not}")
    if study.report is not None and parts:
        parts.append(f"<p>{file_link(study.report, 'Open report.html')} {faint(str(study.report))}</p>")
    return f'<div role="status"><h4>Answer</h4>{"".join(parts)}</div>' if parts else ""
