"""Fields that several panels share: what is trained, where, where it is recorded, and at which boost level."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.config import LEVELS, SWITCHES, BoostConfig
from workbench.methods.registry import METHODS
from workbench.panels.kit import Dropdown, ToggleButtons, column, row, text_box, text_of
from workbench.panels.panel import Panel, WorkPanel, error_sentence
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import bullets, error_html, faint, words

if TYPE_CHECKING:
    from workbench.tasks import Task

_DEVICES: Final = ("auto", "cpu", "cuda", "npu")


def look_for_task(name: Task | str, folder: Path | None = None) -> Task:
    """Load a task by its name, relative to a folder or to the working directory; a TaskError if there is none."""
    from workbench.tasks import load_task

    return load_task(name, folder)


def learn_network(shared: SharedConfig, task: Task) -> None:
    """Tell the shared configuration what methods find in a task's network; what is wrong with that shows in a run."""
    from workbench.training.task_look import network_facts

    with contextlib.suppress(Exception):
        shared.learn(network_facts(task, with_weights=False), task.name)


class TaskControls:
    """Fields for task, device and folder; the name of a task that was ``given`` as an object cannot be changed.

    ``named`` is the field for the name, which is checked at once. What the task's network offers to the methods is
    learned at once, too, so that no panel promises what would find nothing to do.
    """

    def __init__(self, panel: WorkPanel, task: Task | str, device: str, out: str | Path | None) -> None:
        self._shared = panel.shared
        self._names: dict[str, str] = {}  # of tasks, by the text of the field
        self.given = None if isinstance(task, str) else task
        self.name = text_box(
            task if isinstance(task, str) else task.name,
            "Name of a built-in task, package.module:attribute, or path/to/file.py:attribute",
        )
        self._problem = text_of("")
        self.named = column("Task", self.name, self._problem)
        self._reader = panel.new_reader(lambda error: self._problem.refuse(error_sentence(error)))
        panel.on_change(self.name, self._check)
        if self.given is None or self._shared.network is None:
            self._check(task)
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
    def label(self) -> str:
        """The task's own name, under which its runs are recorded; until it has been loaded, the text of the field."""
        return self.given.name if self.given is not None else self._names.get(self.name.value, self.name.value)

    def found_label(self) -> str:
        """Wait until the task has been loaded, then return its name; blocks, so call it from a worker thread."""
        self._reader.wait()
        return self.label

    @property
    def folder(self) -> Path | None:
        """Folder of run directories; None records nothing."""
        return Path(self.out.value).expanduser() if self.out.value.strip() else None

    def _check(self, task: Task | str) -> None:
        self._problem.refuse("")
        self._reader.ask(lambda: look_for_task(task), lambda found: self._learn(task, found))

    def _learn(self, task: Task | str, found: Task) -> None:
        if isinstance(task, str):
            self._names[task] = found.name
        learn_network(self._shared, found)

    def lock(self, locked: bool) -> None:
        """Disable the fields while work is under way, or free them again."""
        if locked:  # the run checks whether there is such a task
            self._problem.refuse("")
        self.name.disabled = locked or self.given is not None
        self.device.disabled = self.out.disabled = locked


class PresetChoice:
    """Buttons O0, O1, O2: the level sets the switches, and what was switched by hand is undone."""

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


def in_effect_html(shared: SharedConfig, n_ranks: int = 1) -> str:
    """Return what is in effect, where it comes from, and why the rest of what was asked for is not; or the problem."""
    plan, problem = shared.plan_or_problem(n_ranks)
    if plan is None:
        return error_html(problem)
    remarks = filter(None, (shared.found_elsewhere(), *plan.remarks(), plan.level_default_sentence()))
    return f'<div role="status">{words(plan.summary())}</div>{bullets(remarks, css="wb-faint")}'
