"""What a study may vary, as rows of controls: one row per config path, with bounds or with the values to try."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import ipywidgets as widgets

from workbench.config import LEVELS, ConfigError, ParameterInfo, describe_parameters, parameter_at
from workbench.config.errors import did_you_mean
from workbench.panels import kit
from workbench.panels.controls import entry_text, named, parsed
from workbench.panels.kit import close_recursively, column, read_from, row, text_box, text_of
from workbench.panels.panel import Panel
from workbench.panels.style import label_html

_LEVEL: Final = ParameterInfo(
    path="level",
    title="Boost level",
    description="Boost level of a trial; O1 and O2 each have their own allowed drop.",
    kind="choice",
    default="O1",
    choices=tuple(LEVELS),
    names={level: f"{level}: {', '.join(asked) or 'no method'}" for level, asked in LEVELS.items()},
)


class SpaceRow:
    """One dimension of the search; ``remove`` is called with it when the user takes it out.

    Its value is a list of values, a table with ``low`` and ``high``, or true for the declared range.
    """

    def __init__(self, info: ParameterInfo, value: Any, remove: Callable[[SpaceRow], None]) -> None:
        self.info = info
        self._given = value
        self._inputs: tuple[widgets.Widget, ...] = ()
        self.boxes: dict[Any, widgets.Checkbox] = {}
        label = text_of(label_html(info.path, f"{info.title}: {info.description}", info.unit), grow=True)
        self._remove = kit.Button(description="Remove", tooltip=f"Do not search {info.path}", css="wb-auto")
        self._remove.on_click(lambda _: remove(self))
        self.widget = column(kit.Row((label, self._remove), css="wb-line"), self._entries(value))
        self._shown = self._read()

    @property
    def value(self) -> Any:
        """The row as a study file has it; text that is not a number stays text, for the study's rules to refuse."""
        now = self._read()
        return self._given if now == self._shown else now

    def lock(self, locked: bool) -> None:
        """Disable all entries while work is under way, or free them again."""
        for entry in (*self._inputs, self._remove):
            entry.disabled = locked

    @property
    def _is_number(self) -> bool:
        return self.info.kind in ("int", "float")

    def _entries(self, value: Any) -> widgets.Widget:
        """Return the entries that this kind of parameter needs, showing a value."""
        info = self.info
        if info.kind in ("bool", "choice"):
            chosen = value if isinstance(value, list) else list(info.choices)
            for choice in info.choices:
                is_on = any(type(one) is type(choice) and one == choice for one in chosen)
                self.boxes[choice] = kit.check_box(named(info, choice), css="wb-choice", value=is_on)
            self._inputs = tuple(self.boxes.values())
            return row(*self._inputs)
        if self._is_number:
            given = value if isinstance(value, Mapping) else {"log": info.log}
            low, high = given.get("low", info.low), given.get("high", info.high)
            if isinstance(value, list):
                given, low, high = {}, value, None
            self.low = text_box(entry_text(low), "Smallest; or values: 2, 4, 8", css="wb-short")
            self.high = text_box(entry_text(high), "Largest value; empty for a list", css="wb-short")
            self.log = kit.check_box("log", "Search on a logarithmic scale", value=bool(given.get("log", False)))
            self._inputs = self.low, self.high, self.log
            return row(self.low, "to", self.high, self.log)
        self.values = text_box(json.dumps(value) if isinstance(value, list) else "", "Values to try, as a JSON list")
        self._inputs = (self.values,)
        return self.values

    def _read(self) -> Any:
        if self.boxes:
            return [choice for choice, box in self.boxes.items() if box.value]
        if self._is_number:
            return self._read_numbers()
        try:
            return json.loads(self.values.value or "[]")
        except ValueError:
            return self.values.value

    def _read_numbers(self) -> Any:
        kind, low, high = self.info.kind, self.low.value.strip(), self.high.value.strip()
        if not high:
            return [parsed(part, kind, optional=False) for part in low.split(",") if part.strip()]
        found: dict[str, Any] = {"low": parsed(low, kind, optional=False), "high": parsed(high, kind, optional=False)}
        if self.log.value:
            found["log"] = True
        elif isinstance(self._given, Mapping) and "step" in self._given:  # it has no control, and is kept
            found["step"] = self._given["step"]
        return found


class SearchSpace:
    """All rows, by path, and a field for one more."""

    def __init__(self, panel: Panel) -> None:
        described = describe_parameters().items()
        self._known = {"level": _LEVEL, **{path: info for path, info in described if not path.startswith("snapshots.")}}
        self.rows: dict[str, SpaceRow] = {}
        self._rows_box = column()
        self.choice = kit.Dropdown(
            options=[("add another config path ...", ""), *((_listed(i), path) for path, i in self._known.items())],
            css="wb-wide",
            tooltip="Everything that can be searched",
        )
        panel.on_change(self.choice, self._choose)
        self.path = kit.Combobox(
            options=list(self._known),
            placeholder="or type one: optimizer.lr[Muon]",
            continuous_update=False,
            css="wb-path",
            tooltip="Another parameter to search: start typing its name",
        )
        self.add_button = panel.button("Add", "Search this, too", lambda: self.add(self.path.value.strip()))
        self._answer = text_of("")
        typed = kit.Row((self.path, self.add_button), css="wb-line")
        self.widget = column(self._rows_box, self.choice, typed, self._answer)
        panel.cleaned_up_by(lambda: self._replace({}))

    @property
    def value(self) -> dict[str, Any]:
        """Path -> what is searched."""
        return {path: one.value for path, one in self.rows.items()}

    def set(self, space: Mapping[str, Any]) -> None:
        """Show another search space; an unknown path is a ConfigError, before anything has changed."""
        self._replace({path: SpaceRow(self._info(path), value, self._remove) for path, value in space.items()})

    def add(self, path: str) -> None:
        """Search one more parameter, over its declared range; a refusal is shown next to the field."""
        if path in self.rows:
            self._answer.refuse(f"`{path}` is searched already")
            return
        info = read_from(self._answer, lambda: self._info(path))
        if info is None:
            return
        self.path.value = ""
        self._replace({**self.rows, path: SpaceRow(info, True, self._remove)})

    def lock(self, locked: bool) -> None:
        """Disable everything while work is under way, or free it again."""
        self.choice.disabled = self.path.disabled = self.add_button.disabled = locked
        for one in self.rows.values():
            one.lock(locked)

    def _choose(self, path: str) -> None:
        if path:
            self.add(path)
            self.choice.value = ""

    def _info(self, path: str) -> ParameterInfo:
        if "[" in path:
            return parameter_at(path)
        if path not in self._known:
            hint = did_you_mean(path, list(self._known))
            raise ConfigError(f'unknown parameter "{path}"{hint}' if path else "name the parameter to search")
        return self._known[path]

    def _remove(self, gone: SpaceRow) -> None:
        self._replace({path: one for path, one in self.rows.items() if one is not gone})

    def _replace(self, rows: dict[str, SpaceRow]) -> None:
        left = [one for path, one in self.rows.items() if rows.get(path) is not one]
        self.rows = rows
        self._answer.refuse("")
        self._rows_box.children = tuple(one.widget for one in rows.values())
        for one in left:
            close_recursively(one.widget)


def _listed(info: ParameterInfo) -> str:
    section = info.path.rpartition(".")[0]
    return f"{section}: {info.title}" if section else info.title
