"""The answers of a folder as a page to read, and the goals among them as a table for another one.

    python -m workbench.bench.result_page studies/bench/result studies/bench/README.md

writes the table between the two comments that the page has for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workbench.bench.questions import benchmarks
from workbench.core.files import write_text_atomically

_BEGIN: Final = "<!-- measured: written by workbench.bench.result_page -->"
_END: Final = "<!-- /measured -->"
_UNITS: Final = {"x": (1.0, " x"), "s": (1e3, " ms"), "count": (1.0, "")}
_HEAD: Final = ("measured", "value", "95 % interval", "goal", "verdict")


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """Return what ``workbench bench --out FOLDER`` has written, in the order of the benchmarks."""
    paths = (folder / f"{name}.json" for name in benchmarks())
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def page(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return all findings as Markdown: one section per benchmark, with its command, machine and load."""
    parts = ["# Measured here", "Written by `workbench bench --out`; every number is in the JSON file of its name."]
    for answer in answers:
        machine, load = answer["environment"], answer["load_average"]["before"]
        others = answer.get("cores_of_others")  # None: written by version 0.6.0 or before
        versions = f"Python {machine['python']}, torch {machine['versions']['torch']}"
        told = [f"{machine['cpu']}, {machine['cores']} cores; {versions}"]
        told += [f"load {load:.1f} before"] if load is not None else []
        told += [f"others took {others:.2f} cores"] if others is not None else []
        parts += [
            f"## {answer['name']}: {answer['question']}",
            f"`{answer['command']}` ({', '.join(told)}, {answer['seconds']:.0f} s)",
            _table((*_HEAD, "note"), map(_row, answer["findings"])),
        ]
    return "\n\n".join(parts) + "\n"


def goals_table(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the findings that have a goal as a Markdown table."""
    found = ((answer["name"], finding) for answer in answers for finding in answer["findings"])
    rows = [(f"`{name}`", *_row(finding)[:5]) for name, finding in found if finding["goal"] is not None]
    return _table(("bench", *_HEAD), rows)


def with_table(readme: str, table: str) -> str:
    """Return a README with the table between its two comments; without them it is a `ValueError`."""
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the text has no {_BEGIN} ... {_END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def _row(finding: Mapping[str, Any]) -> tuple[str, ...]:
    what, goal, verdict, note = (finding[name] for name in ("what", "goal", "verdict", "note"))
    if finding["value"] is None:
        return what, "-", "-", "-" if goal is None else f"{goal:g}", verdict, note
    scale, unit = _UNITS[finding["unit"]]
    value, low, high = (f"{finding[name] * scale:.3g}" for name in ("value", "low", "high"))
    wanted = "-" if goal is None else f"<= {goal * scale:.4g}{unit}"
    return what, f"{value}{unit}", f"{low} to {high}", wanted, "**missed**" if verdict == "missed" else verdict, note


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    results, readme = Path(sys.argv[1]), Path(sys.argv[2])
    write_text_atomically(readme, with_table(readme.read_text(encoding="utf-8"), goals_table(read_answers(results))))
