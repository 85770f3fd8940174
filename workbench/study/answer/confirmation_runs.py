"""What a study keeps of its confirmation: runs, timings and planned tests, as user attributes.

Where whole runs are timed, a run is kept in its *round*: the plans that took turns on a seed, in one command. A machine
may be twice as fast an hour later, so two runs are compared only within a round. Otherwise only metrics are compared,
and all runs on a seed are one round. A plan that competes for two exports is trained once.

A planned test is kept with the question it was planned for, the allowed drop and the length of its runs: where either
has been edited since, it says nothing about today's question, but its error is spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import optuna

from workbench.study.answer.planned_tests import FIRST_ERROR, PlannedTest, read_early
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import SpeedMeasured, Trained

_APART = 1000  # how far its seeds are from the search's, which the candidates were picked on


@dataclass(frozen=True, slots=True)
class StoredTest:
    """A planned test, the key of its plan, and the question it was planned for."""

    key: str
    test: PlannedTest
    question: str


class ConfirmationRuns:
    """The confirmation's runs, by seed, round and the key of their plan, and how long each of them is."""

    def __init__(self, study: optuna.Study, file: StudyFile) -> None:
        self._study = study
        self._first_seed = file.study.seed + _APART
        self.baseline = file.baseline_plan()
        self.baseline_key = self.baseline.key()
        self.steps = file.confirm.steps or file.study.budget_steps
        self.count_steps = file.study.objective == "time_to_target"  # what is compared is how many reach the target
        self.are_timed = file.study.objective == "time_to_quality"  # or how long a whole run takes
        self.evaluate_every = min(file.evaluate_every, self.steps) if self.count_steps else self.steps
        # Version 0.6 evaluated at the end alone, which says nothing of the time to the target.
        self._length = f"{self.steps}:{self.evaluate_every}" if self.evaluate_every < self.steps else f"{self.steps}"
        self._known = dict(study.user_attrs)  # every look asks for every run, and each question to SQLite costs

    def seeds(self, first: int, n_pairs: int) -> Sequence[int]:
        """Return the seeds of ``n_pairs`` pairs, from the pair ``first`` on."""
        return range(self._first_seed + first, self._first_seed + first + n_pairs)

    def together(self, seed: int, *keys: str) -> tuple[Trained, ...]:
        """Return the runs of some plans from the latest round on a seed that has them all; empty if none has."""
        rounds: Iterable[Mapping[str, Any]]
        if self.are_timed:
            rounds = reversed(self._known.get(self._rounds_name(seed), []))
        else:
            names = {key: self._run_name(key, seed) for key in keys}
            rounds = [{key: self._known[name] for key, name in names.items() if name in self._known}]
        found = next((one for one in rounds if one.keys() >= set(keys)), None)
        return () if found is None else tuple(Trained.from_json(found[key]) for key in keys)

    def run(self, key: str, seed: int) -> Trained | None:
        """Return a plan's latest run on a seed; None if none has ended."""
        return next(iter(self.together(seed, key)), None)

    def begin_round(self, seed: int) -> Callable[[str, Trained], None]:
        """Return what stores a plan's run in a fresh round on a seed."""
        if not self.are_timed:
            return lambda key, trained: self._keep(self._run_name(key, seed), trained.to_json())
        before, runs = self._known.get(self._rounds_name(seed), []), dict[str, Any]()

        def keep(key: str, trained: Trained) -> None:
            runs[key] = trained.to_json()
            self._keep(self._rounds_name(seed), [*before, runs])

        return keep

    def lacking(self, keys: Iterable[str], seed: int) -> list[str]:
        """Return the plans, O0 among them, that a round on a seed must have for each of them to have O0 beside it."""
        lacking = [key for key in keys if not self.together(seed, self.baseline_key, key)]
        return list(dict.fromkeys([self.baseline_key, *lacking])) if lacking and self.are_timed else lacking

    def speed(self, key: str) -> SpeedMeasured | None:
        """Return how fast a plan's steps are by the confirmation's own timing; None before it."""
        stored = self._known.get(f"confirm_speed:{key}")
        return None if stored is None else SpeedMeasured.from_json(stored)

    def keep_speed(self, key: str, measured: SpeedMeasured) -> None:
        """Store a timing."""
        self._keep(f"confirm_speed:{key}", measured.to_json())

    def pairs(self, key: str, first: int, n_pairs: int) -> list[tuple[Trained, Trained]]:
        """Return O0's and a plan's runs, each pair of one round, seed by seed, up to the first that is missing."""
        found = []
        for seed in self.seeds(first, n_pairs):
            pair = self.together(seed, self.baseline_key, key)
            if not pair:
                break
            found.append((pair[0], pair[1]))
        return found

    def usable_pairs(self, key: str, first: int, n_pairs: int) -> list[tuple[Trained, Trained]]:
        """Return those pairs that tell a drop and a time: a run that diverged has no metric, and ended early."""
        return [(a, b) for a, b in self.pairs(key, first, n_pairs) if a.is_usable and b.is_usable]

    def metrics(self, key: str, test: PlannedTest) -> list[tuple[float, float]]:
        """Return the final metrics of a test's pairs, up to the first that is missing."""
        return [(a.metric, b.metric) for a, b in self.pairs(key, test.first, test.n_pairs)]

    def diverged(self, key: str, first: int, n_pairs: int) -> bool:
        """Return whether a plan diverged on a seed on which O0 did not."""
        one_by_one = (pair for at in range(first, first + n_pairs) for pair in self.pairs(key, at, 1))
        return any(a.is_usable and not b.is_usable for a, b in one_by_one)

    def seconds(self, key: str) -> float:
        """Return what a plan's runs take by the clock, the median of the first ten; NaN when none has ended well."""
        runs = (self.run(key, seed) for seed in self.seeds(0, 10))
        known = [run.by_clock() for run in runs if run is not None and run.is_usable]
        return median(known) if known else math.nan

    def question(self, allowed_drop: float) -> str:
        """Return what a test asks today."""
        return f"{allowed_drop:g} after {self._length}"

    def tests(self, target: str) -> list[StoredTest]:
        """Return the planned tests of an export in the order in which they were planned."""
        rows = self._known.get(f"confirm_tests:{target}", [])
        tests = [PlannedTest(row["first"], tuple((n, error) for n, error in row["looks"])) for row in rows]
        return [StoredTest(row["key"], test, row["question"]) for row, test in zip(rows, tests, strict=True)]

    def n_further(self, target: str) -> int:
        """Return how many tests of an export have used the error reserved for unplanned ones."""
        return sum(one.test.looks[-1][1] < FIRST_ERROR for one in self.tests(target))

    def keep_test(self, target: str, key: str, test: PlannedTest, allowed_drop: float) -> None:
        """Store a test."""
        looks = [list(look) for look in test.looks]
        row = {"key": key, "first": test.first, "looks": looks, "question": self.question(allowed_drop)}
        self._keep(f"confirm_tests:{target}", [*self._known.get(f"confirm_tests:{target}", []), row])

    def read_early(self, target: str, key: str, n_pairs: int) -> None:
        """Have a plan's last test read after so many pairs, too, since there is no time for all of them."""
        rows, tests = [*self._known[f"confirm_tests:{target}"]], self.tests(target)
        at = max(number for number, one in enumerate(tests) if one.key == key)
        rows[at] = rows[at] | {"looks": [list(look) for look in read_early(tests[at].test, n_pairs).looks]}
        self._keep(f"confirm_tests:{target}", rows)

    def _run_name(self, key: str, seed: int) -> str:
        return f"confirm:{key}:{seed}:{self._length}"

    def _rounds_name(self, seed: int) -> str:
        return f"confirm_rounds:{seed}:{self._length}"

    def _keep(self, name: str, value: Any) -> None:
        self._study.set_user_attr(name, value)
        self._known[name] = value
