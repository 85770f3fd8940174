"""The workbench in five functions: train, compare, tune, export, replay.

The command line and notebooks call these; they put the layers below together and hold no logic of their own. In
processes that torchrun started, ``train``, ``compare`` and ``tune`` train on all of them together: every process calls
the same function with the same arguments, and every one gets the result.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from workbench.config import BoostConfig
from workbench.core import distributed as ranks
from workbench.core.rank_environment import is_first_rank
from workbench.core.records import Event, StepRecord
from workbench.loss_scale import ScalePolicy, simulate
from workbench.runs import Run, read_run
from workbench.runs.replay import ReplayResult
from workbench.runs.replay import replay as replay_run
from workbench.tasks import Task, load_task
from workbench.training.compare import Comparison, Side, compare_configs
from workbench.training.run import (
    Pause,
    RunProgress,
    RunResult,
    run_task,
)

if TYPE_CHECKING:
    from workbench.runs.mirrors import LiveMirrors, Mirror
    from workbench.study import (
        RayEngine,
        StudyFile,
        StudyResult,
        TaskExperimenter,
        TuneProgress,
    )

__all__ = ["compare", "export", "replay", "train", "tune"]

ConfigLike = BoostConfig | Mapping[str, Any] | str | Path | None


def train(
    task: Task | str,
    config: ConfigLike = None,
    *,
    level: str | None = None,
    steps: int = 300,
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
) -> RunResult:
    """Train a task once and record every step.

    Args:
        task: A task, or its name as on the command line.
        config: Configuration, dictionary, path of a JSON file, or None for the defaults.
        level: Boost level; None means O0 without a configuration and O1 with one.
        steps: Micro-batches.
        seed: Seed of weights, data order and split.
        device: ``"auto"``, ``"cpu"``, ``"cuda"`` or ``"npu"``.
        out: Folder in which a run directory is made; None records nothing.
        evaluate_every: Micro-batches between evaluations; None evaluates at the end only.
        exponents_every: Updates between gradient exponent histograms; 0 never.
        on_progress: Called about once a second.
        stop: Asked once per step; True ends the run.
        on_records: Called with the steps and events of each drain, for a display that follows the run.
        drain_seconds: How late those may come, seconds.
        pause: Holds the run between two steps; the time is not counted. On one rank only.
        mirrors: Where else the run is shown while it goes on: ``"tensorboard=DIR"``, ``"mlflow=URI"`` or objects of
            ``workbench.runs.mirrors``. One that fails on the way is given up with a warning; the run goes on.

    Returns:
        The result; its ``path`` is the run directory.

    Raises:
        ConfigError: When the configuration is not valid.
        TaskError: When the task cannot be found or is no task.
        MirrorError: When a mirror cannot be opened.
    """
    follower = _follower(mirrors)
    with ranks.joined(device) as here:
        settings = _config(config)
        return run_task(
            _task(task),
            settings,
            level=level or ("O0" if config is None else "O1"),
            steps=steps,
            seed=seed,
            device=here,
            out=None if out is None else Path(out),
            evaluate_every=evaluate_every,
            exponents_every=exponents_every,
            on_progress=on_progress,
            stop=stop,
            on_records=on_records,
            drain_seconds=drain_seconds,
            pause=pause,
            follower=follower,
        )


def compare(
    task: Task | str,
    configs: Sequence[ConfigLike],
    *,
    seeds: Iterable[int] = range(5),
    steps: int = 300,
    level: str = "O1",
    device: str = "auto",
    out: str | Path | None = None,
    on_progress: Callable[[str, RunProgress], None] | None = None,
) -> Comparison:
    """Compare configurations: the metric paired over seeds, the speed interleaved in one process.

    Args:
        task: A task, or its name.
        configs: Configurations; the first is the base. One alone is compared with O0.
        seeds: Seeds, the same for every configuration.
        steps: Micro-batches per run.
        level: Boost level for configurations that do not decide by themselves (mode auto).
        device: Where to train.
        out: Folder for run directories; None records nothing.
        on_progress: Called with a label and the progress of each run.

    Returns:
        The comparison; ``sentences()`` says it in words.
    """
    with ranks.joined(device) as here:
        sides = [Side(_label(config, i), _config(config), level) for i, config in enumerate(configs)]
        if len(sides) == 1:
            sides.insert(0, Side("O0", BoostConfig(), "O0"))
        return compare_configs(
            _task(task),
            sides,
            seeds=list(seeds),
            steps=steps,
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
    """Say what other loss-scale policies would have done to a recorded run, without training.

    Args:
        run: A run, or its directory.
        policies: Policies to judge; None makes every combination of the three lists.
        init: Initial scales; None means 2^8, 2^10, ..., 2^24.
        factor: Factors; None means 2.
        window: Growth windows, steps; None means 100 and 1000.
        minimum: Floor of the scale.

    Returns:
        One row per policy, the assumption and the range.
    """
    recorded = run if isinstance(run, Run) else read_run(run)
    if policies is None:
        policies = [
            ScalePolicy(init=float(i), factor=float(f), window=int(w), minimum=min(minimum, float(i)))
            for i in init or [2.0**power for power in range(8, 25, 2)]
            for f in factor or [2.0]
            for w in window or [100, 1000]
        ]
    return replay_run(recorded, policies)


def tune(
    study: str | Path,
    *,
    trials: int | None = None,
    timeout: float | None = None,
    fresh: bool = False,
    confirm_seeds: int | None = None,
    require_confirmed: bool = False,
    jobs: int = 1,
    storage: str | None = None,
    warm_start: Sequence[str | Path] = (),
    on_progress: Callable[[TuneProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
    task: Task | None = None,
    ray: RayEngine | None = None,
    began: float | None = None,
) -> StudyResult:
    """Run a study to its end, or continue it: search, confirm, export, report.

    Args:
        study: Folder with ``study.toml``.
        trials: Trials of the whole study; None takes the study's own.
        timeout: Seconds for all of it, files and report included; None takes the study's own. What runs when they are
            over ends at its next step, and the next call runs it again.
        fresh: Archive what was there and begin anew.
        confirm_seeds: Paired seeds of the confirmation; None takes the study's own.
        require_confirmed: Export confirmed candidates only.
        jobs: Worker processes that search at the same time.
        storage: Optuna storage URL; None is SQLite beside the study.
        warm_start: Earlier studies or boost_config.json files whose best plans are tried first.
        on_progress: Called as the study goes on.
        stop: Asked at every step, also from another thread than the main one; True ends the study as Ctrl-C would.
        task: Train this instead of the task that the file names; for one that only this program knows.
        ray: Train on a Ray cluster instead of in this process: where, with which resources, how many at a time.
        began: ``time.monotonic()`` from which the time counts; None is now.

    Returns:
        Trials, candidates, exported files and the report's path.

    Raises:
        StudyError: When the study or an argument is wrong.
        StudyStoppedError: When ``stop`` asked for it; the same call goes on from there.
    """
    from workbench import study as tuning

    if task is not None and jobs > 1:
        raise tuning.StudyError(
            f"`jobs` must be 1 for a task that only this program knows, got {jobs}: other processes load it by its name"
        )

    if task is not None and ray is not None:
        raise tuning.StudyError(
            "`ray` needs a task that can be named: the processes in the cluster load it by its name"
        )

    if is_first_rank():
        import workbench.report  # noqa: F401  # now, and not when the time limit is nearly over

    def make_experimenter(file: StudyFile, folder: Path) -> TaskExperimenter:
        return tuning.TaskExperimenter(task or file.study.task, file.study.device, folder / "runs", file.study.threads)

    result = tuning.tune(
        study,
        trials=trials,
        timeout=timeout,
        fresh=fresh,
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
    return _with_report(result, str(study)) if is_first_rank() else result


def export(
    study: str | Path,
    out: str | Path | None = None,
    *,
    require_confirmed: bool = False,
    storage: str | None = None,
) -> StudyResult:
    """Write a study's configurations and report again from its storage; nothing is trained.

    Args:
        study: Folder with ``study.toml``.
        out: Folder for the files; None takes the study's ``result``.
        require_confirmed: Export confirmed candidates only.
        storage: Optuna storage URL; None is SQLite beside the study.
    """
    from workbench import study as tuning

    result = tuning.export_study(study, out, require_confirmed=require_confirmed, storage=storage)
    return _with_report(result, str(study))


def _with_report(result: StudyResult, study: str) -> StudyResult:
    """Write report.html, and the tables and pictures that a repository keeps, beside the exported files."""
    from workbench.report import write_study_report
    from workbench.report.result_files import write_result_files

    folder = next(iter(result.exported.values())).parent if result.exported else result.directory / "result"
    folder.mkdir(parents=True, exist_ok=True)
    path = write_study_report(folder / "report.html", _study_report(result, study))
    write_result_files(folder, _result_files(result, study))
    return dataclasses.replace(result, report=path)


def _result_files(result: StudyResult, study: str) -> Any:
    """Gather what the result folder's tables and pictures show."""
    from workbench.report.result_files import ResultFiles

    environment, policy = dict(result.environment), result.loss_scale_policy or {}
    return ResultFiles(
        title=result.name,
        task_name=result.task,
        metric_name=result.metric_name,
        objective=result.objective,
        command=f"workbench tune {study}",
        trials=result.trials,
        candidates=result.candidates,
        choices=list(result.choices.values()),
        importance=result.importance,
        policies=policy.get("checked", []),
        policy_sentence=str(policy.get("sentence", policy.get("failed", ""))),
        freezing=result.freezing_limits,
        hardware=_told(environment.get("device", {}) or {}),
        versions=environment.get("versions", {}) or {},
    )


