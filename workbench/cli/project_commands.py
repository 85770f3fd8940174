"""``workbench init`` and ``workbench doctor``: a folder to start in, and a look at the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from workbench.cli.output import JsonOption, only_result_on_stdout, print_json, print_table, quoted, say

DirectoryArgument = typer.Argument(..., metavar="DIR", help="Folder to write into; made when missing.")


def init(directory: Path = DirectoryArgument) -> None:
    """Write the notebooks and studies that come with the package into a folder of your own."""
    from workbench.cli.templates import copy_templates

    written, kept = copy_templates(directory)
    for path in written:
        say(f"wrote {path}")
    for path in kept:
        say(f"kept  {path} (it was there already)")
    say(f"next: workbench tune {quoted(directory / 'studies' / 'quickstart')}")


def doctor(json: bool = JsonOption) -> None:
    """Say what this machine offers, and what is missing."""
    with only_result_on_stdout(json):
        from workbench.core.doctor import examine

        findings = examine()
    if json:
        print_json({"findings": findings, "ok": not any(f.problem for f in findings)})
    else:
        rows: list[tuple[Any, ...]] = [("problem" if f.problem else "ok", f.subject, f.text) for f in findings]
        print_table(("", "what", "found"), rows)
    if any(f.problem for f in findings):
        raise typer.Exit(1)
