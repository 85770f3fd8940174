"""``workbench validate`` and ``workbench schema``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from workbench.cli.output import JsonOption, print_json, say

FileArgument = typer.Argument(..., metavar="FILE", help="A boost_config.json.")


def validate(
    file: Path = FileArgument,
    level: str = typer.Option("O1", metavar="LEVEL", help="Boost level O0, O1 or O2 to read it at."),
    world_size: int = typer.Option(1, metavar="N", min=1, help="Ranks that train together."),
    json: bool = JsonOption,
) -> None:
    """Check a boost_config.json and say what it switches on."""
    from workbench.config import BoostConfig

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


def schema() -> None:
    """Print the JSON Schema of boost_config.json."""
    from workbench.config import BoostConfig

    print_json(BoostConfig.json_schema())


def _provenance(stored: Mapping[str, Any]) -> list[str]:
    """Return where an exported configuration comes from and how far it is confirmed; nothing for other files."""
    if not stored.get("study"):
        return []
    lines = [f"from study {stored['study']} on task {stored.get('task', '?')}: {stored.get('candidate', '?')}"]
    verdict, sentence = str(stored.get("verdict", "")), str(stored.get("sentence", ""))
    if verdict and verdict != "O0":
        lines.append(f"verdict: {verdict}")
    return [*lines, sentence] if sentence else lines
