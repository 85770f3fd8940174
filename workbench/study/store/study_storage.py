"""A study's database, for processes that come, die and come back.

Optuna's ``RDBStorage`` keeps everything. Where several of its requests belong together they are one transaction
(``transactions.py``) that begins by locking the trial or the study it is about. So

* a trial begins together with the mark of its process, and a waiting one is taken by exactly one process;
* a trial is written to and finished by the process that holds it and by no other: one that was believed dead and comes
  back does not write its result beside its successor's;
* a trial whose process is gone waits again, under its own number, with what it has drawn and measured: Optuna's own
  retry would fail it and run it under another number, and O0 would no longer be trial 0. Putting it back
  names the mark that was seen, heartbeats counted in it, so that two processes that saw the same put it back once;
* there is one O0 trial, whichever process comes first;
* requests are repeated while the database is away (``study/run/patience.py``). Each is written so that a repeat
  changes nothing: a result whose confirmation got lost on the way is found stored, and counts once;
* what a trial that this process holds draws, measures and reports is buffered, and written as a whole at the moments
  that count: after drawing, timing and training, and about once a second in between, not in a hundred transactions.
  What a killed process had not written is made again: draws by the trial's own seed, reports by the same training.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import threading
import time
import weakref
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, TypeVar

from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection

from workbench.study.run.patience import STORAGE_ERRORS, Patience, damaged, is_damage, reason_of
from workbench.study.store.change_detector import ChangeDetector
from workbench.study.store.liveness import RunningTrial, new_mark
from workbench.study.store.transactions import one_transaction
from workbench.study.store.trial_ids import id_of
from workbench.study.store.trial_reader import SEAL, Attributes, TrialReader, seal_of, with_seal, without_seals
from workbench.study.store.write_ahead import follow_journal_mode

_MARK, _DEATHS, _BASELINE = "process", "worker_deaths", "baseline"  # user attributes
_MOST_DEATHS = 3
FRESH_SECONDS = 1.0
"""How old what is buffered, or was read of other trials, may become while this process runs a trial."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


class TrialTakenError(RuntimeError):
    """Another process runs the trial now: this one was silent for too long."""


TAKEN_ERRORS = (TrialTakenError, UpdateFinishedTrialError)
"""What writing to a trial raises when another process has it by now, or has even finished it."""


@dataclass(slots=True)
class _Held:
    """A trial that this process runs, as it stands, and what of it is not written yet."""

    trial: FrozenTrial
    thread: int = field(default_factory=threading.get_ident)  # that runs it, and alone may look at it meanwhile
    began: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108  # of now, not of the import
    written_at: float = field(default_factory=lambda: time.monotonic())  # noqa: PLW0108
    # (method of RDBStorage, what it sets: a name or a step) -> its further arguments
    changes: dict[tuple[Callable[..., None], Any], Sequence[Any]] = field(default_factory=dict)


