"""``workbench tune``, ``worker``, ``status`` and ``export``: a study from its question to its answer."""

from __future__ import annotations

import functools
import math
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from workbench.cli import command_start
from workbench.cli.failures import WRONG_INPUT
from workbench.cli.interrupts import saying_on_ctrl_c
from workbench.cli.output import (
    JsonOption,
    StorageOption,
    only_result_on_stdout,
    plain,
    print_json,
    print_table,
    quoted,
    say,
)
from workbench.cli.progress import Bar, progress_bar, show_study
from workbench.cli.rank_processes import run_as_ranks
from workbench.cli.waterfall import waterfall_rows
from workbench.core.headline import parts_against_total
from workbench.core.metric_scale import MetricScale
from workbench.core.rank_environment import rank_environment
from workbench.core.text import format_duration, format_interval
from workbench.core.trial_counts import best_first, outcome_of

if TYPE_CHECKING:
    from workbench.study import RayEngine, StudyResult, TuneProgress

_SHOWN_TRIALS = 10

Engine = Literal["processes", "ray"]


class ScriptFormat(StrEnum):
    """A framework for which an export is written as a script."""

    TORCH = "torch"
    TRANSFORMERS = "transformers"
    LIGHTNING = "lightning"
    MINDSPORE = "mindspore"


StudyArgument = typer.Argument(..., metavar="STUDY", help="Folder with a study.toml.")
RequireOption = typer.Option(False, "--require-confirmed", help="Export confirmed candidates only.")


def tune(
    context: typer.Context,
    study: Path = typer.Argument(
        ...,
        metavar="STUDY|TASK",
        help="Folder with a study.toml; or a task (digits-resnet, file.py:task), which gets one.",
    ),
    minutes: float = typer.Option(None, metavar="M", min=0.1, help="Time for the whole command; 15 for a task."),
    steps: int = typer.Option(None, metavar="N", min=1, help="For a task: how many batches it is trained for today."),
    epochs: float = typer.Option(None, metavar="N", min=0.01, help="For a task: the same, in passes over its data."),
    allowed_drop: str = typer.Option(
        None, metavar="DROP", help='For a task: how much its metric may lose, in its unit or as a share ("2 %").'
    ),
    trials: int = typer.Option(None, metavar="N", min=1, help="Trials of the whole study, finished ones included."),
    timeout: float = typer.Option(None, metavar="SECONDS", min=1, help="Time for the whole command."),
    jobs: int = typer.Option(
        None,
        metavar="N",
        min=1,
        help="Processes that train at once (as many as have idle cores, where the time is limited; else 1); with Ray "
        "trials at once (as many as fit).",
    ),
    engine: Engine = typer.Option(
        "processes", "--engine", help="Who runs the trials: processes of this machine, or a Ray cluster."
    ),
    address: str = typer.Option(
        None,
        metavar="auto|HOST:PORT",
        help="With --engine ray: the cluster; else one Ray finds, or this machine alone.",
    ),
    resources_per_trial: str = typer.Option(
        None, metavar="NAME=AMOUNT,...", help='With --engine ray: what a process of a trial needs ("CPU=2, GPU=0.5").'
    ),
    storage: str = StorageOption,
    warm_start: list[Path] = typer.Option(
        None,
        metavar="PATH",
        help="Earlier study or boost_config.json whose best set-ups are tried first; may be repeated.",
    ),
    fresh: bool = typer.Option(False, "--fresh", help="Archive what is there and start over."),
    new_baseline: bool = typer.Option(
        False, "--new-baseline", help="For a task that changed: archive what is there, try its best trials again first."
    ),
    confirm_seeds: int = typer.Option(
        None, metavar="N", min=2, help="Paired seeds of the confirmation, those that are trained already included."
    ),
    require_confirmed: bool = RequireOption,
    json: bool = JsonOption,
) -> None:
    """Find the fastest way to train a task, or run a study: search, confirm, export boost_config.json, write a report.

    A study that has begun is continued.
    With `ranks` above 1 in study.toml it starts that many processes, which train each trial together.
    """
    began = command_start.began()
    from workbench.study.ask.study_file import read_study

    ray = _ray_engine(engine, address, resources_per_trial, jobs)
    if minutes is not None and timeout is not None:
        raise typer.BadParameter("--minutes and --timeout mean the same thing; give only one of them")
    timeout = timeout if minutes is None else 60.0 * minutes
    is_task = not (study.is_dir() or study.suffix == ".toml")
    section = None if is_task else read_study(study).study
    ranks = 1 if section is None else section.ranks
    if ranks > 1 and ray is None and rank_environment() is None:
        raise typer.Exit(run_as_ranks(ranks, context.obj))
    with (
        only_result_on_stdout(json),
        progress_bar(1, "loading the study") as bar,
        saying_on_ctrl_c(
            f"interrupted; everything finished is saved, `workbench tune {quoted(study)}{_as_given(context, storage)}` "
            "continues"
        ),
    ):
        loaded = threading.Event()
        if ray is None and section is not None and ranks == 1:
            _exit_when_time_is_up(section.timeout_seconds if timeout is None else timeout, began, loaded)
        from workbench import api

        try:
            result = api.tune(
                str(study) if is_task else study,
                steps=steps,
                epochs=epochs,
                allowed_drop=_parse_allowed_drop(allowed_drop),
                on_note=bar.say,
                trials=trials,
                timeout=timeout,
                fresh=fresh,
                new_baseline=new_baseline,
                confirm_seeds=confirm_seeds,
                require_confirmed=require_confirmed,
                jobs=jobs,
                ray=ray,
                storage=storage,
                warm_start=warm_start or (),
                on_progress=_show_on(bar, loaded),
                began=began,
            )
        finally:
            loaded.set()
    _print_result(result, json=json)


