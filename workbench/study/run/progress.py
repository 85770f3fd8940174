"""How far a study has got: the phase, the time left and the best so far."""

from __future__ import annotations

import itertools
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import optuna
from optuna.trial import FrozenTrial

from workbench.core.ipython_shell import ipython_shell
from workbench.core.records import TrialRecord, timed_per
from workbench.core.text import format_duration
from workbench.study.answer.notes import Notes
from workbench.study.answer.selection import competing_trials
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import RunStep
from workbench.study.run.objective import baseline_trial
from workbench.study.set_up.standing import standing_now
from workbench.study.store.ended_trials import FINISHED, EndedTrials
from workbench.study.store.stored_records import is_its_own, records_of
from workbench.study.store.study_storage import seconds_of

_DECIDING = frozenset({"confirm", "export"})
"""Phases in which the search's leader is no longer news: they decide what is exported."""

_LINE_SECONDS = 10.0  # between two lines of a phase that stay


@dataclass(frozen=True, slots=True)
class TuneProgress:
    """How far a study has got."""

    phase: str  # "O0", "search", "timing", "attribution", "loss scale", "freezing limit", "confirm" or "export"
    done: float  # units of the phase (trials, runtimes, runs); a running one counts by its share
    total: float  # as far as known; of a search that its time limit will end, an estimate
    eta_seconds: float  # that the rest of this command will probably take, its time limit at most; NaN while unknown
    best: str  # trial that leads the search, in a few words; empty while none does, and from the confirmation on
    trials: int = 0  # that have ended, whichever way; when it changes, there is something new to read
    note: str = ""  # the last thing a reader should know of what comes, a sentence

    def __str__(self) -> str:
        words = [f"{self.phase}: {math.floor(self.done)} of {self.total:.0f}"]
        words += [f"{format_duration(self.eta_seconds)} left"] if self.eta_seconds >= 1 else []
        return ", ".join([*words, *([f"leading {self.best}"] if self.best else [])])


class ProgressLine:
    """Prints how far a study has got: in one line that is overwritten, or into a file or a pipe a line now and then."""

    def __init__(self) -> None:
        self._shown, self._width, self._phase = -math.inf, 0, ""

    def __call__(self, progress: TuneProgress) -> None:
        """Show the progress; each phase begins a new line."""
        moves = sys.stdout.isatty() or ipython_shell() is not None
        if progress.phase == self._phase and time.monotonic() - self._shown < (1.0 if moves else _LINE_SECONDS):
            return
        begin = "" if progress.phase == self._phase else "\n" * bool(self._phase)
        line = str(progress)
        print(f"{begin}\r{line.ljust(self._width)}" if moves else line, end="" if moves else "\n", flush=True)
        self._shown, self._width, self._phase = time.monotonic(), len(line), progress.phase


