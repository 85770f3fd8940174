"""Export: look at a configuration once more, see what it is worth and who can read it, and save it.

What is saved is read back, and has to be the same configuration. An export of a study keeps its provenance: where it
comes from, what was measured, and the verdict.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from workbench.config import BoostConfig, ConfigError, Plan
from workbench.config.errors import shown
from workbench.config.mindspore_notes import mindspore_notes
from workbench.integrations.scripts.writing import FRAMEWORKS, file_name
from workbench.methods.registry import METHODS
from workbench.panels import kit
from workbench.panels.controls import number_text
from workbench.panels.kit import row, section, text_of
from workbench.panels.panel import PanelState, Theme, WorkPanel
from workbench.panels.shared_config import SharedConfig, config_of_text
from workbench.panels.study_answer import ANSWERS, TARGETS
from workbench.panels.style import bullets, copy_button_html, difference_html, faint, note_html, table, words
from workbench.panels.worker import Outcome, RunControl

_SHARED: Final = "this configuration"
_JSON: Final = "boost_config.json"
_EXPORTS: Final = {target: f"boost_config.{target}.json" for target in TARGETS}
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
    *((method.name, method.title) for method in METHODS if method.export_note or method.n_ranks > 1),
)


def exported_files(study: str | os.PathLike[str]) -> dict[str, Path]:
    """Return the exported configurations of a study, or of the folder that holds the files themselves, by export."""
    found: dict[str, Path] = {}
    for place in (Path(study), Path(study) / "result"):
        found |= {target: place / name for target, name in _EXPORTS.items() if (place / name).is_file()}
    return found


def exported_scripts(study: str | os.PathLike[str], target: str) -> dict[str, Path]:
    """Return the files for other frameworks beside an export of a study, by the framework's name."""
    places = {path.parent for path in exported_files(study).values()}
    files = {name: place / file_name(name, target) for place in places for name in FRAMEWORKS}
    return {name: file for name, file in files.items() if file.is_file()}


