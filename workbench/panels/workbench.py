"""The whole workbench: its panels in tabs, looking at one configuration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.panels import placed_widgets as placed
from workbench.panels.panel import (
    Panel,
    Theme,
    close_recursively,
    text_of,
)
from workbench.panels.preload import Preload
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import faint

if TYPE_CHECKING:
    from workbench.config import BoostConfig
    from workbench.tasks import Task

__all__ = ["Workbench"]


class Workbench(Panel):
    """Configure, train, look at the loss scale, tune, compare and export, in tabs that share one configuration.

    A tab is made when it is first opened. What runs in one goes on while another is looked at.

    Args:
        task: A task, or its name as on the command line.
        config: The first configuration; None is the default one.
        level: Boost level, ``"O0"``, ``"O1"`` or ``"O2"``.
        steps: Micro-batches of a run.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder of run directories; None records nothing.
        studies: Folder of studies.
        theme: ``"auto"`` follows the page; ``"light"`` and ``"dark"`` give the workbench a background of its own.

    Attributes:
        shared: The configuration that all tabs show and change.
        tabs: The tabs.

    Raises:
        ConfigError: When the level is unknown.
        ValueError: When there is no such theme.

    Example:
        >>> from workbench import Workbench
        >>> with Workbench("digits-lenet") as bench:
        ...     bench.shared.change({"grad_freeze.freeze_p": 0.5})
        ...     bench.panel("Configure").config.grad_freeze.freeze_p
        0.5
    """

    def __init__(
        self,
        task: Task | str,
        config: BoostConfig | None = None,
        *,
        level: str = "O1",
        steps: int = 300,
        device: str = "auto",
        out: str | Path | None = "runs",
        studies: str | Path = "studies",
        theme: Theme = "auto",
    ) -> None:
        self.shared = SharedConfig(config, level)
        name = task if isinstance(task, str) else task.name
        super().__init__(f"Boost Workbench: {name}", theme=theme, shows_state=False)
        self._task, self._steps, self._device = task, steps, device
        self._out, self._studies = out, Path(studies)
        self._makers: dict[str, Callable[[], Panel]] = {
            "Configure": self._configure,
            "Train": self._train,
            "Loss scale": self._loss_scale,
            "Tune": self._tune,
            "Compare": self._compare,
            "Export": self._export,
        }
        self._panels: dict[str, Panel] = {}
        # What stands in a tab until its panel is there: the first one that needs torch or Optuna loads them.
        self._places = {title: placed.Stack((text_of(faint("Opening…")),), css="wb-place") for title in self._makers}
        self.tabs = placed.Tab(children=tuple(self._places.values()), titles=tuple(self._makers), css="wb-auto")
        body = self.widget.children[1]
        self.widget.children = (self.header, self.tabs, self.footer)
        close_recursively(body)
        self.on_change(self.tabs, self._open, "selected_index")
        self.panel("Configure")
        self._preload = Preload(self._look_at_network)
        self.cleaned_up_by(self._preload.wait)

    def panel(self, title: str) -> Any:
        """Return a tab's panel; it is made if it was not opened yet.

        Args:
            title: ``"Configure"``, ``"Train"``, ``"Loss scale"``, ``"Tune"``, ``"Compare"`` or ``"Export"``.

        Raises:
            KeyError: When there is no such tab.
        """
        if title not in self._makers:
            raise KeyError(f"no tab is called {title!r}; there are {', '.join(self._makers)}")
        if title not in self._panels:
            if self._panels:  # the first one needs nothing of what is loaded beside it
                self._preload.wait()
            made = self._panels[title] = self._makers[title]()
            self.cleaned_up_by(made.close)
            (notice,) = self._places[title].children
            self._places[title].children = (made.widget,)
            close_recursively(notice)
        return self._panels[title]

    def static_html(self) -> str:
        """Return what the opened panels say."""
        return super().static_html() + "".join(f"<div>{panel.static_html()}</div>" for panel in self._panels.values())

    def _open(self, index: int | None) -> None:
        if index is None:
            return
        title = list(self._makers)[index]
        panel = self.panel(title)
        if title == "Export" and "Tune" in self._panels:  # its study may have found something meanwhile
            panel.offer(self.panel("Tune").folder.value)

    def _look_at_network(self) -> None:
        """Let all tabs know what the methods would find in the task's network."""
        from workbench.tasks import load_task
        from workbench.training.network_facts import network_facts

        try:
            task = load_task(self._task) if isinstance(self._task, str) else self._task
            self.shared.learn(network_facts(task, with_weights=False))
        except (
            Exception
        ):  # a model that cannot be built like this; what is wrong with a task is told when it is trained
            return

    def _configure(self) -> Panel:
        from workbench.panels.config_panel import ConfigPanel

        return ConfigPanel(self.shared, theme=self.theme)

    def _train(self) -> Panel:
        from workbench.panels.train_panel import TrainPanel

        return TrainPanel(
            self._task, self.shared, steps=self._steps, device=self._device, out=self._out, theme=self.theme
        )

    def _loss_scale(self) -> Panel:
        from workbench.panels.loss_scale_panel import LossScalePanel

        return LossScalePanel(self._out, self.shared, theme=self.theme)

    def _tune(self) -> Panel:
        from workbench.panels.study_panel import StudyPanel

        return StudyPanel(self._task, self.shared, studies=self._studies, theme=self.theme)

    def _compare(self) -> Panel:
        from workbench.panels.compare_panel import ComparePanel

        return ComparePanel(self._task, self.shared, steps=self._steps, device=self._device, theme=self.theme)

    def _export(self) -> Panel:
        from workbench.panels.export_panel import ExportPanel

        return ExportPanel(shared=self.shared, theme=self.theme)
