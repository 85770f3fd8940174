"""``workbench validate``, ``schema``, ``init`` and ``doctor``: a look at files and the machine, a folder to start."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from workbench.cli.output import JsonOption, only_result_on_stdout, print_json, print_table, quoted, say


def validate(
    file: Path = typer.Argument(..., metavar="FILE", help="A boost_config.json."),
    level: str = typer.Option("O1", metavar="LEVEL", help="Boost level O0, O1 or O2 to read it at."),
    world_size: int = typer.Option(1, metavar="N", min=1, help="Ranks that train together."),
    json: bool = JsonOption,
) -> None:
    """Check a boost_config.json and say what it switches on, here and in MindSpore."""
    from workbench.config import BoostConfig
    from workbench.config.mindspore_notes import mindspore_notes

    config = BoostConfig.from_json(file)
    plan = config.resolve(level, world_size=world_size)
    if json:
        print_json(
            {
                "file": file,
                "valid": True,
                "level": level,
                "in_effect": plan.summary(),
                "not_in_effect": {dropped.name: dropped.reason for dropped in plan.dropped},
                "level_defaults": plan.level_defaults(),
                "parameters": plan.parameters_in_effect(),
                "mindspore": mindspore_notes(config, plan),
            }
        )
        return
    say(f"{file}: valid; at level {level} it means: {plan.summary()}")
    for dropped in plan.dropped:
        say(f"  not in effect: {dropped.reason}")
    if defaults := plan.level_default_sentence():
        say(f"  {defaults}")
    for line in _provenance(config.provenance or {}):
        say(f"  {line}")
    for note in mindspore_notes(config, plan):
        say(f"  in MindSpore: {note}")


def schema() -> None:
    """Print the JSON Schema of boost_config.json."""
    from workbench.config import BoostConfig

    print_json(BoostConfig.json_schema())


def _provenance(stored: Mapping[str, Any]) -> list[str]:
    """Return where an exported configuration comes from and how far it is confirmed; empty for other files."""
    if not stored.get("study"):
        return []
    verdict, sentence = str(stored.get("verdict", "")), str(stored.get("sentence", ""))
    lines = [f"from study {stored['study']} on task {stored.get('task', '?')}: {stored.get('candidate', '?')}"]
    lines += [f"verdict: {verdict}"] if verdict not in {"", "O0"} else []
    lines += [sentence] if sentence else []
    if runs := stored.get("runs"):
        lines.append(f"all this in runs of {runs}; `workbench compare` trains whole ones")
    return lines


def init(directory: Path = typer.Argument(..., metavar="DIR", help="Folder to write into; made when missing.")) -> None:
    """Write the notebooks and studies that come with the package into a folder of your own."""
    from workbench.cli.templates import copy_templates

    written, kept = copy_templates(directory)
    for path in written:
        say(f"wrote {path}")
    for path in kept:
        say(f"kept  {path} (it was there already)")
    say(f"next: workbench tune {quoted(directory / 'studies' / 'quickstart')}")


def doctor(
    json: bool = JsonOption,
    sbom: bool = typer.Option(
        False, "--sbom", help="Print what is installed instead: a bill of materials with licences (CycloneDX JSON)."
    ),
) -> None:
    """Show what this machine offers and what is missing."""
    if sbom:
        from workbench.core.bill_of_materials import bill_of_materials

        print_json(bill_of_materials())
        return
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
