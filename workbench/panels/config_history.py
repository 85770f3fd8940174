"""The history of the shared configuration: undo, named copies, a question before edits are replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from workbench.config import BoostConfig
from workbench.figures.labels import counted
from workbench.panels import kit
from workbench.panels.kit import column, read_from, row, text_of
from workbench.panels.panel import Panel
from workbench.panels.shared_config import Setup, SharedConfig, differing
from workbench.panels.style import faint, table, value_text

_MOST_NAMED: Final = 3  # paths that a tooltip names
_MOST_COLUMNS: Final = 4  # configurations side by side; more would not fit
_NONE: Final = "none kept yet"


class UndoButtons:
    """Buttons that undo and redo edits of a shared configuration; ``widget`` holds both."""

    def __init__(self, panel: Panel, shared: SharedConfig) -> None:
        self._shared = shared
        self.undo = panel.button("Undo", "Nothing to undo", shared.undo)
        self.redo = panel.button("Redo", "Nothing to redo", shared.redo)
        self.widget = row(self.undo, self.redo)
        panel.cleaned_up_by(shared.observe(lambda *_: self.show()))
        self.show()

    def show(self) -> None:
        """Show what each would set."""
        undoes, redoes = self._shared.undoes(), self._shared.redoes()
        for button, verb, paths in ((self.undo, "Undo", undoes), (self.redo, "Redo", redoes)):
            more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
            named = ", ".join(paths[:_MOST_NAMED]) + more
            button.tooltip = f"{verb} the change of {named}" if named else f"Nothing to {verb.lower()}"
            button.disabled = not paths


class NamedConfigs:
    """A shared configuration and those kept by name, side by side, in ``widget``."""

    def __init__(self, panel: Panel, shared: SharedConfig) -> None:
        self._panel, self._shared = panel, shared
        self.name = kit.text_box("", "Name under which this configuration is kept", css="wb-file", placeholder="fast")
        self.keep_button = panel.button(
            "Keep", "Keep this configuration under the name", lambda: read_from(self._answer, self._keep)
        )
        self.choice = kit.Dropdown(options=[_NONE], css="wb-file", tooltip="Configurations kept by name")
        self.use_button = panel.button("Use", "Make it the configuration of all panels", self._use)
        self.forget_button = panel.button("Forget", "Forget this name", self._forget)
        self._answer, self._table = text_of(""), text_of("")
        self.taking = Taking(panel, shared)
        self._choosing = row(self.choice, self.use_button, self.forget_button)
        self.widget = column(
            row("Name", self.name, self.keep_button), self._choosing, self.taking.widget, self._answer, self._table
        )
        panel.cleaned_up_by(shared.observe(lambda *_: self.show()))
        self.show()

    def show(self) -> None:
        """Show the names and where the configurations differ."""
        kept = self._shared.kept
        with self._panel.showing():
            kit.offer(self.choice, list(kept) or [_NONE], next(reversed(kept), _NONE))
        self._choosing.present(bool(kept))
        self._table.value = side_by_side_html({"now": self._shared.both(), **kept}) if kept else ""

    def _keep(self) -> None:
        name = self.name.value.strip()
        self._shared.keep(name)
        with self._panel.showing():
            self.choice.value, self.name.value = name, ""
        self._answer.say(f"kept as `{name}`")

    def _use(self) -> None:
        name = str(self.choice.value)
        if name in self._shared.kept:
            self._answer.refuse("")
            self.taking.take(*self._shared.kept[name], name)

    def _forget(self) -> None:
        self._answer.refuse("")
        self._shared.forget(str(self.choice.value))


class Taking:
    """Takes over a whole configuration; asks first if that would replace edits that exist nowhere else.

    ``widget`` holds the question while there is one. Undo would bring the edits back, too, as long as the kernel lives.
    """

    def __init__(self, panel: Panel, shared: SharedConfig) -> None:
        self._panel, self._shared = panel, shared
        self._waiting: Callable[[], Any] = lambda: None
        self._question = text_of("")
        self.replace_button = panel.button("Replace my edits", "Take it; Undo brings them back", self._take)
        self.keep_button = panel.button("Keep them by name, then take it", "Keeps my edits by name", self._keep_first)
        self.leave_button = panel.button("Leave it", "Take nothing", lambda: self.widget.present(False))
        self.widget = column(self._question, row(self.replace_button, self.keep_button, self.leave_button))
        self.widget.add_class("wb-question")
        self.widget.present(False)

    def take(self, config: BoostConfig, level: str, name: str, then: Callable[[], Any] = lambda: None) -> None:
        """Make a configuration the shared one, at once or when the answer allows it, and then call a function.

        The question calls it by its ``name``.
        """

        def act() -> None:
            self._shared.set(config, level)
            then()

        paths = differing(self._shared.both(), (config, level))
        if not paths or not self._shared.is_edited:
            self.widget.present(False)
            act()
            return
        self._waiting = act
        differ = counted(len(paths), "value differs", "values differ")
        self._question.say(f"{name[:1].upper()}{name[1:]} would replace your edits of the configuration ({differ}).")
        self.widget.present(True)

    def _take(self) -> None:
        self.widget.present(False)
        self._waiting()

    def _keep_first(self) -> None:
        number = 1
        while f"edits {number}" in self._shared.kept:
            number += 1
        self._shared.keep(f"edits {number}")
        self._take()


def side_by_side_html(setups: dict[str, Setup]) -> str:
    """Return where configurations differ, a column for each of the newest; the first is always among them."""
    first, *others = setups.items()
    chosen = [first, *others[-(_MOST_COLUMNS - 1) :]]
    leaves = [{"level": level, **config.leaves()} for _, (config, level) in chosen]
    paths = [path for path in leaves[0] if any(one[path] != leaves[0][path] for one in leaves[1:])]
    if not paths:
        return faint("All of them are the same.")
    rows = [(f"`{path}`", *(value_text(one[path]) for one in leaves)) for path in paths]
    return table(("Parameter", *(name for name, _ in chosen)), rows)
