"""The command ``workbench``.

Every command imports what it needs when it runs, so that ``workbench --help`` needs neither torch nor plotly.

Exit codes: 0 done, 1 the work failed, 2 the input is wrong (one sentence on stderr), 130 interrupted (state saved).
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import typer

from workbench.cli import command_start
from workbench.cli.bench_command import bench
from workbench.cli.command_group import PLAIN, CommandGroup
from workbench.cli.failures import INTERRUPTED, Interrupted, report
from workbench.cli.interrupts import ending_like_ctrl_c
from workbench.cli.lab_command import lab
from workbench.cli.project_commands import doctor, init, schema, validate
from workbench.cli.run_commands import compare, replay, runs_app, train
from workbench.cli.study_commands import export, status, tune, worker
from workbench.cli.view_command import view
from workbench.core.rank_environment import is_first_rank
from workbench.core.text import printable

_TRACEBACK = "--traceback"

app = typer.Typer(
    name="workbench",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    cls=CommandGroup,
    **PLAIN,
)
# In the order of `workbench --help`.
for _each in (tune, status, view, export, worker, train, compare, replay, validate, schema, init, doctor, bench, lab):
    app.command()(_each)
app.add_typer(runs_app, name="runs")


def _print_version(wanted: bool) -> None:
    if wanted:
        from workbench import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def common(
    traceback: bool = typer.Option(  # main() acts on it, wherever it stands; here it is explained
        False, _TRACEBACK, help="With any command: show where an error came from (or set WORKBENCH_TRACEBACK=1)."
    ),
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
    ),
) -> None:
    """Find the fastest training set-up that keeps the accuracy you ask for."""


def _each_note_once() -> Callable[..., None]:
    """Return a function that shows warnings on stderr without their line of code, each text once per command."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any) -> None:
        where = "" if issubclass(category, UserWarning) else f" (line {lineno} of {filename})"
        note = printable(f"note: {' '.join(str(message).split())}{where}\n")
        if note not in shown and is_first_rank():
            shown.add(note)
            sys.stderr.write(note)

    return show


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and turn every failure into one sentence and an exit code, raised as SystemExit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    traceback = _TRACEBACK in given or os.environ.get("WORKBENCH_TRACEBACK", "") not in {"", "0"}
    given = [argument for argument in given if argument != _TRACEBACK]
    before, warnings.showwarning = warnings.showwarning, _each_note_once()
    command_start.end_quickly()
    try:
        command_start.require_memory()
        with ending_like_ctrl_c():
            code = app(args=given, prog_name="workbench", standalone_mode=False, obj=tuple(given))
        if code == INTERRUPTED:  # typer's word for a Ctrl-C that no command had anything to say about
            raise Interrupted("interrupted; everything finished so far is saved")
    except (Exception, KeyboardInterrupt) as error:
        command_start.end_undisturbed()
        sys.exit(report(error, traceback=traceback))
    finally:
        warnings.showwarning = before
    sys.exit(code if isinstance(code, int) else 0)
