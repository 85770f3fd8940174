"""How long a whole run of a plan takes, relative to today's: known before it is trained.

A step's time is measured once for all plans that share it (`Plan.step_key`: lengths and learning rates do not count),
alternating with the baseline's in the same process, loading included, and kept with the study. Steps of the task as
given take 1: timed against themselves they would differ by noise alone. A run's time is its number of passes times
that, plus the extra time of its first steps: compilation, above all, and samples that are read once and kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import optuna

from workbench.config import Plan
from workbench.methods.batch.section import BatchSection
from workbench.methods.runtime.section import RuntimeSection
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import SpeedMeasured
from workbench.study.run.runner import Experimenter
from workbench.study.run.warm_up import NO_WARM_UP, WarmUp

_KEY = "step_time:"
_PRECISION = 0.1  # a search compares plans that differ by more; what is confirmed is timed by whole runs


@dataclass
class StepTimes:
    """Step times of a study, which keeps them as user attributes: measured where they are not known."""

    study: optuna.Study
    file: StudyFile
    experimenter: Experimenter

    def __post_init__(self) -> None:
        self._as_given = self.file.baseline_plan().step_key()
        self.read_again()

    def read_again(self) -> None:
        """Take in what other processes have measured."""
        self._known = known_step_times(self.study.user_attrs)

    def measured(self, plan: Plan, warm_up: WarmUp = NO_WARM_UP) -> SpeedMeasured:
        """Return the mean step time of a plan's run relative to the baseline's, measured now if need be."""
        kinds = kinds_of_steps(plan, self.file.plans, self.file.study.budget_steps)
        return mean_step([(self._measured(kind, warm_up), share) for kind, share in kinds])

    def _measured(self, plan: Plan, warm_up: WarmUp) -> SpeedMeasured:
        key, file = plan.step_key(), self.file
        if key not in self._known:
            if key == self._as_given:
                self._known[key] = SpeedMeasured(1.0, 1.0, 1.0)
            else:
                job = warm_up.speed_job(plan, file, file.study.seed, loading=True, precision=_PRECISION)
                self._known[key] = self.experimenter.run(job)
            self.study.set_user_attr(_KEY + key, self._known[key].to_json())
        return self._known[key]


def kinds_of_steps(plan: Plan, plans: StudyPlans, steps: int) -> list[tuple[Plan, float]]:
    """Return what a run's steps are like where its inputs grow: plans of one size, each with its share of passes."""
    if not plan.is_in_effect("curriculum"):
        return [(plan, 1.0)]
    from workbench.methods.curriculum.method import stages_of
    from workbench.methods.curriculum.section import CurriculumSection

    kinds = []
    for size, share in stages_of(plan.config.part(CurriculumSection), passes_of(plan, steps)):
        one: dict[str, Any] = {"curriculum.kind": "none"}
        if size < 1.0:
            one = {"curriculum.start": size, "curriculum.until": 1.0, "curriculum.stages": 1}
        kinds.append((plans.resolve(plan.config.with_values(one), plan.level), share))
    return kinds


def mean_step(kinds: Sequence[tuple[SpeedMeasured, float]]) -> SpeedMeasured:
    """Return the mean step time of kinds of steps with their shares; what each takes longer at first adds up."""
    if len(kinds) == 1:
        return kinds[0][0]
    ratio, low, high = (
        sum(share * float(getattr(step, name)) for step, share in kinds) for name in ("ratio", "low", "high")
    )
    cold, again = sum(step.cold_ms for step, _ in kinds), any(step.cold_again for step, _ in kinds)
    return replace(kinds[0][0], ratio=ratio, low=low, high=high, cold_ms=cold, cold_again=again)


def known_step_times(attributes: Mapping[str, Any]) -> dict[str, SpeedMeasured]:
    """Return the step times that a study keeps among its attributes, by `Plan.step_key`."""
    stored = {name: value for name, value in attributes.items() if name.startswith(_KEY)}
    return {name.removeprefix(_KEY): SpeedMeasured.from_json(value) for name, value in stored.items()}


def total_time(
    plan: Plan, step: SpeedMeasured, steps: int, warm_up_steps: int = 0, *, share_of_today: float = 1.0
) -> SpeedMeasured:
    """Return the time of a plan's whole run relative to the baseline's, with the interval that its step time gives.

    ``steps`` are the loader batches of the baseline's run; before the plan's there may be micro-batches of the
    baseline. Where that run is but a share of today's training, it bears that share of compiling.
    """
    passes = passes_of(plan, steps)
    read = min(passes * plan.config.part(BatchSection).factor, step.epoch)
    extra_ms = step.cold_ms * (1.0 if step.cold_again else share_of_today) + step.reading_ms * read
    once = extra_ms / (steps * step.baseline_ms) if math.isfinite(step.baseline_ms) else 0.0
    ratio, low, high = (once + (warm_up_steps + passes * one) / steps for one in (step.ratio, step.low, step.high))
    return replace(step, ratio=ratio, low=low, high=high)


def compile_seconds(plan: Plan, file: StudyFile, attributes: Mapping[str, Any]) -> float:
    """Return how long the first steps of a plan's run compile, as the search has timed it; 0 where nothing is compiled.

    It is part of a training in a process of its own, and so of a run's total time: a share of it where the training is
    longer (`StudyFile.share_of_today`). A study's runs after the first find everything compiled. What every run has to
    repeat, such as capturing CUDA graphs, is in its own time.
    """
    from workbench.core import devices

    asked = plan.config.part(RuntimeSection)
    compiles = asked.compile != "off" and not plan.why_not("runtime.compile")
    captures = asked.cuda_graph and not plan.why_not("runtime.cuda_graph")
    if not (compiles or (captures and devices.has_graphs(devices.select_device(file.study.device)))):
        return 0.0
    known = known_step_times(attributes)
    kinds = kinds_of_steps(plan, file.plans, file.study.budget_steps)
    steps = [known[kind.step_key()] for kind, _ in kinds if kind.step_key() in known]
    return 1e-3 * sum(step.cold_ms for step in steps if not step.cold_again)


def passes_of(plan: Plan, steps: int) -> int:
    """Return the number of forward passes in a run of ``steps`` loader batches."""
    from workbench.methods.in_effect import MethodsInEffect

    return MethodsInEffect(plan).passes(steps)
