"""Fields that several panels share: what is trained, where, where it is recorded, and at which boost level."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import LEVELS, SWITCHES, BoostConfig
from workbench.methods.registry import METHODS
from workbench.panels.kit import Dropdown, ToggleButtons, column, row, text_box, text_of
from workbench.panels.panel import Panel, error_sentence
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import error_html, faint

if TYPE_CHECKING:
    from workbench.tasks import Task

_DEVICES: Final = ("auto", "cpu", "cuda", "npu")


def look_for_task(name: str, folder: Path | None = None) -> None:
    """Load the task that a name stands for, beside a folder or from here; a TaskError says why there is none."""
    from workbench.tasks import load_task

    load_task(name, folder)


class TaskControls:
    """Fields for task, device and folder; the name of a task that was ``given`` as an object cannot be changed.

    ``named`` is the field for the name, beneath which it is said at once when nothing stands for it.
    """

    def __init__(self, panel: Panel, task: Task | str, device: str, out: str | Path | None) -> None:
        self.given = None if isinstance(task, str) else task
        self.name = text_box(
            task if isinstance(task, str) else task.name,
            "Name of a built-in task, package.module:attribute, or path/to/file.py:attribute",
        )
        self._problem = text_of("")
        self.named = column("Task", self.name, self._problem)
        self._reader = panel.new_reader(self._refuse)
        panel.on_change(self.name, self._check)
        if self.given is None:
            self._check(str(self.name.value))
        self.device = Dropdown(
            options=list(dict.fromkeys((*_DEVICES, device))), value=device, css="wb-wide", tooltip="Where to train"
        )
        self.out = text_box(
            "" if out is None else str(out),
            "Folder in which run directories are made; empty records nothing",
            placeholder="records nothing",
        )

    @property
    def task(self) -> Task | str:
        """The task, or its name."""
        return self.given if self.given is not None else str(self.name.value)

    @property
    def folder(self) -> Path | None:
        """Folder of run directories; None records nothing."""
        return Path(self.out.value).expanduser() if self.out.value.strip() else None

    def _check(self, name: str) -> None:
        self._problem.value = ""
        self._reader.ask(lambda _: look_for_task(name))

    def _refuse(self, error: BaseException) -> None:
        self._problem.value = error_html(error_sentence(error))

    def lock(self, locked: bool) -> None:
        """Disable the fields while work is under way, or free them again."""
        self.name.disabled = locked or self.given is not None
        self.device.disabled = self.out.disabled = locked


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
            said = f"boost level {_help(level)}" if preset else f"own switches (mode {config.boost.mode})"
            self._note.value = faint(said)

    def _choose(self, level: str | None) -> None:
        if level is not None:
            switches: dict[str, Any] = {f"boost.{name}": None for name in SWITCHES}
            self._shared.change({"boost.mode": "auto", **switches}, level)


def _help(level: str) -> str:
    asked = [one for one in METHODS if one.name in LEVELS[level]]
    titles = [one.title + (" (over several servers)" if one.n_ranks > 1 else "") for one in asked]
    return f"{level}: {', '.join(titles) or 'no boost algorithm; the baseline'}."
