"""``workbench validate`` and ``workbench schema``."""

from __future__ import annotations

from pathlib import Path

import typer

from workbench.cli.output import JsonOption, print_json, say

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(validate)
    app.command()(schema)


def validate(
    file: Path = typer.Argument(..., help="A boost_config.json."),
    level: str = typer.Option("O1", help="Boost level for modes auto and enable_all."),
    world_size: int = typer.Option(1, min=1, help="Ranks that train together."),
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
                "parameters": plan.parameters_in_effect(),
            }
        )
        return
    say(f"{file}: valid; at level {level} it means: {plan.summary()}")
    for dropped in plan.dropped:
        say(f"  not in effect: {dropped.reason}")
    verdict = (config.provenance or {}).get("verdict")
    if verdict:
        say(f"  provenance: {verdict}")


def schema() -> None:
    """Print the JSON Schema of boost_config.json."""
    from workbench.config import BoostConfig

    print_json(BoostConfig.json_schema())
