"""The way of a search for the fastest set-up, around the trials that are drawn.

    O0 over several seeds: the quality to keep
    the runtime: what changes time alone, timed                          (`runtime_choice`)
    tuned plain: length and rate of the task as given                    (`tuned_plain`)
    tuned plain in that runtime, where it saves much
    plans, drawn by promise, trained whole                               (`proposing`, `objective`)
    where the gain comes from, and what of the plan is no gain           (`attribution`)

Everything is stored when it is done, so an interrupted study goes on where it was.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import optuna

from workbench.study.answer.confirming import FEWEST_PAIRS
from workbench.study.answer.selection import FORM_OF, first_contender, is_taken_apart
from workbench.study.ask.search_space import GIVEN
from workbench.study.ask.set_up_question import EXPECTED_TIME
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import Trained
from workbench.study.run.objective import finished_baseline
from workbench.study.run.searching import Search
from workbench.study.set_up.attribution import Attributor, is_explained
from workbench.study.set_up.runtime_choice import RUNTIME_SHARE, runtime_ratio
from workbench.study.set_up.standing import MOST_SEEDS, standing_now
from workbench.study.set_up.tuned_plain import PLAIN, best_plain, next_plain

_SLACK = 1.25  # what runs may take longer than expected before a confirmation has fewer seeds
_PLAIN_SEEDS = 2  # of a plan of tuned plain, at most: runs on the confirmation's seeds tell how good it is
# Of a step's time: a runtime that saves less is tried by itself at last alone, since it would end the search for more.
_WORTH_ALONE = 0.75
_SEARCHED_ON = 0.4  # share of the time until the confirmation that the search goes on if nothing leads any longer


def stage_ends(
    deadline: float | None, limit: float | None, latest: float | None, share: float = RUNTIME_SHARE
) -> float | None:
    """Return when a first stage ends, by ``time.monotonic()``: with the search, but not before its share of the time.

    However late starting and the baseline have made it, nothing that comes later gains as much in as short a time as
    the choice of the runtime, and without tuned plain a result has nothing to be compared with.
    """
    if deadline is None or limit is None or latest is None:
        return deadline
    return max(deadline, min(time.monotonic() + share * limit, latest))


def find_plain(search: Search, *, limit: float | None) -> None:
    """Find tuned plain, before other plans are drawn; ``limit`` are the seconds of the whole command."""
    study, file = search.study, search.file
    asked = {PLAIN: True, MOST_SEEDS: _PLAIN_SEEDS}
    if search.objective.trainers:
        asked["n_seeds"] = _PLAIN_SEEDS  # which take no longer than one
    end = None
    if search.deadline is not None and limit is not None:
        end = min(search.deadline, time.monotonic() + file.set_up.plain_share * limit)
    while True:
        trials = study.get_trials(deepcopy=False)
        done = sum(trial.state.is_finished() and bool(trial.user_attrs.get(PLAIN)) for trial in trials)
        is_over = done >= file.set_up.plain_runs or (end is not None and time.monotonic() > end)
        given = None if is_over else next_plain(study, file)
        if given is None:
            return
        try:
            search.run_given(given, asked)
        except OutOfTimeError:
            return


def try_plain_in_runtime(search: Search) -> None:
    """Train the best of tuned plain in the chosen runtime, where that saves much: two gains that surely add up."""
    study, file = search.study, search.file
    if runtime_ratio(study.user_attrs) > _WORTH_ALONE or (best := best_plain(study, file)) is None:
        return
    plain = study.get_trials(deepcopy=False)[best].user_attrs[GIVEN]
    _train_in_runtime(search, {path: value for path, value in plain.items() if path not in file.set_up.runtime})


def try_runtime_alone(search: Search, *, however_little: bool) -> None:
    """Train the task as given in the chosen runtime: a gain, where no other plan keeps the quality.

    What saves little is left, unless ``however_little`` counts, as nothing else is searched or there is no time to.
    """
    if runtime_ratio(search.study.user_attrs) < (1.0 if however_little else _WORTH_ALONE):
        _train_in_runtime(search, {})


def _train_in_runtime(search: Search, values: Mapping[str, Any]) -> None:
    trials = search.study.get_trials(deepcopy=False)
    if any(one.user_attrs.get(GIVEN) == values and one.state.is_finished() for one in trials):
        return
    with contextlib.suppress(OutOfTimeError):
        search.run_given(values, {})


def has_found(study: optuna.Study, file: StudyFile) -> bool:
    """Return whether a set-up competes that goes beyond tuned plain: there is something to take apart."""
    first = first_contender(study, file)
    return first is not None and not study.get_trials(deepcopy=False)[first].user_attrs.get(PLAIN)


@dataclass(frozen=True, slots=True)
class Timetable:
    """When the stages of a search for a set-up end, by ``time.monotonic()``; None for never."""

    study: optuna.Study
    file: StudyFile
    deadline: float | None  # when everything ends
    limit: float | None  # seconds of the whole command, of the study's file or the command's own
    places: int = 1  # runs that are trained at a time

    def search_ends(self) -> float | None:
        """Return when the last set-up is drawn, so that attribution has its share of the time and confirmation enough.

        A confirmation may begin later, since it may do with its fewest seeds.
        """
        if self.deadline is None or self.limit is None:
            return self.deadline
        confirming = self._confirmation_seconds(self.limit, self.file.confirm.usual_seeds)
        return self.deadline - confirming - self.file.set_up.attribution_share * self.limit

    def ends_of_search(self) -> list[float | None]:
        """Return when a search ends: first if it has found something, else later, at last with all the time there is.

        The second end leaves time for the least test, of the chosen runtime alone if nothing else is there.
        """
        first, deadline = self.confirmation_begins(), self.deadline
        if first is None or deadline is None or first == deadline:
            return [first]
        return [first, max(first, self._last_test(deadline)), deadline]

    def before_a_test(self, moment: float | None) -> float | None:
        """Return a moment, or an earlier one, so that there is time for the least test after it; now at the earliest.

        A test over seeds says more of a set-up than knowing where its gain comes from.
        """
        if moment is None or self.deadline is None or not self.file.confirm.enabled:
            return moment
        return min(moment, max(self._last_test(self.deadline), time.monotonic()))

    def ends_of_forms(self, moment: float | None) -> float | None:
        """Return when the leader's forms are trained at the latest, after a search that ends at a moment.

        They have their time even if the search has used it up: the confirmation, whose time counts on them, is shorter
        without them by far more.
        """
        if moment is None:
            return None
        return self.before_a_test(max(moment, time.monotonic() + _forms_seconds(self.study, self.file)))

    def _last_test(self, deadline: float) -> float:
        """Return when a test of the fewest pairs begins at the latest: of the leader, or else the chosen runtime."""
        ratio = _leading_time(self.study, self.file)
        if standing_now(self.study, self.file).leader is None:
            runtime = runtime_ratio(self.study.user_attrs)
            ratio = max(ratio, runtime if runtime < 1.0 else 0.0)
        return deadline - _SLACK * FEWEST_PAIRS * _seconds_by_clock(self.study, 1.0, ratio) / self.places

    def confirmation_begins(self) -> float | None:
        """Return when the confirmation begins at the latest, for its share of the time or its fewest seeds' time."""
        if self.deadline is None or self.limit is None or not self.file.confirm.enabled:
            return self.deadline
        seconds = self._confirmation_seconds(self.limit, self.file.confirm.seeds_min)
        return max(self.deadline - seconds, time.monotonic())

    def _confirmation_seconds(self, limit: float, seeds: int) -> float:
        """Return what a confirmation on so many seeds takes, its share of the time at most."""
        confirm = self.file.confirm
        if not confirm.enabled:
            return 0.0
        pair = _seconds_by_clock(self.study, 1.0, *[_leading_time(self.study, self.file)] * confirm.candidates)
        return min(confirm.time_share * limit, _SLACK * seeds * pair / self.places)


