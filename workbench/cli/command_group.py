"""Help on commands as plain text: loading what draws boxes takes as long as loading all the rest."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

_ENDLESS = 10_000  # characters; longer than any sentence
_WIDTH = 100  # characters, of a line of help at most

PLAIN: dict[str, Any] = {"rich_markup_mode": None, "context_settings": {"max_content_width": _WIDTH}}
"""Arguments of a ``Typer`` whose help, errors included, needs no rich."""


class CommandGroup(TyperGroup):
    """A group of commands whose help shows the first sentence of each in full."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command's name and what it does."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(limit=_ENDLESS)) for name, one in commands if one is not None]
            )
