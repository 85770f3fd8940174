"""What a study is asked, as described parameters: what the controls of a study are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from workbench.config import ParameterInfo

__all__ = ["COMMON_FIELDS", "FIRST_FIELDS", "JOBS", "MINUTES", "MORE_FIELDS"]


def _field(
    path: str,
    title: str,
    description: str,
    kind: Any,
    default: Any,
    *,
    choices: Sequence[str] = (),
    unit: str = "",
    optional: bool = False,
    rule: str = "",
) -> ParameterInfo:
    return ParameterInfo(
        path=path,
        kind=kind,
        default=default,
        low=None,
        high=None,
        log=False,
        step=None,
        choices=tuple(choices),
        unit=unit,
        title=title,
        description=description,
        optional=optional,
        rule=rule,
    )


MINUTES: Final = _field(
    "study.timeout_seconds",
    "How long may I search?",
    "Time for search and confirmation together, kept in seconds; unset sets no limit.",
    "float",
    None,
    unit="minutes",
    optional=True,
)
FIRST_FIELDS: Final = (
    MINUTES,
    _field(
        "allowed_drop.o1",
        "How much may it drop?",
        "How much of the metric the safe export may cost, in the metric's own unit; accuracies have 0.005 when unset.",
        "float",
        None,
        optional=True,
    ),
)
COMMON_FIELDS: Final = (
    _field("study.task", "Task", "Built-in name, package.module:attribute, or path/to/file.py:attribute.", "str", ""),
    _field(
        "study.objective",
        "Objective",
        "What is minimised: the time until O0's final metric less the allowed drop is reached; the time of a step; "
        "both metric and step time at once, without pruning; or the total time of a whole run that ends there.",
        "choice",
        "time_to_target",
        choices=("time_to_target", "speed", "pareto", "time_to_quality"),
    ),
    _field("study.n_trials", "Trials", "Different plans in all, O0 included.", "int", 12),
    _field("study.budget_steps", "Steps per trial", "Length of one run.", "int", 200, unit="micro-batches"),
    _field(
        "allowed_drop.o2",
        "Allowed drop, o2",
        "How much of the metric the bold export may cost, in the metric's own unit; accuracies have 0.03 when unset.",
        "float",
        None,
        optional=True,
    ),
)
MORE_FIELDS: Final = (
    _field(
        "sampler.name",
        "Sampler",
        "Who proposes trials.",
        "choice",
        "tpe",
        choices=("tpe", "random", "gp", "nsga2", "nsga3", "cmaes", "qmc", "grid", "brute_force", "promise"),
    ),
    _field(
        "pruner.name",
        "Pruner",
        "Who ends trials that fall behind O0 at equal time.",
        "choice",
        "median",
        choices=("median", "percentile", "successive_halving", "hyperband", "threshold", "none"),
    ),
    _field(
        "study.device_hours",
        "Device-hours",
        "Trial time times devices, all workers and commands together; unset sets no limit.",
        "float",
        None,
        unit="hours",
        optional=True,
    ),
    _field(
        "study.patience",
        "Patience",
        "Trials in a row without a better one after which the search ends; unset searches on.",
        "int",
        None,
        unit="trials",
        optional=True,
    ),
    _field(
        "study.evaluate_every",
        "Evaluate every",
        "Micro-batches between evaluations; unset takes a tenth of the run.",
        "int",
        None,
        unit="micro-batches",
        optional=True,
    ),
    _field("study.seed", "Seed", "Seed of the search; the confirmation uses others.", "int", 0),
    _field("study.device", "Device", "Where to train: auto, cpu, cuda or npu.", "str", "auto"),
    _field(
        "study.threads",
        "CPU threads",
        "Threads of a training process; small networks train fastest with one. Unset leaves it to torch.",
        "int",
        None,
        optional=True,
    ),
    _field("confirm.seeds_min", "Confirmation seeds, least", "Fewest paired seeds of a test.", "int", 10),
    _field("confirm.seeds_max", "Confirmation seeds, most", "Most paired seeds of a test.", "int", 100),
    _field("confirm.candidates", "Candidates", "Candidates tested per export, without refuted ones.", "int", 2),
    _field("speed.rounds", "Speed rounds", "Interleaved rounds in which a trial is timed against O0.", "int", 8),
    _field("speed.steps_per_block", "Steps per block", "Steps of one block of such a round.", "int", 6),
)
JOBS: Final = _field(
    "jobs",
    "Workers",
    "Processes that search at the same time; on one device they slow each other down.",
    "int",
    1,
    rule="be a whole number, 1 or more",
)
