"""From ``runs.csv`` and ``speed.csv`` to the tables, the figure and the environment of the study."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from measures import first_step_at, ratio_interval

from workbench.runs import collect_environment

if TYPE_CHECKING:
    from compare import Records

__all__ = ["comparison_table", "convention_table", "picture", "stability_table", "tuning_table", "write_report"]

TITLES = {
    "sgd": "SGD, momentum",
    "adamw": "AdamW",
    "adam_offload": "AdamOffload",
    "muon": "Muon",
    "soap": "SOAP",
    "thor": "THOR",
    "thor_no_floor": "no floor",
    "thor_tight_clip": "no floor, `kl_clip` 1e-4",
    "thor_searched_clip": "`kl_clip` searched, too",
    "thor_no_clip": "no floor, no `kl_clip`",
    "thor_no_average": "no floor, `factor_decay` 0",
    "thor_even": 'no floor, `damping_split="even"`',
    "thor_bare": "no floor, no `kl_clip`, `factor_decay` 0",
    "thor_mindspore": '`factors="mindspore"`',
}


def write_report(records: Records, tasks: Mapping[str, Mapping[str, Any]], arms: Sequence[str]) -> None:
    """Write ``tables.md``, ``time_to_target.svg`` and ``environment.json``.

    Args:
        records: Runs and measurements.
        tasks: Entries of ``spaces.toml``, in order; a task without runs of fresh seeds is left out.
        arms: Optimizers in order; THOR's conventions are found by their names.
    """
    parts, panels = [], {}
    for task, entry in tasks.items():
        steps = confirmed_steps(records, task, entry["fresh_seeds"])
        if "sgd" not in steps:
            continue
        parts += [f"## {task}", comparison_table(records, task, steps, arms)]
        if "also" in entry:
            easier = steps_in_curves(records, task, steps, entry["also"])
            parts += [
                f"To {entry['also']:g} instead of {entry['target']:g}:",
                comparison_table(records, task, easier, arms),
            ]
        conventions = [name for name in TITLES if name.startswith("thor") and name in steps]
        if len(conventions) > 1:
            parts += ["THOR's conventions:", convention_table(records, task, steps, conventions)]
        stability = stability_table(records.runs(kind="stability", task=task))
        if stability:
            parts += ["Far beyond the target:", stability]
        parts += ["Tuning:", tuning_table(records, task, [*arms, *(name for name in conventions if name != "thor")])]
        baseline = "sgd" if "adamw" not in steps or math.isfinite(median(steps["sgd"].values())) else "adamw"
        panels[f"{task}, relative to {TITLES[baseline]}"] = {
            arm: times_to_target(records, task, steps, arm, baseline) for arm in arms if arm in steps
        }
    records.folder.joinpath("tables.md").write_text("\n\n".join(parts) + "\n")
    records.folder.joinpath("time_to_target.svg").write_text(picture(panels))
    told = collect_environment(device={"type": "cpu", "threads": 1})
    kept = {key: value for key, value in told.items() if key not in ("task", "level", "seed", "data_hash") and value}
    records.folder.joinpath("environment.json").write_text(json.dumps(kept, indent=2, default=str) + "\n")


def confirmed_steps(records: Records, task: str, seeds: Iterable[int]) -> dict[str, dict[int, float]]:
    """Return steps to the target per arm and fresh seed, of the configurations that are the best now."""
    fresh = set(seeds)
    found: dict[str, dict[int, float]] = {}
    for row in records.runs(kind="confirm", task=task):
        if int(row["seed"]) in fresh and json.loads(row["parameters"]) == _best(records, task, row["arm"]):
            found.setdefault(row["arm"], {})[int(row["seed"])] = float(row["steps_to_target"])
    return found


def steps_in_curves(
    records: Records, task: str, runs: Mapping[str, Mapping[int, float]], target: float
) -> dict[str, dict[int, float]]:
    """Return the steps in which the same runs reached another target, of a metric that falls."""
    curves = records.curves(task)
    return {
        arm: {seed: first_step_at(curves[arm][seed], target, higher_is_better=False) for seed in seeds}
        for arm, seeds in runs.items()
        if all(seed in curves.get(arm, {}) for seed in seeds)
    }


def step_times(records: Records, task: str, arm: str, baseline: str) -> list[float]:
    """Return measured step-time ratios, one per measurement; empty where nothing was measured.

    Two optimizers that were measured only against SGD are compared measurement by measurement.
    """
    if arm == baseline:
        return [1.0]
    direct = _calls(records, task, arm, baseline)
    if direct:
        return list(direct.values())
    ours = _calls(records, task, arm, "sgd") if arm != "sgd" else None
    theirs = _calls(records, task, baseline, "sgd")
    if ours is None:
        return [1 / ratio for ratio in theirs.values()]
    return [ours[call] / theirs[call] for call in ours if call in theirs]


def times_to_target(
    records: Records, task: str, steps: Mapping[str, Mapping[int, float]], arm: str, baseline: str
) -> list[float]:
    """Return each seed's time to the target, relative to the baseline's median time."""
    times = step_times(records, task, arm, baseline) or [math.nan]
    return [value * median(times) / median(steps[baseline].values()) for value in steps[arm].values()]


def comparison_table(records: Records, task: str, steps: Mapping[str, Mapping[int, float]], arms: Sequence[str]) -> str:
    """Return the table of optimizers on one task, as Markdown."""
    head = (
        "optimizer", "reached", "steps, median (range)", "ms per step", "seconds", "step time / SGD's", "steps / SGD's",
        "time / SGD's", "time / AdamW's",
    )  # fmt: skip
    rows = []
    for arm in arms:
        if arm not in steps:
            continue
        milliseconds = _milliseconds(records, task, arm)
        rows.append(
            [
                TITLES[arm],
                _reached(steps[arm]),
                _spread(steps[arm].values()),
                f"{milliseconds:.1f}",
                f"{median(steps[arm].values()) * milliseconds / 1e3:.1f}",
                _ratio(records, task, {arm: {0: 1.0}, "sgd": {0: 1.0}}, arm, "sgd"),
                _ratio(records, task, steps, arm, "sgd", timed=False),
                _ratio(records, task, steps, arm, "sgd"),
                _ratio(records, task, steps, arm, "adamw"),
            ]
        )
    return _markdown(head, rows)


def convention_table(records: Records, task: str, steps: Mapping[str, Mapping[int, float]], arms: Sequence[str]) -> str:
    """Return the table of THOR's conventions on one task, as Markdown."""
    head = ("factors", "reached", "steps, median (range)", "refresh every", "steps / default's", "time / default's")
    rows = []
    for arm in arms:
        title = "default" if arm == "thor" else TITLES[arm]
        refresh = str(_best(records, task, arm)["frequency"])
        rows.append(
            [
                title,
                _reached(steps[arm]),
                _spread(steps[arm].values()),
                refresh,
                _ratio(records, task, steps, arm, "thor", timed=False),
                _ratio(records, task, steps, arm, "thor"),
            ]
        )
    return _markdown(head, rows)


