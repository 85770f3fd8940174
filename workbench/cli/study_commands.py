"""``workbench tune``, ``status`` and ``export``: a study from its question to its answer."""

from __future__ import annotations

import math
import os
import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from workbench.cli import command_start
from workbench.cli.failures import WRONG_INPUT
from workbench.cli.interrupts import saying_on_ctrl_c
from workbench.cli.output import (
    JsonOption,
    only_result_on_stdout,
    plain,
    print_json,
    print_table,
    quoted,
    say,
)
from workbench.cli.progress import Bar, clock, progress_bar
from workbench.cli.rank_processes import run_as_ranks
from workbench.core.rank_environment import rank_environment

if TYPE_CHECKING:
    from workbench.core.records import TrialRecord
    from workbench.study import RayEngine, StudyResult, TuneProgress

__all__ = ["register"]

_SHOWN_TRIALS = 10


class Engine(StrEnum):
    """Who runs the trials of a study."""

    PROCESSES = "processes"
    RAY = "ray"


StudyArgument = typer.Argument(..., metavar="STUDY", help="Folder with a study.toml.")
StorageOption = typer.Option(
    None, metavar="URL", envvar="WORKBENCH_STORAGE", help="Optuna storage URL; without it SQLite beside the study."
)
EngineOption = typer.Option(
    Engine.PROCESSES, "--engine", help="Who runs the trials: processes of this machine, or a Ray cluster."
)
OutOption = typer.Option(None, metavar="DIR", help="Folder for the files; without it the study's result folder.")
TrialsOption = typer.Option(
    None, "--trials", metavar="FILE", help="Write a table of all trials, FILE.parquet or FILE.csv, and nothing else."
)
WarmStartOption = typer.Option(
    None,
    "--warm-start",
    metavar="PATH",
    help="Earlier study or boost_config.json whose best plans are tried first; may be given again.",
)
RequireOption = typer.Option(False, "--require-confirmed", help="Export confirmed candidates only.")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(tune)
    app.command()(status)
    app.command()(export)


def tune(
    context: typer.Context,
    study: Path = StudyArgument,
    trials: int = typer.Option(
        None, metavar="N", min=1, help="Trials of the whole study, those already finished included."
    ),
    timeout: float = typer.Option(None, metavar="SECONDS", min=1, help="Time for the whole command."),
    jobs: int = typer.Option(
        None,
        metavar="N",
        min=1,
        help="Processes that search at the same time (1), or trials at a time (with Ray as many as there is room for).",
    ),
    engine: Engine = EngineOption,
    address: str = typer.Option(
        None,
        metavar="auto|HOST:PORT",
        help="With --engine ray: the cluster; without it the one Ray finds, or else this machine alone.",
    ),
    resources_per_trial: str = typer.Option(
        None,
        metavar="NAME=AMOUNT,...",
        help='With --engine ray: what each process of a trial needs, such as "GPU=1", "CPU=2, GPU=0.5", "NPU=1".',
    ),
    storage: str = StorageOption,
    warm_start: list[Path] = WarmStartOption,
    fresh: bool = typer.Option(False, "--fresh", help="Archive what is there and begin anew."),
    confirm_seeds: int = typer.Option(None, metavar="N", min=2, help="Paired seeds of the confirmation."),
    require_confirmed: bool = RequireOption,
    json: bool = JsonOption,
) -> None:
    """Run a study, or continue it: search, confirm, export boost_config.json, write the report.

    With `ranks` above 1 in study.toml it starts so many processes, which train each trial together.
    """
    began = command_start.began()
    from workbench.study.ask.study_file import read_study

    ray = _ray_engine(engine, address, resources_per_trial, jobs)
    section = read_study(study).study
    ranks = section.ranks
    if ranks > 1 and ray is None and rank_environment() is None:
        raise typer.Exit(run_as_ranks(ranks, context.obj))
    with (
        only_result_on_stdout(json),
        progress_bar(1, "loading the study") as bar,
        saying_on_ctrl_c(f"interrupted; everything finished is saved, `workbench tune {quoted(study)}` continues"),
    ):
        loaded = threading.Event()
        if ray is None and ranks == 1:
            _end_while_loading(section.timeout_seconds if timeout is None else timeout, began, loaded)
        from workbench import api

        try:
            result = api.tune(
                study,
                trials=trials,
                timeout=timeout,
                fresh=fresh,
                confirm_seeds=confirm_seeds,
                require_confirmed=require_confirmed,
                jobs=jobs or 1,
                ray=ray,
                storage=storage,
                warm_start=warm_start or (),
                on_progress=_show_on(bar, loaded),
                began=began,
            )
        finally:
            loaded.set()
    _print_result(result, json=json)


def status(study: Path = StudyArgument, storage: str = StorageOption, json: bool = JsonOption) -> None:
    """Say how far a study is, its best trials and its verdicts."""
    from workbench.study import read_result

    result = read_result(study, storage=storage)
    if json:
        _print_json(result)
        return
    say(f"{result.name}: {len(result.ended)} of {result.n_trials} trials finished, objective {result.objective}")
    states = [t.state for t in result.trials]
    for state in ("running", "failed", "waiting"):
        if states.count(state):
            say(f"  {states.count(state)} {state}")
    best = sorted(result.trials, key=_by_value)[:_SHOWN_TRIALS]
    if len(best) < len(result.trials):
        say(f"  the lowest {len(best)} scores of {len(result.trials)}, one run each:")
    print_table(
        ("trial", "state", "speed per step", result.metric_name, "drop", "feasible", "in effect"),
        [_trial_row(t) for t in best],
    )
    for trial in result.trials:
        if trial.state == "failed" and trial.message:
            say(f"trial {trial.number} failed: {trial.message}")
    _print_candidates(result)
    for message in result.messages:
        say(message)
    _print_files(result, "exported")
    if not result.exported or "waiting" in states:
        say(f"next: workbench tune {quoted(study)}")


