"""Several requests to Optuna's ``RDBStorage`` as one transaction.

``RDBStorage`` commits every request by itself, so that another process may come between two of them. Its sessions join
a transaction that was begun outside, as SQLAlchemy has it ("Joining a Session into an External Transaction"): a commit
inside then ends nothing, and a request that fails undoes all of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from optuna.storages import RDBStorage
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError


@contextlib.contextmanager
def one_transaction(storage: RDBStorage, *, savepoints: bool = False) -> Iterator[Connection]:
    """Make one transaction of all that this thread asks of a storage in the block; an exception undoes all of it.

    Others wait: on SQLite from the beginning, elsewhere from the first row that Optuna locks, which is the study's in
    ``create_new_trial`` and the trial's in ``set_trial_state_values``. What is read afterwards holds until the end.
    ``savepoints``: each request undoes nothing but itself, as ``create_new_trial`` needs, which Optuna repeats.
    """
    mode: Literal["create_savepoint", "rollback_only"] = "create_savepoint" if savepoints else "rollback_only"
    with storage.engine.begin() as connection:
        if storage.engine.name == "sqlite":  # it locks no rows, and two that have read could not both write
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        storage.remove_session()
        storage.scoped_session(bind=connection, join_transaction_mode=mode)
        try:
            yield connection
        except DBAPIError as error:
            raise _what_failed(error) from None
        finally:
            storage.remove_session()


def _what_failed(error: BaseException) -> BaseException:
    """Return the error that a savepoint got lost by: SQLite undoes all of a transaction that fills the disk."""
    earlier = error.__context__
    while earlier is not None and "no such savepoint" in str(error):
        if isinstance(earlier, DBAPIError):
            error = earlier
        earlier = earlier.__context__
    return error
