"""Export: look at a configuration once more, see what it is worth and who can read it, and save it.

What is saved is read back, and has to be the same configuration. An export of a study keeps its provenance: where it
comes from, what was measured, and the verdict.
"""

from __future__ import annotations

import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ipywidgets as widgets

from workbench.config import BoostConfig, ConfigError, Plan
from workbench.config.errors import shown
from workbench.panels import placed_widgets as placed
from workbench.panels.controls import number_text
from workbench.panels.copy_button import WHOLE_WORDS, copy_button
from workbench.panels.mindspore_notes import mindspore_notes
from workbench.panels.panel import (
    Panel,
    Theme,
    row,
    text_of,
)
from workbench.panels.shared_config import SharedConfig
from workbench.panels.state import PanelState
from workbench.panels.style import (
    error_html,
    faint,
    note_html,
    table,
    words,
)
from workbench.panels.worker import Outcome, RunControl

__all__ = ["ExportPanel", "exported_files"]

_SHARED: Final = "this configuration"
_LEVELS: Final = {"o1": "O1", "o2": "O2"}
_PROVENANCE: Final = (
    ("verdict", "Verdict"),
    ("candidate", "Candidate"),
    ("in_effect", "In effect"),
    ("study", "Study"),
    ("task", "Task"),
    ("objective", "Objective"),
    ("metric", "Metric"),
    ("speedup", "Speed against O0"),
    ("allowed_drop", "Allowed drop"),
    ("drop_bound", "Bound of the drop"),
    ("n_seeds", "Paired seeds"),
    ("seed", "Seed of the search"),
    ("ranks", "Ranks"),
    ("data_hash", "Data"),
    ("written", "Written"),
    ("loss_scale", "Loss scale"),
    ("dim_reduce", "DimReduce"),
    ("adasum", "AdaSum"),
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What can be exported: a name, the configuration, the level it is for."""

    name: str
    config: BoostConfig
    level: str


def exported_files(study: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the exported configurations of a study: export -> file.

    Args:
        study: Folder of the study, or the folder that holds the files themselves.
    """
    folder = Path(study)
    found: dict[str, Path] = {}
    for place in (folder, folder / "result"):
        found |= {t: place / f"boost_config.{t}.json" for t in _LEVELS if (place / f"boost_config.{t}.json").is_file()}
    return found


class ExportPanel(Panel):
    """Save a configuration: the one on show, or one of the two a study has found.

    Args:
        study: Folder of a study; None exports the shared configuration alone until one is named. A SharedConfig given
            here counts as ``shared``.
        shared: The configuration; None makes one of its own.
        folder: Folder that is suggested for the file.
        theme: See ``Panel``.

    Attributes:
        shared: The configuration.
        saved: The file that was written last; None before.
    """

    def __init__(
        self,
        study: str | Path | SharedConfig | None = None,
        shared: SharedConfig | None = None,
        *,
        folder: str | Path = ".",
        theme: Theme = "auto",
    ) -> None:
        super().__init__("Export", theme=theme)
        if isinstance(study, SharedConfig):
            study, shared = None, study
        self.shared = shared if shared is not None else SharedConfig()
        self.saved: Path | None = None
        self._found: dict[str, _Choice] = {}
        self.worker = self.new_worker(lambda _: None, self._end)
        self._make_controls("" if study is None else str(study), str(folder))
        self._make_plots()
        self.cleaned_up_by(self.shared.observe(lambda config, level: self._show()))
        self.state_changed(self.state)
        if study is not None:
            self.guarded(self._read_study)()
        self._show()

    @property
    def config(self) -> BoostConfig:
        """The configuration on show."""
        return self._chosen().config

    def offer(self, study: str | Path) -> None:
        """Name a study beside the configuration on show, unless the user named one or it has exported nothing yet.

        What is chosen stays chosen: a study that ended in another tab does not take the place of a configuration.

        Args:
            study: Folder of a study.
        """
        if not self.study.value.strip() and exported_files(study):
            with self.showing():
                self.study.value = str(study)
            self._read_study(_SHARED)

    def save(self) -> Path | None:
        """Save what is on show where the controls say, and read it back; None when it could not be."""
        if not self.machine.try_to(PanelState.RUNNING):
            return None
        self.clear_error()
        path: Path = Path(self.folder.value.strip() or ".").expanduser() / str(self.name.value.strip())
        try:
            self._save(path)
        except (ConfigError, OSError) as error:
            told = (
                f"{path}: cannot be written ({error.strerror or error})" if isinstance(error, OSError) else str(error)
            )
            self._file_note.value = error_html(told)
            self.machine.to(PanelState.FAILED)
            return None
        self.saved = path
        self._file_note.value = note_html(f"wrote `{path.absolute()}`; read back, it is the same configuration")
        self.log(f"wrote {path.absolute()}")
        self.machine.to(PanelState.DONE)
        return path

    def export_study(self) -> None:
        """Write both files, tables and report of the study from its storage into the folder."""
        study = self.study.value.strip()
        if study and self.machine.try_to(PanelState.RUNNING):
            self.clear_error()
            folder = Path(self.folder.value.strip() or ".").expanduser()
            self._study_note.value = note_html("writing ...")
            self.worker.start(functools.partial(_export_study, study, folder))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is under way.

        Args:
            timeout: Longest wait, seconds; None waits for ever.

        Returns:
            Whether the work has ended.
        """
        ended = self.machine.wait_for(PanelState.IDLE, PanelState.DONE, PanelState.FAILED, timeout=timeout)
        return ended and self.worker.join(timeout)

    def state_changed(self, state: PanelState) -> None:
        """Enable what makes sense in a state.

        Args:
            state: The new state.
        """
        for entry in (
            self.study,
            self.read_button,
            self.choice,
            self.folder,
            self.name,
            self.replace,
            self.save_button,
        ):
            entry.disabled = state.busy
        self.export_button.disabled = state.busy or not (Path(self.study.value.strip() or "-") / "study.db").is_file()

    def static_html(self) -> str:
        """Return the configuration as JSON, with what it is worth."""
        verdict, document = str(self._verdict.value), str(self.json.value)
        return f"{super().static_html()}{verdict}<pre>{words(document)}</pre>"

    # -- what it is made of --------------------------------------------------------------------------------------------

    def _make_controls(self, study: str, folder: str) -> None:
        self.study = placed.Text(
            study,
            placeholder="studies/quickstart",
            continuous_update=False,
            css="wb-growing",
            tooltip="Folder of a study",
        )
        self.read_button = _button("Read", "Read what the study has exported")
        self._study_note = text_of("")
        self.choice = placed.ToggleButtons(options=[_SHARED], style={"button_width": "auto"}, css="wb-auto")
        self.folder = placed.Text(folder, continuous_update=False, css="wb-wide", tooltip="Folder of the file")
        self.name = placed.Text("boost_config.json", continuous_update=False, css="wb-wide", tooltip="Name of the file")
        self.replace = placed.Checkbox(description="Replace a file that is there", indent=False, css="wb-auto")
        self.save_button = _button("Save", "Write this configuration", "success")
        self.export_button = _button(
            "Export the whole study here", "Write both files, tables and report from the study's storage"
        )
        self._file_note = text_of("")
        self.read_button.on_click(self.guarded(lambda _: self._read_study()))
        self.on_change(self.study, lambda _: self._read_study())
        self.on_change(self.choice, lambda _: self._choose())
        self.save_button.on_click(self.guarded(lambda _: self.save()))
        self.export_button.on_click(self.guarded(lambda _: self.export_study()))
        self.controls.children = (
            text_of("<h4>Study</h4>"),
            row(self.study, self.read_button),
            self._study_note,
            text_of("<h4>What to export</h4>"),
            self.choice,
            text_of("<h4>Where to</h4>"),
            text_of("Folder"),
            self.folder,
            text_of("File name"),
            self.name,
            self.replace,
            row(self.save_button, self.export_button),
            self._file_note,
        )

    def _make_plots(self) -> None:
        self._verdict, self._valid, self._mindspore = text_of(""), text_of(""), text_of("")
        self._provenance, self._difference = text_of(""), text_of("")
        self.json = placed.Textarea(disabled=True, rows=18, css="wb-wide", tooltip="The file as it will be written")
        document = placed.Stack((self.json,), css="wb-column wb-json")
        self.plots.children = (
            self._verdict,
            self._valid,
            text_of("<h4>For MindSpore</h4>"),
            self._mindspore,
            self._provenance,
            row(text_of("<h4>boost_config.json</h4>"), copy_button()),
            document,
            text_of("<h4>Different from the default</h4>"),
            self._difference,
        )

    # -- what the user does --------------------------------------------------------------------------------------------

    def _read_study(self, preferred: str | None = None) -> None:
        self.clear_error()
        study = self.study.value.strip()
        self._found, problem = {}, ""
        files = exported_files(Path(study).expanduser()) if study else {}
        for target, path in files.items():
            try:
                self._found[target] = _Choice(target, BoostConfig.from_json(path), _LEVELS[target])
            except ConfigError as error:
                problem = str(error)
        if study and not files:
            problem = _nothing_exported(Path(study).expanduser())
        self._study_note.value = error_html(problem) if problem else ""
        before = preferred or self.choice.value
        with self.showing():
            self.choice.options = [_SHARED, *self._found]
            stays = before in self._found or preferred is not None
            self.choice.value = before if stays else next(iter(self._found), _SHARED)
        self._choose()
        self.state_changed(self.state)

    def _choose(self) -> None:
        known = {"boost_config.json", *(f"boost_config.{target}.json" for target in _LEVELS)}
        if self.name.value in known:  # a name of the user's own stays
            target = self.choice.value
            self.name.value = "boost_config.json" if target == _SHARED else f"boost_config.{target}.json"
        self._file_note.value = ""
        self._show()

    def _chosen(self) -> _Choice:
        found = self._found.get(str(self.choice.value))
        return found if found is not None else _Choice(_SHARED, *self.shared.both())

    def _save(self, path: Path) -> None:
        config = self._chosen().config
        if not self.name.value.strip():
            raise ConfigError("name the file, for example boost_config.json")
        if path.is_dir() or path.name == "..":
            raise ConfigError(f"{path} is a folder; name a file")
        if path.exists() and not self.replace.value and not _is_same(path, config):
            raise ConfigError(
                f"{path} is there already and differs; tick Replace to overwrite it, or take another name"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        config.save(path)
        if BoostConfig.from_json(path) != config:
            raise ConfigError(f"{path}: read back, it is another configuration; please report this")

    def _end(self, outcome: Outcome) -> None:
        if outcome.error is not None:
            self._study_note.value = ""
            self.report_error(outcome.error, outcome.traceback if outcome.error.__cause__ is not None else "")
            self.machine.to(PanelState.FAILED)
            return
        files = outcome.result
        told = f"wrote {', '.join(path.name for path in files)} and the report into {files[0].parent.absolute()}"
        self._study_note.value = note_html(told)
        self.log(told)
        self.saved = files[0]
        self.machine.to(PanelState.DONE)

    # -- what it shows -------------------------------------------------------------------------------------------------

    def _show(self) -> None:
        if self.closed:
            return
        chosen = self._chosen()
        config, text = chosen.config, json.dumps(chosen.config.to_dict(), indent=2)
        self.json.value = text
        plan, problem = _plan_of(chosen)
        self._valid.value = _validity_html(config, text, plan, problem)
        notes = mindspore_notes(config, plan) if plan is not None else []
        self._mindspore.value = f"<ul>{''.join(f'<li>{words(note)}</li>' for note in notes)}</ul>" if notes else ""
        provenance = config.provenance or {}
        self._verdict.value = _verdict_html(provenance)
        self._provenance.value = _provenance_html(provenance)
        rows = [
            (f"`{path}`", _text(here), _text(there))
            for path, (here, there) in config.diff(BoostConfig()).items()
            if path != "provenance"
        ]
        self._difference.value = table(("Parameter", "Here", "Default"), rows) if rows else faint("nothing")


def _export_study(study: str, folder: Path, control: RunControl) -> list[Path]:
    from workbench import api

    return list(api.export(study, folder).exported.values())


def _nothing_exported(study: Path) -> str:
    if not study.is_dir():
        return f"{study} is no folder"
    if (study / "study.db").is_file():
        return f"{study} has exported nothing yet; Export the whole study writes what it has found so far"
    if (study / "study.toml").is_file():
        return f"{study} has not been started; run `workbench tune {study}` first"
    return f"{study} is no study: it has no study.toml"


def _plan_of(chosen: _Choice) -> tuple[Plan | None, str]:
    try:
        return chosen.config.resolve(chosen.level), ""
    except ConfigError as error:
        return None, str(error)


def _validity_html(config: BoostConfig, text: str, plan: Plan | None, problem: str) -> str:
    try:
        same = BoostConfig.from_dict(json.loads(text)) == config
    except ConfigError as error:
        return error_html(str(error))
    if not same:
        return error_html("read back, the text is another configuration")
    if plan is None:
        return error_html(f"the file can be written and read, but not used as it is: {problem}")
    dropped = "".join(f"<li>{words(entry.reason)}</li>" for entry in plan.dropped)
    told = f"✓ Valid: read back, it is the same configuration. In effect at {plan.level}: {plan.summary()}."
    return note_html(told) + (f'<ul class="wb-faint">{dropped}</ul>' if dropped else "")


def _verdict_html(provenance: dict[str, Any]) -> str:
    if not provenance:
        return f"<p>{faint('Nobody has measured this configuration: it carries no verdict.')}</p>"
    return f"<p><b>{words(str(provenance.get('sentence') or provenance.get('verdict') or ''))}</b></p>"


def _provenance_html(provenance: dict[str, Any]) -> str:
    if not provenance:
        return ""
    rows = [(title, _speed(value) if key == "speedup" else _text(value)) for key, title in _PROVENANCE
            if (value := provenance.get(key)) not in (None, "")]  # fmt: skip
    device = (provenance.get("environment") or {}).get("device") or {}
    hardware = [str(device[key]) for key in ("device", "cpu", "accelerator", "torch") if device.get(key)]
    if hardware:
        rows.append(("Hardware", ", ".join(dict.fromkeys(hardware))))
    return f"<h4>Provenance</h4>{WHOLE_WORDS}{table(('', ''), rows)}"


def _speed(value: Any) -> str:
    if isinstance(value, list) and len(value) == 3:
        return f"{value[0]:g} x (95 % interval {value[1]:g} to {value[2]:g})"
    return _text(value)


def _text(value: Any) -> str:
    if value is None:
        return "unset"
    if isinstance(value, float):
        return number_text(value) if value.is_integer() else f"{value:.4g}"
    return value if isinstance(value, str) else shown(value)


def _is_same(path: Path, config: BoostConfig) -> bool:
    try:
        return BoostConfig.from_json(path) == config
    except ConfigError:
        return False


def _button(text: str, tooltip: str, style: str = "") -> widgets.Button:
    return placed.Button(description=text, tooltip=tooltip, button_style=style, css="wb-auto")
