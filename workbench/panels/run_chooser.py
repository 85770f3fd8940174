"""A folder of recorded runs, and the one that is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench.figures.labels import counted
from workbench.panels import kit
from workbench.panels.panel import Panel, PanelState
from workbench.panels.style import faint

if TYPE_CHECKING:
    from workbench.runs import Run

_LONGEST_LIST: Final = 200
_BETWEEN: Final = " · \u200b"  # where a line may be broken: ipywidgets lets it be at no blank of a list


class RunChooser:
    """A field for a folder, and the list of its runs, which is read in the background.

    ``open_run`` is called with the directory of a run that the user chooses or types; ``shown`` returns that shown.
    """

    def __init__(self, panel: Panel, open_run: Callable[[Path], Any], shown: Callable[[], Run | None]) -> None:
        self._panel, self._open_run, self._shown = panel, open_run, shown
        self.lister = panel.new_reader()
        self.folder = kit.text_box("runs", "A folder of runs, or one run directory", css="wb-growing")
        self.look_button = panel.button("Look", "List the runs of this folder", lambda: self.look(self.folder.value))
        self._found = kit.text_of(faint("press Look to list the runs of a folder"))
        self.runs = kit.Select(options=[], rows=4, css="wb-wide wb-wrapped-lines", tooltip="Recorded run")
        self.runs.present(False)
        self.widgets = (kit.row(self.folder, self.look_button), self._found, self.runs)
        panel.on_change(self.folder, self.look)
        panel.on_change(self.runs, lambda path: None if path is None else open_run(path))

    def look(self, folder: str | Path) -> None:
        """List a folder; a run, or what is not a folder, is opened, and the runs beside it are listed."""
        path = Path(str(folder).strip() or ".").expanduser()
        is_run = (path / "environment.json").is_file()
        self._panel.clear_error()
        if self._panel.state is PanelState.FAILED:  # to open what was named before
            self._panel.machine.to(PanelState.IDLE)
        self.list_folder(path.parent if is_run else path)
        if is_run or (path.exists() and not path.is_dir()):
            self._open_run(path)

    def expect(self, folder: Path) -> None:
        """Name a folder that the first run is still to make."""
        with self._panel.showing():
            self.folder.value = str(folder)
        self._found.value = faint(f"no folder `{folder}` here yet: train something, or name a folder of runs")

    def list_folder(self, folder: Path) -> None:
        """Read which runs a folder holds, and list them."""
        with self._panel.showing():
            self.folder.value = str(folder)
        if folder.is_dir() or not folder.exists():
            self.lister.ask(lambda: _listed_runs(folder), self._show)

    def select(self) -> None:
        """Select the run shown, if it is in the list."""
        run = self._shown()
        listed = run is not None and any(path == run.path for _, path in self.runs.options)
        with self._panel.showing():
            self.runs.value = run.path if run is not None and listed else None

    def _show(self, runs: list[tuple[str, Path]]) -> None:
        self._found.value = faint(f"{counted(len(runs), 'run')}: choose one" if runs else "no runs in this folder")
        self.runs.present(bool(runs))
        with self._panel.showing():
            self.runs.options = runs
        self.select()


def _listed_runs(folder: Path) -> list[tuple[str, Path]]:
    """Return labels and directories of the newest runs below a folder."""
    from workbench.runs import list_runs

    listed = []
    for entry in list_runs(folder).head(_LONGEST_LIST).to_dict("records"):
        steps, overflows = counted(entry["steps"], "step"), counted(entry["overflows"], "overflow")
        end = "" if entry["finished"] else "not finished"
        parts = (Path(entry["run"]).name[:15], entry["task"], entry["level"], steps, overflows, end)
        listed.append((_BETWEEN.join(part for part in parts if part), folder / entry["run"]))
    return listed
