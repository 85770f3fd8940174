"""The few things a study asks of an experiment, and their default answers.

The search knows trials, plans and verdicts; how a network is trained it leaves to an `Experimenter`. The default one
calls ``workbench.experiments``, which is imported when the first run begins, so that reading a study's state needs no
torch. Tests put a deterministic fake in its place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from workbench.config import BoostConfig, NetworkFacts
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.stopping import end_if_asked

if TYPE_CHECKING:
    import torch

    from workbench.tasks import Task

__all__ = [
    "Experimenter",
    "MakeExperimenter",
    "PolicyOutcome",
    "RunStep",
    "SpeedMeasured",
    "TaskExperimenter",
    "Trained",
    "experimenter_for",
]

Side = tuple[BoostConfig, str]
"""A configuration and its boost level."""


@dataclass(frozen=True, slots=True)
class RunStep:
    """Where a run stands, for progress displays: micro-batches done and planned, last metric (NaN before the first)."""

    step: int
    steps: int
    metric: float


@dataclass(frozen=True, slots=True)
class Trained:
    """What one training run gave.

    Args:
        metric: Final metric in the task's unit; NaN when the run ended early.
        curve: Pairs (micro-batches, metric).
        seconds: Wall-clock time.
        diverged: Whether the loss became NaN or inf, or the loss scale collapsed.
        message: One sentence when it did not end as planned.
        path: Run directory, relative to the study; empty when nothing was recorded.
        overflows: Updates whose gradients overflowed.
        steps: Micro-batches trained.
    """

    metric: float
    curve: tuple[tuple[int, float], ...]
    seconds: float
    diverged: bool = False
    message: str = ""
    path: str = ""
    overflows: int = 0
    steps: int = 0


@dataclass(frozen=True, slots=True)
class SpeedMeasured:
    """Step time relative to O0 with its 95 % interval; smaller is faster."""

    ratio: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What replay predicts for one loss-scale policy.

    Args:
        init: Initial scale.
        factor: Growth and back-off factor.
        window: Finite steps before the scale grows.
        overflows: Predicted overflows.
        overflows_low: Lower end of their error bar; NaN when there is none.
        overflows_high: Upper end of their error bar; NaN when there is none.
        wasted_share: Share of updates that are skipped, in [0, 1].
        underflow_share: Mean share of gradient elements that underflow, in [0, 1]; NaN when not recorded.
        final_scale: Scale at the end.
        kind: ``"dynamic"`` or ``"fixed"``.
    """

    init: float
    factor: float
    window: int
    overflows: float
    overflows_low: float
    overflows_high: float
    wasted_share: float
    underflow_share: float
    final_scale: float
    kind: str = "dynamic"