class ExportPanel(WorkPanel):
    """Save a configuration: the one shown, or one of the two a study has found.

    Args:
        study: Folder of a study; None exports the shared configuration alone until one is named. A SharedConfig given
            here counts as ``shared``.
        shared: The configuration; None makes a new one.
        folder: Suggested folder for the file.
        theme: See ``Panel``.

    Attributes:
        saved: The file written last; None before the first.
    """

    failure_note = ""

    def __init__(
        self,
        study: str | Path | SharedConfig | None = None,
        shared: SharedConfig | None = None,
        *,
        folder: str | Path = ".",
        theme: Theme = "auto",
    ) -> None:
        if isinstance(study, SharedConfig):
            study, shared = None, study
        super().__init__("Export", shared, theme=theme)
        self.saved: Path | None = None
        self._found: dict[str, BoostConfig] = {}
        self._read: Path | None = None  # the study that was read
        self._files: dict[str, str] = {}  # what the controls offer to copy
        self._make_controls("" if study is None else str(study), str(folder))
        self._make_plots()
        self.cleaned_up_by(self.shared.observe(lambda config, level: self._show()))
        self.state_changed(self.state)
        if study is not None:
            self.guarded(self._read_study)()
        self._show()

    @property
    def config(self) -> BoostConfig:
        """The configuration shown."""
        return self._chosen()[0]

    def offer(self, study: str | Path) -> None:
        """Offer a study as well as the configuration shown, unless the user named one or it has exported nothing yet.

        What is chosen stays chosen: a study that ended in another tab does not replace a configuration.
        """
        if not self.study.value.strip() and exported_files(study):
            with self.showing():
                self.study.value = str(study)
            self._read_study(_SHARED)

    def save(self) -> Path | None:
        """Save what is shown to the chosen file and read it back; None if that failed."""
        if not self.machine.try_to(PanelState.RUNNING):
            return None
        self.clear_error()
        path = self._folder() / str(self.name.value.strip())
        try:
            self._save(path)
        except ConfigError as error:
            problem = str(error)
        except (OSError, ValueError) as error:  # a null byte in a path is a ValueError
            problem = f"{path}: cannot be written ({getattr(error, 'strerror', None) or error})"
        else:
            self.saved = path
            self._file_note.say(f"wrote `{path.absolute()}`; read back, it is the same configuration")
            self.log(f"wrote {path.absolute()}")
            self.machine.to(PanelState.DONE)
            return path
        self._file_note.refuse(problem)
        self.machine.to(PanelState.FAILED)
        return None

    def export_study(self) -> None:
        """Write both files, tables and the report of the study from its storage into the folder."""
        study, folder = self._read, self._folder()
        if study is not None and self.machine.try_to(PanelState.RUNNING):

            def work(_: RunControl) -> list[Path]:
                from workbench import api

                result = api.export(study, folder, formats=list(FRAMEWORKS))
                written = [script.path for script in result.scripts if script.path is not None]
                return [*result.exported.values(), *written]

            self.begin(work, saying="writing ...")

    def finished(self, outcome: Outcome) -> PanelState:
        """Show which files were written."""
        files: list[Path] = outcome.result
        written = f"wrote {', '.join(path.name for path in files)} and the report into {files[0].parent.absolute()}"
        self.tell(written)
        self.log(written)
        self.saved = files[0]
        return PanelState.DONE

    def state_changed(self, state: PanelState) -> None:
        """Enable what can be used in a state."""
        super().state_changed(state)
        self.export_button.disabled = state.busy or self._read is None or not (self._read / "study.db").is_file()

    def static_html(self) -> str:
        """Return the configuration as JSON, with what it is worth."""
        return f"{super().static_html()}{self._verdict.value}<pre>{words(self.json.value)}</pre>"

    def _make_controls(self, study: str, folder: str) -> None:
        self.study = kit.text_box(study, "Folder of a study", css="wb-growing", placeholder="studies/quickstart")
        self.read_button = self.button("Read", "Read what the study has exported", self._read_study)
        self.progress_text.value = ""
        self.choice = kit.choice_buttons([_SHARED])
        self._answers = text_of("")
        self.folder = kit.text_box(folder, "Folder of the file")
        self.name = kit.text_box("boost_config.json", "Name of the file")
        self.replace = kit.check_box("Replace an existing file")
        self.save_button = self.button("Save", "Write this configuration", self.save, style="success")
        export_help = "Write both files, those for other frameworks, tables and report from the study's storage"
        self.export_button = self.button("Export the whole study here", export_help, self.export_study)
        self._file_note = text_of("")
        self.on_change(self.study, lambda _: self._read_study())
        self.on_change(self.choice, lambda _: self._choose())
        saving = [self.folder, self.name, self.replace, self.save_button]
        self.locked = [self.study, self.read_button, self.choice, *saving]
        self.controls.children = (
            *section("Study", row(self.study, self.read_button), self.progress_text),
            *section("What to export", self.choice, self._answers),
            *section("Where to", "Folder", self.folder, "File name", self.name, self.replace),
            row(self.save_button, self.export_button),
            self._file_note,
        )

    def _make_plots(self) -> None:
        self._verdict, self._valid, self._mindspore = text_of(""), text_of(""), text_of("")
        self._provenance, self._difference = text_of(""), text_of("")
        self.format = kit.choice_buttons([_JSON])
        self.on_change(self.format, lambda _: self._show_file())
        self.json = kit.JsonBox(disabled=True, help="The file as it will be written")
        self.plots.children = (
            self._verdict,
            self._valid,
            *section("For MindSpore", self._mindspore, self._provenance),
            row(*section("File", self.format, copy_button_html())),
            self.json,
            *section("Different from the default", self._difference),
        )

    def _read_study(self, preferred: str | None = None) -> None:
        self.clear_error()
        named = self.study.value.strip()
        self._read = folder = Path(named).expanduser() if named else None
        files = {} if folder is None else exported_files(folder)
        self._found, problem = {}, ""
        for target, path in files.items():
            try:
                self._found[target] = BoostConfig.from_json(path)
            except ConfigError as error:
                problem = str(error)
        if folder is not None and not files:
            problem = _nothing_exported(folder)
        self.progress_text.refuse(problem)
        self._answers.value = faint(ANSWERS) if self._found else ""
        before = preferred or self.choice.value
        with self.showing():
            self.choice.options = [_SHARED, *self._found]
            stays = before in self._found or preferred is not None
            self.choice.value = before if stays else next(iter(self._found), _SHARED)
        self._choose()
        self.state_changed(self.state)

    def _choose(self) -> None:
        names = {_SHARED: _JSON, **_EXPORTS}
        if self.name.value in names.values():  # a name of the user's own stays
            self.name.value = names[self.choice.value]
        self._file_note.refuse("")
        self._show()

    def _chosen(self) -> tuple[BoostConfig, str]:
        """Return the configuration shown and its level."""
        target = str(self.choice.value)
        return (self._found[target], target.upper()) if target in self._found else self.shared.with_provenance()

    def _show_file(self) -> None:
        self.json.value = self._files.get(str(self.format.value), "")

    def _folder(self) -> Path:
        return Path(self.folder.value.strip() or ".").expanduser()

    def _save(self, path: Path) -> None:
        config = self.config
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

    def _show(self) -> None:
        if self.closed:
            return
        config, level = self._chosen()
        text = json.dumps(config.to_dict(), indent=2)
        target = str(self.choice.value)
        scripts = exported_scripts(self._read, target) if self._read is not None and target in self._found else {}
        self._files = {_JSON: text} | {name: path.read_text(encoding="utf-8") for name, path in scripts.items()}
        with self.showing():
            kit.offer(self.format, list(self._files), _JSON)
        self._show_file()
        try:
            plan = config.resolve(level)
        except ConfigError as error:
            self._valid.refuse(f"the file can be written and read, but not used as it is: {error}")
            self._mindspore.value = ""
        else:
            network = None if target in self._found else self.shared.network  # a study's files are of its own task
            if config_of_text(text, _JSON) == config:
                self._valid.value = _validity_html(config.resolve(level, network=network))
            else:
                self._valid.refuse("read back, the text is another configuration")
            self._mindspore.value = bullets(mindspore_notes(config, plan))
        self._verdict.value = _verdict_html(config.provenance or {})
        self._provenance.value = _provenance_html(config.provenance or {})
        self._difference.value = difference_html(config)


