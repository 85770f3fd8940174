"""Take poisoned records out of a stream: count them, report them, and give up when they are too many."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

from workbench.online.record_rules import BatchForm, RecordRules, form_of, judge, select_rows

Report = Callable[[str, float, str], None]
"""Takes reason, number of records so far rejected for it, and a sentence."""


class RecordLimitError(RuntimeError):
    """More records were rejected than the rules allow; something is wrong with the source, not with a record."""


class RecordSieve:
    """What stands between a stream and the trainer; reports once per reason in ``rules.report_seconds``."""

    def __init__(self, rules: RecordRules, report: Report, clock: Callable[[], float] = time.monotonic) -> None:
        self.rules = rules
        self.accepted = 0  # records passed on
        self.rejected = 0  # records taken out
        self.reasons: Counter[str] = Counter()  # of these, how many for which reason
        self._report_to = report
        self._clock = clock
        self._form: BatchForm | None = None
        self._reported: dict[str, float] = {}
        # The last batches as pairs (records, rejected), and their sums: at least `limit_window` records, if there were.
        self._recent: deque[tuple[int, int]] = deque()
        self._recent_records = 0
        self._recent_rejected = 0

    def sift(self, batch: Any) -> Any | None:
        """Return the good records of a batch, or None; a RecordLimitError when too many were rejected."""
        if self._form is None:
            self._form = form_of(batch)
        if self._form is None:
            self._count(1, {"no tensor in it": 1})
            return None
        verdict = judge(batch, self._form, self.rules)
        if verdict.whole:
            n_rejected = max(verdict.n_records, 1)
            self._count(n_rejected, {verdict.whole: n_rejected})
            return None
        self._count(verdict.n_records, verdict.reasons or {})
        return batch if verdict.bad is None else select_rows(batch, ~verdict.bad)

    def refuse(self, batch: Any, reason: str, *, forget_form: bool) -> None:
        """Revoke the acceptance of a batch that `sift` returned: the network could not compute with it.

        With ``forget_form`` the next batch is to say how batches are built, because no other was good yet.
        """
        form = form_of(batch)
        n_records = 1 if form is None else max(judge(batch, form, RecordRules()).n_records, 1)
        self.accepted -= n_records
        if forget_form:
            self._form = None
        self._count(n_records, {reason: n_records})

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, to go on counting; the form of a batch is learned from the next one."""
        return {
            "accepted": self.accepted,
            "rejected": self.rejected,
            "reasons": dict(self.reasons),
            "recent": [list(pair) for pair in self._recent],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting where ``state_dict`` was taken."""
        self.accepted, self.rejected = state["accepted"], state["rejected"]
        self.reasons = Counter(state["reasons"])
        self._recent = deque((records, rejected) for records, rejected in state["recent"])
        self._recent_records = sum(records for records, _ in self._recent)
        self._recent_rejected = sum(rejected for _, rejected in self._recent)

    def _count(self, n_records: int, reasons: Mapping[str, int]) -> None:
        n_rejected = sum(reasons.values())
        self.accepted += n_records - n_rejected
        self._recent.append((n_records, n_rejected))
        self._recent_records += n_records
        self._recent_rejected += n_rejected
        while self._recent_records - self._recent[0][0] >= self.rules.limit_window:
            records, rejected = self._recent.popleft()
            self._recent_records -= records
            self._recent_rejected -= rejected
        if not n_rejected:
            return
        self.rejected += n_rejected
        for reason, number in reasons.items():
            self.reasons[reason] += number
            self._report(reason)
        self._check_limits()

    def _report(self, reason: str) -> None:
        now, last = self._clock(), self._reported.get(reason)
        if last is None or now - last >= self.rules.report_seconds:
            self._reported[reason] = now
            number = self.reasons[reason]
            records = "record" if number == 1 else "records"
            self._report_to(reason, number, f"{number} {records} rejected so far: {reason}")

    def _check_limits(self) -> None:
        rules = self.rules
        worst = ", ".join(f"{number} {reason}" for reason, number in self.reasons.most_common(3))
        if rules.limit_count is not None and self.rejected > rules.limit_count:
            raise RecordLimitError(
                f"{self.rejected} records were rejected ({worst}), and `limit_count` is {rules.limit_count}; look at "
                "the source, or raise the limit"
            )
        if self._recent_records >= rules.limit_window:
            share = self._recent_rejected / self._recent_records
            if share > rules.limit_share:
                raise RecordLimitError(
                    f"{self._recent_rejected} of the last {self._recent_records} records were rejected ({worst}), and "
                    f"`limit_share` is {rules.limit_share:g}; look at the source, or raise the limit"
                )
