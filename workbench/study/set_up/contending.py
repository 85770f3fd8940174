"""Which set-ups compete for an export, in which order: what remained of the leader, then the others by their time.

Where more than one is tested, the safer comes first: the leader's set-up with a schedule a little longer. Tests in a
fixed order keep their full level as long as all before were confirmed (`planned_tests`), so a leader that turns out too
bold costs nothing but its runs, and one that is confirmed, too, is what is exported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from workbench.config import BoostConfig
from workbench.core.records import TrialRecord
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.standing import SURE, standing_now
from workbench.study.set_up.tuned_plain import plain_standing

__all__ = ["SAFER_THAN", "first_contender", "is_taken_apart", "keep_remaining", "ranked"]

SAFER_THAN = (
    "safer_than"  # user attribute of a trial: the number of the one whose set-up it has, with a longer schedule
)
_REMAINING = "remaining_set_up"
_LIKELY = 0.5


def keep_remaining(study: optuna.Study, number: int, idle: Mapping[str, Any]) -> None:
    """Keep which trial's set-up remained of the leader; ``idle`` are the values without the parts that are no gain."""
    trials = study.get_trials(deepcopy=False)
    study.set_user_attr(_REMAINING, {"number": number, "idle": dict(idle), "drawn": _n_drawn(trials)})


def is_taken_apart(study: optuna.Study) -> bool:
    """Return whether nothing has been drawn since the leader was taken apart: its runs alone make no new leader."""
    remaining = study.user_attrs.get(_REMAINING)
    return remaining is not None and remaining["drawn"] == _n_drawn(study.get_trials(deepcopy=False))


def _n_drawn(trials: Sequence[FrozenTrial]) -> int:
    return sum(trial.state.is_finished() and "given" not in trial.user_attrs for trial in trials)


def ranked(study: optuna.Study, records: Sequence[TrialRecord], file: StudyFile, allowed: float) -> list[TrialRecord]:
    """Return the trials that compete for an export: those that surely keep the quality, fastest first.

    Tuned plain competes by what its own runs say. Where the leader was taken apart, what remained of it comes first
    (the whole of it only while it is sure to keep the quality), and set-ups with a part that is no gain do not compete.
    Where nothing is sure enough, the one that most probably keeps the quality competes: the confirmation decides.
    """
    numbers, times = _by_time(study, file, allowed)
    if file.confirm.candidates > 1:
        numbers = _safer_first(numbers, study.get_trials(deepcopy=False), times)
    by_number = {record.number: record for record in records}
    return [by_number[number] for number in numbers]


def first_contender(study: optuna.Study, file: StudyFile) -> int | None:
    """Return the trial of the set-up that would be exported if all were confirmed; None where nothing competes."""
    numbers, _ = _by_time(study, file)
    return next(iter(numbers), None)


def _by_time(
    study: optuna.Study, file: StudyFile, allowed: float | None = None
) -> tuple[list[int], Mapping[int, float]]:
    """Return the numbers of the trials that compete, and the times of all."""
    standing, plain = standing_now(study, file, allowed), plain_standing(study, file, allowed).leader
    trials, remaining = study.get_trials(deepcopy=False), study.user_attrs.get(_REMAINING)
    numbers = sorted({*standing.ranking, *([] if plain is None else [plain])}, key=standing.times.__getitem__)
    if not numbers:
        faster = [number for number, time in standing.times.items() if time < 1.0 and standing.sure[number] > _LIKELY]
        numbers = sorted(faster, key=lambda number: -standing.sure[number])[:1]
    if remaining is not None:
        first, idle = int(remaining["number"]), remaining["idle"]
        if standing.sure.get(first, 0.0) > (_LIKELY if idle else SURE):
            configs = {one: BoostConfig.from_dict(trials[one].user_attrs["config"]).leaves() for one in numbers}
            free = [one for one in numbers if all(configs[one][path] == value for path, value in idle.items())]
            numbers = [first, *(one for one in free if one != first)]
    return numbers, standing.times


def _safer_first(numbers: list[int], trials: Sequence[FrozenTrial], times: Mapping[int, float]) -> list[int]:
    """Return the trials with the safer form of the first before it, where it was trained and is faster than O0."""
    for trial in trials:
        safer = trial.user_attrs.get("repeats", trial.number)
        if numbers and trial.user_attrs.get(SAFER_THAN) == numbers[0] and times.get(safer, 1.0) < 1.0:
            return [safer, *(number for number in numbers if number != safer)]
    return numbers
