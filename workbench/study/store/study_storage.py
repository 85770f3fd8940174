"""Optuna's database storage for processes that come, die and come back.

What it adds to ``optuna.storages.RDBStorage``, each within one transaction:

* A trial begins together with the mark of the process that runs it, and a waiting trial is taken by exactly one
  process. (Optuna reads the state and writes it afterwards; SQLite has no row locks, so two could take the same.)
* A trial is finished by the process that holds it and by nobody else: one that was believed dead and comes back does
  not write its result beside its successor's.
* A trial whose process is gone waits again, under its own number, with what it has drawn and measured. Who puts it
  back says which mark and heartbeat he saw, so that two who saw the same put it back once.
* There is one O0 trial, whoever of several processes comes first.
* Requests are repeated while the database is away (``patience.py``). Each is written so that a repeat changes nothing:
  a result whose confirmation got lost on the way is found stored, and counts once.

Each writing transaction begins with an ``UPDATE`` of the row it is about. On PostgreSQL that locks the row, on SQLite
the database; what is read after it holds until the end.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import threading
import time
import weakref
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from optuna.storages import RDBStorage
from optuna.storages._rdb import models  # the tables; their version is checked when a database is opened
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import ColumnElement, bindparam, delete, func, insert, select, update
from sqlalchemy.orm import Session

from workbench.study.run.patience import STORAGE_ERRORS, Patience
from workbench.study.store.process_mark import new_mark
from workbench.study.store.stored_trials import TRIALS, local_time, read_trials
from workbench.study.store.write_ahead import follow_journal_mode

__all__ = ["DEATHS_OF_A_TRIAL", "MARK", "RunningTrial", "StudyStorage", "TrialTakenError", "was_given_up"]

MARK = "process"
"""User attribute of a trial: the mark of the process that runs or ran it."""

DEATHS_OF_A_TRIAL = 3
"""A trial whose worker died so many times is not tried again."""

_DEATHS = "worker_deaths"
_BASELINE = "baseline"
_UNFINISHED = (TrialState.RUNNING, TrialState.WAITING)

_ATTRIBUTES: Any = models.TrialUserAttributeModel.__table__
_VALUES: Any = models.TrialValueModel.__table__
_STUDIES: Any = models.StudyModel.__table__

# Statements of every trial, made once; what they are about comes in ``of_study`` and ``of_trial``.
_OF_STUDY, _OF_TRIAL = TRIALS.c.study_id == bindparam("of_study"), TRIALS.c.trial_id == bindparam("of_trial")
_LOCK_STUDY = (
    update(_STUDIES)
    .where(_STUDIES.c.study_id == bindparam("of_study"))
    .values(study_name=_STUDIES.c.study_name)
    .execution_options(synchronize_session=False)
)
_LOCK_UNFINISHED = update(TRIALS).where(_OF_TRIAL, TRIALS.c.state.in_(_UNFINISHED)).values(state=TRIALS.c.state)
_MARKED = (_ATTRIBUTES.c.trial_id == TRIALS.c.trial_id) & (_ATTRIBUTES.c.key == MARK)
_BEGUN_AS = (
    select(TRIALS.c.trial_id, TRIALS.c.number)
    .join(_ATTRIBUTES, _MARKED)
    .where(_OF_STUDY, TRIALS.c.state == TrialState.RUNNING, _ATTRIBUTES.c.value_json == bindparam("mark"))
)
_EARLIER = select(func.count(TRIALS.c.trial_id)).where(_OF_STUDY, TRIALS.c.trial_id < bindparam("before"))
_NUMBER = update(TRIALS).where(_OF_TRIAL).values(number=bindparam("as_number"))
_STANDS = (
    select(TRIALS.c.number, TRIALS.c.state, TRIALS.c.datetime_start, _ATTRIBUTES.c.value_json.label("mark"))
    .outerjoin(_ATTRIBUTES, _MARKED)
    .where(_OF_TRIAL)
)

_P = ParamSpec("_P")
_R = TypeVar("_R")


class TrialTakenError(RuntimeError):
    """Another process runs the trial now: this one was silent for too long."""


@dataclass(frozen=True, slots=True)
class RunningTrial:
    """A trial that is marked as running.

    Args:
        trial_id: Its row in the database.
        number: Its number in the study.
        mark: Mark of the process that runs it; None when it has none.
        beat: Its last heartbeat, by the database's clock; None before the first.
    """

    trial_id: int
    number: int
    mark: Mapping[str, Any] | None
    beat: datetime.datetime | None


def _patiently(
    method: Callable[Concatenate[Any, _P], _R],
) -> Callable[Concatenate[StudyStorage, _P], _R]:
    """Return a method of RDBStorage that waits for a database that is away; for those that may be repeated."""

    @functools.wraps(method)
    def patient(self: StudyStorage, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        def request() -> _R:
            try:
                return method(self, *args, **kwargs)
            except STORAGE_ERRORS:
                self.scoped_session.remove()  # its transaction died with the connection; the next request begins anew
                raise

        return self.patience.call(request)

    return patient


class StudyStorage(RDBStorage):
    """The database of a study.

    Args:
        url: SQLAlchemy URL.
        patience: How long the database may be away.
        role: ``"worker"`` or ``"driver"``: a trial that ends its workers is given up in the end.
        grace_seconds: How long this process may be silent before others take its trial for abandoned; heartbeats come
            six times as often.
        engine_kwargs: As Optuna takes them.
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
        self.patience = patience
        self.role = role
        self.grace_seconds = grace_seconds
        self._began: dict[int, float] = {}  # trial -> time.monotonic() when this process began it
        self._claims: dict[int, str] = {}  # trial -> claim under which this process runs it
        self._looks = threading.local()
        self._remembered: dict[int, FrozenTrial] = {}  # trials that need not be read, since nobody else changes them
        self._live: set[str] = set()  # those claims, and such as are being made: threads may look at each other's
        super().__init__(url, engine_kwargs=engine_kwargs)
        follow_journal_mode(self.engine)
        # Else the connections of its pool stay open until they are collected one by one, with a warning for each.
        weakref.finalize(self, self.engine.dispose).atexit = False

    # What may be repeated as it is: reads, and writes that say the whole of what shall be.
    create_new_study = _patiently(RDBStorage.create_new_study)
    delete_study = _patiently(RDBStorage.delete_study)
    set_study_user_attr = _patiently(RDBStorage.set_study_user_attr)
    set_study_system_attr = _patiently(RDBStorage.set_study_system_attr)
    get_study_id_from_name = _patiently(RDBStorage.get_study_id_from_name)
    get_study_name_from_id = _patiently(RDBStorage.get_study_name_from_id)
    get_study_directions = _patiently(RDBStorage.get_study_directions)
    get_study_user_attrs = _patiently(RDBStorage.get_study_user_attrs)
    get_study_system_attrs = _patiently(RDBStorage.get_study_system_attrs)
    get_all_studies = _patiently(RDBStorage.get_all_studies)
    get_trial_id_from_study_id_trial_number = _patiently(RDBStorage.get_trial_id_from_study_id_trial_number)
    set_trial_intermediate_value = _patiently(RDBStorage.set_trial_intermediate_value)
    set_trial_user_attr = _patiently(RDBStorage.set_trial_user_attr)
    set_trial_system_attr = _patiently(RDBStorage.set_trial_system_attr)
    _get_best_trial_id = _patiently(RDBStorage._get_best_trial_id)
    _set_trial_param = _patiently(RDBStorage._set_trial_param)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return a trial.

        Raises:
            KeyError: When there is none.
        """
        remembered = self._remembered.get(trial_id)
        if remembered is not None:
            return copy.copy(remembered)  # who tells reads what it holds and changes nothing in it
        found = self._read(TRIALS.c.trial_id == trial_id)
        if not found:
            raise KeyError(f"no trial has the id {trial_id}")
        return found[0]

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        """Return the trials of a study that are newer than one, and others by their ids."""
        seen: set[int] | None = getattr(self._looks, "seen", None)
        if seen is not None:
            if study_id in seen:
                return []
            seen.add(study_id)
        number, where = TRIALS.c.trial_id, TRIALS.c.study_id == study_id
        older = sorted(one for one in included_trial_ids if one <= trial_id_greater_than)
        if older:  # those that run or wait: a handful
            where &= (number > trial_id_greater_than) | number.in_(older)
        elif trial_id_greater_than > -1:
            where &= number > trial_id_greater_than
        found = self._read(where)
        if not found:
            self.get_study_name_from_id(study_id)  # raises a KeyError when there is no such study
        return [trial for trial in found if states is None or trial.state in states]

    @contextmanager
    def one_look(self) -> Iterator[None]:
        """Let this thread read the trials of a study once in the block, however often they are asked for."""
        # Optuna's cache above keeps what it has read, and takes "nothing new" for an answer.
        self._looks.seen = set[int]()
        try:
            yield
        finally:
            self._looks.seen = None

    @contextmanager
    def remembering(self, trial: FrozenTrial) -> Iterator[None]:
        """Take a trial in the block for what it is in memory: one that this process holds and has written."""
        self._remembered[trial._trial_id] = trial
        try:
            yield
        finally:
            del self._remembered[trial._trial_id]

    def _read(self, where: ColumnElement[bool]) -> list[FrozenTrial]:
        def read() -> list[FrozenTrial]:
            with self.engine.connect() as connection:
                return read_trials(connection, where)

        return self.patience.call(read)

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        """Create a trial; without a template it runs, marked as this process's."""
        # Optuna's own tries five times over, which creates a second trial where only the confirmation got lost.
        if template_trial is None:
            return self._begin_new_trial(study_id)
        wanted = template_trial

        def create() -> FrozenTrial:
            with self._transaction() as session:
                session.execute(_LOCK_STUDY, {"of_study": study_id})
                there = self._already_there(session, study_id, wanted)
                trial = there or self._get_prepared_new_trial(study_id, wanted, session)
                session.flush()
                return read_trials(session.connection(), TRIALS.c.trial_id == trial.trial_id)[0]

        return self.patience.call(create)

    def _begin_new_trial(self, study_id: int) -> FrozenTrial:
        # Every trial of every study comes by here, so this is written as plain statements: through the object layer it
        # takes three times as long.
        mark = self._new_mark()
        began = datetime.datetime.now()

        def begin() -> tuple[int, int]:
            with self.engine.begin() as connection:
                connection.execute(_LOCK_STUDY, {"of_study": study_id})
                there = connection.execute(_BEGUN_AS, {"of_study": study_id, "mark": json.dumps(mark)}).first()
                if there is not None:  # an earlier request got through and its answer did not
                    return there.trial_id, there.number
                row = {"study_id": study_id, "state": TrialState.RUNNING, "datetime_start": _utc(began)}
                trial_id: int = connection.execute(insert(TRIALS).returning(TRIALS.c.trial_id), row).scalar_one()
                number = connection.execute(_EARLIER, {"of_study": study_id, "before": trial_id}).scalar_one()
                connection.execute(_NUMBER, {"of_trial": trial_id, "as_number": number})
                connection.execute(
                    insert(_ATTRIBUTES), {"trial_id": trial_id, "key": MARK, "value_json": json.dumps(mark)}
                )
                return trial_id, number

        trial_id, number = self.patience.call(begin)
        self._claims[trial_id] = mark["claim"]
        self._began[trial_id] = time.monotonic()
        return FrozenTrial(
            number=number,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=began,
            datetime_complete=None,
            params={},
            distributions={},
            user_attrs={MARK: mark},
            system_attrs={},
            intermediate_values={},
            trial_id=trial_id,
        )

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """Take a waiting trial, or finish one that this process holds.

        Returns:
            False when another process was faster in taking it.

        Raises:
            TrialTakenError: When another process holds the trial to be finished.
            UpdateFinishedTrialError: When another process has finished it.
        """
        if state == TrialState.RUNNING:
            return self._claim(trial_id)
        self.patience.call(lambda: self._finish(trial_id, state, values))
        self._began.pop(trial_id, None)
        return True

    def holds(self, trial_id: int) -> bool:
        """Return whether a trial is still this process's, after taking it back if it waits for anybody."""
        with_mark = self.patience.call(lambda: self._running(TrialState.RUNNING, trial_id=trial_id))
        if with_mark:
            return self._is_mine(with_mark[0].mark)
        return trial_id in self._claims and self._claim(trial_id)

    def forget(self, trial_id: int) -> None:
        """Forget a trial that this process no longer runs."""
        self._live.discard(self._claims.pop(trial_id, ""))

    def beat(self, trial_id: int) -> bool:
        """Send one heartbeat, without waiting for a database that is away; return whether the trial is still ours."""
        running = self._running(TrialState.RUNNING, trial_id=trial_id)
        if not running or not self._is_mine(running[0].mark):
            return False
        self.record_heartbeat(trial_id)
        return True

    def running(self, study_id: int) -> list[RunningTrial]:
        """Return the running trials of a study, with their marks and heartbeats."""
        return self.patience.call(lambda: self._running(TrialState.RUNNING, study_id=study_id))

    def is_held_here(self, trial: RunningTrial) -> bool:
        """Return whether this process runs a trial."""
        return self._is_mine(trial.mark)

    def put_back(self, seen: RunningTrial, *, died: bool) -> bool:
        """Let a running trial wait again; it keeps its number and what it has drawn and measured.

        Args:
            seen: The trial as it was seen; when its mark or heartbeat has changed since, nothing happens.
            died: Whether its process died with it. The third time the trial is failed instead, where its process was
                a worker: it probably was the cause.

        Returns:
            Whether it was put back or failed.
        """
        return self.patience.call(lambda: self._put_back(seen, died=died))

    def _put_back(self, seen: RunningTrial, *, died: bool) -> bool:
        table = models.TrialModel
        with self._transaction() as session:
            taken = update(table).where(table.trial_id == seen.trial_id, table.state == TrialState.RUNNING)
            if not _changed(session, taken.values(state=TrialState.WAITING)):
                return False
            if (_attribute(session, seen.trial_id, MARK), _last_beat(session, seen.trial_id)) != (seen.mark, seen.beat):
                session.rollback()
                return False
            if died and seen.mark is not None and seen.mark.get("role") == "worker":
                deaths = int(_attribute(session, seen.trial_id, _DEATHS) or 0) + 1
                self._set_attribute(session, seen.trial_id, _DEATHS, deaths)
                if deaths >= DEATHS_OF_A_TRIAL:
                    self._set_attribute(session, seen.trial_id, "message", _given_up(deaths))
                    trial = session.get_one(table, seen.trial_id, populate_existing=True)
                    trial.state = TrialState.FAIL
                    trial.datetime_complete = datetime.datetime.now()
        self.forget(seen.trial_id)
        return True

    def _claim(self, trial_id: int) -> bool:
        mark = self._new_mark()
        table = models.TrialModel

        def claim() -> bool:
            with self._transaction() as session:
                waiting = update(table).where(table.trial_id == trial_id, table.state == TrialState.WAITING)
                if not _changed(session, waiting.values(state=TrialState.RUNNING)):
                    # Ours all the same if an earlier request got through and its answer did not.
                    stored = _attribute(session, trial_id, MARK)
                    return stored is not None and stored.get("claim") == mark["claim"]
                self._set_attribute(session, trial_id, MARK, mark)
                session.get_one(table, trial_id, populate_existing=True).datetime_start = datetime.datetime.now()
                return True

        claimed = self.patience.call(claim)
        if claimed:
            self.forget(trial_id)
            self._claims[trial_id] = mark["claim"]
            self._began[trial_id] = time.monotonic()
        else:
            self._live.discard(mark["claim"])
        return claimed

    def _new_mark(self) -> dict[str, Any]:
        mark = new_mark(self.role, self.grace_seconds)
        self._live.add(mark["claim"])
        return mark

    def _finish(self, trial_id: int, state: TrialState, values: Sequence[float] | None) -> None:
        with self.engine.begin() as connection:
            unfinished = connection.execute(_LOCK_UNFINISHED, {"of_trial": trial_id}).rowcount
            trial = connection.execute(_STANDS, {"of_trial": trial_id}).first()
            if trial is None:
                raise KeyError(f"no trial has the id {trial_id}")
            mine = trial.mark is None or self._is_mine(json.loads(trial.mark))
            if not unfinished:
                if mine and trial.state == state:
                    return  # an earlier request got through and its answer did not
                self.check_trial_is_updatable(trial_id, trial.state)
            if not mine and trial.state == TrialState.RUNNING:
                raise TrialTakenError(f"another process runs trial {trial.number} now")
            if values:
                connection.execute(
                    delete(_VALUES).where(_VALUES.c.trial_id == bindparam("of_trial")), {"of_trial": trial_id}
                )
                connection.execute(insert(_VALUES), [_value_row(trial_id, at, one) for at, one in enumerate(values)])
            row: dict[str, Any] = {"state": state}
            if state.is_finished():
                row["datetime_complete"] = _utc(self._end_of(trial_id, local_time(trial.datetime_start)))
            connection.execute(update(TRIALS).where(TRIALS.c.trial_id == trial_id), row)

    def _end_of(self, trial_id: int, start: datetime.datetime | None) -> datetime.datetime:
        # By a clock that nobody sets: a time of day put forward by a day would cost the study 24 device-hours.
        if start is None or trial_id not in self._began:
            return datetime.datetime.now()
        return start + datetime.timedelta(seconds=time.monotonic() - self._began[trial_id])

    def _running(
        self, state: TrialState, *, study_id: int | None = None, trial_id: int | None = None
    ) -> list[RunningTrial]:
        trial, attribute, heart = models.TrialModel, models.TrialUserAttributeModel, models.TrialHeartbeatModel
        asked = (
            select(trial.trial_id, trial.number, attribute.value_json, heart.heartbeat)
            .outerjoin(attribute, (attribute.trial_id == trial.trial_id) & (attribute.key == MARK))
            .outerjoin(heart, heart.trial_id == trial.trial_id)
            .where(trial.state == state)
            .order_by(trial.number)
        )
        asked = asked if study_id is None else asked.where(trial.study_id == study_id)
        asked = asked if trial_id is None else asked.where(trial.trial_id == trial_id)
        with self._transaction() as session:
            return [
                RunningTrial(row[0], row[1], None if row[2] is None else json.loads(row[2]), row[3])
                for row in session.execute(asked)
            ]

    def _already_there(self, session: Session, study_id: int, wanted: FrozenTrial) -> Any:
        """Return the trial that a request would create a second time, or None."""
        table, attribute = models.TrialModel, models.TrialUserAttributeModel
        of_study = select(table).join(attribute, attribute.trial_id == table.trial_id).where(table.study_id == study_id)
        if not wanted.user_attrs.get(_BASELINE):  # O0, enqueued by whoever comes first
            return None
        alive = (*_UNFINISHED, TrialState.COMPLETE)
        asked = of_study.where(attribute.key == _BASELINE, table.state.in_(alive))
        return session.scalars(asked.order_by(table.number)).first()

    def _is_mine(self, mark: Mapping[str, Any] | None) -> bool:
        return mark is not None and mark.get("claim") in self._live

    def _set_attribute(self, session: Session, trial_id: int, key: str, value: Any) -> None:
        self._set_trial_attr_without_commit(session, models.TrialUserAttributeModel, trial_id, key, value)

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin():
            yield session


