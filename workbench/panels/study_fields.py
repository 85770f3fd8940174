"""What a study is asked, as described parameters: what the controls of a study are made from.

Kind, default, choices and rule come from the models of the study's file; labels and sentences for a person stand here.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import NoneType
from typing import Any, Final, Literal, get_args, get_origin

from workbench.config import ParameterInfo
from workbench.config.errors import inner_type, rule_of
from workbench.panels.controls import field

__all__ = ["COMMON", "FIRST", "MINUTES", "MORE", "study_fields"]

MINUTES: Final = "study.timeout_seconds"
"""Path of what is asked for in minutes, and kept in seconds."""

_DROP: Final = "How much of the metric the {} export may cost, in the metric's own unit; accuracies have {} when unset."

# Path, label, sentence, unit.
FIRST: Final = (
    (
        MINUTES,
        "How long may I search?",
        "Time for search and confirmation together, kept in seconds; unset sets no limit.",
        "minutes",
    ),
    ("allowed_drop.o1", "How much may it drop?", _DROP.format("safe", 0.005), ""),
)
COMMON: Final = (
    ("study.task", "Task", "Built-in name, package.module:attribute, or path/to/file.py:attribute.", ""),
    (
        "study.objective",
        "Objective",
        "What is minimised: the time until O0's final metric less the allowed drop is reached; the time of a step; "
        "both metric and step time at once, without pruning; or the total time of a whole run that ends there.",
        "",
    ),
    ("study.n_trials", "Trials", "Different plans in all, O0 included.", ""),
    ("study.budget_steps", "Steps per trial", "Length of one run.", "micro-batches"),
    ("allowed_drop.o2", "Allowed drop, o2", _DROP.format("bold", 0.03), ""),
)
MORE: Final = (
    ("sampler.name", "Sampler", "Who proposes trials.", ""),
    ("pruner.name", "Pruner", "Who ends trials that fall behind O0 at equal time.", ""),
    (
        "study.device_hours",
        "Device-hours",
        "Trial time times devices, all workers and commands together; unset sets no limit.",
        "hours",
    ),
    (
        "study.patience",
        "Patience",
        "Trials in a row without a better one after which the search ends; unset searches on.",
        "trials",
    ),
    (
        "study.evaluate_every",
        "Evaluate every",
        "Micro-batches between evaluations; unset takes a tenth of the run.",
        "micro-batches",
    ),
    ("study.seed", "Seed", "Seed of the search; the confirmation uses others.", ""),
    ("study.device", "Device", "Where to train: auto, cpu, cuda or npu.", ""),
    (
        "study.threads",
        "CPU threads",
        "Threads of a training process; small networks train fastest with one. Unset leaves it to torch.",
        "",
    ),
    ("confirm.seeds_min", "Confirmation seeds, least", "Fewest paired seeds of a test.", ""),
    ("confirm.seeds_max", "Confirmation seeds, most", "Most paired seeds of a test.", ""),
    ("confirm.candidates", "Candidates", "Candidates tested per export, without refuted ones.", ""),
    ("speed.rounds", "Speed rounds", "Interleaved rounds in which a trial is timed against O0.", ""),
    ("speed.steps_per_block", "Steps per block", "Steps of one block of such a round.", ""),
)


@functools.cache
def study_fields() -> Mapping[str, ParameterInfo]:
    """Return every field by its path in ``study.toml``, in the order of the controls."""
    from workbench.study.sample.sampling import PRUNERS, SAMPLERS  # loads Optuna, so not before it is needed

    names: dict[str, tuple[str, ...]] = {"sampler.name": tuple(SAMPLERS), "pruner.name": tuple(PRUNERS)}
    return {one[0]: _described(*one, names.get(one[0], ())) for one in (*FIRST, *COMMON, *MORE)}


def _described(path: str, title: str, sentence: str, unit: str, names: tuple[str, ...]) -> ParameterInfo:
    from workbench.study import StudyFile

    section, key = path.split(".")
    whole = StudyFile.model_fields[section]
    member = inner_type(whole.annotation).model_fields[key]
    default = member.get_default() if whole.is_required() else getattr(whole.get_default(), key)
    plain = inner_type(member.annotation)
    choices: tuple[Any, ...] = get_args(plain) if get_origin(plain) is Literal else names
    return field(
        path,
        title,
        sentence,
        "choice" if choices else {int: "int", float: "float"}.get(plain, "str"),
        None if member.is_required() and whole.is_required() else default,
        unit=unit,
        choices=choices,
        optional=NoneType in get_args(member.annotation),
        rule=rule_of(member),
    )