def _retrying(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[StudyStorage, _P], _R]:
    """Return a method of RDBStorage that waits for a database that is away."""

    @functools.wraps(method)
    def patient(self: StudyStorage, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._request(lambda _: method(self._backend, *args, **kwargs))

    return patient


def _buffered(method: Callable[..., None], part: Callable[[FrozenTrial], dict[Any, Any]]) -> Callable[..., None]:
    """Return a method of RDBStorage that sets an entry of a part of a trial, buffered while this process holds it."""

    @functools.wraps(method)
    def set_or_buffer(self: StudyStorage, trial_id: int, name: str | int, value: Any) -> None:
        if (own := self._set(method, trial_id, name, value)) is not None:
            part(own)[name] = value

    return set_or_buffer


class StudyStorage(BaseStorage):
    """The database of a study, for a process whose ``role`` is ``"worker"`` or ``"driver"``.

    A trial whose worker dies three times is marked failed; a driver's death does not count.
    ``grace_seconds`` is how long this process may be silent before others take its trial for abandoned.
    """

    def __init__(
        self,
        url: str,
        *,
        patience: Patience,
        role: str = "driver",
        grace_seconds: float = 180.0,
        engine_kwargs: dict[str, Any] | None = None,
    ) -> None:
        self.patience, self.role, self.grace_seconds = patience, role, grace_seconds
        self._held: dict[int, _Held] = {}  # by id
        # By study, when its trials were read last and what they were; another one whenever a trial begins or is over,
        # so that what was read before and comes late is not kept.
        self._recent: dict[int, tuple[float, list[FrozenTrial]]] = {}
        self._readers: dict[int, TrialReader] = {}  # by study
        self._unchanged: dict[Hashable, tuple[object, Any]] = {}  # what was read, and the state of the database then
        self._reading = threading.Lock()
        self._backend = RDBStorage(url, engine_kwargs=engine_kwargs)
        self.engine = self._backend.engine
        follow_journal_mode(self.engine)
        self._changes = ChangeDetector(self.engine)
        # Else the connections of its pool stay open until they are collected one by one, with a warning for each.
        weakref.finalize(self, self.engine.dispose).atexit = False

    create_new_study = _retrying(RDBStorage.create_new_study)
    delete_study = _retrying(RDBStorage.delete_study)
    set_study_system_attr = _retrying(RDBStorage.set_study_system_attr)
    get_all_studies = _retrying(RDBStorage.get_all_studies)
    get_study_id_from_name = _retrying(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _retrying(RDBStorage.get_study_name_from_id)
    get_study_directions = _retrying(RDBStorage.get_study_directions)
    get_study_system_attrs = _retrying(RDBStorage.get_study_system_attrs)
    get_trial_id_from_study_id_trial_number = _retrying(RDBStorage.get_trial_id_from_study_id_trial_number)
    _stored = _retrying(RDBStorage.get_trial)

    # -- a study's attributes ------------------------------------------------------------------------------------------

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Keep an attribute of a study together with its checksum, which is an attribute, too."""

        def set_sealed(_again: bool) -> None:
            with self._transaction():
                for name, content in with_seal(key, value).items():
                    self._backend.set_study_user_attr(study_id, name, content)

        self._request(set_sealed)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return the attributes of a study."""
        attributes = self._once_per_state(
            ("attributes", study_id), lambda _: without_seals(self._backend.get_study_user_attrs(study_id))
        )
        return Attributes(attributes)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial; one that this process runs as it stands, written or not."""
        held = self._held.get(trial_id)
        return self._stored(trial_id) if held is None else held.trial

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of a study, the one that this thread runs as it stands.

        While this process runs some, the others are read once a second at most.
        """
        recent, now = self._recent, time.monotonic()
        read_at, trials = recent.get(study_id, (-math.inf, []))
        if not self._held or now - read_at > FRESH_SECONDS:
            recent[study_id] = now, (trials := self._read(study_id))
        wanted = [one for one in map(self._as_it_stands, trials) if states is None or one.state in states]
        return copy.deepcopy(wanted) if deepcopy else wanted

    def _as_it_stands(self, trial: FrozenTrial) -> FrozenTrial:
        held = self._held.get(id_of(trial))
        return held.trial if held is not None and held.thread == threading.get_ident() else trial

    def _read(self, study_id: int) -> list[FrozenTrial]:
        # All of them, whichever are asked for: Optuna reads no more for it, and what was read answers the next request.
        def read(_again: bool) -> list[FrozenTrial]:
            with self._reading:
                if study_id not in self._readers:
                    name = self._backend.get_study_name_from_id(study_id)
                    self._readers[study_id] = TrialReader(self._backend, name)
                return self._readers[study_id].read()

        return self._once_per_state(("trials", study_id), read)

    def running(self, study_id: int) -> list[RunningTrial]:
        """Return the running trials of a study, except those that this process holds."""
        stored = (one for one in self._read(study_id) if one.state == TrialState.RUNNING)
        found = [RunningTrial(id_of(one), one.number, one.user_attrs.get(_MARK)) for one in stored]
        # A trial that ends while it is read has its old state and its new mark, which says how long it took.
        others = (one for one in found if not self._is_ours(one.trial_id, one.mark))
        return [one for one in others if one.mark is None or "seconds" not in one.mark]

    # -- beginning and ending a trial ----------------------------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial. Without a template it is running at once and marked as held by this process."""
        mark = new_mark(self.role, self.grace_seconds) if template_trial is None else None
        wanted = template_trial or create_trial(state=TrialState.RUNNING, user_attrs={_MARK: mark})
        key = _BASELINE if mark is None else _MARK
        states = [TrialState.RUNNING, TrialState.WAITING, TrialState.COMPLETE]

        def create(again: bool) -> int:
            with self._transaction(savepoints=True) as connection:
                trial_id = self._backend.create_new_trial(study_id, wanted)  # locks the study
                if mark is None and not wanted.user_attrs.get(key):
                    return trial_id
                created = begun = self._backend.get_trial(trial_id)
                # O0 may be there already, and so may this trial, if the answer to an earlier request got lost.
                if (mark is None or again) and wanted.user_attrs.get(key):
                    alive = self._backend.get_all_trials(study_id, deepcopy=False, states=states)
                    begun = next(one for one in alive if one.user_attrs.get(key) == wanted.user_attrs[key])
                    if begun.number != created.number:
                        connection.rollback()
                if mark is not None:
                    self._held[id_of(begun)] = _Held(begun)  # before others can see it
            return id_of(begun)

        trial_id = self._request(create)
        self._recent = {}
        return trial_id

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Take a waiting trial, or finish one that this process holds and write what is buffered of it.

        False if another process took it first; one of `TAKEN_ERRORS` if another holds the trial to be finished.
        """
        if state == TrialState.RUNNING:
            return self._claim(trial_id)
        held = self._held.get(trial_id)

        def finish(again: bool) -> None:
            with self._transaction():
                mark = self._lock_and_change(trial_id, again)
                if held is not None and mark is not None:
                    kept = {name: mark[name] for name in ("host", "pid", "claim")}
                    seconds = time.monotonic() - held.began
                    self._backend.set_trial_user_attr(trial_id, _MARK, {**kept, "seconds": seconds})
                seal = seal_of(self._backend.get_trial(trial_id), state, values)
                self._backend.set_trial_system_attr(trial_id, SEAL, seal)
                self._backend.set_trial_state_values(trial_id, state, values)

        try:
            self._request(finish)
        except UpdateFinishedTrialError:
            stored = self._stored(trial_id)
            if stored.state != state or not self._is_ours(trial_id, stored.user_attrs.get(_MARK)):
                raise
            # An earlier request got through and its answer did not.
        if held is not None:
            held.changes = {}
            held.trial.state, held.trial.values, held.trial.datetime_complete = state, values, datetime.now()
        return True

    def _claim(self, trial_id: int) -> bool:
        mark = new_mark(self.role, self.grace_seconds)

        def claim(_again: bool) -> bool:
            with self._transaction():
                if self._backend.set_trial_state_values(trial_id, TrialState.RUNNING):
                    self._backend.set_trial_user_attr(trial_id, _MARK, mark)
                elif self._backend.get_trial_user_attrs(trial_id).get(_MARK) != mark:
                    return False
                # Taken now, or by an earlier request that got through and whose answer did not.
                self._held[trial_id] = _Held(self._backend.get_trial(trial_id))  # before others can see it
            return True

        taken = False
        with contextlib.suppress(UpdateFinishedTrialError):
            taken = self._request(claim)
        self._recent = {}
        return taken

    def forget(self, trial_id: int) -> None:
        """Forget a trial that this process no longer runs, with what is buffered of it."""
        self._held.pop(trial_id, None)
        self._recent = {}

    def beat(self, trial_id: int) -> bool:
        """Send one heartbeat, without waiting for a database that is away; return whether the trial is still ours."""
        with contextlib.suppress(*TAKEN_ERRORS), self._transaction():
            mark = self._lock_if_ours(trial_id)
            if mark is not None:
                self._backend.set_trial_user_attr(trial_id, _MARK, {**mark, "beats": mark.get("beats", 0) + 1})
                return True
        return False

    def put_back(self, seen: RunningTrial, *, died: bool) -> bool:
        """Let a running trial wait again, with its number and what it drew and measured; return whether that was done.

        Nothing happens when its mark has changed since it was seen. ``died``: its process died while running it. The
        third time, if the process was a worker, the trial is failed instead: it probably was the cause.
        """
        mark = seen.mark
        by_death = died and mark is not None and mark.get("role") == "worker"

        def release(_again: bool) -> bool:
            with self._transaction() as connection:
                waited = self._backend.set_trial_state_values(seen.trial_id, TrialState.RUNNING)  # locks it
                attributes = self._backend.get_trial_user_attrs(seen.trial_id)
                if waited or attributes.get(_MARK) != mark:
                    connection.rollback()
                    return False
                deaths, state = attributes.get(_DEATHS, 0) + by_death, TrialState.WAITING
                if by_death:
                    self._backend.set_trial_user_attr(seen.trial_id, _DEATHS, deaths)
                # O0 is retried by the next process: every study needs its baseline as trial 0.
                if by_death and deaths >= _MOST_DEATHS and not attributes.get(_BASELINE):
                    why = f"its worker died {deaths} times while it ran this trial (killed, out of memory or crashed)"
                    self._backend.set_trial_user_attr(seen.trial_id, "message", f"{why}, so it is not tried again")
                    state = TrialState.FAIL
                self._backend.set_trial_state_values(seen.trial_id, state)
            return True

        done = False
        with contextlib.suppress(UpdateFinishedTrialError):
            done = self._request(release)
        if done:
            self.forget(seen.trial_id)
        return done

    def hand_back(self, trial_id: int) -> None:
        """Put a trial of this process back, as it is about to end; if the database is away, others find it later."""
        with self.patience.suspended():
            with contextlib.suppress(*STORAGE_ERRORS, *TAKEN_ERRORS):
                self.write(trial_id)
            with contextlib.suppress(*STORAGE_ERRORS):
                trial = self._stored(trial_id)
                mark = trial.user_attrs.get(_MARK)
                if self._is_ours(trial_id, mark):
                    self.put_back(RunningTrial(trial_id, trial.number, mark), died=False)

    # -- what a trial draws, measures and reports ----------------------------------------------------------------------

    def write(self, trial_id: int, every: float = 0.0) -> None:
        """Write what is buffered of a trial, unless that was done less than ``every`` seconds ago.

        One of `TAKEN_ERRORS` is raised when another process has the trial by now.
        """
        held = self._held.get(trial_id)
        if held is None or time.monotonic() - held.written_at < every:
            return

        def write_changes(again: bool) -> None:
            with self._transaction():
                self._lock_and_change(trial_id, again)

        if held.changes:
            self._request(write_changes)
            held.changes = {}
        held.written_at = time.monotonic()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Keep a drawn parameter."""
        own = self._set(RDBStorage.set_trial_param, trial_id, param_name, param_value_internal, distribution)
        if own is not None:
            own.params[param_name] = distribution.to_external_repr(param_value_internal)
            own.distributions[param_name] = distribution

    set_trial_user_attr = _buffered(RDBStorage.set_trial_user_attr, lambda own: own.user_attrs)
    set_trial_system_attr = _buffered(RDBStorage.set_trial_system_attr, lambda own: own.system_attrs)
    set_trial_intermediate_value = _buffered(
        RDBStorage.set_trial_intermediate_value, lambda own: own.intermediate_values
    )

    def _set(self, method: Callable[..., None], trial_id: int, name: str | int, *what: Any) -> FrozenTrial | None:
        """Buffer a change of a trial that this process runs, and return the trial; write one of another at once."""
        held = self._held.get(trial_id)
        if held is None:
            self._request(lambda _: method(self._backend, trial_id, name, *what))
            return None
        held.changes[method, name] = what
        return held.trial

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, ask: Callable[[bool], _R]) -> _R:
        """Make a request, retrying while the database is unavailable; ``ask`` receives True on a retry."""
        again = False

        def once() -> _R:
            nonlocal again
            try:
                return ask(again)
            except (*STORAGE_ERRORS, ValueError, LookupError, TypeError) as error:
                if is_damage(error):
                    raise damaged(reason_of(error)) from error
                again = True
                if isinstance(error, STORAGE_ERRORS):
                    self._backend.remove_session()  # its transaction died with the connection
                raise

        return self.patience.call(once)

    def _once_per_state(self, what: Hashable, ask: Callable[[bool], _R]) -> _R:
        """Make a request, or return its last answer if the database has not changed since."""
        state = self._changes.state()
        if what not in self._unchanged or self._unchanged[what][0] != state:
            self._unchanged[what] = state, self._request(ask)
        return self._unchanged[what][1]  # type: ignore[no-any-return]  # what was asked for by this name

    def _transaction(self, *, savepoints: bool = False) -> contextlib.AbstractContextManager[Connection]:
        return one_transaction(self._backend, savepoints=savepoints)

    def _lock_if_ours(self, trial_id: int) -> Mapping[str, Any] | None:
        """Lock a trial and return its mark; one that was put back and has not begun since is taken again."""
        self._backend.set_trial_state_values(trial_id, TrialState.RUNNING)
        mark: Mapping[str, Any] | None = self._backend.get_trial_user_attrs(trial_id).get(_MARK)
        if mark is not None and not self._is_ours(trial_id, mark):
            raise TrialTakenError(f"another process runs trial {self._backend.get_trial(trial_id).number} now")
        return mark

    def _lock_and_change(self, trial_id: int, again: bool) -> Mapping[str, Any] | None:
        """Write what is buffered of a trial and return its mark; a TrialTakenError if another process runs it."""
        mark = self._lock_if_ours(trial_id)
        # A parameter is drawn once; it is there already where an earlier request got through.
        drawn = self._backend.get_trial(trial_id).params if again else {}
        for (method, name), what in self._held[trial_id].changes.items() if trial_id in self._held else ():
            if method is not RDBStorage.set_trial_param or name not in drawn:
                method(self._backend, trial_id, name, *what)
        return mark

    def _is_ours(self, trial_id: int, mark: Mapping[str, Any] | None) -> bool:
        held = self._held.get(trial_id)
        return mark is not None and held is not None and mark.get("claim") == held.trial.user_attrs[_MARK]["claim"]


def seconds_of(trial: FrozenTrial) -> float:
    """Return how long a trial ran that has ended: by a monotonic clock, or by its dates as far as they tell.

    A time of day put forward by a day would cost the study 24 device-hours.
    """
    dated = math.nan if trial.duration is None else trial.duration.total_seconds()
    return float(trial.user_attrs.get(_MARK, {}).get("seconds", dated))


def was_given_up(trial: FrozenTrial) -> bool:
    """Return whether a trial was failed because it ended its workers."""
    return trial.state == TrialState.FAIL and trial.user_attrs.get(_DEATHS, 0) >= _MOST_DEATHS
