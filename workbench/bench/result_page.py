"""The answers of a folder as a page to read, and the goals among them as a table for a README.

    python -m workbench.bench.result_page studies/bench/result README.md

writes the table anew between the two comments that the README has for it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from workbench.bench.questions import benchmarks
from workbench.core.files import write_text_atomically

__all__ = ["goals_table", "page", "read_answers", "with_table"]

_BEGIN: Final = "<!-- measured: written by workbench.bench.result_page -->"
_END: Final = "<!-- /measured -->"
_UNITS: Final = {"x": (1.0, "x"), "s": (1e3, "ms"), "count": (1.0, "")}
_VERDICTS: Final = {"": "", "met": "met", "missed": "**missed**", "unclear": "unclear"}


def read_answers(folder: Path) -> list[dict[str, Any]]:
    """Return what ``workbench bench --out FOLDER`` has written, in the order of the benchmarks."""
    paths = (folder / f"{name}.json" for name in benchmarks())
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def page(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return all findings as Markdown: one section per benchmark, with its command, machine and load."""
    parts = ["# Measured here", "Written by `workbench bench --out`; every number is in the JSON file of its name."]
    for answer in answers:
        machine, load = answer["environment"], answer["load_average"]
        others = answer.get("cores_of_others")  # None: written by version 0.6.0 or before
        versions = machine["versions"]
        told = [
            f"{machine['cpu']}, {machine['cores']} cores; Python {machine['python']}, torch {versions['torch']}",
            f"load {load['before']:.1f} before" if load["before"] is not None else "",
            f"others took {others:.2f} cores" if others is not None else "",
            f"{answer['seconds']:.0f} s",
        ]
        parts += [
            f"## {answer['name']}: {answer['question']}",
            f"`{answer['command']}` ({', '.join(part for part in told if part)})",
            _table(("measured", "value", "95 % interval", "goal", "verdict", "note"), map(_row, answer["findings"])),
        ]
    return "\n\n".join(parts) + "\n"


def goals_table(answers: Sequence[Mapping[str, Any]]) -> str:
    """Return the findings that have a goal as a Markdown table."""
    rows = [
        (f"`{answer['name']}`", *_row(finding)[:5])
        for answer in answers
        for finding in answer["findings"]
        if finding["goal"] is not None
    ]
    return _table(("bench", "measured", "value", "95 % interval", "goal", "verdict"), rows)


def with_table(readme: str, table: str) -> str:
    """Return a README with the table between its two comments.

    Raises:
        ValueError: If the comments are not there.
    """
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"the text has no {_BEGIN} ... {_END}")
    return f"{before}{begin}\n\n{table}\n\n{end}{after}"


def _row(finding: Mapping[str, Any]) -> tuple[str, ...]:
    goal = finding["goal"]
    if finding["value"] is None:
        return finding["what"], "-", "-", "-" if goal is None else f"{goal:g}", finding["verdict"], finding["note"]
    scale, unit = _UNITS[finding["unit"]]
    value, low, high = (f"{finding[name] * scale:.3g}" for name in ("value", "low", "high"))
    wanted = "-" if goal is None else f"<= {goal * scale:.4g} {unit}"
    verdict = _VERDICTS.get(finding["verdict"], finding["verdict"])
    return finding["what"], f"{value} {unit}".strip(), f"{low} to {high}", wanted.strip(), verdict, finding["note"]


def _table(head: Sequence[str], rows: Any) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)


if __name__ == "__main__":
    results, readme = Path(sys.argv[1]), Path(sys.argv[2])
    text = with_table(readme.read_text(encoding="utf-8"), goals_table(read_answers(results)))
    write_text_atomically(readme, text)
