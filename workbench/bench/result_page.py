"""The answers of a folder as a page to read: what a user would understand, on one screen.

    python -m workbench.bench.result_page studies/bench/result

writes ``results.md`` again from the files beside it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workbench.bench.questions import benchmarks
from workbench.core.files import write_text_atomically

_HEAD: Final = ("measured", "value", "95 % interval", "goal", "verdict", "bench")


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """Return what ``workbench bench --out FOLDER`` has written, in the order of the benchmarks."""
    paths = (folder / f"{name}.json" for name in benchmarks())
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def page(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return as Markdown what is meant for users: a table of the lines that the benchmarks choose for it.

    Below it each of these benchmarks has a line with its command and machine; everything is in the JSON files.
    """
    rows, told = [], []
    for answer in answers:
        shown = shown_findings(answer["name"], answer["findings"])
        if not shown:
            continue
        rows += [(*_row(finding), f"`{answer['name']}`") for finding in shown]
        machine = answer["environment"]
        others = answer.get("cores_of_others")  # None: written by version 0.6.0 or before
        words = [f"{machine['cpu']}, {machine['cores']} cores", f"Python {machine['python']}"]
        words += [f"torch {machine['versions']['torch']}", f"load {answer['load_average']['before']:.1f} before"]
        words += [f"others took {others:.2f} cores"] if others is not None else []
        told.append(f"* `{answer['command']}`: {', '.join(words)}, {answer['seconds']:.0f} s.")
    head = (
        "Written by `workbench bench --out`. Every other line that was measured is in the JSON file of its benchmark."
    )
    table = ["| " + " | ".join(_HEAD) + " |", "|" + " --- |" * len(_HEAD)]
    table += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n\n".join(["# Measured here", head, "\n".join(table), "\n".join(told)]) + "\n"


def shown_findings(name: str, findings: Sequence[Any]) -> list[Any]:
    """Return the findings of a benchmark that a user would understand, as it names them."""
    known = benchmarks().get(name)
    begin = () if known is None else known.shown
    return [one for one in findings if (one["what"] if isinstance(one, Mapping) else one.what).startswith(begin)]


def scale_and_unit(unit: str, value: float) -> tuple[float, str]:
    """Return by what a number of a finding is multiplied to be read, and the unit behind it then."""
    if unit != "s":
        return 1.0, " x" if unit == "x" else ""
    return (1.0, " s") if abs(value) >= 1.0 else (1e3, " ms") if abs(value) >= 1e-4 else (1e6, " us")


def _row(finding: Mapping[str, Any]) -> tuple[str, ...]:
    what, goal, verdict = (finding[name] for name in ("what", "goal", "verdict"))
    if finding["value"] is None:
        return what, "-", "-", "-" if goal is None else f"{goal:g}", verdict
    scale, unit = scale_and_unit(finding["unit"], finding["value"])
    value, low, high = (f"{finding[name] * scale:.3g}" for name in ("value", "low", "high"))
    wanted = "-" if goal is None else f"<= {goal * scale:.4g}{unit}"
    return what, f"{value}{unit}", f"{low} to {high}", wanted, "**missed**" if verdict == "missed" else verdict


if __name__ == "__main__":
    results = Path(sys.argv[1])
    write_text_atomically(results / "results.md", page(read_answers(results)))
