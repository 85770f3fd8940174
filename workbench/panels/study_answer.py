"""What a study has found, in words: its answer with the exported files, one trial, and a trial's curves."""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.figures import MetricScale, RunCurve
from workbench.figures.labels import compact
from workbench.figures.speed_accuracy import VERDICT_SYMBOLS
from workbench.panels.controls import number_text
from workbench.panels.style import faint, table, words

if TYPE_CHECKING:
    from workbench.core.records import TrialRecord
    from workbench.study import StudyResult

__all__ = ["answer_html", "curve_of", "trial_html"]


def curve_of(trial: TrialRecord, directory: Path, objective: str = "time_to_target") -> RunCurve:
    """Read a trial's curves; without its run directory only the evaluations are left.

    Args:
        trial: The trial.
        directory: Folder of the study.
        objective: What the study minimises.
    """
    from workbench.runs import read_run

    label = "O0" if trial.number == 0 else f"trial {trial.number}"
    time = trial.relative_step_time if math.isfinite(trial.relative_step_time) else 1.0
    steps: Any = []
    if trial.run_path and (directory / trial.run_path).exists():  # somebody may have tidied up
        steps = read_run(directory / trial.run_path).steps
    evaluations = trial.curve
    if objective == "time_to_quality" and len(steps) and evaluations:
        # The time is of a whole run then, and the evaluation stands at the end of the task's own length.
        own, whole = int(steps["step"].iloc[-1]) + 1, evaluations[-1][0]
        time *= whole / own
        evaluations = tuple((round(step * own / whole), metric) for step, metric in evaluations)
    return RunCurve(label, steps, evaluations, time)


def trial_html(trial: TrialRecord, metric: MetricScale, per: str = "per step") -> str:
    """Write a trial as a small table.

    Args:
        trial: The trial.
        metric: How the metric is written.
        per: What its relative time is of.
    """
    head = f"<h4>Trial {trial.number}: {words(trial.summary or trial.level)}</h4>"
    speed = 1.0 / trial.relative_step_time if trial.relative_step_time > 0 else math.nan
    rows = [
        ("state", trial.state + (f" ({trial.message})" if trial.message else "")),
        ("level", trial.level),
        ("speed", f"{speed:.2f} times O0 {per}" if math.isfinite(speed) else "not measured"),
        (metric.name, metric.value_text(trial.metric) if math.isfinite(trial.metric) else "none"),
        *(
            (path, compact(value) if isinstance(value, float) else number_text(value))
            for path, value in trial.parameters.items()
            if path != "level"
        ),
    ]
    return head + table(("", ""), rows)


def answer_html(study: StudyResult) -> str:
    """Say what each export takes, why, and why not the others."""
    parts = []
    first: dict[str, str] = {}
    for target, choice in study.choices.items():
        same = first.setdefault(choice.sentence, target)
        sentence = choice.sentence if same == target else f"The same as for {same}, for the same reason."
        path = study.exported.get(target)
        mark = "" if choice.candidate is None else VERDICT_SYMBOLS[choice.candidate.verdict]
        name = target if path is None else path.name
        title = f"<b>{html.escape(name)}</b>: {words(choice.label)}{f' {mark} {choice.verdict}' if mark else ''}"
        others = "".join(f"<li>{words(other)}</li>" for other in choice.others)
        why_not = f"<details><summary>Why not the others</summary><ul>{others}</ul></details>" if others else ""
        where = "" if path is None else f"<br>{faint(str(path))}"
        headline = f"<br><b>{words(study.headlines[target])}</b>" if target in study.headlines and mark else ""
        parts.append(f"<p>{title}{headline}<br>{words(sentence)}{where}</p>{why_not}")
    if study.report is not None and parts:
        parts.append(f"<p>{_file_link(study.report, 'Open report.html')} {faint(str(study.report))}</p>")
    return f'<div role="status"><h4>Answer</h4>{"".join(parts)}</div>' if parts else ""


def _file_link(path: Path, text: str) -> str:
    """Return a link to a file as JupyterLab serves it; only the page knows where that is."""
    absolute = path.resolve().as_posix()
    try:
        short = "~/" + path.resolve().relative_to(Path.home()).as_posix()
    except ValueError:
        short = absolute
    script = _OPEN.replace("ABSOLUTE", _js(absolute)).replace("SHORT", _js(short))
    return f'<a href="#" style="{_LINK}" onclick="{html.escape(script)}">{html.escape(text)}</a>'


def _js(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


_LINK: Final = "color:var(--jp-content-link-color,#0067a8);text-decoration:underline"
# The page says which folder the server shows; a file outside it has no address there.
_OPEN: Final = (
    "const e=document.getElementById('jupyter-config-data');"
    "const c=e?JSON.parse(e.textContent):{};const root=(c.serverRoot||'').replace(/\\/$/,'');"
    "const p=[ABSOLUTE,SHORT].find(f=>root&&f.startsWith(root+'/'));"
    "if(p){window.open((c.baseUrl||'/')+'files/'+encodeURI(p.slice(root.length+1)),'_blank','noopener')}"
    "else{this.textContent='Not below the folder that Jupyter shows; open the file itself:'}return false;"
)
