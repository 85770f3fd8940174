"""A study's database, for processes that come, die and come back.

Optuna's ``RDBStorage`` keeps the study and its attributes. What concerns trials is written here, each request within
one transaction that begins with an ``UPDATE`` of the row it is about: on PostgreSQL that locks the row, on SQLite the
database, and what is read after it holds until the end. So

* a trial begins together with the mark of its process, and a waiting one is taken by exactly one process (Optuna reads
  the state and writes it afterwards; SQLite has no row locks, so two could take the same);
* a trial is finished by the process that holds it and by no other: one that was believed dead and comes back does not
  write its result beside its successor's;
* a trial whose process is gone waits again, under its own number, with what it has drawn and measured. Whoever puts it
  back says which mark and heartbeat it saw, so that two who saw the same put it back once;
* there is one O0 trial, whichever process comes first;
* requests are repeated while the database is away (``patience.py``). Each is written so that a repeat changes nothing:
  a result whose confirmation got lost on the way is found stored, and counts once;
* what a trial draws, measures and reports is buffered by the thread that runs it, and written as a whole at the moments
  that count: after drawing, timing and training, and about once a second between. With 40 ranges and a dozen
  attributes that would be a hundred transactions. What a killed process had not written is made again: draws by the
  trial's own seed, reports by the same training.
"""

from __future__ import annotations

import contextlib
import copy
import datetime
import functools
import json
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import Connection, func, insert, select, update

from workbench.study.run.patience import STORAGE_ERRORS, Patience
from workbench.study.store import trial_tables as tables
from workbench.study.store.liveness import new_mark
from workbench.study.store.trial_tables import HEARTBEATS, STUDIES, TRIALS, USER_ATTRIBUTES
from workbench.study.store.write_ahead import follow_journal_mode

_MARK, _DEATHS, _BASELINE = "process", "worker_deaths", "baseline"  # user attributes
_MOST_DEATHS = 3
_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)
FRESH_SECONDS = 1.0
"""How old what a thread buffers or has read may become while it runs a trial."""
_MARKED = (USER_ATTRIBUTES.c.trial_id == TRIALS.c.trial_id) & (USER_ATTRIBUTES.c.key == _MARK)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class TrialTakenError(RuntimeError):
    """Another process runs the trial now: this one was silent for too long."""


