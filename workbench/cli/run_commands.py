"""``workbench train``, ``compare``, ``replay`` and ``runs``: one run, runs side by side, runs seen again."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from workbench.cli.output import JsonOption, print_json, print_table, say
from workbench.cli.progress import progress_bar

if TYPE_CHECKING:
    from workbench.experiments.run import RunProgress

__all__ = ["register"]

DeviceOption = typer.Option("auto", help="auto, cpu, cuda or npu.")
TaskOption = typer.Option(..., "--task", help="Built-in task, package.module:attribute or path/to/file.py:attribute.")

runs_app = typer.Typer(help="List and tidy recorded runs.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(train)
    app.command()(compare)
    app.command()(replay)
    app.add_typer(runs_app, name="runs")


def train(
    task: str = TaskOption,
    level: str = typer.Option(None, help="Boost level: O0, O1 or O2 (default O0, or O1 with --config)."),
    config: Path = typer.Option(None, help="A boost_config.json."),
    steps: int = typer.Option(300, min=1, help="Micro-batches."),
    seed: int = typer.Option(0, min=0, help="Seed of weights, data order and split."),
    device: str = DeviceOption,
    out: Path = typer.Option(Path("runs"), help="Folder for the run directory."),
    evaluate_every: int = typer.Option(None, min=1, help="Micro-batches between evaluations (default: a tenth)."),
    json: bool = JsonOption,
) -> None:
    """Train a task once, record every step, and say how it went."""
    from workbench import facade

    with progress_bar(steps, task, quiet=json) as bar:

        def show(progress: RunProgress) -> None:
            bar.update(progress.step, note=_note(progress))

        result = facade.train(
            task,
            config,
            level=level,
            steps=steps,
            seed=seed,
            device=device,
            out=out,
            evaluate_every=evaluate_every or max(1, steps // 10),
            on_progress=show,
        )
    if json:
        print_json({**_without_plan(result), "in_effect": result.plan.summary()})
    else:
        say(f"in effect: {result.plan.summary()}")
        for dropped in result.plan.dropped:
            say(f"  not in effect: {dropped.reason}")
        if result.diverged:
            say(f"the run ended early: {result.message}")
        else:
            speed = result.seconds / max(result.steps, 1) * 1e3
            say(f"{result.metric_name} {result.metric:.5g} after {result.steps} steps, {speed:.1f} ms per step")
        if result.overflows:
            say(
                f"{result.overflows} updates were skipped for overflow; the loss scale ended at {result.final_loss_scale:g}"
            )
        say(f"recorded in {result.path}")
    if result.diverged:
        raise typer.Exit(1)


def compare(
    configs: list[Path] = typer.Argument(
        ..., help="Configurations; the first is the base (one alone is compared with O0)."
    ),
    task: str = TaskOption,
    seeds: int = typer.Option(5, min=1, help="Paired seeds."),
    steps: int = typer.Option(300, min=1, help="Micro-batches per run."),
    device: str = DeviceOption,
    out: Path = typer.Option(None, help="Folder for run directories; nothing is recorded without it."),
    json: bool = JsonOption,
) -> None:
    """Compare configurations on a task: metric paired over seeds, speed interleaved in one process."""
    from workbench import facade

    n_sides = len(configs) + (len(configs) == 1)
    with progress_bar(seeds * n_sides * steps, "compare", quiet=json) as bar:
        done = {"runs": 0, "label": ""}

        def show(label: str, progress: RunProgress) -> None:
            if label != done["label"]:
                done["runs"] += bool(done["label"])
                done["label"] = label
            bar.update(done["runs"] * steps + progress.step, text=label, note=_note(progress))

        comparison = facade.compare(
            task, list(configs), seeds=range(seeds), steps=steps, device=device, out=out, on_progress=show
        )
    if json:
        print_json(comparison)
        return
    rows = []
    for side in comparison.sides:
        finite = [m for m in side.metrics if math.isfinite(m)]
        mean = sum(finite) / len(finite) if finite else math.nan
        speed = f"{1 / side.speed.ratio:.3f} x" if side.speed is not None else "1 x"
        drop = side.drop.mean if side.drop is not None else math.nan
        bound = side.drop.upper if side.drop is not None else math.nan
        rows.append((side.label, side.summary, speed, mean, drop, bound))
    print_table(("configuration", "in effect", "speed", comparison.metric, "drop", "drop bound (95 %)"), rows)
    for sentence in comparison.sentences():
        say(sentence)


def replay(
    run: Path = typer.Argument(..., help="A run directory."),
    init: list[float] = typer.Option(None, help="Initial scales to judge; repeat for several."),
    factor: list[float] = typer.Option(None, help="Factors to judge."),
    window: list[int] = typer.Option(None, help="Growth windows to judge, steps."),
    minimum: float = typer.Option(1.0, help="Floor of the scale."),
    json: bool = JsonOption,
) -> None:
    """Say, without training, what other loss-scale policies would have done to a recorded run."""
    from workbench import facade

    result = facade.replay(run, init=init or None, factor=factor or None, window=window or None, minimum=minimum)
    table = result.table
    if json:
        print_json(
            {
                "run": run,
                "windows": result.windows,
                "recorded_overflows": result.recorded_overflows,
                "assumption": result.assumption,
                "error_log2": result.thresholds.error_log2,
                "policies": table.to_dict("records"),
            }
        )
        return
    rows = [
        (
            f"{row.init:g}",
            f"{row.factor:g}",
            row.window,
            f"{row.overflows} ({row.overflows_low} to {row.overflows_high})",
            f"{100 * row.wasted_share:.2f} %",
            "-" if math.isnan(row.underflow_share) else f"{100 * row.underflow_share:.3f} %",
            f"{row.final_scale:g}",
        )
        for row in table.itertuples()
    ]
    say(f"{run}: {result.windows} updates recorded, {result.recorded_overflows} of them overflowed")
    print_table(("init", "factor", "window", "overflows (range)", "wasted", "underflow", "final scale"), rows)
    say(result.assumption)
    if not result.thresholds.calibrated:
        say("The run never overflowed, so the point at which gradients overflow is estimated, not calibrated.")


@runs_app.command("list")
def list_recorded(
    root: Path = typer.Argument(Path("runs"), help="Folder of run directories."), json: bool = JsonOption
) -> None:
    """List the runs of a folder."""
    from workbench.telemetry import list_runs

    frame = list_runs(root)
    if json:
        print_json({"runs": frame.astype(object).where(frame.notna(), None).to_dict("records")})
        return
    if frame.empty:
        say(f"no runs in {root}")
        return
    rows = [
        (
            row.run,
            f"{row.started:%Y-%m-%d %H:%M}",
            row.task,
            row.level,
            row.steps,
            row.final_metric,
            row.overflows,
            f"{row.size_bytes / 1024:.0f} KiB",
            "yes" if row.finished else "no",
        )
        for row in frame.itertuples()
    ]
    print_table(("run", "started (UTC)", "task", "level", "steps", "metric", "overflows", "size", "finished"), rows)


@runs_app.command("prune")
def prune_recorded(
    root: Path = typer.Argument(Path("runs"), help="Folder of run directories."),
    keep: int = typer.Option(None, min=0, help="Keep this many of the newest."),
    older_than_days: float = typer.Option(None, min=0, help="Remove those older than this."),
    dry_run: bool = typer.Option(False, help="Only say what would be removed."),
    json: bool = JsonOption,
) -> None:
    """Remove old runs; runs that are still being written are left alone."""
    from workbench.telemetry import prune_runs

    if keep is None and older_than_days is None:
        raise typer.BadParameter("say what to remove: --keep N, --older-than-days D, or both")
    removed = prune_runs(root, keep=keep, older_than_days=older_than_days, dry_run=dry_run)
    if json:
        print_json({"removed": removed, "dry_run": dry_run})
        return
    for path in removed:
        say(f"{'would remove' if dry_run else 'removed'} {path}")
    say(f"{len(removed)} run{'s' if len(removed) != 1 else ''} {'would be ' if dry_run else ''}removed")


def _note(progress: RunProgress) -> str:
    parts = [f"loss {progress.loss:.4g}"] if math.isfinite(progress.loss) else []
    if math.isfinite(progress.metric):
        parts.append(f"metric {progress.metric:.4g}")
    if progress.loss_scale != 1:
        parts.append(f"scale 2^{math.log2(progress.loss_scale):.0f}")
    return ", ".join(parts)


def _without_plan(result: Any) -> dict[str, Any]:
    import dataclasses

    return {f.name: getattr(result, f.name) for f in dataclasses.fields(result) if f.name != "plan"}
