"""``workbench worker``: run trials of a study beside other machines."""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from types import FrameType
from typing import NoReturn

import typer

from workbench.cli.interrupts import saying_on_ctrl_c
from workbench.cli.output import JsonOption, only_result_on_stdout, print_json, quoted, say
from workbench.cli.progress import clock, progress_bar, show_study
from workbench.core.signals import handling_signals

StudyArgument = typer.Argument(..., metavar="STUDY", help="Folder with a study.toml, the same on every machine.")


def worker(
    context: typer.Context,
    study: Path = StudyArgument,
    storage: str = typer.Option(
        None,
        metavar="URL",
        envvar="WORKBENCH_STORAGE",
        help="Database of the study, such as postgresql+psycopg://user@host/name; without it SQLite beside the study. "
        "A password in the environment, or in libpq's PGPASSFILE, stays out of the list of processes.",
    ),
    trials: int = typer.Option(
        None, metavar="N", min=1, help="Trials of the whole study, those of all workers included."
    ),
    timeout: float = typer.Option(
        None, metavar="SECONDS", min=1, help="Time for this worker; its trial is put back then."
    ),
    grace: float = typer.Option(
        None,
        metavar="SECONDS",
        min=0.1,
        help="Silence after which others run this worker's trial again (180; or WORKBENCH_GRACE_SECONDS).",
    ),
    json: bool = JsonOption,
) -> None:
    """Run trials of a study that is shared through a database, until it has enough; start as many as you like."""
    with (
        only_result_on_stdout(json),
        progress_bar(1, "joining the study") as bar,
        saying_on_ctrl_c("interrupted; the trial that was running is put back, and any worker runs it again"),
        handling_signals({signal.SIGTERM: _interrupt}),
    ):
        from workbench.study import join_study

        show = functools.partial(show_study, bar)
        result = join_study(study, storage, trials=trials, timeout=timeout, grace_seconds=grace, on_progress=show)
    if json:
        print_json(result)
        return
    finished = f"{result.finished} of {result.n_trials} trials finished"
    say(f"{result.name}: {finished}, {result.finished_here} by this worker in {clock(result.seconds)}")
    source = context.get_parameter_source("storage")
    given = source is not None and source.name == "COMMANDLINE"  # from the environment the next command has it, too
    with_storage = f" --storage {quoted(result.storage)}" if given else ""
    if result.complete:
        asked = f" --trials {trials}" if trials else ""
        say(f"next: workbench tune {quoted(study)}{with_storage}{asked} confirms the best and exports")
    else:
        say(f"next: workbench worker {quoted(study)}{with_storage} continues")


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Take a scheduler's SIGTERM for Ctrl-C: there is time to put the trial back before SIGKILL follows."""
    raise KeyboardInterrupt