def _study_report(result: StudyResult, study: str) -> Any:
    """Gather what the report shows from a study's result and its recorded run."""
    from workbench.report import StudyReport

    baseline = next((t for t in result.trials if t.number == 0 and math.isfinite(t.metric)), None)
    recording, replayed, traces, chosen, note = _recorded_policies(result)
    schedule, groups, whose = _freezing_schedule(result)
    environment = dict(result.environment)
    return StudyReport(
        title=result.name,
        question=f"Which boost configuration trains {result.task} fastest without losing more "
        f"{result.metric_name} than allowed?",
        task_name=result.task,
        metric_name=result.metric_name,
        direction="maximize" if result.higher_is_better else "minimize",
        baseline_metric=baseline.metric if baseline is not None else math.nan,
        allowed_drops=result.allowed_drops,
        trials=result.trials,
        candidates=result.candidates,
        per=result.per,
        importance=result.importance,
        steps=recording.steps if recording is not None else None,
        events=recording.events if recording is not None else None,
        replayed=replayed,
        replay_traces=traces,
        chosen_policy=chosen,
        replay_note=note,
        freeze_schedule=schedule,
        freeze_n_groups=groups,
        freeze_label=whose,
        exported={path.name: BoostConfig.from_json(path).to_dict() for path in result.exported.values()},
        choices=list(result.choices.values()),
        hardware=_told(environment.get("device", {}) or {}),
        versions=environment.get("versions", {}) or {},
        notes=result.messages,
        commands=[f"workbench tune {study}", f"workbench status {study}", f"workbench export {study} --out DIR"],
        created=time.strftime("%Y-%m-%d %H:%M"),
    )