class Experimenter(Protocol):
    """What the search needs from whoever trains."""

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""

    def network_facts(self) -> NetworkFacts | None:
        """Return what the task's network offers to the methods; None where nobody knows."""

    def train(
        self,
        config: BoostConfig,
        level: str,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        run_id: str = "",
        exponents_every: int = 0,
        on_evaluation: Callable[[int, float], bool] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Trained:
        """Train; ``on_evaluation(step, metric)`` and ``stop()``, asked at each step, end the run by returning True.

        Without a ``run_id`` nothing is recorded.
        """

    def speed(
        self,
        baseline: Side,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> SpeedMeasured:
        """Measure the step time relative to the baseline's by interleaved blocks; ``stop`` cuts it short."""

    def replay(self, run_path: str, policies: Sequence[Mapping[str, Any]]) -> list[PolicyOutcome]:
        """Predict what loss-scale policies (``init``, ``factor``, ``window``) would have done to a recorded run."""

    def freezing_limit(
        self,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, float]:
        """Time a freezing schedule beside layers that rest for good; ``stop`` cuts it short.

        Returns:
            ``realised``, ``limit`` and ``reached``, each with ``_low`` and ``_high``.
        """


MakeExperimenter = Callable[[StudyFile, Path], Experimenter]
"""Makes who trains, from a study's file and folder."""


def experimenter_for(
    file: StudyFile,
    directory: Path,
    make: MakeExperimenter | None = None,
    device: torch.device | None = None,
) -> Experimenter:
    """Return who trains a study.

    Args:
        file: The study's file.
        directory: Folder of the study.
        make: Makes another experimenter than the task's own, for tests.
        device: This rank's device; None takes the one the file names.
    """
    if make is not None:
        return make(file, directory)
    wanted = file.study.device if device is None else device
    return TaskExperimenter(file.study.task, wanted, directory / "runs", file.study.threads)


class TaskExperimenter:
    """Train a task of ``workbench.tasks`` with ``workbench.experiments``.

    Args:
        task: A task, or its name on the command line.
        device: Device, its name, or ``"auto"``.
        runs: Folder of the run directories; tasks in files may be named relative to the folder it lies in.
        threads: CPU threads of this process; None leaves them as they are.

    Raises:
        ValueError: When the task or the device does not exist.
    """

    def __init__(self, task: Task | str, device: str | torch.device, runs: Path, threads: int | None = None) -> None:
        from workbench.core import devices
        from workbench.tasks import load_task

        if threads is not None:
            devices.use_threads(threads)
        self._task = load_task(task, folder=runs.parent) if isinstance(task, str) else task
        self._device = devices.select_device(device)
        self._runs = runs

    @property
    def metric_name(self) -> str:
        """Name of the task's metric."""
        return str(self._task.metric_name)

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return bool(self._task.higher_is_better)

    @property
    def data_hash(self) -> str:
        """Hash of the training data; empty when unknown."""
        return str(self._task.data_digest())

    def environment(self) -> dict[str, Any]:
        """Return versions, hardware and data as plain values."""
        from workbench.core import devices
        from workbench.core import distributed as ranks
        from workbench.runs import collect_environment

        device = {**devices.hardware_summary(), "device": devices.device_name(self._device)}
        told = collect_environment(device=device, data_hash=self.data_hash, task=self._task.name)
        return {**told, "world_size": ranks.world_size()}

    def network_facts(self) -> NetworkFacts:
        """Measure on a fresh copy of the network what the methods will find there."""
        from workbench.training.network_facts import network_facts

        return network_facts(self._task)

    def train(
        self,
        config: BoostConfig,
        level: str,
        *,
        seed: int,
        steps: int,
        evaluate_every: int,
        run_id: str = "",
        exponents_every: int = 0,
        on_evaluation: Callable[[int, float], bool] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
    ) -> Trained:
        """Train one run, recorded under ``runs/<run_id>``; over several ranks by rank 0 alone."""
        from workbench.core import distributed as ranks
        from workbench.training.run import RunProgress, run_task

        def tell(progress: RunProgress) -> None:
            if on_step is not None:
                on_step(RunStep(progress.step, progress.steps, progress.metric))

        if run_id and ranks.rank() == 0:
            self._runs.mkdir(parents=True, exist_ok=True)
            run_id = self._free_name(run_id)
        result = run_task(
            self._task,
            config,
            level=level,
            steps=steps,
            seed=seed,
            device=self._device,
            out=self._runs if run_id else None,
            run_id=run_id or None,
            evaluate_every=evaluate_every,
            exponents_every=exponents_every,
            on_progress=tell,
            on_evaluation=on_evaluation,
            stop=stop,
        )
        return Trained(
            metric=float(result.metric),
            curve=tuple((int(step), float(value)) for step, value in result.curve),
            seconds=float(result.seconds),
            diverged=bool(result.diverged),
            message=result.message,
            path="" if result.path is None else result.path.relative_to(self._runs.parent).as_posix(),
            overflows=int(result.overflows),
            steps=int(result.steps),
        )

    def speed(
        self,
        baseline: Side,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> SpeedMeasured:
        """Measure by interleaved blocks in this process."""
        from workbench.core import distributed as ranks
        from workbench.training.speed import measure_speed_ratio

        measured = measure_speed_ratio(
            self._task,
            baseline,
            candidate,
            device=self._device,
            seed=seed,
            rounds=rounds,
            steps_per_block=steps_per_block,
            stop=stop,
            # Several ranks end together, between two rounds.
            before_window=None if ranks.world_size() > 1 else lambda: end_if_asked(stop),
        )
        return SpeedMeasured(float(measured.ratio), float(measured.low), float(measured.high))

    def replay(self, run_path: str, policies: Sequence[Mapping[str, Any]]) -> list[PolicyOutcome]:
        """Replay a recorded run."""
        from workbench.loss_scale import ScalePolicy
        from workbench.runs import read_run
        from workbench.runs.replay import replay

        asked = [
            ScalePolicy(
                init=policy["init"],
                factor=policy["factor"],
                window=int(policy["window"]),
                kind="fixed" if policy.get("kind") == "fixed" else "dynamic",
            )
            for policy in policies
        ]
        table = replay(read_run(self._runs.parent / run_path), asked).table
        return [
            PolicyOutcome(
                init=float(row["init"]),
                factor=float(row["factor"]),
                window=int(row["window"]),
                overflows=float(row["overflows"]),
                overflows_low=float(row.get("overflows_low", math.nan)),
                overflows_high=float(row.get("overflows_high", math.nan)),
                wasted_share=float(row["wasted_share"]),
                underflow_share=float(row["underflow_share"]),
                final_scale=float(row["final_scale"]),
                kind=str(row["kind"]),
            )
            for row in table.to_dict("records")
        ]

    def freezing_limit(
        self,
        candidate: Side,
        *,
        seed: int,
        rounds: int,
        steps_per_block: int,
        stop: Callable[[], bool] | None = None,
    ) -> dict[str, float]:
        """Time a freezing schedule beside layers that rest for good."""
        from workbench.training.freezing_limit import measure_freezing_limit

        measured = measure_freezing_limit(
            self._task,
            candidate,
            device=self._device,
            seed=seed,
            rounds=rounds,
            steps_per_block=steps_per_block,
            before_window=lambda: end_if_asked(stop),
        )
        return {
            f"{name}{end}": value
            for name in ("realised", "limit", "reached")
            for end, value in zip(("", "_low", "_high"), getattr(measured, name), strict=True)
        }

    def _free_name(self, run_id: str) -> str:
        """Return a name that no run has; what an interrupted run left behind stays to be looked at."""
        names = (run_id, *(f"{run_id}.{attempt}" for attempt in range(2, 10_000)))
        return next(name for name in names if not (self._runs / name).exists())
