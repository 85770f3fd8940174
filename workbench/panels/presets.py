"""The choice of a boost level, as several panels show it."""

from __future__ import annotations

from typing import Any

from workbench.config import LEVELS, SWITCHES, BoostConfig
from workbench.methods.registry import method
from workbench.panels.kit import ToggleButtons, row, text_of
from workbench.panels.panel import Panel
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import faint

__all__ = ["PresetChoice"]


class PresetChoice:
    """Buttons O0, O1, O2: the level decides over the switches, and what was switched by hand is taken back."""

    def __init__(self, panel: Panel, shared: SharedConfig) -> None:
        self._panel, self._shared = panel, shared
        self.buttons = ToggleButtons(
            options=list(LEVELS),
            value=None,
            tooltips=[_help(level) for level in LEVELS],
            style={"button_width": "52px"},
            css="wb-auto",
        )
        self._note = text_of("")
        self.widget = row("<b>Preset</b>", self.buttons, self._note)
        panel.on_change(self.buttons, self._choose)

    def show(self, config: BoostConfig, level: str) -> None:
        """Show which preset a configuration at a level is."""
        preset = config.boost.mode == "auto"
        with self._panel.showing():
            self.buttons.value = level if preset else None
            self._note.value = "" if preset else faint(f"own switches (mode {config.boost.mode})")

    def _choose(self, level: str | None) -> None:
        if level is not None:
            switches: dict[str, Any] = {f"boost.{name}": None for name in SWITCHES}
            self._shared.change({"boost.mode": "auto", **switches}, level)


def _help(level: str) -> str:
    asked = map(method, LEVELS[level])
    titles = [one.title + (" (over several servers)" if one.n_ranks > 1 else "") for one in asked]
    return f"{level}: {', '.join(titles) or 'no boost algorithm; the baseline'}."