def _recorded_policies(
    result: StudyResult,
) -> tuple[Run | None, pd.DataFrame | None, dict[str, np.ndarray], str | None, str]:
    """Read the float16 recording of a study again and draw the scales of a few policies over it."""
    policy = result.loss_scale_policy
    if policy is None or "recording" not in policy:
        return None, None, {}, None, str((policy or {}).get("failed", ""))
    recording = read_run(result.directory / str(policy["recording"]))
    name = _policy_name(policy)
    rule = BoostConfig.from_dict(recording.config).loss_scale
    recorded = ScalePolicy(init=rule.init, factor=rule.factor, window=rule.window, minimum=rule.minimum)
    asked = [ScalePolicy(init=policy["init"], factor=policy["factor"], window=int(policy["window"])), recorded]
    judged = replay_run(recording, asked)
    trace = simulate(judged.thresholds.scale, asked).trace(0).per_step()
    windows = np.searchsorted(judged.thresholds.steps, recording.steps["step"].to_numpy())
    traces = {f"chosen: {name}": trace[np.minimum(windows, len(trace) - 1)]}
    table = pd.concat([pd.DataFrame(policy["policies"]), judged.table.iloc[1:]], ignore_index=True)
    table["recorded"] = [False] * (len(table) - 1) + [True]
    return recording, table, traces, name, f"{judged.assumption} {policy.get('sentence', '')}".strip()


def _told(hardware: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what there is none of, and say memory in GiB."""
    told = {key.replace("_", " "): value for key, value in hardware.items() if value}
    return {
        key.removesuffix(" bytes"): f"{value / 1024**3:.1f} GiB" if key.endswith("bytes") else value
        for key, value in told.items()
    }


def _policy_name(policy: Mapping[str, Any]) -> str:
    from workbench.figures import policy_names

    row = {key: [policy[key]] for key in ("init", "factor", "window")}
    return policy_names(pd.DataFrame(row))[0]


def _freezing_schedule(result: StudyResult) -> tuple[list[int] | None, int | None, str]:
    """Return the freezing schedule of the first exported configuration that has one."""
    from workbench.methods.grad_freeze.method import freeze_index_sequence

    for path in result.exported.values():
        config = BoostConfig.from_json(path)
        if config.resolve("O1").grad_freeze:
            freeze = config.grad_freeze
            rng = np.random.RandomState(0)
            sequence = freeze_index_sequence(
                freeze.param_groups, freeze.freeze_type, freeze.freeze_p, freeze.total_steps, rng
            )
            return sequence, freeze.param_groups, path.name
    return None, None, ""


def _follower(mirrors: Iterable[Mirror | str]) -> LiveMirrors | None:
    given = list(mirrors)
    if not given or not is_first_rank():
        return None
    from workbench.runs.mirrors import LiveMirrors, mirrors_named

    return LiveMirrors(mirrors_named(given))


def _config(config: ConfigLike) -> BoostConfig:
    from workbench.training.auto_boost import read_config

    return read_config(config)


def _label(config: ConfigLike, index: int) -> str:
    return Path(config).name if isinstance(config, (str, Path)) else f"configuration {index + 1}"


def _task(task: Task | str) -> Task:
    return task if isinstance(task, Task) else load_task(task)
