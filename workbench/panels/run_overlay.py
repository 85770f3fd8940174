"""Other runs drawn with the current one: O0 by default, recorded or earlier ones when ticked, and smoothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from workbench.config import BoostConfig, ConfigError, NetworkFacts
from workbench.figures import RunCurve
from workbench.figures.loss_curves import LOSS_CURVE_COLUMNS
from workbench.panels import kit
from workbench.panels.kit import column, row
from workbench.panels.panel import Panel
from workbench.panels.style import faint

_MOST_OFFERED: Final = 8
_SMOOTHING: Final = {"automatic": None, "none": 1, **{f"{n} steps": n for n in (5, 10, 20, 50, 100, 200)}}


class Smoothing:
    """Lets the reader choose over how many steps the loss is averaged; ``redraw`` is called when that changes."""

    def __init__(self, panel: Panel, redraw: Callable[[], Any]) -> None:
        self.choice = kit.Dropdown(options=list(_SMOOTHING), css="wb-file", tooltip="Running mean of the loss")
        self.widget = row("Smoothing of the loss", self.choice)
        panel.on_change(self.choice, lambda _: redraw())

    @property
    def window(self) -> int | None:
        """Steps of the running mean; None is a hundredth of the run."""
        return _SMOOTHING[self.choice.value]


class RunOverlay:
    """Runs that can be laid over another, with a box to tick for each; ``redraw`` is called when the choice changes.

    The newest run of O0 is laid over a run of anything else until the reader ticks otherwise.
    """

    def __init__(self, panel: Panel, redraw: Callable[[], Any]) -> None:
        self._panel, self._redraw = panel, redraw
        self._reader = panel.new_reader()
        self._curves: dict[str, RunCurve | Path] = {}  # the newest first; a path is read when it is ticked
        self._baseline = ""  # name of the newest run of O0
        self._n_runs = 0
        self._by_hand = False  # the reader has chosen
        self._lock = threading.RLock()  # runs end on one thread, folders are read on another
        self.boxes: dict[str, Any] = {}
        self.smoothing = Smoothing(panel, redraw)
        self._list = column(faint("No other run of this task yet; recorded runs and later ones appear here."))
        self.widget = kit.folded("Smoothing and other runs", self.smoothing.widget, self._list)

    def curves(self) -> list[RunCurve]:
        """Return the runs that are ticked and read."""
        ticked = [self._curves[name] for name, box in self.boxes.items() if box.value]
        return [curve for curve in ticked if isinstance(curve, RunCurve)]

    def begin(self, folder: Path | None, task: Callable[[], str], *, is_baseline: bool) -> None:
        """Offer the recorded runs of a task, and lay O0 over the run that begins, unless that is O0 itself."""
        with self._lock, self._panel.showing():
            for name, box in self.boxes.items():
                box.value = box.value if self._by_hand else name == self._baseline and not is_baseline
        if folder is not None and folder.is_dir():
            self._reader.ask(
                lambda: _recorded(folder, task(), with_baseline=not self._baseline),
                lambda found: self._offer_recorded(*found, ticked=not is_baseline),
            )

    def remember(self, label: str, curve: Callable[[str], RunCurve], *, is_baseline: bool) -> None:
        """Offer a run that was trained here to later ones, under a label made unique."""
        with self._lock:
            self._n_runs += 1
            name = f"{label}, run {self._n_runs}"
            self._baseline = name if is_baseline else self._baseline
            self._offer({name: curve(name)})

    def _offer_recorded(self, found: dict[str, RunCurve | Path], baseline: str, *, ticked: bool) -> None:
        with self._lock:
            is_first = bool(baseline) and not self._baseline
            self._baseline = self._baseline or baseline
            self._offer({one: curve for one, curve in found.items() if one not in self._curves})
            if is_first and not self._by_hand:
                with self._panel.showing():
                    self.boxes[baseline].value = ticked
        if is_first:
            self._redraw()

    def _offer(self, new: dict[str, RunCurve | Path]) -> None:
        ticked = {name for name, box in self.boxes.items() if box.value}
        names = list({**new, **self._curves})
        kept = {*names[:_MOST_OFFERED], *ticked, self._baseline}
        self._curves = {name: {**self._curves, **new}[name] for name in names if name in kept}
        for name, box in self.boxes.items():
            if name not in self._curves:
                kit.close_recursively(box)
        self.boxes = {name: self.boxes.get(name) or self._box(name) for name in self._curves}
        if self.boxes and (sentence := self._list.children[0]) not in self.boxes.values():
            kit.close_recursively(sentence)
        self._list.children = tuple(self.boxes.values()) or self._list.children

    def _box(self, name: str) -> Any:
        box = kit.check_box(name)
        self._panel.on_change(box, lambda on: self._tick(name, on=on))
        return box

    def _tick(self, name: str, *, on: bool) -> None:
        self._by_hand = True
        path = self._curves[name]
        if on and isinstance(path, Path):
            self._reader.ask(lambda: _curve_at(name, path), lambda curve: self._read(name, curve))
        else:
            self._redraw()

    def _read(self, name: str, curve: RunCurve) -> None:
        self._curves[name] = curve
        self._redraw()


def _recorded(folder: Path, task: str, *, with_baseline: bool) -> tuple[dict[str, RunCurve | Path], str]:
    """Return the newest runs of a task below a folder, and the name of O0's, whose curve is read."""
    from workbench.report.run_report import curve_of_run
    from workbench.runs import RunError, list_runs, read_run

    listed = list_runs(folder)
    listed = listed[(listed["task"] == task) & listed["finished"]]
    found: dict[str, RunCurve | Path] = {
        f"{entry['level']}, recorded {Path(entry['run']).name[:15]}": folder / entry["run"]
        for entry in listed.head(_MOST_OFFERED).to_dict("records")
    }
    if not with_baseline:
        return found, ""
    for entry in listed[listed["level"] == "O0"].head(_MOST_OFFERED).to_dict("records"):
        # Skip a run that is damaged or of another version, and try the next.
        with contextlib.suppress(RunError, ConfigError):
            run = read_run(folder / entry["run"], columns=())
            if is_baseline(BoostConfig.from_dict(run.config), "O0"):
                name = f"O0, recorded {run.name[:15]}"
                return {**found, name: curve_of_run(run, name)}, name
    return found, ""


def _curve_at(name: str, path: Path) -> RunCurve:
    from workbench.report.run_report import curve_of_run
    from workbench.runs import read_run

    return curve_of_run(read_run(path, columns=LOSS_CURVE_COLUMNS), name)


def is_baseline(config: BoostConfig, level: str, network: NetworkFacts | None = None) -> bool:
    """Return whether a configuration at a level is O0: it asks for nothing more, or a network has nothing for it."""
    try:
        return config.resolve(level, network=network) == BoostConfig().resolve("O0")
    except ConfigError:
        return False