def worker(
    context: typer.Context,
    study: Path = typer.Argument(..., metavar="STUDY", help="Folder with a study.toml, the same on every machine."),
    storage: str = typer.Option(
        None,
        metavar="URL",
        envvar="WORKBENCH_STORAGE",
        help="Database of the study, such as postgresql+psycopg://user@host/name; by default SQLite in its folder. "
        "A password in the environment, or in libpq's PGPASSFILE, stays out of the list of processes.",
    ),
    trials: int = typer.Option(None, metavar="N", min=1, help="Trials of the whole study, of all workers together."),
    timeout: float = typer.Option(None, metavar="SECONDS", min=1, help="Time for this worker; its trial is put back."),
    grace: float = typer.Option(
        None,
        metavar="SECONDS",
        min=0.1,
        help="Silence (180, or WORKBENCH_GRACE_SECONDS) after which others take over its trial.",
    ),
    json: bool = JsonOption,
) -> None:
    """Run trials of a study that is shared through a database, until it has enough; start as many as you like."""
    with (
        only_result_on_stdout(json),
        progress_bar(1, "joining the study") as bar,
        saying_on_ctrl_c("interrupted; the trial that was running is put back, and any worker runs it again"),
    ):
        from workbench.study import join_study

        show = functools.partial(show_study, bar)
        result = join_study(study, storage, trials=trials, timeout=timeout, grace_seconds=grace, on_progress=show)
    if json:
        print_json(result)
        return
    finished = f"{result.finished} of {result.n_trials} trials finished"
    say(f"{result.name}: {finished}, {result.finished_here} by this worker in {format_duration(result.seconds)}")
    with_storage = _as_given(context, result.storage)
    if result.complete:
        asked = f" --trials {trials}" if trials else ""
        say(f"next: workbench tune {quoted(study)}{with_storage}{asked} confirms the best and exports")
    else:
        say(f"next: workbench worker {quoted(study)}{with_storage} continues")


def _as_given(context: typer.Context, storage: str | None) -> str:
    """Return ``--storage`` for the next command if it was given here; a URL in the environment still applies."""
    source = context.get_parameter_source("storage")
    if storage is None or source is None or source.name != "COMMANDLINE":
        return ""
    from workbench.core.credentials import hide_passwords

    return f" --storage {quoted(hide_passwords(storage))}"


def _parse_allowed_drop(text: str | None) -> float | str | None:
    """Return an allowed drop as in a study's file: a number, or a share."""
    if text is None or text.strip().endswith("%"):
        return text
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f'--allowed-drop must be a number or a share such as "2 %", got {text!r}') from None


