"""Weight snapshots that plans are trained from, recorded by the study itself: O0 trained a little, once per seed.

Snapshots belong to the initial weights they were recorded from, so every seed has its own, shared by all trials of the
seed. A trial's time includes that of its warm-up: the micro-batches, each at O0's step time. A recording counts once
its note, written last and as a whole, is beside the runs.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.config import Plan
from workbench.core.files import write_text_atomically
from workbench.study.ask.plans import explicit_config, needs_warm_up
from workbench.study.ask.search_space import all_off
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import Monitor, RunStep, SpeedJob, TrainJob
from workbench.study.run.runner import Experimenter


class WarmUpError(ValueError):
    """O0 did not train as far as its snapshots; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """What a plan was given before it was trained."""

    snapshots: Path | None = None  # folder of weight snapshots; None for a plan that needs none
    steps: int = 0  # micro-batches of O0 it took
    seconds: float = 0.0

    def train_job(self, plan: Plan, **options: Any) -> TrainJob:
        """Return the job that trains the plan; options are those of the job."""
        return TrainJob(explicit_config(plan, self.snapshots), plan.level, **options)

    def speed_job(self, plan: Plan, file: StudyFile, seed: int, **options: Any) -> SpeedJob:
        """Return the job that times the plan's steps beside O0's; further options are those of the job.

        Loading counts where the study asks how to load, if nothing else is said.
        """
        options = {"loading": "runtime.data" in {*file.space, *file.set_up.runtime}, **options}
        sides = (all_off(file.base_config()), "O0"), (explicit_config(plan, self.snapshots), plan.level)
        return SpeedJob(*sides, seed, file.speed.rounds, file.speed.steps_per_block, **options)


NO_WARM_UP = WarmUp()
"""The warm-up of nearly all plans: none."""


def find_warm_up(file: StudyFile, directory: Path, seed: int) -> WarmUp | None:
    """Return a seed's warm-up if it was recorded to its end, as the study file asks for it, and its files are there.

    A WarmUpError if O0 did not get through it.
    """
    try:
        note = json.loads(_note(directory, seed).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    if note["asked"] != _asked(file):
        return None
    if note["failed"]:
        raise WarmUpError(note["failed"])
    snapshots = directory / note["snapshots"]
    if _count(snapshots) != file.warm_up.count:
        return None  # files were removed
    return WarmUp(snapshots, file.warm_up_steps, note["seconds"])


class WarmUps:
    """The warm-ups of a study, recorded where they are needed and missing."""

    def __init__(
        self,
        file: StudyFile,
        directory: Path,
        experimenter: Experimenter,
        on_step: Callable[[RunStep], None] | None = None,
    ) -> None:
        self._file, self._directory, self._experimenter, self._on_step = file, directory, experimenter, on_step

    def before(self, plan: Plan, seed: int) -> WarmUp:
        """Return what a plan needs before it can be trained on a seed, recorded now if it is missing."""
        if not needs_warm_up(plan):
            return NO_WARM_UP
        with _one_at_a_time(_note(self._directory, seed)):
            found = find_warm_up(self._file, self._directory, seed)
            if found is None:
                self._record(seed)
                found = find_warm_up(self._file, self._directory, seed)
        if found is None:
            raise WarmUpError(f"the weight snapshots of seed {seed} went missing while they were recorded")
        return found

    def _record(self, seed: int) -> None:
        file, snapshots_asked = self._file, self._file.warm_up
        plan = file.baseline_plan()
        job = TrainJob(
            explicit_config(plan).with_values({f"snapshots.{name}": value for name, value in snapshots_asked}),
            "O0",
            seed=seed,
            steps=file.warm_up_steps,
            evaluate_every=file.warm_up_steps,
            run_id=f"warm_up_seed_{seed}",
        )
        trained = self._experimenter.run(job, Monitor(on_step=self._pass_on))
        n_kept = _count(self._directory / trained.path / "snapshots")
        failed = ""
        if math.isnan(trained.metric) or n_kept != snapshots_asked.count:
            why = trained.message or f"{n_kept} of {snapshots_asked.count} snapshots were kept"
            failed = f"no weight snapshots: O0 with seed {seed} did not get through its warm-up ({why})"
        note = {"asked": _asked(file), "failed": failed, "seconds": trained.seconds}
        note["snapshots"] = f"{trained.path}/snapshots"
        write_text_atomically(_note(self._directory, seed), json.dumps(note, indent=2) + "\n")

    def _pass_on(self, step: RunStep) -> None:
        """Show a step of the warm-up as one of the run it belongs to."""
        if self._on_step is not None:
            self._on_step(RunStep(step.step, step.steps + self._file.study.budget_steps, step.metric))


def _asked(file: StudyFile) -> dict[str, int]:
    return {name: int(value) for name, value in file.warm_up}


def _note(directory: Path, seed: int) -> Path:
    return directory / "runs" / "warm_ups" / f"seed_{seed}.json"


def _count(snapshots: Path) -> int:
    return sum(1 for _ in snapshots.glob("snapshot_*.safetensors"))


@contextlib.contextmanager
def _one_at_a_time(note: Path) -> Iterator[None]:
    """Keep other processes from recording the same warm-up; the system releases the lock however the process ends."""
    note.parent.mkdir(parents=True, exist_ok=True)
    with note.with_suffix(".lock").open("a", encoding="utf-8") as handle:
        # No such lock outside Unix; two would record the same twice, and the last note holds.
        with contextlib.suppress(ImportError):
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
