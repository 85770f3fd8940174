"""A page in the browser for a study, a run or a folder of them, served on this machine and live while work goes on."""

from __future__ import annotations

from workbench.view.pages import Pages, ViewError
from workbench.view.server import ViewServer

__all__ = ["Pages", "ViewError", "ViewServer"]