def status(
    context: typer.Context, study: Path = StudyArgument, storage: str = StorageOption, json: bool = JsonOption
) -> None:
    """Show how far a study has got, its best trials and its verdicts."""
    from workbench.study.store.status_file import read_status

    known = read_status(study) if storage is None else None
    if known is None:  # no status file, or one out of date: read the database
        from workbench.study import read_result

        result = read_result(study, storage=storage)
    else:
        result = known.result
    at_work = known if known is not None and known.process is not None else None
    if json:
        about = at_work and {"process": at_work.process, "phase": at_work.phase, "age_seconds": at_work.age_seconds}
        print_json({**_as_json(result), "at_work": about})
        return
    counts = result.counts
    say(f"{result.name}: {result.progress}, objective {result.objective}")
    if counts.n_finished or counts.others:
        say(f"  {counts.text()}")
    if at_work is not None:
        ago = format_duration(at_work.age_seconds)
        say(f"  process {at_work.process} is working on it ({at_work.phase}); this is what it wrote {ago} ago")
    best = sorted(result.ended, key=best_first)[:_SHOWN_TRIALS]
    if len(best) < counts.n_finished:
        say(f"  the best {len(best)} of {counts.n_finished} ({result.drop_of_trials}):")
    rows = []
    for trial in best:
        speed = f"{1 / trial.relative_step_time:.2f} x" if math.isfinite(trial.relative_step_time) else "-"
        came_to = outcome_of(trial, result.allowed_drops)
        rows.append((trial.number, came_to, speed, trial.metric, trial.metric_deficit, trial.summary))
    print_table(("trial", "came to", f"speed {result.per_trial}", result.metric_name, "drop", "in effect"), rows)
    for trial in result.trials:
        if trial.state == "failed" and trial.message:
            say(f"trial {trial.number} failed: {trial.message}")
    for sentence in result.left_out:
        if sentence not in result.messages:
            say(sentence)
    _print_answer(result)
    _print_files(result, "exported")
    if not result.exported or "waiting" in counts.others:
        say(f"next: workbench tune {quoted(study)}{_as_given(context, storage)}")


def export(
    study: Path = StudyArgument,
    out: Path = typer.Option(None, metavar="DIR", help="Folder for the files; without it the study's result folder."),
    formats: list[ScriptFormat] = typer.Option(
        None, "--as", help="Also write a script for this framework; may be repeated."
    ),
    trials: Path = typer.Option(
        None,
        "--trials",
        metavar="FILE",
        help="Write a table of all trials, FILE.parquet or FILE.csv, and nothing else.",
    ),
    require_confirmed: bool = RequireOption,
    storage: str = StorageOption,
    json: bool = JsonOption,
) -> None:
    """Write a study's boost_config.json files and report again, or a table of its trials; nothing is trained.

    With --as each configuration is written as a file of another framework's own, too.
    """
    if trials is not None:
        if out is not None or require_confirmed or formats:
            raise typer.BadParameter("--trials writes the table alone; leave out --out, --as and --require-confirmed")
        _export_trials(study, trials, storage, json=json)
        return
    with only_result_on_stdout(json):
        from workbench import api

        asked = [str(one) for one in formats or ()]
        result = api.export(study, out, formats=asked, require_confirmed=require_confirmed, storage=storage)
    _print_result(result, json=json)


def _export_trials(study: Path, path: Path, storage: str | None, *, json: bool) -> None:
    from workbench.study import trial_table, write_trial_table
    from workbench.study.answer.trial_table import check_table_path

    check_table_path(path)  # before a database is read
    table = trial_table(study, storage=storage)
    write_trial_table(table, path)
    if json:
        print_json({"trials": path, "rows": len(table), "columns": list(table.columns)})
    else:
        say(f"wrote {path} ({len(table)} trial{'' if len(table) == 1 else 's'}, {len(table.columns)} columns)")


def _ray_engine(engine: Engine, address: str | None, resources: str | None, jobs: int | None) -> RayEngine | None:
    if engine != "ray":
        for name, given in (("--address", address), ("--resources-per-trial", resources)):
            if given is not None:
                raise typer.BadParameter(f"{name} goes with --engine ray")
        return None
    from workbench.study.run.ray_engine import RayEngine
    from workbench.study.run.ray_resources import parse_resources

    asked = "CPU=1" if resources is None else resources
    parse_resources(asked)  # before anything is begun
    return RayEngine(asked, address, jobs)


