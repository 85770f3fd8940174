"""What a study may vary, as rows of controls: one row per config path, with bounds or with the values to try."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import ipywidgets as widgets

from workbench.config import (
    LEVELS,
    ConfigError,
    ParameterInfo,
    describe_parameters,
    parameter_at,
)
from workbench.config.errors import did_you_mean
from workbench.panels import placed_widgets as placed
from workbench.panels.controls import number_text, parsed
from workbench.panels.panel import (
    Panel,
    close_recursively,
    column,
    row,
    text_of,
)
from workbench.panels.style import error_html, words

__all__ = ["SearchSpace", "SpaceRow"]

_LEVEL: Final = ParameterInfo(
    path="level",
    kind="choice",
    default="O1",
    low=None,
    high=None,
    log=False,
    step=None,
    choices=tuple(LEVELS),
    unit="",
    title="Boost level",
    description="Level of a trial; O1 and O2 may each cost another drop of the metric.",
    optional=False,
    rule="be one of the three levels",
)


class SpaceRow:
    """One dimension of the search.

    Args:
        info: The parameter.
        value: A list of values, a table with ``low`` and ``high``, or true for the range that the configuration
            declares.
        remove: Called with this row when the user takes it out.

    Attributes:
        widget: What to show.
    """

    def __init__(self, info: ParameterInfo, value: Any, remove: Callable[[SpaceRow], None]) -> None:
        self.info = info
        self._given = value
        self._inputs: tuple[widgets.Widget, ...] = ()
        label = text_of(
            f'<span class="wb-label" title="{html.escape(f"{info.title}: {info.description}", quote=True)}">'
            f"{html.escape(info.path)}</span>"
            + (f'<span class="wb-faint wb-unit">{words(info.unit)}</span>' if info.unit else ""),
            grow=True,
        )
        self._remove = placed.Button(description="Remove", tooltip=f"Search no {info.path}", css="wb-auto")
        self._remove.on_click(lambda _: remove(self))
        self.boxes: dict[Any, widgets.Checkbox] = {}
        head = placed.Row((label, self._remove), css="wb-line")
        self.widget = column(head, self._entries())
        self._show(value)
        self._shown = self._read()

    @property
    def path(self) -> str:
        """Config path, or ``"level"``."""
        return self.info.path

    @property
    def value(self) -> Any:
        """The row as a study file has it; text that is no number stays text, for the study's rules to refuse."""
        now = self._read()
        return self._given if now == self._shown else now

    def enable(self, *, on: bool) -> None:
        """Enable or disable all entries.

        Args:
            on: Whether the user may change them.
        """
        for entry in (*self._inputs, self._remove):
            entry.disabled = not on

    def close(self) -> None:
        """Close what it shows."""
        close_recursively(self.widget)

    def _entries(self) -> widgets.Widget:
        """Return the entries that this kind of parameter needs."""
        if self.info.kind in ("bool", "choice"):
            for choice in self.info.choices:
                self.boxes[choice] = placed.Checkbox(
                    description={True: "yes", False: "no"}[choice] if isinstance(choice, bool) else str(choice),
                    indent=False,
                    css="wb-choice",
                )
            self._inputs = tuple(self.boxes.values())
            return row(*self._inputs)
        if self.info.kind in ("int", "float"):
            self.low = placed.Text(continuous_update=False, css="wb-short", tooltip="Smallest; or values: 2, 4, 8")
            self.high = placed.Text(continuous_update=False, css="wb-short", tooltip="Largest value; empty for a list")
            self.log = placed.Checkbox(description="log", indent=False, tooltip="Walk in factors", css="wb-auto")
            self._inputs = self.low, self.high, self.log
            return row(self.low, text_of("to"), self.high, self.log)
        self.values = placed.Text(continuous_update=False, css="wb-wide", tooltip="Values to try, as a JSON list")
        self._inputs = (self.values,)
        return self.values

    def _show(self, value: Any) -> None:
        info = self.info
        if self.boxes:
            chosen = value if isinstance(value, list) else list(info.choices)
            for choice, box in self.boxes.items():
                box.value = any(type(one) is type(choice) and one == choice for one in chosen)
        elif info.kind in ("int", "float"):
            given = value if isinstance(value, Mapping) else {}
            if isinstance(value, list):
                self.low.value, self.high.value = number_text(value), ""
            else:
                self.low.value = _number_text(given.get("low", info.low))
                self.high.value = _number_text(given.get("high", info.high))
                self.log.value = bool(given.get("log", info.log and not given))
        else:
            self.values.value = json.dumps(value) if isinstance(value, list) else ""

    def _read(self) -> Any:
        if self.boxes:
            return [choice for choice, box in self.boxes.items() if box.value]
        if self.info.kind in ("int", "float"):
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
    """All rows, and a field for one more.

    Args:
        panel: The panel it stands in.

    Attributes:
        widget: What to show.
        rows: Rows by path.
    """

    def __init__(self, panel: Panel) -> None:
        self._known = {
            "level": _LEVEL,
            **{path: info for path, info in describe_parameters().items() if not path.startswith("snapshots.")},
        }
        self.rows: dict[str, SpaceRow] = {}
        self._rows_box = column()
        self.path = placed.Combobox(
            options=list(self._known),
            placeholder="another config path",
            continuous_update=False,
            css="wb-path",
            tooltip="What else to search: begin to type a name",
        )
        self.add_button = placed.Button(description="Add", tooltip="Search this, too", css="wb-auto")
        self._answer = text_of("")
        self.add_button.on_click(panel.guarded(lambda _: self.add(self.path.value.strip())))
        self.widget = column(
            self._rows_box,
            placed.Row((self.path, self.add_button), css="wb-line"),
            self._answer,
        )
        panel.cleaned_up_by(self._close_rows)

    @property
    def value(self) -> dict[str, Any]:
        """Path -> what is searched."""
        return {path: one.value for path, one in self.rows.items()}

    def set(self, space: Mapping[str, Any]) -> None:
        """Show another search space.

        Args:
            space: Path -> list, table with ``low`` and ``high``, or true.

        Raises:
            ConfigError: When a path is unknown; nothing has changed then.
        """
        rows = {path: SpaceRow(self._info(path), value, self._remove) for path, value in space.items()}
        self._replace(rows)

    def add(self, path: str) -> None:
        """Search one more parameter, over the range that the configuration declares.

        Args:
            path: Config path; an unknown one is refused beside the field.
        """
        try:
            info = self._info(path)
        except ConfigError as error:
            self._answer.value = error_html(str(error))
            return
        if path in self.rows:
            self._answer.value = error_html(f"`{path}` is searched already")
            return
        self.path.value = ""
        self._replace({**self.rows, path: SpaceRow(info, True, self._remove)})

    def enable(self, *, on: bool) -> None:
        """Enable or disable everything.

        Args:
            on: Whether the user may change it.
        """
        for entry in (self.path, self.add_button):
            entry.disabled = not on
        for one in self.rows.values():
            one.enable(on=on)

    def _info(self, path: str) -> ParameterInfo:
        if "[" in path:
            return parameter_at(path)
        if path not in self._known:
            hint = did_you_mean(path, list(self._known))
            raise ConfigError(f'unknown parameter "{path}"{hint}' if path else "name the parameter to search")
        return self._known[path]

    def _remove(self, gone: SpaceRow) -> None:
        self._replace({path: one for path, one in self.rows.items() if one is not gone})

    def _close_rows(self) -> None:
        for one in self.rows.values():
            one.close()

    def _replace(self, rows: dict[str, SpaceRow]) -> None:
        left = [one for path, one in self.rows.items() if rows.get(path) is not one]
        self.rows = rows
        self._answer.value = ""
        self._rows_box.children = _widgets(rows.values())
        for one in left:
            one.close()


def _widgets(rows: Iterable[SpaceRow]) -> tuple[widgets.Widget, ...]:
    return tuple(one.widget for one in rows)


def _number_text(value: Any) -> str:
    return "" if value is None else number_text(value)
