"""Configure: presets, then switches, then everything else folded; beside it what is in effect, and the JSON.

All controls come from the fields of the configuration, in their order and with their words. What has no effect under
the present plan is disabled, with the reason. What is refused changes nothing: the rule is shown next to the field.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ipywidgets as widgets
from markdown_it import MarkdownIt

from workbench.config import (
    HYPER_PARAMETERS,
    SWITCHES,
    BoostConfig,
    ConfigError,
    Facts,
    Plan,
    describe_parameters,
    requested_switches,
    why_no_method,
    with_switch,
)
from workbench.methods.registry import METHODS
from workbench.panels import kit
from workbench.panels.config_history import NamedConfigs, UndoButtons
from workbench.panels.controls import ParameterControl
from workbench.panels.kit import column, read_from, row, section, text_of
from workbench.panels.panel import Panel, Theme
from workbench.panels.run_controls import PresetChoice, in_effect_html
from workbench.panels.shared_config import SharedConfig, config_of_text
from workbench.panels.style import copy_button_html, difference_html, faint, label_html, words
from workbench.panels.ways_out import way_out

_OVER_RANKS: Final = " and ".join(method.title for method in METHODS if method.n_ranks > 1)
_RANKS_HELP: Final = (
    f"Number of ranks this configuration is planned for; it decides whether {_OVER_RANKS} can be in effect."
)
_SECTION_TITLES: Final = {
    "boost": "Mode",
    "common": "Several ranks (common)",
    "loss_scale": "Loss scale",
    "amp": "Mixed precision (amp)",
    "optimizer": "Optimizer",
    "snapshots": "Weight snapshots",
    "compatibility": "Compatibility with MindSpore",
}


class ConfigPanel(Panel):
    """Look at a configuration and change it.

    Args:
        shared: The configuration; None makes a new one.
        path: File that Save and Load suggest.
        theme: See ``Panel``.
        undo: Whether Undo and Redo are shown next to the title; a workbench has them for all of its tabs.
    """

    def __init__(
        self,
        shared: SharedConfig | None = None,
        *,
        path: str | Path = "boost_config.json",
        theme: Theme = "auto",
        undo: bool = True,
    ) -> None:
        super().__init__("Configure", theme=theme, shows_state=False)
        self.shared = shared if shared is not None else SharedConfig()
        if undo:
            self.header.children = (*self.header.children, UndoButtons(self, self.shared).widget)
        self.named = NamedConfigs(self, self.shared)
        self._lock = threading.RLock()
        self._infos = describe_parameters()
        self._controls: dict[str, ParameterControl] = {}
        self._shown: dict[str, Any] = {}
        self._make_controls()
        self._make_file_row(path)
        self._in_effect, self._difference = text_of(""), text_of("")
        self.plots.children = (
            *section("In effect", self._in_effect),
            *section("boost_config.json", self.json, self._json_problem),
            row(copy_button_html(), self.path, self.save_button, self.load_button, self.upload),
            self._file_note,
            *section("Different from the default", self._difference),
            *section("Kept by name", self.named.widget),
        )
        self.cleaned_up_by(self.shared.observe(self._show))
        self._show(*self.shared.both())

    @property
    def config(self) -> BoostConfig:
        """The configuration; always a valid one."""
        return self.shared.config

    @property
    def level(self) -> str:
        """The boost level."""
        return self.shared.level

    def control(self, path: str) -> ParameterControl:
        """Return the control of a parameter that is not a switch; it is made when its section is opened, or here."""
        if path not in self._controls:
            self._fill(path.partition(".")[0])
        return self._controls[path]

    def static_html(self) -> str:
        """Return the configuration as a table."""
        return f"{super().static_html()}{self.config._repr_html_()}"

    def _make_controls(self) -> None:
        self.preset = PresetChoice(self, self.shared)
        self.ranks = kit.BoundedIntText(value=1, min=1, max=65536, css="wb-count", tooltip=_RANKS_HELP)
        self.on_change(self.ranks, lambda _: self._show(*self.shared.both()))
        self.switches: dict[str, widgets.Checkbox] = {}
        self._switch_notes = {name: text_of("") for name in SWITCHES}
        self.ways_out: dict[str, widgets.Button] = {}
        self._out: dict[str, BoostConfig] = {}  # what a click on each would make of the configuration
        for name in SWITCHES:
            info = self._infos[f"boost.{name}"]
            switch = kit.check_box(info.title, info.description)
            self.on_change(switch, functools.partial(self._turn, name))
            self.switches[name] = switch
        self._paths: dict[str, list[str]] = {}
        for path in self._infos:
            if path.removeprefix("boost.") not in SWITCHES:
                self._paths.setdefault(path.partition(".")[0], []).append(path)
        self._boxes = {section: column() for section in self._paths}
        titles = tuple(self._title(section) for section in self._paths)
        self.sections = kit.Accordion(children=tuple(self._boxes.values()), titles=titles, css="wb-auto")
        self.on_change(self.sections, self._open_section, "selected_index")
        self.controls.children = (
            self.preset.widget,
            row(label_html("Ranks", _RANKS_HELP), self.ranks),
            *section("Switches", *(self._switch_box(name) for name in SWITCHES)),
            *section("Everything else", self.sections),
        )

    def _make_file_row(self, path: str | Path) -> None:
        self.json = kit.JsonBox(
            help="The whole configuration; edit it, or drop text into it. It is applied when you leave the field."
        )
        self._json_problem, self._file_note = text_of(""), text_of("")
        self.path = kit.text_box(str(path), "File that Save writes and Load reads", css="wb-file")
        self.save_button = self.button("Save", "Write the file", self._save)
        self.load_button = self.button("Load", "Read the file", self._load)
        self.upload = kit.FileUpload(
            accept=".json",
            multiple=False,
            description="Upload",
            tooltip="Take a file from your computer",
            css="wb-auto wb-upload",
        )
        self.on_change(self.json, self._take_json)
        self.on_change(self.json, self._check_json, "draft")
        self.on_change(self.upload, self._take_upload)

    def _title(self, section: str) -> str:
        switch = self._infos.get(f"boost.{section}")
        if switch is not None:
            return switch.title
        titles = {method.section: method.title for method in reversed(METHODS)}
        return _SECTION_TITLES.get(section) or titles.get(section, section)

    def _switch_box(self, name: str) -> widgets.Widget:
        """Return a switch with, if it cannot be used, the reason and the button that changes that."""
        button = self.button("", "Changes the configuration so that the switch can be on", lambda: self._leave(name))
        button.add_class("wb-wraps")
        self.ways_out[name] = button
        return column(self.switches[name], self._switch_notes[name], button)

    def _leave(self, name: str) -> None:
        self.shared.set(self._out[name], edited=True)

    def _turn(self, name: str, on: bool) -> None:
        self.shared.set(with_switch(*self.shared.both(), name, on=on), edited=True)

    def _open_section(self, index: int | None) -> None:
        if index is not None:
            self._fill(list(self._paths)[index])

    def _edit(self, control: ParameterControl) -> None:
        try:
            self.shared.change({control.info.path: control.value})
        except ConfigError as error:
            control.refuse(str(error))

    def _check_json(self, text: str) -> None:
        """Show what is wrong, if anything, with what is being typed; the configuration stays as it is."""
        read_from(self._json_problem, lambda: config_of_text(text, "boost_config.json"))

    def _take_json(self, text: str) -> None:
        self._accept(lambda: config_of_text(text, "boost_config.json"), "", self._json_problem, edited=True)

    def _take_upload(self, files: Any) -> None:
        for file in files:
            content, name = bytes(file["content"]), str(file["name"])
            self._accept(functools.partial(config_of_text, content, name), f"took {name}", self._file_note)

    def _save(self) -> None:
        path = Path(self.path.value).expanduser()
        try:
            self.shared.with_provenance()[0].save(path)
        except OSError as error:
            self._file_note.refuse(f"{path}: cannot be written ({error.strerror or error})")
        else:
            self._file_note.say(f"wrote `{path.absolute()}`")

    def _load(self) -> None:
        path = Path(self.path.value).expanduser()
        self._accept(lambda: BoostConfig.from_json(path), f"read `{path.absolute()}`", self._file_note)

    def _accept(self, read: Callable[[], BoostConfig], said: str, answer: kit.Html, *, edited: bool = False) -> None:
        """Take over a whole configuration, dropping any correction under way in a field, or say why not."""
        config = read_from(answer, read)
        if config is None:
            return
        self._file_note.refuse("")  # what it says of a file that was refused is over, too
        with self._lock:
            self._shown.clear()
        self.shared.set(config, edited=edited)
        self._show(*self.shared.both())
        answer.say(said)

    def _fill(self, section: str) -> None:
        """Make the controls of a section when it is first opened: all at once would be a thousand widgets."""
        with self._lock:
            if section not in self._boxes or self._boxes[section].children:
                return
            leaves = self.shared.config.leaves()
            made = [ParameterControl(self._infos[path], leaves[path]) for path in self._paths[section]]
            for control in made:
                control.observe(self.guarded(self._edit))
                self._controls[control.info.path] = control
            cards = [
                text_of(f"<details><summary>{words(f'{m.title}: {m.summary}')}</summary>{card_html(m.name)}</details>")
                for m in METHODS
                if m.section == section
            ]
            self._boxes[section].children = (*cards, *(control.widget for control in made))
            self._show_controls(self.shared.plan_or_problem(self.ranks.value)[0])

    def _show(self, config: BoostConfig, level: str) -> None:
        if self.closed:
            return
        with self._lock, self.showing():
            plan, _ = self.shared.plan_or_problem(self.ranks.value)
            self.preset.show(config, level)
            self._show_switches(config, level, plan)
            self._show_controls(plan)
            self._in_effect.value = in_effect_html(self.shared, self.ranks.value)
            self.json.value = json.dumps(config.to_dict(), indent=2)
            self._json_problem.refuse("")
            self._difference.value = difference_html(config)

    def _show_switches(self, config: BoostConfig, level: str, plan: Plan | None) -> None:
        asked = requested_switches(config, level)
        facts = Facts(level, self.ranks.value, self.shared.network)
        for name, switch in self.switches.items():
            on = getattr(plan, name) if plan is not None else asked[name]
            reason = "" if on else why_no_method(name, config, facts)
            switch.value = on
            switch.disabled = bool(reason)
            # It stands beneath its own name.
            short = reason.removeprefix(f"{name} is not in effect because ")
            short = short.removesuffix(f", or switch `boost.{name}` off")  # it is
            self._switch_notes[name].value = faint(short) if reason else ""
            way = way_out(name, config, facts) if reason else None
            self.ways_out[name].present(way is not None)
            if way is not None:
                self.ways_out[name].description, self._out[name] = way

    def _show_controls(self, plan: Plan | None) -> None:
        leaves = self.shared.config.leaves()
        for path, control in self._controls.items():
            value = leaves[path]
            # A value that is as before is not sent again: one being typed or dragged would jump back.
            if self._shown.get(path, self) != value:
                control.set(list(value) if isinstance(value, tuple) else value)
            reason = plan.idle_reason(path) if plan is not None else ""
            control.disable(f"not in effect: {reason}" if reason else "")
            control.note(self._note_of(plan, path))
        self._shown = leaves

    def _note_of(self, plan: Plan | None, path: str) -> str:
        """Return the line beneath a control; mostly none."""
        share = self._infos[path].share_text(self.shared.config)
        return share or (owner_note(plan, path) if plan is not None else "")


def owner_note(plan: Plan, path: str) -> str:
    """Name the optimizer, if only one has the parameter, while the task's own is in use; empty otherwise.

    The parameter is not disabled: it is in effect all the same if the task's own optimizer is of that kind.
    """
    section, _, name = path.partition(".")
    optimizer, owners = plan.config.optimizer, [one for one, own in HYPER_PARAMETERS.items() if name in own]
    if section != "optimizer" or len(owners) != 1 or plan.why_not("optimizer.name") or (optimizer and optimizer.name):
        return ""
    return f"only {owners[0]} has it: choose it as the optimizer, unless the task already uses it"


@functools.cache
def card_html(name: str) -> str:
    """Return the card of the method ``name`` as HTML."""
    (method,) = (method for method in METHODS if method.name == name)
    # Raw HTML in a card would be shown as text, not obeyed.
    rendered: str = MarkdownIt("commonmark", {"html": False}).enable("table").render(method.card())
    return rendered.replace("<table>", '<table class="wb-table">').replace("<h1>", "<h4>").replace("</h1>", "</h4>")
