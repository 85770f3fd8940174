"""Tables and figure of the comparison, from ``runs.csv``."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

import numpy as np

from workbench.runs import collect_environment

if TYPE_CHECKING:
    from problems import Recorded

TITLES = {
    "random": "random",
    "qmc": "qmc (Sobol)",
    "grid": "grid, 2 per range",
    "tpe": "tpe (in groups)",
    "tpe_one_by_one": "tpe, one by one",
    "nsga2": "nsga2",
    "nsga3": "nsga3",
    "cmaes": "cmaes",
    "gp": "gp",
}
COLOURS = {
    "random": "#999999",
    "qmc": "#000000",
    "grid": "#f0e442",
    "tpe": "#0072b2",
    "tpe_one_by_one": "#56b4e9",
    "nsga2": "#009e73",
    "nsga3": "#005c43",
    "cmaes": "#e69f00",
    "gp": "#d55e00",
}
AT = (10, 20, 30)
_RESAMPLES = 4000

Curves = Mapping[str, Mapping[str, np.ndarray]]
"""Problem -> sampler -> best true value so far, shape ``[searches, trials]``; trial 1 is O0 with 1."""


def write_report(folder: Path, recorded: Recorded) -> None:
    """Write ``tables.md``, ``answer.json``, ``best_so_far.svg`` and ``environment.json``.

    Args:
        folder: Has ``runs.csv``.
        recorded: The surrogate, which tells how good it is.
    """
    with (folder / "runs.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    curves, overhead = _curves(rows), _overhead(rows)
    answer = {
        "surrogate": {
            "trials": recorded.n_trials,
            "runs": recorded.n_runs,
            "variance_explained": {name: round(share, 3) for name, share in recorded.explained().items()},
        },
        "problems": {
            problem: {arm: _answer(arms, arm) for arm in TITLES if arm in arms} for problem, arms in curves.items()
        },
        "cpu_ms_per_trial": {arm: round(ms, 1) for arm, ms in overhead.items()},
    }
    tables = [_table(problem, arms, overhead) for problem, arms in curves.items()]
    (folder / "tables.md").write_text("\n".join(tables))
    (folder / "answer.json").write_text(json.dumps(answer, indent=1) + "\n")
    (folder / "best_so_far.svg").write_text(picture(curves))
    environment = collect_environment(device={"device": "cpu"}, task="samplers")
    besides = {name: metadata.version(name) for name in ("cmaes", "scipy")}
    environment["versions"] = {**environment["versions"], **besides}
    (folder / "environment.json").write_text(json.dumps(environment, indent=1, default=str) + "\n")
    print("\n".join(tables))


def _curves(rows: Sequence[Mapping[str, str]]) -> dict[str, dict[str, np.ndarray]]:
    found: dict[str, dict[str, list[list[float]]]] = {}
    for row in rows:
        best = [1.0] * max(AT)
        for change in row["best"].split():
            trial, value = change.split(":")
            best[int(trial) - 1 :] = [float(value)] * (max(AT) - int(trial) + 1)
        found.setdefault(row["problem"], {}).setdefault(row["sampler"], []).append(best)
    return {problem: {arm: np.array(lines) for arm, lines in arms.items()} for problem, arms in found.items()}


def _overhead(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    """Return processor milliseconds per drawn trial, the median over searches."""
    per_arm: dict[str, list[float]] = {}
    for row in rows:
        per_arm.setdefault(row["sampler"], []).append(1000.0 * float(row["cpu_seconds"]) / int(row["drawn"]))
    return {arm: float(np.median(times)) for arm, times in per_arm.items()}


def _answer(arms: Mapping[str, np.ndarray], arm: str) -> dict[str, object]:
    told: dict[str, object] = {"searches": len(arms[arm])}
    for trial in AT:
        middle, low, high = median_interval(arms[arm][:, trial - 1])
        told[f"best_after_{trial}"] = [round(middle, 4), round(low, 4), round(high, 4)]
    for other in ("random", "tpe"):
        if other in arms and other != arm:
            told[f"minus_{other}"] = [round(x, 4) for x in difference(arms[arm][:, -1], arms[other][:, -1])]
    return told


def median_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Return the median and its 95 % percentile bootstrap interval over searches."""
    draws = np.random.default_rng(0).choice(values, (_RESAMPLES, len(values)))
    low, high = np.percentile(np.median(draws, axis=1), [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def difference(values: np.ndarray, others: np.ndarray) -> tuple[float, float, float]:
    """Return the difference of two medians and its 95 % bootstrap interval; below 0 the first are better."""
    rng = np.random.default_rng(0)
    first = np.median(rng.choice(values, (_RESAMPLES, len(values))), axis=1)
    second = np.median(rng.choice(others, (_RESAMPLES, len(others))), axis=1)
    low, high = np.percentile(first - second, [2.5, 97.5])
    return float(np.median(values) - np.median(others)), float(low), float(high)


def _table(problem: str, arms: Mapping[str, np.ndarray], overhead: Mapping[str, float]) -> str:
    head = [
        "sampler",
        "searches",
        *(f"after {trial}" for trial in AT),
        "less than random (30)",
        "less than tpe (30)",
        "ms",
    ]
    lines = [f"**{problem}**", "", "| " + " | ".join(head) + " |", "| " + " | ".join("---" for _ in head) + " |"]
    for arm in sorted(arms, key=lambda one: float(np.median(arms[one][:, -1]))):
        told = ["{:.3f} ({:.3f} to {:.3f})".format(*median_interval(arms[arm][:, trial - 1])) for trial in AT]
        for other in ("random", "tpe"):
            if other not in arms or other == arm:
                told.append("-")
            else:
                told.append("{:+.3f} ({:+.3f} to {:+.3f})".format(*difference(arms[arm][:, -1], arms[other][:, -1])))
        lines.append("| " + " | ".join([TITLES[arm], str(len(arms[arm])), *told, f"{overhead[arm]:.1f}"]) + " |")
    return "\n".join([*lines, ""])


def picture(curves: Curves) -> str:
    """Return an SVG: median of the best true value so far against trials, a panel per problem."""
    width, height, left, gap = 300, 220, 46, 26
    parts: list[str] = []
    for place, (problem, arms) in enumerate(curves.items()):
        x0 = left + place * (width + gap)
        medians = {arm: np.median(values, axis=0) for arm, values in arms.items()}
        low = min(line.min() for line in medians.values())

        def at(trial: int, value: float, x0: float = x0, low: float = low) -> str:
            x = x0 + (trial - 1) / (max(AT) - 1) * (width - 50)
            return f"{x:.1f},{40 + (1.0 - value) / max(1.0 - low, 1e-9) * height:.1f}"

        parts.append(f'<text x="{x0}" y="24" font-weight="bold">{escape(problem)}</text>')
        for value in np.linspace(low, 1.0, 5):
            x, y = at(1, float(value)).split(",")
            end = at(max(AT), float(value)).split(",")[0]
            parts.append(f'<line x1="{x}" x2="{end}" y1="{y}" y2="{y}" stroke="#8884"/>')
            parts.append(f'<text x="{float(x) - 6}" y="{float(y) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
        for trial in (1, *AT):
            x = at(trial, low).split(",")[0]
            parts.append(f'<text x="{x}" y="{56 + height}" text-anchor="middle">{trial}</text>')
        for arm, line in medians.items():
            points = " ".join(at(trial, float(value)) for trial, value in enumerate(line, start=1))
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{COLOURS[arm]}" stroke-width="2"><title>'
                f"{escape(TITLES[arm])}</title></polyline>"
            )
    for place, arm in enumerate(TITLES):
        x, y = left + (place % 5) * 170, height + 84 + 20 * (place // 5)
        parts.append(f'<line x1="{x}" x2="{x + 24}" y1="{y}" y2="{y}" stroke="{COLOURS[arm]}" stroke-width="3"/>')
        parts.append(f'<text x="{x + 30}" y="{y + 4}">{escape(TITLES[arm])}</text>')
    full, bottom = left + len(curves) * (width + gap), height + 146
    parts.append(
        f'<text x="{left}" y="{bottom - 14}">true value of the best trial so far / O0\'s, median over searches, '
        "against trials (O0 is the first); lower is better</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {bottom}" font-family="sans-serif" '
        f'font-size="12" fill="#777">\n' + "\n".join(parts) + "\n</svg>\n"
    )
