"""The figures of a study: made when they are first looked at, and drawn only while they are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

from workbench.core.records import StudyResult
from workbench.figures import MetricScale, RunCurve, contour_pair, sliced_parameters
from workbench.figures.drawing import Drawing
from workbench.figures.live import LiveFigure
from workbench.figures.loss_curves import loss_curves_drawing
from workbench.figures.study_figure import study_drawing
from workbench.panels import kit
from workbench.panels.figure_place import nothing_html
from workbench.panels.panel import Panel
from workbench.panels.study_answer import TARGETS

# View -> what stands there while there is no trial, the question of its first figure, and then its figures.
_VIEWS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    "Overview": ("How much faster can this task be trained, and what does that cost?", ("speed", "history")),
    "Curves": ("How did the metric of each trial grow?", ("trial curves",)),
    "Parameters": ("Which values do the good trials have in common?", ("parameters",)),
    "Slices": ("Which values of a parameter pay off?", ()),  # of the parameters that the trials differ in
    "Importance": ("Which parameters decided how a trial went?", ("importance",)),
}
_MOST_SLICES: Final = 4
_NO_TRIAL: Final = (
    "No trial has ended yet. Press Start to search; to open a study that exists, name its folder under Study."
)
_PICKABLE: Final = frozenset({"history", "speed", "parameters", "slice", "contour", "trial"})


class StudyFigures:
    """Views of a study's trials, where the gain of its exports comes from, and the curves of picked trials.

    ``view`` chooses what ``stage`` shows; ``gains`` has one figure for each export that gains something,
    ``curves_stage`` the curves once a trial was picked. ``pick`` is called with the number of a trial that is clicked.
    """

    def __init__(self, panel: Panel, pick: Callable[[int], Any]) -> None:
        self._panel, self._theme, self._pick = panel, panel.theme, panel.guarded(pick)
        self._lock = threading.RLock()
        self.study: StudyResult | None = None
        self.curves: list[RunCurve] = []
        self.live: dict[str, LiveFigure] = {}
        self.view = kit.choice_buttons(tuple(_VIEWS))
        self.stage, self.gains, self.curves_stage = (kit.Stack(css="wb-stage") for _ in range(3))
        self._nothing = kit.Html(css="wb-wide")
        panel.cleaned_up_by(self._nothing.close)  # it stands in the panel only until there are trials
        panel.on_change(self.view, lambda _: self._show_view())

    def show(self, study: StudyResult | None) -> None:
        """Show what is known of a study now."""
        self.study = study
        parts = {} if study is None else study.attribution
        targets = [target for target in TARGETS if parts.get(target)]
        if len(targets) == 2 and parts["o1"] == parts["o2"]:  # both take the same
            targets = ["o1"]
        self._place(self.gains, *(f"gain {target}" for target in targets))
        self._show_view()

    def show_curves(self, curves: list[RunCurve]) -> None:
        """Lay the curves of picked trials over those of O0."""
        self.curves = curves
        self._place(self.curves_stage, "curves")

    def hide_curves(self) -> None:
        """Show no curves: no trial is picked any longer."""
        self.curves, self.curves_stage.children = [], ()

    def _show_view(self) -> None:
        (question, names), study = _VIEWS[self.view.value], self.study
        if study is None or not study.trials:
            self._nothing.value = nothing_html(question, _NO_TRIAL)
            self.stage.children = (self._nothing,)
            return
        names = names or self._slices(study)
        self._place(self.stage, *(names if len(study.trials) > 1 else names[:1]))  # O0: one figure says so

    def _slices(self, study: StudyResult) -> tuple[str, ...]:
        """Name the slices, and the contour, of the parameters that mattered most."""
        paths = sliced_parameters(study.trials, study.importance, _MOST_SLICES)
        pair = contour_pair(study.trials, study.importance)
        slices = [f"slice {path}" for path in paths] or ["importance"]  # which says what is missing
        return (*slices, *([f"contour {' '.join(pair)}"] if pair is not None else []))

    def _place(self, stage: Any, *names: str) -> None:
        wanted = tuple(self._drawn(name).widget for name in names)
        if stage.children != wanted:
            stage.children = wanted

    def _drawn(self, name: str) -> LiveFigure:
        """Return a figure drawn from what is known now."""
        figure = self.draw(name)
        with self._lock:
            if name in self.live:
                self.live[name].update(figure)
            else:
                pick = self._pick if name.partition(" ")[0] in _PICKABLE else None
                self.live[name] = LiveFigure(figure, theme=self._theme, on_pick=pick)
                self._panel.cleaned_up_by(self.live[name].close)  # at once where it closed while this was drawn
            return self.live[name]

    def draw(self, name: str) -> Drawing:
        """Compute a figure of ``study_drawing``, or the ``"curves"`` of the picked trials, from what is known now."""
        if self.study is None:  # what is drawn is drawn of a study
            raise RuntimeError(f"there is no study to draw {name!r} of")
        if name == "curves":
            metric = MetricScale.of(self.study)
            return loss_curves_drawing(self.curves, x="relative_time", metric=metric, theme=self._theme)
        height = {"height": 460} if name == "speed" else {}  # less than in a report
        return study_drawing(self.study, name, theme=self._theme, **height)