def _utc(local: datetime.datetime) -> datetime.datetime:
    """Return a local time as the tables keep it: in UTC, and neither says so."""
    return local.astimezone(datetime.UTC).replace(tzinfo=None)


def _value_row(trial_id: int, objective: int, value: float) -> dict[str, Any]:
    stored, kind = models.TrialValueModel.value_to_stored_repr(value)
    return {"trial_id": trial_id, "objective": objective, "value": stored, "value_type": kind}


def _changed(session: Session, statement: Any) -> bool:
    """Return whether an UPDATE found its row."""
    answer: Any = session.execute(statement.execution_options(synchronize_session=False))  # a CursorResult
    return bool(answer.rowcount)


def _attribute(session: Session, trial_id: int, key: str) -> Any:
    table = models.TrialUserAttributeModel
    stored = session.scalars(select(table.value_json).where(table.trial_id == trial_id, table.key == key)).first()
    return None if stored is None else json.loads(stored)


def _last_beat(session: Session, trial_id: int) -> datetime.datetime | None:
    table = models.TrialHeartbeatModel
    return session.scalars(select(table.heartbeat).where(table.trial_id == trial_id)).first()


def was_given_up(trial: FrozenTrial) -> bool:
    """Return whether a trial was failed because it ended its workers."""
    return trial.state == TrialState.FAIL and trial.user_attrs.get(_DEATHS, 0) >= DEATHS_OF_A_TRIAL


def _given_up(deaths: int) -> str:
    return (
        f"its worker died {deaths} times while it ran this trial (killed, out of memory or crashed), "
        "so it is not tried again"
    )
