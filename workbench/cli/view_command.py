"""``workbench view``: a study, a run, or a folder of them as a page in the browser, live while work goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
import webbrowser
from pathlib import Path

import typer

from workbench.cli.interrupts import saying_on_ctrl_c
from workbench.cli.output import StorageOption, say


def view(
    path: Path = typer.Argument(..., metavar="STUDY|RUN|FOLDER", help="A study, a run directory, or a folder of them."),
    port: int = typer.Option(0, metavar="N", min=0, max=65535, help="Port of 127.0.0.1. Default: any free one."),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address and open no browser."),
    storage: str = StorageOption,
) -> None:
    """Show a study, a run or a folder as a page in the browser; it follows work that goes on.

    The page is served on this machine alone, and its address holds a random token.
    """
    from workbench.view import Pages, ViewServer

    pages = Pages(path, storage=storage)
    try:
        server = ViewServer(pages, port)
    except OSError as error:
        if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
            raise
        why = "is in use" if error.errno == errno.EADDRINUSE else "may not be used by this account"
        raise typer.BadParameter(f"port {port} {why}; name another one, or leave --port out for a free one") from None
    with server, saying_on_ctrl_c("workbench view has ended"):
        say(f"{path} is at {server.address}")
        say("Ctrl-C stops this page; the studies and runs themselves go on")
        sys.stdout.flush()  # the address is what a script waits for
        if not no_browser and has_browser():
            threading.Thread(target=_open, args=(server.address,), daemon=True).start()
        server.serve_forever()


def has_browser() -> bool:
    """Return whether there is a screen for a browser to open on; one in the terminal would take the terminal over."""
    if sys.platform.startswith("linux"):
        return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    return True


def _open(address: str) -> None:
    with contextlib.suppress(webbrowser.Error):
        webbrowser.open(address)
