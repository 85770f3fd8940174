"""The workbench in five functions: train, compare, tune, export, replay.

The command line and notebooks call these; they combine the layers below and hold no logic themselves. In
processes that torchrun started, ``train``, ``compare`` and ``tune`` train on all of them together: every process calls
the same function with the same arguments, and every one gets the result.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.config import BoostConfig, ConfigLike, read_config
from workbench.config.run_request import RunRequest
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.arguments import checked_count
from workbench.core.rank_environment import is_first_rank
from workbench.core.records import Event, StepRecord
from workbench.integrations.scripts.exported import with_scripts
from workbench.integrations.scripts.writing import framework_of
from workbench.loss_scale import ScalePolicy
from workbench.runs import Run, new_run_id, read_run
from workbench.runs.mirrors import Mirror, live_mirrors
from workbench.runs.replay import ReplayResult
from workbench.runs.replay import replay as replay_run
from workbench.runs.replayed_run import policy_grid
from workbench.tasks import Task, load_task
from workbench.tasks.in_memory import task_in_memory
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.compare import Comparison, Side, compare_configs
from workbench.training.resuming import FOLDER as CHECKPOINTS
from workbench.training.resuming import identity, run_to_resume
from workbench.training.run import Pause, RunMonitor, RunProgress, RunResult, run_task
from workbench.training.setup import callers_generators
from workbench.training.task_look import batches_of_epochs, usual_batches

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from workbench.study import RayEngine, StudyFile, StudyResult, TaskExperimenter, TuneProgress

__all__ = ["compare", "export", "replay", "train", "tune"]

_EVERY = 1000  # micro-batches between the checkpoints of a resumed run that does not say


def train(
    task: Task | str,
    config: ConfigLike = None,
    *,
    level: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    seed: int = 0,
    device: str = "auto",
    out: str | Path | None = "runs",
    evaluate_every: int | None = None,
    exponents_every: int = 10,
    on_progress: Callable[[RunProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    on_records: Callable[[Sequence[StepRecord], Sequence[Event]], None] | None = None,
    drain_seconds: float = 1.0,
    pause: Pause | None = None,
    mirrors: Iterable[Mirror | str] = (),
    checkpoint_every: int | None = None,
    resume: str | Path | None = None,
) -> RunResult:
    """Train a task once and record every step.

    Args:
        task: A task, or its name as on the command line.
        config: Configuration, dictionary, path of a JSON file, or None for the defaults.
        level: Boost level; None means O0 without a configuration and O1 with one.
        steps: Batches to train on; None means as many as ``epochs`` or the task say, or 300.
        epochs: The same in passes over the data.
        seed: Seed of weights, data order and split.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder in which a run directory is made; None records nothing.
        evaluate_every: Batches between evaluations; None evaluates at the end only.
        exponents_every: Updates between gradient exponent histograms; 0 never.
        on_progress: Called about once a second.
        stop: Asked once per step; True ends the run.
        on_records: Called with the steps and events of each drain, for a display that follows the run.
        drain_seconds: How late those may come, in seconds.
        pause: Holds the run between two steps; the time is not counted. On one rank only.
        mirrors: Where else to show the run while it goes on: ``"tensorboard=DIR"``, ``"mlflow=URI"`` or objects of
            ``workbench.runs.mirrors``. One that fails on the way is given up with a warning; the run goes on.
        checkpoint_every: Batches between two checkpoints in the run directory; None keeps none.
        resume: Run directory of an interrupted run to continue, on a CPU with the same bits; or a folder of runs, whose
            newest unfinished one is continued, or a new one begun if there is none. The other arguments must be those
            that it began with; ``out`` is where it is.

    Raises:
        ResumeError: When the run is finished, has no checkpoint, or was begun with other arguments.
        ConfigError: When the configuration is not valid.
        TaskError: When the task cannot be found or is not a task.
        MirrorError: When a mirror cannot be opened.
    """
    observer = live_mirrors(mirrors)
    level = level or ("O0" if config is None else "O1")
    folder, run_id = None if out is None else Path(out), ""
    with ranks.joined(device) as here, callers_generators(here):
        whole = load_task(task)
        if steps is not None and epochs is not None:
            raise ValueError("`steps` and `epochs` both say how long to train; give one of them")
        if steps is None:
            steps = usual_batches(whole) if epochs is None else batches_of_epochs(whole, epochs)
        request = RunRequest(read_config(config), level, seed, steps, evaluate_every, "", exponents_every)
        if resume is not None:
            asked = functools.partial(identity, whole, request)
            folder, run_id = ranks.broadcast_object(run_to_resume(Path(resume), asked))
        elif checkpoint_every is not None:
            run_id = ranks.broadcast_object(new_run_id())
        checkpoints = None
        if run_id:
            if folder is None:
                raise ValueError("`checkpoint_every` keeps checkpoints in the run directory; name a folder in `out`")
            every = _EVERY if checkpoint_every is None else checked_count("checkpoint_every", checkpoint_every)
            checkpoints = CheckpointFolder(folder / run_id / CHECKPOINTS, every, keep=2)
        return run_task(
            whole,
            dataclasses.replace(request, run_id=run_id),
            device=here,
            out=folder,
            monitor=RunMonitor(on_progress, None, stop, on_records, drain_seconds, pause, observer),
            checkpoints=checkpoints,
        )


def compare(
    task: Task | str,
    configs: Sequence[ConfigLike],
    *,
    seeds: Iterable[int] = range(5),
    steps: int | None = None,
    level: str = "O1",
    device: str = "auto",
    out: str | Path | None = None,
    on_progress: Callable[[str, RunProgress], None] | None = None,
) -> Comparison:
    """Compare configurations: metric and time of whole runs paired over seeds, steps timed in turn.

    Args:
        task: A task, or its name.
        configs: Configurations; the first is the base. One alone is compared with O0.
        seeds: Seeds, the same for every configuration.
        steps: Batches per run; None means as many as the task says, or 300.
        level: Boost level for configurations that do not decide by themselves (mode auto).
        device: Where to train.
        out: Folder for run directories; None records nothing.
        on_progress: Called with a label and the progress of each run.
    """
    with ranks.joined(device) as here, callers_generators(here):
        named = {i: Path(config).name for i, config in enumerate(configs) if isinstance(config, str | Path)}
        labels = [named.get(i, f"configuration {i + 1}") for i in range(len(configs))]
        sides = [Side(label, read_config(config), level) for label, config in zip(labels, configs, strict=True)]
        if len(sides) == 1:
            sides.insert(0, Side("O0", BoostConfig(), "O0"))
        loaded = load_task(task)
        return compare_configs(
            loaded,
            sides,
            seeds=list(seeds),
            steps=usual_batches(loaded) if steps is None else steps,
            device=here,
            out=None if out is None else Path(out),
            on_progress=on_progress,
        )


def replay(
    run: Run | str | Path,
    policies: Sequence[ScalePolicy] | None = None,
    *,
    init: Sequence[float] | None = None,
    factor: Sequence[float] | None = None,
    window: Sequence[int] | None = None,
    minimum: float = 1.0,
) -> ReplayResult:
    """Predict what other loss-scale policies would have done to a recorded run, without training.

    Args:
        run: A run, or its directory.
        policies: Policies to judge; None makes every combination of the three lists.
        init: Initial scales; None means 2^8, 2^10, ..., 2^24.
        factor: Factors; None means 2.
        window: Growth windows, steps; None means 100 and 1000.
        minimum: Floor of the scale.
    """
    recorded = run if isinstance(run, Run) else read_run(run)
    if policies is None:
        init = init or [2.0**power for power in range(8, 25, 2)]
        policies = policy_grid(init, factor or [2.0], window or [100, 1000], minimum=minimum, most=None)
    return replay_run(recorded, policies)


@devices.kept_threads()  # a study may train with fewer
def tune(
    study: str | Path | Task | nn.Module | Callable[[], nn.Module],
    train: Any = None,
    evaluate: Any = None,
    *,
    loss: Any = None,
    optimizer: Any = None,
    metric: Any = None,
    scheduler: Callable[[Optimizer, int], Any] | None = None,
    name: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    allowed_drop: float | str | None = None,
    trials: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    new_baseline: bool = False,
    confirm_seeds: int | None = None,
    require_confirmed: bool = False,
    jobs: int | None = 1,
    storage: str | None = None,
    warm_start: Sequence[str | Path] = (),
    on_progress: Callable[[TuneProgress], None] | None = None,
    on_note: Callable[[str], None] | None = None,
    stop: Callable[[], bool] | None = None,
    task: Task | None = None,
    ray: RayEngine | None = None,
    began: float | None = None,
) -> StudyResult:
    """Run a study to its end, or continue it: search, confirm, export, report.

    Given a task instead of a study, look at it, write ``studies/<task>/study.toml`` with the set-ups that are possible
    for it, and find the one that trains it fastest to the quality it reaches today. Given a model instead, make a task
    of it (`workbench.tasks.in_memory`): ``tune(model, train_loader, eval_loader, loss=..., optimizer=..., epochs=5)``.

    Args:
        study: Folder with ``study.toml``, a task, or a task's name as on the command line; or a model, or a function
            that returns a fresh one.
        train: For a model: training batches.
        evaluate: For a model: evaluation batches.
        loss: For a model: a criterion, or a function of model and batch; None takes what the model returns as ``loss``.
        optimizer: For a model: today's optimizer over its parameters, or a function of the named parameters.
        metric: For a model: the metric; None is the accuracy after a cross entropy, otherwise the loss.
        scheduler: For a model: today's learning-rate schedule, a function of optimizer and number of updates.
        name: For a model: name of the study's folder; None takes the name of the model's class.
        minutes: Time for all of it; None means 15 for a task.
        steps: For a task: loader batches that it is trained for today; None takes the task's own ``steps``.
        epochs: For a task: the same in passes over the data.
        allowed_drop: For a task: allowed drop of the metric, in its unit or as a share ("2 %"); None is 0.005 for
            accuracies and otherwise 1 % of its value today.
        trials: Trials of the whole study; None takes the study's own.
        timeout: Seconds for all of it, files and report included; None takes the study's own. What runs when they are
            over ends at its next step, and the next call runs it again.
        fresh: Archive what was there and start over.
        new_baseline: The same, then begin with the best set-ups of the archived study: for a task that has changed.
        confirm_seeds: Paired seeds of the confirmation; None takes the study's own.
        require_confirmed: Export confirmed candidates only.
        jobs: Processes that train at the same time: one unless told, where the command takes idle cores. None does so,
            for a search for a set-up within a time limit (four at most); other studies, and accelerators, are one
            process's then. Several import the script that calls: in a file, let it call below
            ``if __name__ == "__main__":``. A task that only this program knows is trained in this process alone.
        storage: Optuna storage URL; None is SQLite beside the study.
        warm_start: Earlier studies or boost_config.json files whose best set-ups are tried first.
        on_progress: Called as the study goes on; where a model or a Task is given None prints a line that moves, or
            lines into a file.
        on_note: Called with what is left out of a task's study and why, and what the time allows; None prints it where
            a model or a Task is given.
        stop: Asked at every step, also from another thread than the main one; True ends the study as Ctrl-C would.
        task: Train this instead of the task that the file names; for one that only this program knows.
        ray: Train on a Ray cluster instead of in this process: where, with which resources, how many at a time.
        began: ``time.monotonic()`` from which the time counts; None is now.

    Raises:
        StudyError: When the study or an argument is wrong.
        StudyStoppedError: When ``stop`` returned True; the same call continues from there.
    """
    began = time.monotonic() if began is None else began
    from workbench import study as tuning

    if minutes is not None:
        timeout = 60.0 * minutes
    about_model = {"train": train, "evaluate": evaluate, "loss": loss, "optimizer": optimizer, "metric": metric}
    about_model |= {"scheduler": scheduler, "name": name}
    if not isinstance(study, str | Path):  # called from a program
        on_note, on_progress = on_note or print, on_progress or tuning.ProgressLine()
    on_note = on_note or (lambda _: None)
    if not isinstance(study, str | Path | Task):
        study = task_in_memory(study, **about_model, steps=steps, epochs=epochs, on_note=on_note)
    elif unwanted := [key for key, value in about_model.items() if value is not None]:
        raise tuning.StudyError(f"`{unwanted[0]}` goes with a model; a study or a task sets it itself")
    given = None
    if isinstance(study, Task) or not is_study(study):
        given = load_task(study if isinstance(study, Task) else str(study))
        task = given if isinstance(study, Task) and not given.spec else task
    if task is not None:
        if (jobs or 1) > 1:
            raise tuning.StudyError(
                f"`jobs` (in the Tune tab: Workers) must be 1 for a task that only this program knows, got {jobs}: "
                "other processes load it by its name"
            )
        if ray is not None:
            raise tuning.StudyError("`ray` needs a task that the processes in the cluster can load by its name")
        jobs = 1
    if given is not None:
        if fresh and storage is not None:  # before anything is written
            raise tuning.StudyError("`fresh` archives a file in the study's folder; with `storage`, rename the task")
        study = tuning.begin_study(
            given,
            minutes=None if timeout is None else timeout / 60.0,
            steps=steps,
            epochs=epochs,
            allowed_drop=allowed_drop,
            fresh=fresh,
            on_note=on_note,
            stop=stop or (lambda: False),
            jobs=jobs,
        )
        fresh = False  # what was there is archived
    elif (steps, epochs, allowed_drop) != (None, None, None):
        raise tuning.StudyError(
            f"{study} is a study, whose study.toml sets how long a run is and what it may lose; `steps`, `epochs` and "
            "`allowed_drop` are for a task"
        )
    assert not isinstance(study, Task)  # its folder has taken its place
    if is_first_rank():
        from workbench.report import write_report  # now, and not when the time limit is nearly over

    def make_experimenter(file: StudyFile, folder: Path) -> TaskExperimenter:
        return tuning.TaskExperimenter(task or file.study.task, file.study.device, folder / "runs", file.study.threads)

    result = tuning.tune(
        study,
        trials=trials,
        timeout=timeout,
        fresh=fresh,
        new_baseline=new_baseline,
        confirm_seeds=confirm_seeds,
        require_confirmed=require_confirmed,
        jobs=jobs,
        storage=storage,
        warm_start=warm_start,
        on_progress=on_progress,
        stop=stop,
        make_experimenter=make_experimenter if task is not None else None,
        ray=ray,
        began=began,
    )
    return write_report(_with_scripts(result)) if is_first_rank() else result


def is_study(place: str | Path) -> bool:
    """Return whether an argument of the command line names a study (a folder, or a study.toml) and not a task."""
    path = Path(place)
    is_path = len(path.parts) > 1 and ":" not in str(place) and path.suffix != ".py"
    return path.is_dir() or path.suffix == ".toml" or is_path


def export(
    study: str | Path,
    out: str | Path | None = None,
    *,
    formats: Sequence[str] = (),
    require_confirmed: bool = False,
    storage: str | None = None,
) -> StudyResult:
    """Write a study's configurations and report again, from its storage; nothing is trained.

    Args:
        study: Folder with ``study.toml``.
        out: Folder for the files; None takes the study's ``result``.
        formats: Other frameworks (``"torch"``, ``"transformers"``, ``"lightning"``, ``"mindspore"``) for which each
            configuration is also written as a script; the report shows them all.
        require_confirmed: Export confirmed candidates only.
        storage: Optuna storage URL; None is SQLite beside the study.

    Raises:
        StudyError: When the study is wrong or has no finished trial.
        ValueError: When a format is not the name of a framework.
    """
    from workbench import study as tuning
    from workbench.report import write_report

    for name in formats:
        framework_of(name)  # before anything is written
    result = tuning.export_study(study, out, require_confirmed=require_confirmed, storage=storage)
    return write_report(_with_scripts(result, formats))


def _with_scripts(result: StudyResult, written: Sequence[str] = ()) -> StudyResult:
    from workbench.study.answer.worth import measured_exports

    known = measured_exports(result)
    return with_scripts(result, known.steps, known.seed, known.worth, written=written)
