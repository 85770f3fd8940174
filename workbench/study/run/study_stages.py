"""The stages of a study in one command, from O0 to its files, each with the time that is left to it."""

from __future__ import annotations

import contextlib
import math
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import optuna
from optuna.trial import TrialState

from workbench.core.records import Verdict
from workbench.study.answer.confirming import Confirmation
from workbench.study.answer.doubts import finds_steps_alone, learns_nothing, tight_drop
from workbench.study.answer.freezing_limits import measure_freezing_limits
from workbench.study.answer.loss_scale_policy import tune_loss_scale
from workbench.study.answer.result import StudyResult, write_answer
from workbench.study.answer.selection import computing_as_o0, contenders, select
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.experimenter import CHECKPOINTS
from workbench.study.run.objective import baseline_trial
from workbench.study.run.progress import StudyWatch
from workbench.study.run.runner import Experimenter, StoppableExperimenter
from workbench.study.run.searching import Search
from workbench.study.set_up.runtime_choice import RUNTIME_SHARE, choose_runtime
from workbench.study.set_up.stages import (
    Timetable,
    explain,
    find_plain,
    half_way,
    has_found,
    settle,
    stage_ends,
    take_apart,
    train_forms,
    try_plain_in_runtime,
    try_runtime_alone,
)
from workbench.study.set_up.tuned_plain import compare_with_plain
from workbench.study.store.stored_records import candidates_of, keep, keep_candidates

_CONFIRMATION, _ATTRIBUTION = "the confirmation", "the measurement of where the gain comes from"
_TIMING_STEPS = 0.4  # share of the time for timing what makes steps faster, where nothing else is searched
_RUNTIME_SLACK = 1.5  # for what is being timed when the runtime's share is over, and to compare the fastest with O0
_START_SECONDS = 60.0  # that loading a task takes at most, as a rule
_BEGUN = "goes_on"  # attribute of a study: which of these the next command does before it searches on; empty for none