TAKEN_ERRORS = (TrialTakenError, UpdateFinishedTrialError)
"""What writing to a trial raises when another process has it by now, or has even finished it."""


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that is stored as running, with its process's mark as JSON and its heartbeat by the database's clock."""

    trial_id: int
    number: int
    marked: str | None
    beat: datetime.datetime | None

    @property
    def mark(self) -> dict[str, Any] | None:
        """Mark of the process that runs it; None when it has none."""
        return None if self.marked is None else json.loads(self.marked)


@dataclass(slots=True)
class _Buffer:
    """The trial that a thread runs, what is not yet written of it, and the study as the thread last read it."""

    own: FrozenTrial
    trials: Sequence[FrozenTrial] = ()
    read_at: float = -float("inf")
    written_at: float = field(default_factory=time.monotonic)
    rows: dict[str, dict[Any, Sequence[Any]]] = field(default_factory=dict)


def _of_optuna(method: Callable[Concatenate[Any, _P], _R]) -> Callable[Concatenate[StudyStorage, _P], _R]:
    """Return a method of RDBStorage that may be repeated, waiting for a database that is away."""

    @functools.wraps(method)
    def patient(self: StudyStorage, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        def request() -> _R:
            try:
                return method(self._backend, *args, **kwargs)
            except STORAGE_ERRORS:
                self._backend.remove_session()  # its transaction died with the connection
                raise

        return self.patience.call(request)

    return patient


class StudyStorage(BaseStorage):
    """The database of a study; ``role`` is ``"worker"`` or ``"driver"``: a trial that ends its workers is given up.

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
        self._claims: dict[int, str] = {}  # trial -> claim under which this process runs it
        self._live: dict[str, float] = {}  # claim, also one that is being made -> time.monotonic() when it began
        self._known: dict[int, dict[int, FrozenTrial]] = {}  # study -> trial -> as it was last read
        self._reading = threading.Lock()
        self._thread = threading.local()
        self._backend = RDBStorage(url, engine_kwargs=engine_kwargs)
        self.engine = self._backend.engine
        follow_journal_mode(self.engine)
        # Else the connections of its pool stay open until they are collected one by one, with a warning for each.
        weakref.finalize(self, self.engine.dispose).atexit = False

    create_new_study = _of_optuna(RDBStorage.create_new_study)
    delete_study = _of_optuna(RDBStorage.delete_study)
    set_study_user_attr = _of_optuna(RDBStorage.set_study_user_attr)
    set_study_system_attr = _of_optuna(RDBStorage.set_study_system_attr)
    get_study_id_from_name = _of_optuna(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _of_optuna(RDBStorage.get_study_name_from_id)
    get_study_directions = _of_optuna(RDBStorage.get_study_directions)
    get_study_user_attrs = _of_optuna(RDBStorage.get_study_user_attrs)
    get_study_system_attrs = _of_optuna(RDBStorage.get_study_system_attrs)
    get_all_studies = _of_optuna(RDBStorage.get_all_studies)
    get_trial_id_from_study_id_trial_number = _of_optuna(RDBStorage.get_trial_id_from_study_id_trial_number)
    remove_session = _of_optuna(RDBStorage.remove_session)

    # -- reading -------------------------------------------------------------------------------------------------------

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial; the buffered one as it stands."""
        buffer = self._buffer_of(trial_id)
        if buffer is not None:
            return buffer.own
        found = self._request(lambda connection: tables.read_trials(connection, TRIALS.c.trial_id == trial_id))
        if not found:
            raise KeyError(f"no trial has the id {trial_id}")
        return found[0]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of a study; while the thread runs one they are read once a second at most."""
        buffer = self._buffer
        if buffer is None:
            trials: Sequence[FrozenTrial] = self._read_news(study_id)
        else:
            if time.monotonic() - buffer.read_at > FRESH_SECONDS:
                buffer.trials, buffer.read_at = self._read_news(study_id), time.monotonic()
            trials = [buffer.own if one.number == buffer.own.number else one for one in buffer.trials]
        wanted = [one for one in trials if states is None or one.state in states]
        return copy.deepcopy(wanted) if deepcopy else wanted

    def _read_news(self, study_id: int) -> list[FrozenTrial]:
        """Return the trials of a study; those that had finished when they were last read are not read again."""
        with self._reading:
            known = self._known.setdefault(study_id, {})
            where = TRIALS.c.study_id == study_id
            if known:
                unfinished = [trial_id for trial_id, trial in known.items() if not trial.state.is_finished()]
                where &= (TRIALS.c.trial_id > max(known)) | TRIALS.c.trial_id.in_(unfinished)
            found = self._request(lambda connection: tables.read_trials(connection, where))
            known |= {trial._trial_id: trial for trial in found}
            if not known:
                self.get_study_name_from_id(study_id)  # raises a KeyError when there is no such study
            return list(known.values())

    def running(self, study_id: int) -> list[RunningTrial]:
        """Return the running trials of a study."""
        return self._request(lambda connection: _running(connection, TRIALS.c.study_id == study_id))

    def is_held_here(self, trial: RunningTrial) -> bool:
        """Return whether this process runs a trial."""
        return trial.mark is not None and trial.mark.get("claim") in self._live

    # -- beginning and ending a trial ----------------------------------------------------------------------------------

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """Create a trial; without a template it runs, marked as this process's."""
        wanted, began, claim = template_trial, None, ""
        if wanted is None:
            mark, began = self._new_mark(), datetime.datetime.now()
            wanted, claim = create_trial(state=TrialState.RUNNING, user_attrs={_MARK: mark}), mark["claim"]
        row: dict[str, Any] = {"study_id": study_id, "state": wanted.state}
        row["datetime_start"] = tables.utc(began or wanted.datetime_start)
        row["datetime_complete"] = tables.utc(wanted.datetime_complete)

        def create(connection: Connection) -> int:
            of_study = STUDIES.c.study_id == study_id
            connection.execute(update(STUDIES).where(of_study).values(study_name=STUDIES.c.study_name))
            there = _twin(connection, study_id, wanted)
            if there is not None:
                return there
            key: Any = connection.execute(insert(TRIALS), row).inserted_primary_key
            trial_id = int(key[0])
            earlier = select(func.count()).where(TRIALS.c.study_id == study_id, TRIALS.c.trial_id < trial_id)
            _set(connection, trial_id, number=connection.execute(earlier).scalar_one())
            tables.write_rows(connection, trial_id, tables.rows_of(wanted))
            return trial_id

        trial_id = self._request(create)
        if claim:
            self._claims[trial_id] = claim
        return trial_id

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Take a waiting trial, or finish one that this process holds, with what is buffered of it.

        False when another process was faster in taking it; one of `TAKEN_ERRORS` is raised when another one has it.
        """
        if state == TrialState.RUNNING:
            return self._claim(trial_id)
        buffer = self._buffer_of(trial_id)
        rows = _rows(buffer) | {"values": [tables.value_row(at, value) for at, value in enumerate(values or ())]}

        def finish(connection: Connection) -> None:
            stored, start, mine = self._lock(connection, trial_id)
            if mine and stored == state:
                return  # an earlier request got through and its answer did not
            self.check_trial_is_updatable(trial_id, stored)
            tables.write_rows(connection, trial_id, rows)
            _set(connection, trial_id, state=state, datetime_complete=self._end_of(trial_id, start))

        self._request(finish)
        if buffer is not None:
            self._thread.buffer = None
        return True

    def _claim(self, trial_id: int) -> bool:
        mark = self._new_mark()

        def claim(connection: Connection) -> bool:
            waiting = update(TRIALS).where(TRIALS.c.trial_id == trial_id, TRIALS.c.state == TrialState.WAITING)
            began = tables.utc(datetime.datetime.now())
            if connection.execute(waiting.values(state=TrialState.RUNNING, datetime_start=began)).rowcount:
                tables.write_rows(connection, trial_id, {"user_attrs": [tables.attribute_row(_MARK, mark)]})
                return True
            # Ours all the same if an earlier request got through and its answer did not.
            return any(one.mark == mark for one in _running(connection, TRIALS.c.trial_id == trial_id))

        claimed = self._request(claim)
        if claimed:
            self.forget(trial_id)
            self._claims[trial_id] = mark["claim"]
        else:
            del self._live[mark["claim"]]
        return claimed

    def forget(self, trial_id: int) -> None:
        """Forget a trial that this process no longer runs."""
        self._live.pop(self._claims.pop(trial_id, ""), None)

    def beat(self, trial_id: int) -> bool:
        """Send one heartbeat, without waiting for a database that is away; return whether the trial is still ours."""
        with self._transaction() as connection:
            running = _running(connection, TRIALS.c.trial_id == trial_id)
        if not any(self.is_held_here(one) for one in running):
            return False
        self._backend.record_heartbeat(trial_id)
        return True

    def put_back(self, seen: RunningTrial, *, died: bool) -> bool:
        """Let a running trial wait again, with its number and what it drew and measured; return whether it was done.

        Nothing happens when mark or heartbeat have changed since it was seen. ``died``: its process died with it. The
        third time the trial is failed instead, where its process was a worker: it probably was the cause.
        """
        deaths = 0
        if died and seen.mark is not None and seen.mark.get("role") == "worker":
            deaths = 1 + int(self.get_trial(seen.trial_id).user_attrs.get(_DEATHS, 0))
        attributes = [tables.attribute_row(_DEATHS, deaths)] if deaths else []
        row: dict[str, Any] = {"state": TrialState.WAITING}
        if deaths >= _MOST_DEATHS:
            row = {"state": TrialState.FAIL, "datetime_complete": tables.utc(datetime.datetime.now())}
            sentence = (
                f"its worker died {deaths} times while it ran this trial (killed, out of memory or crashed), "
                "so it is not tried again"
            )
            attributes.append(tables.attribute_row("message", sentence))

        def put_back(connection: Connection) -> bool:
            _set(connection, seen.trial_id, state=TRIALS.c.state)  # locks it
            if _running(connection, TRIALS.c.trial_id == seen.trial_id) != [seen]:
                return False
            tables.write_rows(connection, seen.trial_id, {"user_attrs": attributes})
            _set(connection, seen.trial_id, **row)
            return True

        done = self._request(put_back)
        if done:
            self.forget(seen.trial_id)
        return done

    # -- what a trial draws, measures and reports ----------------------------------------------------------------------

    @contextlib.contextmanager
    def buffering(self, trial_id: int, trials: Sequence[FrozenTrial] | None = None) -> Iterator[None]:
        """Buffer what this thread does to a trial it runs in the block; what is left when it ends is written.

        ``trials`` are all of the study as just read; None reads them when they are asked for. One of `TAKEN_ERRORS` is
        raised when another process has the trial by now.
        """
        self._thread.buffer = _Buffer(self.get_trial(trial_id))
        if trials is not None:
            self._thread.buffer.trials, self._thread.buffer.read_at = trials, time.monotonic()
        try:
            yield
            self.write()
        except BaseException:
            with self.patience.suspended(), contextlib.suppress(*STORAGE_ERRORS, *TAKEN_ERRORS):
                self.write()
            raise
        finally:
            self._thread.buffer = None

    def write(self, every: float = 0.0) -> None:
        """Write what this thread has buffered, unless that was done within so many seconds."""
        buffer = self._buffer
        if buffer is not None and time.monotonic() - buffer.written_at >= every:
            if buffer.rows:
                self._write(buffer.own._trial_id, _rows(buffer))
                buffer.rows = {}
            buffer.written_at = time.monotonic()

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Keep a drawn parameter."""
        if (
            own := self._put(trial_id, "params", tables.param_row(param_name, param_value_internal, distribution))
        ) is not None:
            own.params[param_name] = distribution.to_external_repr(param_value_internal)
            own.distributions[param_name] = distribution

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Keep an attribute of ours."""
        if (own := self._put(trial_id, "user_attrs", tables.attribute_row(key, value))) is not None:
            own.user_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Keep an attribute of Optuna's own."""
        if (own := self._put(trial_id, "system_attrs", tables.attribute_row(key, value))) is not None:
            own.system_attrs[key] = value

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Keep a report."""
        if (own := self._put(trial_id, "reports", tables.report_row(step, intermediate_value))) is not None:
            own.intermediate_values[step] = intermediate_value

    def _put(self, trial_id: int, part: str, row: Sequence[Any]) -> FrozenTrial | None:
        """Buffer a row and return the trial it belongs to; a row of a trial that is not buffered is written at once."""
        buffer = self._buffer_of(trial_id)
        if buffer is None:
            self._write(trial_id, {part: [row]})
            return None
        buffer.rows.setdefault(part, {})[row[0]] = row
        return buffer.own

    def _write(self, trial_id: int, rows: tables.Rows) -> None:
        def write(connection: Connection) -> None:
            self.check_trial_is_updatable(trial_id, self._lock(connection, trial_id)[0])
            tables.write_rows(connection, trial_id, rows)

        self._request(write)

    @property
    def _buffer(self) -> _Buffer | None:
        return getattr(self._thread, "buffer", None)

    def _buffer_of(self, trial_id: int) -> _Buffer | None:
        buffer = self._buffer
        return buffer if buffer is not None and buffer.own._trial_id == trial_id else None

    # -- requests ------------------------------------------------------------------------------------------------------

    def _request(self, ask: Callable[[Connection], _R]) -> _R:
        """Do something within one transaction, again while the database is away."""

        def once() -> _R:
            with self._transaction() as connection:
                return ask(connection)

        return self.patience.call(once)

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[Connection]:
        with self.engine.begin() as connection:
            yield connection

    def _lock(self, connection: Connection, trial_id: int) -> tuple[TrialState, datetime.datetime | None, bool]:
        """Lock a trial if it is unfinished; return its state, its start, and whether it is ours or has no mark."""
        this = TRIALS.c.trial_id == trial_id
        unfinished = update(TRIALS).where(this, TRIALS.c.state.in_(_UNFINISHED))
        connection.execute(unfinished.values(state=TRIALS.c.state))
        asked = select(TRIALS, USER_ATTRIBUTES.c.value_json).outerjoin(USER_ATTRIBUTES, _MARKED).where(this)
        row = connection.execute(asked).first()
        if row is None:
            raise KeyError(f"no trial has the id {trial_id}")
        mine = row.value_json is None or json.loads(row.value_json).get("claim") in self._live
        if not mine and row.state == TrialState.RUNNING:
            raise TrialTakenError(f"another process runs trial {row.number} now")
        return row.state, row.datetime_start, mine

    def _new_mark(self) -> dict[str, Any]:
        mark = new_mark(self.role, self.grace_seconds)
        self._live[mark["claim"]] = time.monotonic()
        return mark

    def _end_of(self, trial_id: int, start: datetime.datetime | None) -> datetime.datetime | None:
        # By a clock that nobody sets: a time of day put forward by a day would cost the study 24 device-hours.
        began = self._live.get(self._claims.get(trial_id, ""))
        if began is None or start is None:
            return tables.utc(datetime.datetime.now())
        return start + datetime.timedelta(seconds=time.monotonic() - began)


def was_given_up(trial: FrozenTrial) -> bool:
    """Return whether a trial was failed because it ended its workers."""
    return trial.state == TrialState.FAIL and trial.user_attrs.get(_DEATHS, 0) >= _MOST_DEATHS


def _rows(buffer: _Buffer | None) -> dict[str, list[Sequence[Any]]]:
    return {} if buffer is None else {part: list(rows.values()) for part, rows in buffer.rows.items()}


def _set(connection: Connection, trial_id: int, **columns: Any) -> None:
    connection.execute(update(TRIALS).where(TRIALS.c.trial_id == trial_id).values(columns))


def _running(connection: Connection, where: Any) -> list[RunningTrial]:
    asked = (
        select(TRIALS.c.trial_id, TRIALS.c.number, USER_ATTRIBUTES.c.value_json, HEARTBEATS.c.heartbeat)
        .outerjoin(USER_ATTRIBUTES, _MARKED)
        .outerjoin(HEARTBEATS, HEARTBEATS.c.trial_id == TRIALS.c.trial_id)
        .where(where, TRIALS.c.state == TrialState.RUNNING)
        .order_by(TRIALS.c.number)
    )
    return [RunningTrial(*row) for row in connection.execute(asked)]


def _twin(connection: Connection, study_id: int, wanted: FrozenTrial) -> int | None:
    """Return the trial that a request would create a second time: begun under the same mark, or O0."""
    key = _MARK if _MARK in wanted.user_attrs else _BASELINE
    if not wanted.user_attrs.get(key):
        return None
    same = (USER_ATTRIBUTES.c.key == key) & (USER_ATTRIBUTES.c.value_json == json.dumps(wanted.user_attrs[key]))
    states = [TrialState.RUNNING] if key == _MARK else [*_UNFINISHED, TrialState.COMPLETE]
    alive = (TRIALS.c.study_id == study_id) & TRIALS.c.state.in_(states)
    found = connection.execute(select(TRIALS.c.trial_id).join(USER_ATTRIBUTES).where(alive, same).order_by("trial_id"))
    first: int | None = found.scalars().first()
    return first