def _nothing_exported(study: Path) -> str:
    if not study.is_dir():
        return f"{study}: there is no such folder"
    if (study / "study.db").is_file():
        return f"{study} has exported nothing yet; Export the whole study writes what it has found so far"
    if (study / "study.toml").is_file():
        return f"{study} has not been started; run `workbench tune {study}` first"
    return f"{study} is not a study: it has no study.toml"


def _validity_html(plan: Plan) -> str:
    valid = f"✓ Valid: the text reads back as this configuration. In effect at {plan.level}: {plan.summary()}."
    return note_html(valid) + bullets((entry.reason for entry in plan.dropped), css="wb-faint")


def _verdict_html(provenance: dict[str, Any]) -> str:
    if not provenance:
        return f"<p>{faint('This configuration has not been measured, so it has no verdict.')}</p>"
    return f"<p><b>{words(str(provenance.get('sentence') or provenance.get('verdict') or ''))}</b></p>"


def _provenance_html(provenance: dict[str, Any]) -> str:
    if not provenance:
        return ""
    known = [(key, title) for key, title in _PROVENANCE if provenance.get(key) not in (None, "")]
    if provenance.get("verdict") == provenance.get("candidate"):
        known = [(key, title) for key, title in known if key != "verdict"]
    rows = [(title, _provenance_text(key, provenance[key])) for key, title in known]
    device = (provenance.get("environment") or {}).get("device") or {}
    hardware = [str(device[key]) for key in ("device", "cpu", "accelerator") if device.get(key)]
    if hardware:
        rows.append(("Hardware", ", ".join(dict.fromkeys(hardware))))
    if device.get("torch"):
        rows.append(("PyTorch", str(device["torch"])))
    return f"<h4>Provenance</h4>{table((), rows, css='wb-whole-words')}"


def _provenance_text(key: str, value: Any) -> str:
    if key == "speedup" and isinstance(value, list) and len(value) == 3:
        return f"{value[0]:g} x (95 % interval {value[1]:g} to {value[2]:g})"
    if isinstance(value, float):
        return number_text(value) if value.is_integer() else f"{value:.4g}"
    return value if isinstance(value, str) else shown(value)


def _is_same(path: Path, config: BoostConfig) -> bool:
    """Return whether a file holds a configuration, whenever it was written."""
    try:
        return _undated(BoostConfig.from_json(path)) == _undated(config)
    except ConfigError:
        return False


def _undated(config: BoostConfig) -> BoostConfig:
    if config.provenance is None:
        return config
    return config.with_values({"provenance": {**config.provenance, "written": ""}})