@dataclass
class StudyStages:
    """The stages of a study in one command; what an earlier command has done is not done again.

    Each stage says in ``guard.limits.deadline`` when its last run ends.
    """

    study: optuna.Study
    file: StudyFile
    directory: Path
    guard: StoppableExperimenter  # trains for all stages
    search: Search
    watch: StudyWatch
    trainers: Callable[[], list[Experimenter]]  # gives those that train side by side now
    about_room: Callable[[], str]  # says whether more runs could be trained at a time, once the runtime is known
    limit: float | None  # seconds of the whole command
    deadline: float | None  # when the last stage ends, by ``time.monotonic()``; None for no end
    confirm_seeds: int | None
    in_file: bool  # whether a command can load the task, which else only this program knows

    def __post_init__(self) -> None:
        self._finds_set_up = self.file.study.objective == "time_to_quality"
        self._cut_short = list[str]()  # what the time limit has ended
        self.room = ""  # what was said about it

    def train_baseline(self) -> None:
        """Train O0, if it has not been; an OutOfTimeError where the time is too short for that."""
        self.guard.limits.deadline = self.deadline
        if self._finds_set_up and baseline_trial(self.study) is None:
            self.search.objective.trainers = self.trainers()
        self.search.run_baseline(self.deadline)
        self.watch.trial_finished()
        if sentence := learns_nothing(self.study, self.file) or tight_drop(self.study):
            self.watch.note(sentence)

    def goes_on(self) -> bool:
        """Return whether what follows the search goes on first: it was begun before, or more seeds are asked for."""
        stage = "" if self.limit is None else self.study.user_attrs.get(_BEGUN, "")
        tested = [one for one in candidates_of(self.study) if one.verdict is Verdict.UNDECIDED and one.n_seeds > 0]
        asks_more = any(len(one.metrics) < (self.confirm_seeds or 0) for one in tested)
        if asks_more:
            self.watch.note(f"{_CONFIRMATION}, for which more seeds are asked, goes on before the search does")
        elif stage:
            self.watch.note(f"{stage}, which was not finished, goes on before the search does")
        return asks_more or bool(stage)

    def find_set_up(self, *, searches: bool) -> None:
        """Search for the fastest set-up, in the stages of ``set_up/stages.py``, and find out what its parts are."""
        study, file, search, guard, limit = self.study, self.file, self.search, self.guard, self.limit
        steps_alone = finds_steps_alone(study, file)
        searches = searches and not steps_alone
        slack = _RUNTIME_SLACK * RUNTIME_SHARE
        guard.limits.deadline = stage_ends(self._timetable().search_ends(), limit, self.deadline, slack)
        self._find_runtime(RUNTIME_SHARE)
        if room := self.about_room():
            self.room = room
            self.watch.note(room)
        times = self._timetable()
        end = times.search_ends()
        if searches:
            guard.limits.deadline = stage_ends(end, limit, self.deadline, file.set_up.plain_share)
            search.until(guard.limits.deadline)
            search.objective.trainers = self.trainers()
            find_plain(search, limit=limit)
            guard.limits.deadline = end
            search.until(end)
            try_plain_in_runtime(search)
            search.run()
        if not (has_found(study, file) if searches else self._compete()):
            # Nothing to take apart, or to confirm: the search has that time, too.
            guard.limits.deadline = times.confirmation_begins()
            try_runtime_alone(search, however_little=steps_alone)
            search.run_until(guard.limits.deadline)
        search.objective.trainers = self.trainers()
        ends = times.ends_of_search() if searches else []
        for moment in ends:
            guard.limits.deadline = moment
            settle(search, times, deadline=moment)
            self.watch.phase("attribution")
            take_apart(search, deadline=times.before_a_test(moment) if self._compete() else moment)
            guard.limits.deadline = times.ends_of_forms(moment) if self._compete() else moment
            train_forms(search, deadline=guard.limits.deadline)
            if moment in ends[-2:] and not self._compete():
                guard.limits.deadline = self.deadline
                try_runtime_alone(search, however_little=True)
            if self._compete():
                break

    def find_trials(self, *, searches: bool) -> None:
        """Run the trials of another objective; where none competes for an export, they have all the time there is."""
        self.guard.limits.deadline = self.search.deadline
        if searches:
            if self.file.finds_steps_alone:
                self._find_runtime(_TIMING_STEPS)
                try_runtime_alone(self.search, however_little=True)
            self.search.run()
        if not self._compete():
            later = (self.file.loss_scale_replay, self.file.freezing_limit)
            measures = any(one is not None and one.enabled for one in later)
            self.guard.limits.deadline = half_way(self.deadline) if measures else self.deadline
            self.search.run_until(self.guard.limits.deadline)

    def for_more_seeds(self, seeds: int, seconds: float) -> str:
        """Return what trains up to so many seeds, with time for it where the limit has less: it begins with a start."""
        needed = _START_SECONDS + 2.0 * seconds
        is_short = self.limit is not None and needed > self.limit  # NaN is not
        minutes = math.ceil(needed / 60.0) if is_short else None
        if not self.in_file:
            return f"tune(..., confirm_seeds={seeds}{f', minutes={minutes}' if minutes else ''})"
        command = f"workbench tune {shlex.quote(str(self.directory))} --confirm-seeds {seeds}"
        return command + (f" --minutes {minutes}" if minutes else "")

    def measure_more(self) -> None:
        """Choose a loss-scale policy and time freezing, where the study asks for it."""
        study, file, guard, watch = self.study, self.file, self.guard, self.watch
        guard.limits.deadline = half_way(self.deadline)
        if file.loss_scale_replay is not None and file.loss_scale_replay.enabled:
            watch.phase("loss scale")
        try:
            tune_loss_scale(study, file, guard, on_step=watch.step)
        except OutOfTimeError:
            self._cut_short.append("the choice of a loss-scale policy")
        if file.freezing_limit is not None and file.freezing_limit.enabled:
            watch.phase("freezing limit")
        try:
            measure_freezing_limits(study, file, guard)
        except OutOfTimeError:
            self._cut_short.append("the measurement of what freezing could save")

    def confirm(self) -> None:
        """Train the best for each export and O0 over fresh seeds, and compare what is taken with tuned plain.

        Find out where its gain comes from, too, if that is not known.
        """
        study, file, search, watch = self.study, self.file, self.search, self.watch
        self.guard.limits.deadline = self.deadline
        study.set_user_attr(_BEGUN, _CONFIRMATION)
        confirmation = Confirmation(
            study,
            file,
            self.guard,
            search.warm_ups,
            trainers=self.trainers(),
            command=self.for_more_seeds,
            confirm_seeds=self.confirm_seeds,
            deadline=self.deadline,
            on_run=watch.run_finished,
            on_step=watch.step,
            on_note=watch.note,
        )
        candidates = confirmation.judge(contenders(study, file))
        keep_candidates(study, candidates)
        self._cut_short += [_CONFIRMATION] if confirmation.cut_short else []
        open_stage = _CONFIRMATION if confirmation.is_open else ""
        if self._finds_set_up:
            study.set_user_attr(_BEGUN, open_stage or _ATTRIBUTION)
            targets = dict.fromkeys(one.target for one in candidates)
            as_o0 = computing_as_o0(study)
            chosen = [select(target, candidates, as_o0=as_o0).candidate for target in targets]
            taken = [one for one in chosen if one is not None]
            compare_with_plain(confirmation, taken)
            watch.phase("attribution")
            known = [explain(search, one.trial_number, deadline=self.deadline) for one in taken]
            if not all(known):
                self._cut_short.append(_ATTRIBUTION)
                open_stage = open_stage or _ATTRIBUTION
        study.set_user_attr(_BEGUN, open_stage)

    def answer(self, *, require_confirmed: bool) -> StudyResult:
        """Choose what each export takes and write the files."""
        study, cut_short = self.study, " and ".join(self._cut_short)
        by_time = f"The time limit ended {cut_short}; the same command continues from there."
        keep(study, "cut_short", by_time if cut_short else "")
        self.watch.phase("export")
        folder = self.directory / "result"
        result = write_answer(study, self.file, self.directory, folder, require_confirmed=require_confirmed)
        if not (cut_short or study.get_trials(deepcopy=False, states=(TrialState.RUNNING, TrialState.WAITING))):
            shutil.rmtree(self.directory / CHECKPOINTS, ignore_errors=True)  # of runs that will not be asked for again
        self.watch.done()
        return result

    def _find_runtime(self, share: float) -> None:
        limit = None if self.limit is None else share * self.limit
        with contextlib.suppress(OutOfTimeError):
            choose_runtime(self.search.step_times(), self.watch.note, partial(self.watch.phase, "timing"), limit=limit)
        self.watch.phase("search")

    def _timetable(self) -> Timetable:
        return Timetable(self.study, self.file, self.deadline, self.limit, max(len(self.trainers()), 1))

    def _compete(self) -> bool:
        """Return whether any trial competes for an export."""
        return any(contenders(self.study, self.file).values())