def _print_result(result: StudyResult, *, json: bool) -> None:
    if json:
        print_json(_as_json(result))
        return
    _print_answer(result)
    _print_files(result, "wrote")
    if math.isfinite(result.seconds):
        say(f"took {format_duration(result.seconds)}")


def _as_json(result: StudyResult) -> dict[str, Any]:
    """Return a study's answer as plain values; scripts only if they were written, without their text."""
    written = [one for one in result.scripts if one.path is not None]
    scripts = [{name: value for name, value in plain(one).items() if name != "text"} for one in written]
    return {**plain(replace(result, scripts=())), "exports": result.exports, "scripts": scripts}


def _print_files(result: StudyResult, verb: str) -> None:
    for target, path in result.exported.items():
        say(f"{verb} {path} ({target}: {result.chosen.get(target, 'O0')})")
    for script in result.scripts:
        if script.path is not None:
            say(f"{verb} {script.path} ({script.target}, {script.framework}): {script.needs}")
            if script.carried:
                say(f"  {script.framework} carries {', '.join(script.carried)}")
            for reason in dict.fromkeys(script.left.values()):
                left = ", ".join(path for path, why in script.left.items() if why == reason)
                say(f"  not {left}: {reason}")
    if result.report is not None:
        say(f"{verb} {result.report}")


def _print_answer(result: StudyResult) -> None:
    if result.doubt:
        say(result.doubt)
    for target, sentence in result.headlines.items():
        say(f"{target}: {sentence}")
    _print_candidates(result)
    for target, parts in result.attribution.items():
        if parts:
            taken = result.choices[target].candidate if target in result.choices else None
            say(f"where the gain of {target} comes from, 1 x being the task as given:")
            print_table(("", "factor", "95 %", "part"), waterfall_rows(parts, taken))
            unlike = parts_against_total(parts, taken)
            if unlike:
                say(unlike)
    for remark in result.remarks:
        say(remark)


def _print_candidates(result: StudyResult) -> None:
    if not result.candidates:
        return
    changed = MetricScale.of(result).change_text
    rows: list[tuple[Any, ...]] = []
    for c in result.candidates:
        bound = "95 % bound unknown"
        if math.isfinite(c.drop_bound):
            bound = f"at {'most' if c.drop_bound > 0 else 'least'} {changed(c.drop_bound)} (95 % bound)"
        exported = "exported, " if result.chosen.get(c.target) == c.label else ""
        told = f"{exported}{c.n_seeds} seed{'' if c.n_seeds == 1 else 's'}, {bound}: {c.summary}"
        speed = format_interval(c.speedup, c.speedup_low, c.speedup_high, " x")
        rows.append((c.target, c.label, speed, changed(c.drop), str(c.verdict), told))
    for target, (tuned, tuned_speed) in result.fair_baselines.items():
        shown = format_interval(tuned_speed, None, None, " x")
        rows.append((target, "tuned plain", shown, changed(tuned.drop), "reference", tuned.summary))
    print_table(("for", "candidate", f"speed {result.per}", result.metric_name, "verdict", "in effect"), rows)


def _exit_when_time_is_up(limit: float | None, began: float, loaded: threading.Event) -> None:
    """End the command if its time is over before there is a study that could end itself; nothing is lost then."""
    if limit is None:
        return

    def watch() -> None:
        if not loaded.wait(max(began + limit - time.monotonic(), 0.0)):
            reason = f"the time limit of {limit:g} s was over before the task was loaded; give the command more time"
            typer.echo(f"workbench: {reason}", err=True)
            os._exit(WRONG_INPUT)  # an exception would have to find its way through whatever is being imported

    threading.Thread(target=watch, name="time limit while loading", daemon=True).start()


def _show_on(bar: Bar, loaded: threading.Event) -> Callable[[TuneProgress], None]:
    said = ""

    def show(progress: TuneProgress) -> None:
        nonlocal said
        loaded.set()
        if progress.note and progress.note != said:
            said = progress.note
            bar.say(said)
        show_study(bar, progress)

    return show