def settle(search: Search, times: Timetable, *, deadline: float | None) -> None:
    """Train leaders on further seeds, until one still leads after them; if none does, search on.

    The seeds take half of the time that is left, where taking the leader apart comes after them, and no time that the
    least test needs.
    """
    study, file = search.study, search.file
    if deadline is not None:
        deadline -= _forms_seconds(study, file)
    while not is_taken_apart(study):
        half = half_way(deadline) if file.set_up.attribution_share > 0.0 else deadline
        search.until(times.before_a_test(half))
        with contextlib.suppress(OutOfTimeError):
            search.settle(file.set_up.leader_seeds)
        n_trials = len(study.get_trials(deepcopy=False))
        now = time.monotonic()
        if deadline is None or now >= deadline or standing_now(study, file).leader is not None:
            return
        search.run_until(now + _SEARCHED_ON * (deadline - now))
        if len(study.get_trials(deepcopy=False)) == n_trials:  # it has all the trials that it wants
            return


def take_apart(search: Search, *, deadline: float | None) -> None:
    """Find out where the leader's gain comes from, and let it compete without what is no gain."""
    study, file = search.study, search.file
    leader = standing_now(study, file).leader
    before = None if deadline is None else deadline - _forms_seconds(study, file)  # the forms are trained last
    search.until(before)
    attributor = Attributor(study, file, search.step_times(), search.run_given, before)
    if leader is not None and file.set_up.attribution_share > 0.0 and not is_taken_apart(study):
        attributor.without_idle_parts(leader)