class StudyWatch:
    """Turns what happens into `TuneProgress`; with ``confirm_seeds`` None the file decides, ``deadline`` None is none.

    ``on_change`` is called with the phase between two runs, when there is something new in the storage.
    """

    def __init__(
        self,
        study: optuna.Study,
        file: StudyFile,
        n_trials: int,
        confirm_seeds: int | None = None,
        on_progress: Callable[[TuneProgress], None] | None = None,
        deadline: float | None = None,
        on_change: Callable[[str], None] = lambda phase: None,
    ) -> None:
        self._on_change = on_change
        self._study, self._file, self._n_trials, self._on_progress = study, file, n_trials, on_progress
        self._began = time.monotonic()
        self._deadline = math.inf if deadline is None else deadline
        self._phase, self._done, self._total, self._share = "search", 0.0, float(n_trials), 0.0
        self._trial_seconds = math.nan
        self._best, self._note, self._ended = "", "", 0
        self._ended_trials, self._finished, self._seconds = EndedTrials(), 0, list[float]()
        self._new: list[FrozenTrial] = []  # those that finished since the leaders were found, without O0
        self._leaders: dict[str, list[TrialRecord]] = {}  # by export: who leads, if anybody does
        self._notes = Notes(study, file)
        seeds = file.confirm.seeds_min if confirm_seeds is None else confirm_seeds
        self._later_runs = float(seeds * (1 + file.confirm.candidates)) if file.confirm.enabled else 0.0

    def phase(self, name: str, done: float = 0.0, total: float = 1.0) -> None:
        """Begin a phase."""
        if name == "search":
            self._phase = name
            self.trial_finished()
            return
        self._phase, self._done, self._total, self._share = name, done, total, 0.0
        self._on_change(name)
        if name in _DECIDING:
            self._best = ""
        if name == "export":
            self._later_runs = 0.0
        self._report()

    def step(self, step: RunStep) -> None:
        """Take a step of the run in progress."""
        share = min(step.step / max(step.steps, 1), 1.0)
        self._share = share * self._total if self._phase == "O0" else share  # all of its runs are one trial
        self._report()

    def trial_begun(self) -> None:
        """Take note that a trial runs now, of this process or another."""
        self._on_change(self._phase)

    def trial_finished(self, trials: Sequence[FrozenTrial] | None = None) -> None:
        """Look at the trials that have ended since; ``trials`` are all of the study's, None reads them."""
        if trials is None:
            trials = self._study.get_trials(deepcopy=False)
        self._notes.refresh(trials)
        if self._on_progress is not None:
            self._refresh(trials)
        self._report()

    def run_finished(self, done: int, total: int) -> None:
        """Take the number of confirmation runs done."""
        self._later_runs = 0.0
        self.phase("confirm", float(done), float(total))

    def note(self, sentence: str) -> None:
        """Pass a sentence on."""
        self._note, self._best = sentence, ""
        self._report()

    def done(self) -> None:
        """End the last phase."""
        self._done, self._share = self._total, 0.0
        self._report()

    def _refresh(self, trials: Sequence[FrozenTrial]) -> None:
        new = [one for one in self._ended_trials.new(trials) if is_its_own(one)]
        finished = [one for one in new if one.state in FINISHED]
        self._new += [one for one in finished if not one.user_attrs.get("baseline")]
        self._seconds += [seconds for one in finished if (seconds := seconds_of(one)) > 0.0]
        self._ended, self._finished = self._ended + len(new), self._finished + len(finished)
        self._trial_seconds = sum(self._seconds) / len(self._seconds) if self._seconds else math.nan
        if self._phase != "attribution":
            self._phase, self._done, self._total = "search", float(self._finished), float(self._n_trials)
        self._share = 0.0
        baseline = baseline_trial(self._study)
        self._best = "" if baseline is None else self._best_of(baseline)

    def _best_of(self, baseline: FrozenTrial) -> str:
        """Say which trial leads the search, for the export it aims at or else another."""
        objective, attributes = self._file.study.objective, self._study.user_attrs

        def described(trial: TrialRecord) -> str:
            factor = f"{1.0 / trial.relative_step_time:.2f} x {timed_per(objective)}"
            return f"trial {trial.number}, {factor}, {trial.summary}"

        if objective == "time_to_quality":  # the set-up that surely keeps the quality
            self._new.clear()
            leader = standing_now(self._study, self._file).leader
            trials = [] if leader is None else [baseline, self._study.get_trials(deepcopy=False)[leader]]
            return next((described(one) for one in records_of(trials, attributes) if one.number == leader), "")
        reference, *new = records_of([baseline, *self._new], attributes)
        for target, drop in attributes["allowed_drops"].items() if new else ():
            ranked = competing_trials(
                [*self._leaders.get(target, ()), *new],
                reference,
                target,
                drop,
                self._file,
                higher_is_better=bool(attributes["higher_is_better"]),
            )
            self._leaders[target] = list(itertools.islice(ranked, 1))
        if not any(map(math.isnan, attributes["allowed_drops"].values())):
            self._new.clear()
        first = sorted(self._leaders, key=lambda one: one != self._file.allowed_drop.target)
        return next((f"{target}: {described(one)}" for target in first for one in self._leaders[target]), "")

    def _search_seconds(self) -> float:
        """Return the time left to a search for the fastest set-up."""
        later = self._file.set_up.attribution_share
        later += self._file.confirm.time_share if self._file.confirm.enabled else 0.0
        return max(self._deadline - later * (self._deadline - self._began) - time.monotonic(), 0.0)

    def _report(self) -> None:
        if self._on_progress is None:
            return
        ended_by_time = self._file.study.objective == "time_to_quality" and math.isfinite(self._deadline)
        done = min(self._done + self._share, self._total)
        left = max(self._total - done, 0.0)
        if ended_by_time and self._phase == "search" and self._trial_seconds > 0.0:
            left = min(left, self._search_seconds() / self._trial_seconds)
        eta = (left + self._later_runs) * self._trial_seconds if self._phase != "export" else 0.0
        if ended_by_time or self._phase == "timing":
            eta = math.inf  # and not the number of plans
        if not math.isnan(eta) and math.isfinite(self._deadline):
            eta = min(eta, max(self._deadline - time.monotonic(), 0.0))
        self._on_progress(TuneProgress(self._phase, done, done + left, eta, self._best, self._ended, self._note))
