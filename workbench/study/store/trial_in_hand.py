"""The trial a process runs, kept in its memory and written to the database a few times as a whole.

Optuna asks its database about every parameter drawn and writes each by itself, in a transaction of its own; with 40
ranges and a dozen attributes that is a hundred transactions, each with several queries. Nobody else reads them one by
one. So what a trial draws, measures and reports is gathered here and written in one transaction at the moments that
count: when it is drawn, when its speed is known, when it has run, and about once a second between. What a killed
process had gathered since is made again: draws by the trial's own seed, reports by the same training.

The other trials are read when a trial begins and then at most once a second.
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections.abc import Container, Iterator, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages._rdb import models  # the tables; their version is checked when a database is opened
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import delete, insert, update
from sqlalchemy.orm import Session

from workbench.study.run.patience import STORAGE_ERRORS
from workbench.study.store.study_storage import StudyStorage

__all__ = ["TrialInHand"]

_FRESH_SECONDS = 1.0


class TrialInHand:
    """A study's storage as one running trial sees it.

    Args:
        study: The study, in a `StudyStorage`; with another storage nothing is gathered.
    """

    def __init__(self, study: optuna.Study) -> None:
        self._whole = study
        self._inner: Any = study._storage
        database = getattr(self._inner, "_backend", None)
        self._database = database if isinstance(database, StudyStorage) else None
        self._own: FrozenTrial | None = None
        self._others: list[FrozenTrial] = []
        self._read_at = self._written_at = -float("inf")
        self._forget_pending()
        self.study = study
        """The same study, for whoever asks about trials while one runs."""
        if self._database is not None:
            self.study = optuna.load_study(study_name=study.study_name, storage=self)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @contextlib.contextmanager
    def holding(self, trial: optuna.Trial, trials: Sequence[FrozenTrial] | None = None) -> Iterator[None]:
        """Gather what is done to a trial in the block; at its end everything is written.

        Args:
            trial: The trial.
            trials: All trials of the study as they have just been read; None reads them when they are asked for.

        Raises:
            UpdateFinishedTrialError: When another process has finished the trial.
        """
        if self._database is None:
            yield
            return
        self._own = trial._cached_frozen_trial
        self._written_at = time.monotonic()
        self._read_at = -float("inf")
        if trials is not None:
            self._others, self._read_at = list(trials), time.monotonic()
        self.study.sampler, self.study.pruner = self._whole.sampler, self._whole.pruner
        trial.study, trial.storage = self.study, self  # type: ignore[assignment]
        try:
            yield
            self.write()
        except optuna.TrialPruned:
            self.write()
            raise
        except BaseException:
            with contextlib.suppress(*STORAGE_ERRORS, optuna.exceptions.UpdateFinishedTrialError):
                self.write()
            raise
        finally:
            self._own = None
            self._forget_pending()
            trial.study, trial.storage = self._whole, self._inner

    def write(self) -> None:
        """Write what has been gathered."""
        own, database = self._own, self._database
        if own is not None and database is not None and any(self._pending):
            database.patience.call(lambda: self._write(database, own._trial_id))
            self._forget_pending()
        self._written_at = time.monotonic()

    def write_now_and_then(self) -> None:
        """Write what has been gathered, if that was last done a while ago."""
        if time.monotonic() - self._written_at > _FRESH_SECONDS:
            self.write()

    # What Optuna's trials, samplers and pruners call. A trial notes in its own memory what it sets itself.

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """Return the trials of the study, the own one as it stands."""
        if self._own is None or time.monotonic() - self._read_at > _FRESH_SECONDS:
            self._others = self._inner.get_all_trials(study_id, deepcopy=False)
            self._read_at = time.monotonic()
        own = self._own
        trials = [own if own is not None and one._trial_id == own._trial_id else one for one in self._others]
        trials = [one for one in trials if states is None or one.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """Return one trial."""
        if self._own is not None and trial_id == self._own._trial_id:
            return self._own
        trial: FrozenTrial = self._inner.get_trial(trial_id)
        return trial

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """Return a trial's attributes of Optuna's own."""
        return dict(self.get_trial(trial_id).system_attrs)

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        """Return a trial's attributes of ours."""
        return dict(self.get_trial(trial_id).user_attrs)

    def set_trial_param(self, trial_id: int, name: str, value: float, distribution: BaseDistribution) -> None:
        """Gather a drawn parameter."""
        self._params[name] = (value, distribution_to_json(distribution))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Gather an attribute; one of another trial is written at once."""
        if self._own is None or trial_id != self._own._trial_id:
            self._inner.set_trial_user_attr(trial_id, key, value)
            return
        self._user_attrs[key] = json.dumps(value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Gather an attribute of Optuna's own; one of another trial is written at once."""
        if self._own is None or trial_id != self._own._trial_id:
            self._inner.set_trial_system_attr(trial_id, key, value)
            return
        self._own.system_attrs[key] = value
        self._system_attrs[key] = json.dumps(value)

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Gather a report."""
        self._reports[step] = intermediate_value

    def _forget_pending(self) -> None:
        self._params: dict[str, tuple[float, str]] = {}
        self._user_attrs: dict[str, str] = {}
        self._system_attrs: dict[str, str] = {}
        self._reports: dict[int, float] = {}

    @property
    def _pending(self) -> tuple[Any, ...]:
        return self._params, self._user_attrs, self._system_attrs, self._reports

    def _write(self, database: StudyStorage, trial_id: int) -> None:
        trial = models.TrialModel
        stored = models.TrialIntermediateValueModel.intermediate_value_to_stored_repr
        reports = {step: stored(value) for step, value in self._reports.items()}
        tables: list[tuple[Any, str, list[dict[str, Any]]]] = [
            (
                models.TrialParamModel,
                "param_name",
                [
                    {"param_name": name, "param_value": value, "distribution_json": distribution}
                    for name, (value, distribution) in self._params.items()
                ],
            ),
            (models.TrialUserAttributeModel, "key", _attributes(self._user_attrs)),
            (models.TrialSystemAttributeModel, "key", _attributes(self._system_attrs)),
            (
                models.TrialIntermediateValueModel,
                "step",
                [
                    {"step": step, "intermediate_value": value, "intermediate_value_type": kind}
                    for step, (value, kind) in reports.items()
                ],
            ),
        ]
        with Session(database.engine) as session, session.begin():
            # First, and without a change: it locks the row or the database, and tells whether the trial still runs.
            running = update(trial).where(trial.trial_id == trial_id, trial.state == TrialState.RUNNING)
            touched: Any = session.execute(
                running.values(state=TrialState.RUNNING).execution_options(synchronize_session=False)
            )
            if not touched.rowcount:
                raise optuna.exceptions.UpdateFinishedTrialError(f"trial {trial_id} does not run any more")
            for table, name, rows in tables:
                if rows:  # written anew, so that repeating this changes nothing
                    column = table.__table__.c[name]
                    there = (table.__table__.c.trial_id == trial_id) & column.in_([row[name] for row in rows])
                    session.execute(delete(table.__table__).where(there))
                    session.execute(insert(table.__table__), [{"trial_id": trial_id, **row} for row in rows])


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value_json": value} for key, value in values.items()]
