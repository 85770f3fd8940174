"""One real JupyterLab for all browser tests, started by ``workbench lab`` itself, and a page of real Chromium."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from tests.browser.notebook_page import run_cells, write_notebook
from workbench.core.process_identity import has_ended, identity, machine

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, ViewportSize

VIEWPORT: ViewportSize = {"width": 1300, "height": 1000}
# What JupyterLab itself writes to the console as an error, each with the reason why it says nothing about us.
OF_JUPYTERLAB: dict[str, str] = {}


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab.

    Args:
        folder: Its scratch folder; the notebooks are in ``notebooks``.
        root: Its address, up to the port.
        token: What it asks for.
    """

    folder: Path
    root: str
    token: str

    def address(self, notebook: str) -> str:
        """Return the address of a notebook, in a workspace of its own so that no tab of another test opens."""
        return f"{self.root}lab/workspaces/{notebook}/tree/notebooks/{notebook}.ipynb?token={self.token}"


@dataclass
class View:
    """A page of the browser, and what its console complained of."""

    page: Page
    complaints: list[str] = field(default_factory=list)

    def listen_to(self, page: Page) -> None:
        """Take down what this page complains of from now on, besides what others did."""
        page.on("console", self.hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def reopened(self) -> Page:
        """Close the page as one closes a tab of the browser, and return an empty new one, watched like the first."""
        context = self.page.context
        self.page.close()
        self.page = context.new_page()
        self.listen_to(self.page)
        return self.page

    def hear(self, message: ConsoleMessage) -> None:
        """Keep an error that is not JupyterLab's own."""
        if message.type == "error" and not any(re.search(known, message.text) for known in OF_JUPYTERLAB):
            self.complaints.append(f"{message.text} ({message.location})")


@pytest.fixture(scope="session")
def lab(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Return JupyterLab as ``workbench lab`` starts it in an empty folder, on a free port, with its token."""
    folder = tmp_path_factory.mktemp("lab")
    own = {
        name: str(folder / "own" / name.lower())
        for name in ("JUPYTER_CONFIG_DIR", "JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")
    }
    environment = {**os.environ, **own, "PYTHONUNBUFFERED": "1"}
    environment.pop("JUPYTER_TOKEN", None)
    command = [sys.executable, "-m", "workbench", "lab", "--no-browser", "--port", "0"]
    log = folder / "server.log"
    with (
        log.open("w") as complaints,
        subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as server,
    ):
        try:
            assert server.stdout is not None
            told = next((line for line in server.stdout if "JupyterLab is at" in line), "")
            found = re.search(r"(http://[^/]+/).*token=(\w+)", told)
            assert found, log.read_text()
            yield Lab(folder, found.group(1), found.group(2))
        finally:
            children = psutil.Process(server.pid).children(recursive=True)
            begun = {child: {"machine": machine(), **identity(child.pid)} for child in children}
            server.send_signal(signal.SIGINT)
            try:
                server.wait(timeout=180)
            finally:
                # Those that have ended, and whose new parent has not heard of it yet, do no more.
                left = [process for process, known in begun.items() if not has_ended(known)]
                for process in [*left, server]:
                    process.kill()
    assert left == [], "kernels outlived JupyterLab"


@pytest.fixture(scope="session")
def reader(chromium: Browser) -> Iterator[BrowserContext]:
    """Return the browser of one person: what a page has loaded, the next one need not load again."""
    with chromium.new_context(viewport=VIEWPORT) as context:
        context.set_default_timeout(60_000)
        yield context


@contextlib.contextmanager
def watched_page(reader: BrowserContext) -> Iterator[View]:
    """Open a page at 1300 pixels, and close it; an error on its console fails whoever looked at it.

    Raises:
        AssertionError: At the end, when the console had an error or a script of the page failed.
    """
    page = reader.new_page()
    seen = View(page)
    seen.listen_to(page)
    try:
        yield seen
    finally:
        seen.page.close()
    assert seen.complaints == []


@pytest.fixture
def view(reader: BrowserContext) -> Iterator[View]:
    """Return a page at 1300 pixels; the test fails when its console had an error."""
    with watched_page(reader) as seen:
        yield seen


@pytest.fixture(scope="session")
def open_page(lab: Lab, reader: BrowserContext) -> Iterator[View]:
    """Return a page with a notebook whose kernel has imported what ``notebook`` promises."""
    with watched_page(reader) as seen:
        write_notebook(
            lab, "shared", "from workbench import Workbench\nfrom workbench.panels import ExportPanel, StudyPanel"
        )
        run_cells(seen.page, lab, "shared")
        yield seen


@pytest.fixture
def notebook(open_page: View) -> Iterator[View]:
    """Return an open notebook that knows Workbench and two panels, for tests that each add cells of their own."""
    open_page.page.bring_to_front()
    yield open_page
    open_page.page.set_viewport_size(VIEWPORT)
    complaints, open_page.complaints = open_page.complaints, []
    assert complaints == []
