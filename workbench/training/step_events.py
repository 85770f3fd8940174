"""What is worth a sentence in the record of a step: an overflow, a change of the loss scale, its floor, divergence."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from workbench.core.records import Event, EventKind, StepRecord
from workbench.training.boosted import Boosted

AT_FLOOR_COLUMN = "loss_scale.at_floor"
"""Column that is 1 where a step overflowed and no group's scale could fall any further."""

_SHOWN_MODULES = 3


class StepEvents:
    """Finds the events in the records of a run, which it is given in order."""

    def __init__(self, boosted: Boosted) -> None:
        self._boosted = boosted
        self.was_at_floor = self._diverged = False

    def of(self, record: StepRecord, nonfinite: Sequence[str], scales_after: Sequence[float]) -> list[Event]:
        """Return a step's events.

        Args:
            record: Of the step.
            nonfinite: Leaf modules whose gradients went non-finite, in the order in which the backward pass met them.
            scales_after: The loss scales that the step left to its groups, if it has any.
        """
        found = [*self._overflow(record, nonfinite), *self._changes(record, scales_after), *self._floor(record)]
        # Once: every loss after it is as bad. Where overflows are skipped, the rule of the loss scale judges instead.
        judged_elsewhere = self._boosted.loss_scaling.drop_overflow_update
        if not (math.isfinite(record.loss) or judged_elsewhere or self._diverged):
            self._diverged = True
            text = f"the loss is {record.loss:g}; training diverged"
            found.append(_event(record, EventKind.DIVERGED, "loss", record.loss, text))
        return found

    def _overflow(self, record: StepRecord, nonfinite: Sequence[str]) -> Iterator[Event]:
        if record.overflow:
            rest = len(nonfinite) - _SHOWN_MODULES  # the event's subject holds them all
            who = ", ".join(nonfinite[:_SHOWN_MODULES]) + (f" and {rest} more" if rest > 0 else "")
            then = "skipped" if record.skipped else "applied anyway"
            at = "" if record.group_scales else f"at loss scale {record.loss_scale:g} "
            text = f"gradients overflowed {at}in {who or 'a gradient'}; the update was {then}"
            yield _event(record, EventKind.OVERFLOW, ", ".join(nonfinite), record.loss_scale, text)

    def _changes(self, record: StepRecord, scales_after: Sequence[float]) -> Iterator[Event]:
        changes = [("", "loss scale", record.loss_scale, record.loss_scale_after)]
        if record.group_scales:
            names = self._boosted.loss_scaling.group_names
            of_groups = zip(names, record.group_scales, scales_after, strict=True)
            changes = [(name, f"loss scale of {name}", used, now) for name, used, now in of_groups]
        for name, what, used, now in changes:
            if now < used:
                yield _event(record, EventKind.SCALE_DOWN, name, now, f"{what} fell to {now:g}")
            elif now > used and (not name or _is_news(used, now)):
                yield _event(record, EventKind.SCALE_UP, name, now, f"{what} grew to {now:g}")

    def _floor(self, record: StepRecord) -> Iterator[Event]:
        scaling, after = self._boosted.loss_scaling, record.loss_scale_after
        is_judged = record.accumulated == self._boosted.window.n_steps  # the end of a window
        if not (is_judged and (record.group_scales or scaling.adapts)):
            return
        at_floor = record.overflow and after <= scaling.minimum
        text = f"loss scale is at its floor {after:g}; further overflows cannot lower it"
        if record.group_scales:
            at_floor, text = AT_FLOOR_COLUMN in record.columns, "no loss scale of a group can fall any further"
        if at_floor and not self.was_at_floor:
            yield _event(record, EventKind.SCALE_FLOOR, "", after, text)
        self.was_at_floor = at_floor


def _event(record: StepRecord, kind: EventKind, subject: str, value: float, text: str) -> Event:
    return Event(record.step, kind, subject, value, f"step {record.step}: {text}")


def _is_news(before: float, after: float) -> bool:
    """Return whether a scale grew by a tenth, or past a power of two: the reference's grow by 0.07 % in every step."""
    return after >= 1.1 * before or (after > before and math.floor(math.log2(after)) > math.floor(math.log2(before)))
