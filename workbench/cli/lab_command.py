"""``workbench lab``: JupyterLab on the notebooks that come with the package.

The server runs in this process, so whatever ends the command ends the server and its kernels with it. Access needs the
token in the printed address. JupyterLab asks no other machine for news or newer versions.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import typer

from workbench.cli.output import say
from workbench.core.signals import handling_signals

if TYPE_CHECKING:
    from jupyter_server.serverapp import ServerApp

_FOLDER = Path("notebooks")
_SUFFIX = ".ipynb"
_ANNOUNCEMENTS = "@jupyterlab/apputils-extension:announcements"


def lab(
    name: str = typer.Argument(
        None, metavar="[NAME]", help="Notebook to open: 00_quickstart, quickstart, 00 or a path."
    ),
    no_browser: bool = typer.Option(False, "--no-browser", help="Print the address and open no browser."),
    port: int = typer.Option(8888, metavar="N", min=0, max=65535, help="Port, or the next free one; 0: any free one."),
) -> None:
    """Open JupyterLab on the notebooks; they are copied into ./notebooks first where they are missing."""
    from workbench.cli.templates import copy_templates, template_files

    path = Path(name) if name and name.endswith(_SUFFIX) and Path(name).is_file() else None
    if path is None:
        shipped = {relative for _, relative in template_files() if relative.parent == _FOLDER}
        path = notebook_named(name, sorted(shipped.union(_FOLDER.glob(f"*{_SUFFIX}")))) if name else _FOLDER
        written, _ = copy_templates(Path(), folder=str(_FOLDER))
        if written:
            say(f"wrote {len(written)} notebooks into {_FOLDER}/")
    root = Path.cwd() if path.resolve().is_relative_to(Path.cwd()) else path.resolve().parent
    opened = path.resolve().relative_to(root).as_posix()

    from jupyterlab.labapp import LabApp

    server: ServerApp = LabApp.initialize_server(argv=_server_options(root, opened, port, browser=not no_browser))
    server.web_app.settings["page_config_hook"] = _without_announcements
    if _is_root():
        say("note: JupyterLab runs as root here, so whoever has the address may do anything on this machine")
    server.io_loop.add_callback(_say_address, server)  # once it answers
    with handling_signals({signal.SIGINT: lambda *_: server.stop(from_signal=True)}):  # an exception might get lost
        server.start()
    say(f"JupyterLab has ended; what was saved is in {path if path.is_dir() else path.parent}/")


def notebook_named(name: str, notebooks: Sequence[Path]) -> Path:
    """Return the notebook that a name, a number or the words after the number mean.

    Example:
        >>> notebook_named("freezing", [Path("00_quickstart.ipynb"), Path("03_gradient_freezing.ipynb")])
        PosixPath('03_gradient_freezing.ipynb')
    """
    asked = name.removesuffix(_SUFFIX).removeprefix(f"{_FOLDER}/")
    exact = [
        path for path in notebooks if asked in {path.stem, path.stem.partition("_")[0], path.stem.partition("_")[2]}
    ]
    found = exact or [path for path in notebooks if asked and asked in path.stem]
    if len(found) == 1:
        return found[0]
    names = ", ".join(path.stem for path in found or notebooks)
    meaning = f"may mean {names}" if found else f"is none of them: {names}"
    raise ValueError(f"notebook {name!r} {meaning}; name one of these, or the path of an {_SUFFIX} file that exists")


def address_of(server: ServerApp) -> str:
    """Return the address to open in a browser, token included."""
    token = server.identity_provider.token
    address = server.connection_url.rstrip("/") + "/" + server.default_url.lstrip("/")
    return f"{address}?{urlencode({'token': token})}" if token else address


def _without_announcements(handler: object, page_config: dict[str, Any]) -> dict[str, Any]:
    page_config["disabledExtensions"] = [*page_config.get("disabledExtensions", ()), _ANNOUNCEMENTS]
    return page_config


def _say_address(server: ServerApp) -> None:
    say(f"JupyterLab is at {address_of(server)}")
    say("Ctrl-C ends it and its kernels; save the notebooks before")


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _server_options(root: Path, opened: str, port: int, *, browser: bool) -> list[str]:
    options = [
        f"--ServerApp.root_dir={root}",
        f"--LabApp.default_url=/lab/tree/{opened}",
        f"--ServerApp.port={port}",
        f"--LabApp.open_browser={browser}",
        "--ServerApp.log_level=ERROR",
        "--LabApp.log_level=ERROR",
    ]
    if not os.environ.get("JUPYTER_TOKEN"):  # our own, because JupyterLab logs one that it generates
        options.append(f"--IdentityProvider.token={secrets.token_hex(24)}")
    if _is_root():
        # Jupyter refuses root unless asked not to. A user who types this command as root (a container, a fresh virtual
        # machine) has decided it already, and access still needs the token.
        options.append("--ServerApp.allow_root=True")
    return options
