"""Trials as rows of Optuna's tables: all of them read in a query per table, several rows written in one transaction.

The one module that uses private names of Optuna: the tables of ``RDBStorage``, whose layout has a version that is
checked when a database is opened. The public interface writes every parameter, attribute and report in a transaction of
its own, reads a thousand trials in five seconds instead of half a second, and cannot take a trial or refuse a late
result within one transaction (``study_storage.py``).
"""

from __future__ import annotations

import datetime
import functools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial
from sqlalchemy import ColumnElement, Connection, delete, insert, select

STUDIES: Final[Any] = models.StudyModel.__table__
TRIALS: Final[Any] = models.TrialModel.__table__
USER_ATTRIBUTES: Final[Any] = models.TrialUserAttributeModel.__table__
HEARTBEATS: Final[Any] = models.TrialHeartbeatModel.__table__

# Table, columns of a row (the first one names it), and the column that tells the order.
_PARTS: Final[Mapping[str, tuple[Any, tuple[str, ...], str]]] = {
    "params": (models.TrialParamModel.__table__, ("param_name", "param_value", "distribution_json"), "param_id"),
    "values": (models.TrialValueModel.__table__, ("objective", "value", "value_type"), "objective"),
    "reports": (
        models.TrialIntermediateValueModel.__table__,
        ("step", "intermediate_value", "intermediate_value_type"),
        "step",
    ),
    "user_attrs": (USER_ATTRIBUTES, ("key", "value_json"), "trial_user_attribute_id"),
    "system_attrs": (models.TrialSystemAttributeModel.__table__, ("key", "value_json"), "trial_system_attribute_id"),
}
_COLUMNS: Final = ("trial_id", "number", "state", "datetime_start", "datetime_complete")

Rows = Mapping[str, Sequence[Sequence[Any]]]
"""Part of a trial (``params``, ``values``, ``reports``, ``user_attrs``, ``system_attrs``) -> its rows."""


def param_row(name: str, value: float, distribution: BaseDistribution) -> tuple[Any, ...]:
    """Return the row of a parameter, whose value is as Optuna's storages keep it."""
    return name, value, distribution_to_json(distribution)


def value_row(objective: int, value: float) -> tuple[Any, ...]:
    """Return the row of an objective's value."""
    return objective, *models.TrialValueModel.value_to_stored_repr(value)


def report_row(step: int, value: float) -> tuple[Any, ...]:
    """Return the row of a report."""
    return step, *models.TrialIntermediateValueModel.intermediate_value_to_stored_repr(value)


def attribute_row(key: str, value: Any) -> tuple[Any, ...]:
    """Return the row of an attribute."""
    return key, json.dumps(value)


def rows_of(trial: FrozenTrial) -> Rows:
    """Return all rows that make up a trial."""
    distributions = trial.distributions
    return {
        "params": [
            param_row(name, distributions[name].to_internal_repr(value), distributions[name])
            for name, value in trial.params.items()
        ],
        "values": [value_row(objective, value) for objective, value in enumerate(trial.values or ())],
        "reports": [report_row(step, value) for step, value in trial.intermediate_values.items()],
        "user_attrs": [attribute_row(key, value) for key, value in trial.user_attrs.items()],
        "system_attrs": [attribute_row(key, value) for key, value in trial.system_attrs.items()],
    }


def write_rows(connection: Connection, trial_id: int, rows: Rows) -> None:
    """Write rows of a trial in place of those of the same names, so that repeating it changes nothing."""
    for part, new in rows.items():
        if new:
            table, columns, _ = _PARTS[part]
            replaced = table.c[columns[0]].in_([row[0] for row in new])
            connection.execute(delete(table).where(table.c.trial_id == trial_id, replaced))
            connection.execute(
                insert(table), [{"trial_id": trial_id, **dict(zip(columns, row, strict=True))} for row in new]
            )


def read_trials(connection: Connection, where: ColumnElement[bool]) -> list[FrozenTrial]:
    """Return the trials for which a condition on the columns of `TRIALS` holds, in the order of their creation."""
    # The trials first: what belongs to one that has ended was written before its state was.
    trials = connection.execute(select(*(TRIALS.c[name] for name in _COLUMNS)).where(where).order_by("trial_id")).all()
    rows: dict[str, dict[int, list[Any]]] = {part: defaultdict(list) for part in _PARTS}
    for part, (table, columns, order) in _PARTS.items() if trials else ():
        asked = select(table.c.trial_id, *(table.c[name] for name in columns)).join(TRIALS)
        for trial_id, *row in connection.execute(asked.where(where).order_by(table.c[order])):
            rows[part][trial_id].append(row)
    return [_trial(row, {part: found[row.trial_id] for part, found in rows.items()}) for row in trials]


def _trial(row: Any, parts: Rows) -> FrozenTrial:
    value_of = models.TrialValueModel.stored_repr_to_value
    report_of = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value
    drawn = {name: (value, _distribution(text)) for name, value, text in parts["params"]}
    return FrozenTrial(
        number=row.number,
        state=row.state,
        value=None,
        values=[value_of(value, kind) for _, value, kind in parts["values"]] or None,
        datetime_start=_local(row.datetime_start),
        datetime_complete=_local(row.datetime_complete),
        params={name: distribution.to_external_repr(value) for name, (value, distribution) in drawn.items()},
        distributions={name: distribution for name, (_, distribution) in drawn.items()},
        user_attrs={key: json.loads(text) for key, text in parts["user_attrs"]},
        system_attrs={key: json.loads(text) for key, text in parts["system_attrs"]},
        intermediate_values={step: report_of(value, kind) for step, value, kind in parts["reports"]},
        trial_id=row.trial_id,
    )


@functools.lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


def utc(local: datetime.datetime | None) -> datetime.datetime | None:
    """Return a local time as the tables hold it: in UTC; neither of the two says so."""
    return None if local is None else local.astimezone(datetime.UTC).replace(tzinfo=None)


def _local(utc: datetime.datetime | None) -> datetime.datetime | None:
    return None if utc is None else utc.replace(tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