def export(
    study: Path = StudyArgument,
    out: Path = OutOption,
    trials: Path = TrialsOption,
    require_confirmed: bool = RequireOption,
    storage: str = StorageOption,
    json: bool = JsonOption,
) -> None:
    """Write a study's boost_config.json files and report again, or a table of its trials; nothing is trained."""
    if trials is not None:
        if out is not None or require_confirmed:
            raise typer.BadParameter("--trials writes the table alone; leave out --out and --require-confirmed")
        _export_trials(study, trials, storage, json=json)
        return
    with only_result_on_stdout(json):
        from workbench import api

        result = api.export(study, out, require_confirmed=require_confirmed, storage=storage)
    _print_result(result, json=json)


def _export_trials(study: Path, path: Path, storage: str | None, *, json: bool) -> None:
    from workbench.study import trial_table, write_trial_table
    from workbench.study.answer.trial_table import check_table_path

    check_table_path(path)  # before a database is asked for anything
    table = trial_table(study, storage=storage)
    write_trial_table(table, path)
    if json:
        print_json({"trials": path, "rows": len(table), "columns": list(table.columns)})
    else:
        say(f"wrote {path} ({len(table)} trial{'' if len(table) == 1 else 's'}, {len(table.columns)} columns)")


def _ray_engine(engine: Engine, address: str | None, resources: str | None, jobs: int | None) -> RayEngine | None:
    if engine is not Engine.RAY:
        for name, given in (("--address", address), ("--resources-per-trial", resources)):
            if given is not None:
                raise typer.BadParameter(f"{name} goes with --engine ray")
        return None
    from workbench.study.run.ray_engine import RayEngine
    from workbench.study.run.ray_resources import parse_resources

    asked = "CPU=1" if resources is None else resources
    parse_resources(asked)  # before anything is begun
    return RayEngine(asked, address, jobs)


def _print_json(result: StudyResult) -> None:
    print_json({**plain(result), "exports": result.exports})


def _print_result(result: StudyResult, *, json: bool) -> None:
    if json:
        _print_json(result)
        return
    _print_candidates(result)
    for message in result.messages:
        say(message)
    _print_files(result, "wrote")
    if math.isfinite(result.seconds):
        say(f"took {clock(result.seconds)}")


def _print_files(result: StudyResult, verb: str) -> None:
    for target, path in result.exported.items():
        say(f"{verb} {path} ({target}: {result.chosen.get(target, 'O0')})")
    if result.report is not None:
        say(f"{verb} {result.report}")


def _print_candidates(result: StudyResult) -> None:
    if not result.candidates:
        return
    rows = [
        (
            c.target,
            c.label,
            f"{c.speedup:.2f} x ({c.speedup_low:.2f} to {c.speedup_high:.2f})",
            f"{c.drop:.4g}",
            f"{c.drop_bound:.4g}",
            c.n_seeds,
            str(c.verdict),
            "yes" if result.chosen.get(c.target) == c.label else "",
            c.summary,
        )
        for c in result.candidates
    ]
    columns = (
        "for",
        "candidate",
        f"speed {result.per} (95 %)",
        "drop",
        "bound",
        "seeds",
        "verdict",
        "exported",
        "in effect",
    )
    print_table(columns, rows)


def _trial_row(trial: TrialRecord) -> tuple[Any, ...]:
    speed = f"{1 / trial.relative_step_time:.2f} x" if math.isfinite(trial.relative_step_time) else "-"
    feasible = "yes" if trial.feasible else "no"
    return trial.number, trial.state, speed, trial.metric, trial.metric_deficit, feasible, trial.summary


def _by_value(trial: TrialRecord) -> tuple[bool, bool, float]:
    return not trial.feasible, math.isnan(trial.value), trial.value if math.isfinite(trial.value) else math.inf


def _end_while_loading(limit: float | None, began: float, loaded: threading.Event) -> None:
    """End the command when its time is over before there is a study that could end itself; nothing is lost then."""
    if limit is None:
        return

    def watch() -> None:
        if not loaded.wait(max(began + limit - time.monotonic(), 0.0)):
            told = f"the time limit of {limit:g} s is over before the task was loaded; give the command more time"
            typer.echo(f"workbench: {told}", err=True)
            os._exit(WRONG_INPUT)  # an exception would have to find its way through whatever is being imported

    threading.Thread(target=watch, name="time limit while loading", daemon=True).start()


def _show_on(bar: Bar, loaded: threading.Event) -> Any:
    told = ""

    def show(progress: TuneProgress) -> None:
        nonlocal told
        loaded.set()
        leads = f"leading {progress.best}" if progress.best else ""
        if progress.note and progress.note != told:
            told = progress.note
            bar.say(told)
        bar.update(progress.done, progress.total, progress.phase, leads, progress.eta_seconds)

    return show