def stability_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return what became of runs far beyond the target, as Markdown; empty without any."""
    kinds: dict[tuple[str, float], list[Mapping[str, str]]] = {}
    for row in rows:
        kinds.setdefault((row["arm"], json.loads(row["parameters"])["damping_decay"]), []).append(row)
    lines = []
    for (arm, decay), runs in kinds.items():
        worst = [float(row["worst_after"]) for row in runs if row["worst_after"] != "nan"]
        lines.append(
            [
                TITLES[arm],
                f"x {decay:g} per refresh" if decay < 1 else "constant",
                f"{len(runs)} runs of {max(int(row['steps']) for row in runs)} steps",
                str(sum(row["diverged"] == "1" for row in runs)),
                str(sum(row["steps_to_target"] == "inf" for row in runs)),
                f"{max(worst):.3g}" if worst else "",
                _spread((float(row["final"]) for row in runs), "{:.3g}"),
                _spread((float(row["best"]) for row in runs), "{:.3g}"),
            ]
        )
    head = (
        "factors",
        "damping",
        "runs",
        "diverged",
        "never reached",
        "worst after reaching",
        "end, median (range)",
        "best",
    )
    return _markdown(head, lines) if lines else ""


def tuning_table(records: Records, task: str, arms: Sequence[str]) -> str:
    """Return what was tuned and found, as Markdown."""
    rows = []
    for arm in arms:
        trials = records.runs(kind="tune", task=task, arm=arm)
        if not trials:
            continue
        arrived = {row["trial"] for row in trials} - {row["trial"] for row in trials if row["steps_to_target"] == "inf"}
        best = ", ".join(f"{key} {value:.3g}" for key, value in sorted(_best(records, task, arm).items()))
        rows.append([TITLES[arm], str(len({row["trial"] for row in trials})), str(len(arrived)), best])
    return _markdown(("arm", "trials", "reached with every seed tried", "best"), rows)


def picture(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> str:
    """Return an SVG: time to the target per seed, a panel per task, log scale.

    Args:
        panels: Relative times per arm, per panel with its title; infinity for a seed that never arrived, drawn as a
            cross at the right edge.
    """
    width, left, right, row_height, panel_gap = 760, 150, 60, 26, 46
    finite = [t for arms in panels.values() for times in arms.values() for t in times if math.isfinite(t)]
    low, high = math.log10(min(finite, default=0.5) * 0.9), math.log10(max(finite, default=2.0) * 1.1)

    def x(time: float) -> float:
        if not math.isfinite(time):
            return width - right + 24
        return left + (math.log10(time) - low) / (high - low) * (width - left - right)

    parts: list[str] = []
    y = 34.0
    ticks = [t for t in (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 5, 7, 10, 20) if low <= math.log10(t) <= high]
    for task, arms in panels.items():
        parts.append(f'<text x="12" y="{y:.0f}" font-weight="bold">{escape(task)}</text>')
        top, bottom = y + 8, y + 12 + row_height * len(arms)
        for tick in ticks:
            stroke = 'stroke="#888" stroke-width="1.5"' if tick == 1 else 'stroke="#8884" stroke-width="1"'
            parts.append(f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top:.0f}" y2="{bottom:.0f}" {stroke}/>')
            parts.append(f'<text x="{x(tick):.1f}" y="{bottom + 14:.0f}" text-anchor="middle">{tick:g}</text>')
        for index, (arm, times) in enumerate(arms.items()):
            at = top + row_height * (index + 0.6)
            parts.append(f'<text x="{left - 12}" y="{at + 4:.0f}" text-anchor="end">{escape(TITLES[arm])}</text>')
            for time in times:
                if math.isfinite(time):
                    parts.append(f'<circle cx="{x(time):.1f}" cy="{at:.1f}" r="4" fill="#0072b2" fill-opacity="0.55"/>')
                else:
                    parts.append(f'<text x="{x(time):.1f}" y="{at + 4:.1f}" text-anchor="middle">×</text>')
            middle = x(median(times))
            parts.append(
                f'<line x1="{middle:.1f}" x2="{middle:.1f}" y1="{at - 9:.1f}" y2="{at + 9:.1f}" stroke="#d55e00" '
                'stroke-width="3"/>'
            )
        y = bottom + panel_gap
    parts.append(
        f'<text x="{(left + width - right) / 2:.0f}" y="{y - 8:.0f}" text-anchor="middle">time to the target, relative '
        "to the median named (log scale); dots: seeds, bar: median, ×: never</text>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y + 6:.0f}" font-family="sans-serif" '
        f'font-size="12" fill="#777">\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _best(records: Records, task: str, arm: str) -> dict[str, Any]:
    from compare import best_of_trials  # not above: it imports this module when it is asked for the report

    return best_of_trials(records.runs(kind="tune", task=task, arm=arm))


def _calls(records: Records, task: str, arm: str, baseline: str) -> dict[str, float]:
    """Return the ratio of each measurement, of the frequencies that are the best now."""
    frequency = str(_best(records, task, arm).get("frequency", ""))
    rows = records.speeds(task=task, arm=arm, baseline=baseline, frequency=frequency)
    return {row["call"]: float(row["ratio"]) for row in rows}


def _milliseconds(records: Records, task: str, arm: str) -> float:
    """Return the median step time of an arm: SGD's over all measurements, times the ratio."""
    own = [float(row["baseline_ms"]) for row in records.speeds(task=task, baseline="sgd")]
    times = step_times(records, task, arm, "sgd")
    return median(own) * median(times) if own and times else math.nan


def _ratio(
    records: Records, task: str, steps: Mapping[str, Mapping[int, float]], arm: str, baseline: str, *,
    timed: bool = True,
) -> str:  # fmt: skip
    if baseline not in steps:
        return ""
    if arm == baseline:
        return "1"
    if not math.isfinite(median(steps[baseline].values())):
        return f"{TITLES[baseline]}: never"
    seeds = sorted(set(steps[arm]) & set(steps[baseline]))
    times = step_times(records, task, arm, baseline) if timed else [1.0]
    if not seeds or not times:
        return ""
    return str(ratio_interval([steps[arm][s] for s in seeds], [steps[baseline][s] for s in seeds], times))


def _reached(steps: Mapping[int, float]) -> str:
    return f"{sum(map(math.isfinite, steps.values()))} of {len(steps)}"


def _spread(values: Iterable[float], form: str = "{:.0f}") -> str:
    several = [value if math.isfinite(value) else math.inf for value in values]
    told = [
        form.format(value) if math.isfinite(value) else "never"
        for value in (median(several), min(several), max(several))
    ]
    return f"{told[0]} ({told[1]} to {told[2]})"


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