def train_forms(search: Search, *, deadline: float | None) -> None:
    """Train the safer form of what competes first and, if three are confirmed, a bolder one.

    That is the leader, what the attribution has left of it, or the plan that most probably keeps the quality.
    """
    study, file = search.study, search.file
    first = first_contender(study, file)
    search.until(deadline)
    if first is None or _forms_seconds(study, file) == 0.0:
        return
    attributor = Attributor(study, file, search.step_times(), search.run_given, deadline)
    with contextlib.suppress(OutOfTimeError):
        attributor.train_forms(first, file.confirm.candidates - 1)
    attributor.keep_forms(first)


def explain(search: Search, number: int, *, deadline: float | None) -> bool:
    """Find out where the gain of a trial comes from, if no time was left to: in the time after all else.

    Return whether that is known now, or not asked.
    """
    study, file = search.study, search.file
    trial = study.get_trials(deepcopy=False)[number]
    if trial.user_attrs.get(PLAIN) or file.set_up.attribution_share == 0.0:
        return True
    whole = int(trial.user_attrs.get(FORM_OF, number))
    # Else it would end in the middle of a run.
    if deadline is None or deadline - time.monotonic() >= _seconds_by_clock(study, 1.0):
        search.until(deadline)
        attributor = Attributor(study, file, search.step_times(), search.run_given, deadline)
        attributor.take_apart(whole)
        attributor.keep_forms(whole)
    return is_explained(study, whole)


def half_way(deadline: float | None) -> float | None:
    """Return the middle of the time that is left, for what leaves as much as it takes; None for no end."""
    return None if deadline is None else (time.monotonic() + deadline) / 2.0


def _forms_seconds(study: optuna.Study, file: StudyFile) -> float:
    """Return what the leader's safer form and its bolder one take to train, where the confirmation tests them."""
    if not file.confirm.enabled or file.confirm.candidates < 2:
        return 0.0
    n_forms = min(file.confirm.candidates - 1, 2)
    return _SLACK * _seconds_by_clock(study, *[_leading_time(study, file)] * n_forms)


def _leading_time(study: optuna.Study, file: StudyFile) -> float:
    """Return the time of the leader's run relative to the baseline's, or what is expected of it while nothing leads."""
    standing = standing_now(study, file)
    return EXPECTED_TIME if standing.leader is None else standing.best_time


def _seconds_by_clock(study: optuna.Study, *times: float) -> float:
    """Return what runs of some times, relative to the baseline's, take by the clock."""
    return sum(map(Trained.from_json(finished_baseline(study).user_attrs["trained"]).by_clock, times))
