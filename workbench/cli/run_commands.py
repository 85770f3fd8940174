"""``workbench train``, ``compare``, ``replay`` and ``runs``: one run, runs side by side, runs seen again."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from workbench.cli.command_group import PLAIN, CommandGroup
from workbench.cli.failures import Interrupted
from workbench.cli.interrupts import saying_on_ctrl_c, stop_on_ctrl_c
from workbench.cli.output import DeviceOption, JsonOption, only_result_on_stdout, print_json, print_table, quoted, say
from workbench.cli.progress import progress_bar
from workbench.core.rank_environment import is_first_rank, rank_environment

if TYPE_CHECKING:
    from workbench.tasks import Task
    from workbench.training.run import RunProgress, RunResult

WATCHED_SECONDS = 3.0

TaskOption = typer.Option(
    ..., "--task", metavar="TASK", help="Built-in task, package.module:attribute or path/to/file.py:attribute."
)
RunsArgument = typer.Argument(Path("runs"), metavar="[FOLDER]", help="Folder of run directories, or of studies.")

runs_app = typer.Typer(help="List and tidy recorded runs.", no_args_is_help=True, cls=CommandGroup, **PLAIN)


def train(
    task: str = TaskOption,
    level: str = typer.Option(
        None, metavar="LEVEL", help="Boost level O0, O1 or O2. Default: O0, or O1 with --config.", show_default=False
    ),
    config: Path = typer.Option(None, metavar="FILE", help="A boost_config.json."),
    steps: int = typer.Option(
        None, metavar="N", min=1, help="Batches to train on. Default: as the task says, else 300."
    ),
    epochs: float = typer.Option(None, metavar="N", min=0.01, help="The same in passes over the data."),
    seed: int = typer.Option(0, metavar="N", min=0, help="Seed of weights, data order and split."),
    device: str = DeviceOption,
    out: Path = typer.Option(Path("runs"), metavar="DIR", help="Folder in which the run directory is made."),
    evaluate_every: int = typer.Option(
        None, metavar="N", min=1, help="Batches between evaluations. Default: a tenth of the run."
    ),
    checkpoint_every: int = typer.Option(
        None, metavar="N", min=1, help="Batches between checkpoints, from which --resume continues."
    ),
    resume: Path = typer.Option(
        None,
        metavar="RUN",
        help="Continue an interrupted run, or the newest unfinished one of a folder if there is one.",
    ),
    mirror: list[str] = typer.Option(
        None, metavar="WHERE", help="Send the run to tensorboard[=DIR] or mlflow[=URI] as it runs; may be repeated."
    ),
    json: bool = JsonOption,
) -> None:
    """Train a task once, record every step, and say how it went.

    With `torchrun --nproc-per-node N -m workbench train ...` N processes train it together and write one run.
    """
    if steps is not None and epochs is not None:
        raise typer.BadParameter("--steps and --epochs say the same; give one of them")
    with only_result_on_stdout(json), progress_bar(steps or 1, f"loading {task}") as bar, stop_on_ctrl_c() as stop:
        from workbench import api

        trained, steps = (task, steps) if steps is not None else _task_and_steps(task, epochs)
        about_other_work = _about_other_work(device)

        def show(progress: RunProgress) -> None:
            bar.update(progress.step, progress.steps, text=task, note=_note(progress))
            if sentence := next(about_other_work, ""):
                bar.say(sentence)

        if resume is not None and not resume.exists() and is_first_rank():
            typer.echo(f"{resume} is not there, so nothing is resumed: a new run begins in it", err=True)
        result = api.train(
            trained,
            config,
            level=level,
            steps=steps,
            seed=seed,
            device=device,
            out=out,
            evaluate_every=evaluate_every or max(1, steps // 10),
            on_progress=show,
            stop=stop,
            mirrors=mirror or (),
            checkpoint_every=checkpoint_every,
            resume=resume,
        )
    if json:
        fields = {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "plan"}
        print_json({**fields, "in_effect": result.plan.summary()})
    else:
        _print_run(result)
    if result.stopped:
        again = "the same command trains from the start again"
        if checkpoint_every is not None or resume is not None:
            again = f"the same command with --resume {result.path} continues from there"
        raise Interrupted(f"interrupted; the {result.steps} steps so far are recorded in {result.path}, and {again}")
    if result.diverged:
        if is_first_rank():
            advice = "; a lower learning rate may help" if "diverged" in result.message else ""
            if advice and "nan" in result.message:
                advice += ", unless the loss of that batch is not defined, as where none of its labels counts"
            typer.echo(f"workbench: the run ended after {result.steps} steps: {result.message}{advice}", err=True)
        raise typer.Exit(1)


def _task_and_steps(name: str, epochs: float | None) -> tuple[Task, int]:
    """Return a task and on how many batches it is trained: in so many passes, or else as it says itself."""
    from workbench.tasks import load_task
    from workbench.training.task_look import batches_of_epochs, usual_batches

    task = load_task(name)
    return task, usual_batches(task) if epochs is None else batches_of_epochs(task, epochs)


def compare(
    configs: list[Path] = typer.Argument(
        ..., metavar="FILE...", help="Configurations; the first is the base. One alone is compared with O0."
    ),
    task: str = TaskOption,
    seeds: int = typer.Option(5, metavar="N", min=1, help="Paired seeds."),
    steps: int = typer.Option(None, metavar="N", min=1, help="Batches per run. Default: as the task says, else 300."),
    device: str = DeviceOption,
    out: Path = typer.Option(None, metavar="DIR", help="Folder for runs; without it nothing is recorded."),
    json: bool = JsonOption,
) -> None:
    """Compare configurations on a task: metric and time of whole runs paired over seeds, steps timed in turn."""
    kept = f"the runs so far are recorded in {out}" if out is not None else "nothing was recorded, as --out asks for"
    n_sides = len(configs) + (len(configs) == 1)
    with (
        only_result_on_stdout(json),
        progress_bar(1, f"loading {task}") as bar,
        saying_on_ctrl_c(f"interrupted; {kept}, and the same command compares from the start again"),
    ):
        from workbench import api

        compared, steps = (task, steps) if steps is not None else _task_and_steps(task, None)
        labels: list[str] = []  # of the runs begun so far

        def show(label: str, progress: RunProgress) -> None:
            if label not in labels[-1:]:
                labels.append(label)
            done = (len(labels) - 1) * steps + progress.step
            bar.update(done, seeds * n_sides * steps, text=label, note=_note(progress))

        comparison = api.compare(
            compared, list(configs), seeds=range(seeds), steps=steps, device=device, out=out, on_progress=show
        )
    if json:
        print_json(comparison)
        return
    rows = []
    for side in comparison.sides:
        finite = [m for m in side.metrics if math.isfinite(m)]
        mean = sum(finite) / len(finite) if finite else math.nan
        known = side.run_speed if side.drop is not None and side.drop.n_pairs else None
        speed = "1 x" if side.run_speed is None else "-" if known is None else f"{known.ratio:.2f} x"
        drop, bound = (side.drop.mean, side.drop.upper) if side.drop is not None else (math.nan, math.nan)
        rows.append((side.label, speed, mean, drop, bound, side.summary))
    print_table(("configuration", "speed per run", comparison.metric, "drop", "bound (95 %)", "in effect"), rows)
    for sentence in comparison.sentences():
        say(sentence)
    if all(not math.isfinite(metric) for side in comparison.sides for metric in side.metrics):
        raise typer.Exit(1)


def replay(
    run: Path = typer.Argument(..., metavar="RUN", help="A run directory."),
    init: list[float] = typer.Option(
        None, metavar="X", help="Initial scale; may be repeated. Default: 2^8, 2^10, ..., 2^24."
    ),
    factor: list[float] = typer.Option(None, metavar="X", help="Factor, greater than 1; may be repeated. Default: 2."),
    window: list[int] = typer.Option(
        None, metavar="N", help="Growth window, updates; may be repeated. Default: 100 and 1000."
    ),
    minimum: float = typer.Option(1.0, metavar="X", help="Floor of the scale."),
    json: bool = JsonOption,
) -> None:
    """Say, without training, what other loss-scale policies would have done to a recorded run."""
    from workbench import api

    result = api.replay(run, init=init or None, factor=factor or None, window=window or None, minimum=minimum)
    policies = result.table.to_dict("records")
    if json:
        facts = {name: getattr(result, name) for name in ("windows", "recorded_overflows", "assumption")}
        print_json({"run": run, **facts, "error_log2": result.thresholds.error_log2, "policies": policies})
        return
    rows = [
        (
            f"{row['init']:g}",
            f"{row['factor']:g}",
            row["window"],
            f"{row['overflows']} ({row['overflows_low']} to {row['overflows_high']})",
            f"{100 * row['wasted_share']:.2f} %",
            "-" if math.isnan(row["underflow_share"]) else f"{100 * row['underflow_share']:.3f} %",
            f"{row['final_scale']:g}",
        )
        for row in policies
    ]
    say(f"{run}: {result.windows} updates recorded, {result.recorded_overflows} of them overflowed")
    print_table(("init", "factor", "window", "overflows (range)", "wasted", "underflow", "final scale"), rows)
    say(result.assumption)
    if not result.thresholds.calibrated:
        say("The run never overflowed, so the point at which gradients overflow is estimated, not calibrated.")


@runs_app.command("list")
def list_recorded(root: Path = RunsArgument, json: bool = JsonOption) -> None:
    """List the runs of a folder, the newest first."""
    from workbench.runs import run_overviews

    found = run_overviews(root)
    if json:
        print_json({"runs": found})
        return
    if not found:
        say(f"no runs in {root}")
        return
    rows = [
        (
            run["run"],
            f"{run['started']:%Y-%m-%d %H:%M}",
            run["task"],
            run["level"],
            run["steps"],
            run["final_metric"],
            run["overflows"],
            f"{run['size_bytes'] / 1024:.0f} KiB",
            "yes" if run["finished"] else "no",
        )
        for run in found
    ]
    print_table(("run", "started (UTC)", "task", "level", "steps", "metric", "overflows", "size", "finished"), rows)


@runs_app.command("prune")
def prune_recorded(
    root: Path = RunsArgument,
    keep: int = typer.Option(None, metavar="N", min=0, help="Keep this many of the newest."),
    older_than_days: float = typer.Option(None, metavar="DAYS", min=0, help="Remove only those unchanged for so long."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be removed."),
    json: bool = JsonOption,
) -> None:
    """Remove old runs; runs that are still being written are left alone."""
    from workbench.runs import prune_runs

    if keep is None and older_than_days is None:
        raise typer.BadParameter("say what may go: --keep N, --older-than-days DAYS, or both")
    removed = prune_runs(root, keep=keep, older_than_days=older_than_days, dry_run=dry_run)
    if json:
        print_json({"removed": removed, "dry_run": dry_run})
        return
    for path in removed:
        say(f"{'would remove' if dry_run else 'removed'} {path}")
    say(f"{len(removed)} run{'s' if len(removed) != 1 else ''} {'would be ' if dry_run else ''}removed")


@runs_app.command("mirror")
def mirror_recorded(
    path: Path = typer.Argument(..., metavar="RUN", help="A run directory, or a folder of them."),
    to: list[str] = typer.Option(
        ..., "--to", metavar="WHERE", help="tensorboard[=DIR] or mlflow[=URI]; may be repeated."
    ),
    json: bool = JsonOption,
) -> None:
    """Send recorded runs to TensorBoard or MLflow; runs that are already there in full are skipped."""
    from workbench.runs.mirrors import mirror_runs, mirrors_named

    sent = mirror_runs(path, mirrors_named(to))
    if json:
        print_json({"runs": [{"run": run, "sent_to": places} for run, places in sent.items()]})
        return
    for run, places in sent.items():
        say(f"{run}: {'sent to ' + ', '.join(places) if places else 'was there already'}")


def _about_other_work(device: str) -> Iterator[str]:
    """Yield nothing for some seconds, and then once a sentence if other work slows a training on the CPU."""
    from workbench.core import devices
    from workbench.core.other_work import OtherWork

    if rank_environment() is not None or devices.select_device(device).type != "cpu":  # other ranks would count
        return
    other, began = OtherWork(), time.monotonic()
    while time.monotonic() - began < WATCHED_SECONDS:
        yield ""
    if sentence := other.sentence(devices.threads_in_use()):
        yield f"{sentence}."


def _print_run(result: RunResult) -> None:
    say(f"in effect: {result.plan.summary()}")
    for dropped in result.plan.dropped:
        say(f"  not in effect: {dropped.reason}")
    for note in result.notes:
        say(f"  {note}")
    speed = result.seconds / max(result.steps, 1) * 1e3
    if math.isfinite(result.metric):
        say(f"{result.metric_name} {result.metric:.5g} after {result.steps} steps, {speed:.1f} ms per step")
    if result.overflows:
        skipped = f"{result.overflows} update{'' if result.overflows == 1 else 's'} skipped"
        say(f"{skipped} because gradients overflowed; the loss scale ended at {result.final_loss_scale:g}")
    say(result.message if result.message and not (result.stopped or result.diverged) else f"recorded in {result.path}")
    if result.overflows:
        say(f"other loss-scale policies, judged on this run: workbench replay {quoted(result.path)}")


def _note(progress: RunProgress) -> str:
    parts = [f"loss {progress.loss:.4g}"] if math.isfinite(progress.loss) else []
    if math.isfinite(progress.metric):
        parts.append(f"metric {progress.metric:.4g}")
    if progress.loss_scale != 1:
        mantissa, exponent = math.frexp(progress.loss_scale)
        parts.append(f"scale 2^{exponent - 1}" if mantissa == 0.5 else f"scale {progress.loss_scale:.6g}")
    return ", ".join(parts)
