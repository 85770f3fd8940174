"""The whole workbench: its panels in tabs, looking at one configuration."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from workbench import panels
from workbench.panels.config_history import UndoButtons
from workbench.panels.kit import Stack, Tab, close_recursively, text_of
from workbench.panels.panel import Panel, Theme
from workbench.panels.shared_config import SharedConfig
from workbench.panels.style import faint

if TYPE_CHECKING:
    from workbench.config import BoostConfig
    from workbench.tasks import Task

_USUAL_STEPS: Final = 300  # until the task is known


class Workbench(Panel):
    """Configure, train, look at the loss scale, tune, compare and export, in tabs that share one configuration.

    A tab is made when it is first opened. Work in one goes on while another is open.

    Args:
        task: A task, or its name as on the command line.
        config: The first configuration; None is the default one.
        level: Boost level, ``"O0"``, ``"O1"`` or ``"O2"``.
        steps: Batches of a run, and of a trial; None takes the task's own length, or 300 where it has none.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder of run directories; None records nothing.
        studies: Folder of studies.
        theme: ``"auto"`` follows the page; ``"light"`` and ``"dark"`` give the workbench its own background.

    Attributes:
        shared: The configuration that all tabs show and change.
        tabs: The tabs.

    Raises:
        ConfigError: When the level is unknown.
        ValueError: When there is no such theme.

    Example:
        >>> from workbench import Workbench
        >>> with Workbench("digits-lenet") as bench:
        ...     bench.shared.change({"loss_scale.window": 500})
        ...     bench.panel("Configure").config.loss_scale.window
        500
    """

    def __init__(
        self,
        task: Task | str,
        config: BoostConfig | None = None,
        *,
        level: str = "O1",
        steps: int | None = None,
        device: str = "auto",
        out: str | Path | None = "runs",
        studies: str | Path = "studies",
        theme: Theme = "auto",
    ) -> None:
        self.shared = shared = SharedConfig(config, level)
        name = task if isinstance(task, str) else task.name
        super().__init__(f"Boost Workbench: {name}", theme=theme, shows_state=False)
        self._steps = _USUAL_STEPS if steps is None else steps
        where: dict[str, Any] = {"device": device, "theme": theme}
        self._makers: dict[str, Callable[[], Panel]] = {
            "Configure": lambda: panels.ConfigPanel(shared, theme=theme, undo=False),
            "Train": lambda: panels.TrainPanel(task, shared, out=out, steps=self._steps, **where),
            "Loss scale": lambda: panels.LossScalePanel(out, shared, theme=theme),
            "Tune": lambda: panels.StudyPanel(task, shared, studies=studies, steps=self._steps, theme=theme),
            "Compare": lambda: panels.ComparePanel(task, shared, steps=self._steps, **where),
            "Export": lambda: panels.ExportPanel(shared=shared, theme=theme),
        }
        self._panels: dict[str, Panel] = {}
        # What stands in a tab until its panel is there: the first one that needs torch or Optuna loads them.
        self._places = {title: Stack((text_of(faint("Opening…")),), css="wb-place") for title in self._makers}
        self.tabs = Tab(children=tuple(self._places.values()), titles=tuple(self._makers), css="wb-auto")
        self.undo = UndoButtons(self, shared)
        self.header.children = (*self.header.children, self.undo.widget)
        body = self.widget.children[1]
        self.widget.children = (self.top, self.tabs, self.footer)
        close_recursively(body)
        self.on_change(self.tabs, self._open, "selected_index")
        self.panel("Configure")
        # What the other tabs need takes seconds to import in a fresh kernel: it is loaded while the reader looks at the
        # first one. No daemon: an interpreter that ends halfway through the import of a library in C would crash.
        self._loaded = threading.Event()  # all but Optuna, which takes longest and only Tune needs at once
        self._loading = threading.Thread(target=self._load, args=(task, steps), name="workbench loading")
        self._loading.start()
        self.cleaned_up_by(self._loading.join)

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
            if self._panels:  # the first one needs nothing of what is loaded; no two threads import the same
                (self._loading.join if title == "Tune" else self._loaded.wait)()
            made = self._panels[title] = self._makers[title]()
            self.cleaned_up_by(made.close)
            (notice,) = self._places[title].children
            self._places[title].children = (made.widget,)
            close_recursively(notice)
        return self._panels[title]

    def static_html(self) -> str:
        """Return the static HTML of the opened panels."""
        return super().static_html() + "".join(f"<div>{panel.static_html()}</div>" for panel in self._panels.values())

    def _load(self, task: Task | str, steps: int | None) -> None:
        """Load what panels need, and learn what methods would find in the task's network, and how long it trains."""
        # What is broken is said by the panel that needs it, when it is opened; what is wrong with a task, by a run.
        with contextlib.suppress(Exception):
            for name in panels.__all__:
                getattr(panels, name)
            from workbench.panels.run_controls import learn_network, look_for_task

            found = look_for_task(task)
            learn_network(self.shared, found)
            if steps is None:
                from workbench.training.task_look import usual_batches

                self._steps = usual_batches(found)
        self._loaded.set()
        with contextlib.suppress(Exception):
            importlib.import_module("workbench.study")

    def _open(self, index: int | None) -> None:
        if index is None:
            return
        title = list(self._makers)[index]
        panel = self.panel(title)
        if title == "Loss scale":  # a run may have been recorded meanwhile
            panel.look_again()
        elif title == "Export" and "Tune" in self._panels:  # its study may have found something meanwhile
            panel.offer(self.panel("Tune").folder.value)
