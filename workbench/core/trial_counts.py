"""What a trial came to, in a few words, and how many came to what: one answer for terminal, panel, report and files."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workbench.core.records import TrialRecord

WITHIN = "within the allowed drop"
BEYOND = "beyond the allowed drop"
UNSURE = "within the drop, but not surely"

WITHIN_SOME = "within the drop of "  # how the outcome begins that some exports allow and others do not

_FINISHED_WORDS = ("O0", WITHIN, WITHIN_SOME, UNSURE, BEYOND, "pruned")  # in the order of display
_OTHER_STATES = ("failed", "running", "waiting")


def outcome_of(trial: TrialRecord, allowed_drops: Mapping[str, float] | None = None) -> str:
    """Return what a trial came to: ``"O0"``, within or beyond the allowed drop, or the state of an unfinished one.

    With drops per export it may be ``"within the drop of o2 only"``; without any the study's target decides. So it does
    where the chance to keep the quality is known: runs within the drop may then not be sure to keep it.
    """
    if trial.state != "complete":
        return trial.state
    if trial.number == 0:
        return "O0"
    if not math.isnan(trial.chance) and not trial.feasible:
        return UNSURE if trial.metric_deficit <= trial.allowed_drop else BEYOND
    if not allowed_drops or math.isnan(trial.metric_deficit) or not math.isnan(trial.chance):
        return WITHIN if trial.feasible else BEYOND
    suited = [target for target, drop in allowed_drops.items() if trial.metric_deficit <= drop]
    if len(suited) == len(allowed_drops):
        return WITHIN
    return f"{WITHIN_SOME}{' and '.join(suited)} only" if suited else BEYOND


def best_first(trial: TrialRecord) -> tuple[int, float]:
    """Return what to sort trials by: whether they keep the quality (surely, perhaps, not), and then their score."""
    kept = 0 if trial.feasible else 1 if outcome_of(trial) == UNSURE else 2
    return kept, math.inf if math.isnan(trial.value) else trial.value


@dataclass(frozen=True, slots=True)
class TrialCounts:
    """How many trials came to what: outcomes of those that ran to an end, and states of the others."""

    finished: Mapping[str, int]
    others: Mapping[str, int]

    @property
    def n_finished(self) -> int:
        """Trials that ran to an end, O0 and pruned ones among them."""
        return sum(self.finished.values())

    def plain_text(self) -> str:
        """Return all counts in words, one after the other."""
        return ", ".join([*_counted(self.finished), *_counted(self.others)])

    def text(self) -> str:
        """Return all counts in words; those before the semicolon add up to `n_finished`."""
        finished = ["O0" if one == "1 O0" else one for one in _counted(self.finished)]
        others = [f"besides {', '.join(_counted(self.others))}"] if self.others else []
        return "; ".join([*([", ".join(finished)] if finished else []), *others])


def _counted(counts: Mapping[str, int]) -> list[str]:
    # After a search nothing is waited for any more.
    return [f"{n} {'not begun' if word == 'waiting' else word}" for word, n in counts.items()]


def count_trials(trials: Iterable[TrialRecord], allowed_drops: Mapping[str, float] | None = None) -> TrialCounts:
    """Count trials by what they came to; see `outcome_of`."""
    counted = Counter(outcome_of(trial, allowed_drops) for trial in trials)
    finished = sorted((word for word in counted if word not in _OTHER_STATES), key=_place)
    return TrialCounts(
        {word: counted[word] for word in finished}, {word: counted[word] for word in _OTHER_STATES if counted[word]}
    )


def _place(outcome: str) -> tuple[int, str]:
    return next(i for i, word in enumerate(_FINISHED_WORDS) if outcome.startswith(word)), outcome
