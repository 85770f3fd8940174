"""A database that is away is waited for; what does not pass by itself is told at once; passwords are told never."""

from __future__ import annotations

import logging
import sqlite3

import optuna
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import IntegrityError, InvalidRequestError, OperationalError

from workbench.study.errors import StudyError
from workbench.study.run.patience import Patience, may_pass
from workbench.study.store.storage import open_storage, shown_url


def away(text: str = "connection refused") -> optuna.exceptions.StorageInternalError:
    error = optuna.exceptions.StorageInternalError("during the commit")
    error.__cause__ = OperationalError("", None, Exception(text))
    return error


def locked(text: str) -> OperationalError:
    return OperationalError("", None, sqlite3.OperationalError(text))


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (away(), True),
        (away("the database system is starting up"), True),
        (away('password authentication failed for user "me"'), False),
        (away('database "x" does not exist'), False),
        (locked("database is locked"), True),
        (locked("database or disk is full"), False),
        (locked("unable to open database file"), False),
        (IntegrityError("", None, Exception("duplicate key")), False),
        (KeyError("no such study"), False),
    ],
)
def test_only_what_may_pass_is_waited_for(error: Exception, passes: bool) -> None:
    assert may_pass(error) is passes


def test_a_request_that_optuna_repeats_on_a_lost_connection_is_made_again() -> None:
    engine = create_engine("sqlite://")
    error = optuna.exceptions.StorageInternalError("during the commit")
    with engine.begin() as connection:
        connection.rollback()  # as when the connection is lost
        with pytest.raises(InvalidRequestError) as raised:
            connection.exec_driver_sql("SELECT 1")
    error.__cause__ = raised.value
    assert may_pass(error)
    assert not may_pass(InvalidRequestError("no such table"))


def test_waits_grow_are_told_once_and_end_with_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    waits: list[float] = []
    answers = iter([away("no route to me:secret@host"), *[away()] * 7, 42])

    def request() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with caplog.at_level(logging.WARNING, logger="workbench"):
        assert Patience(60.0, sleep=waits.append).call(request) == 42
    for wait, longest in zip(waits, [0.5, 1, 2, 4, 8, 8, 8, 8], strict=True):
        assert 0.5 * longest <= wait <= longest
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("the study's database does not answer (")
    assert told[0].endswith("trying again for up to 60 s")
    assert told[1].startswith("the study's database answers again after")


def test_patience_ends() -> None:
    def request() -> None:
        raise away()

    with pytest.raises(optuna.exceptions.StorageInternalError):
        Patience(0.0, sleep=lambda _: pytest.fail("waited")).call(request)
    patience = Patience(60.0, sleep=lambda _: pytest.fail("waited"))
    with patience.suspended(), pytest.raises(optuna.exceptions.StorageInternalError):
        patience.call(request)
    assert patience.seconds_of_peace < 60.0


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql+psycopg://me:s3cret@host:1/x", "postgresql+psycopg://me:***@host:1/x"),
        ("postgresql+psycopg://host/x?user=me&password=s3cret", "postgresql+psycopg://host/x?password=***&user=me"),
        ("postgresql+psycopg://me@host/x?sslkey=s3cret", "postgresql+psycopg://me@host/x?sslkey=***"),
        ("sqlite:////tmp/study.db", "sqlite:////tmp/study.db"),
        ("me:s3cret@host", "given"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert "s3cret" not in shown_url(url)
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "s3cret",
        "postgresql+psycopg://me:s3cret:@host:s3cret/x",
        "postgresql+psycopg://me:s3cret@localhost:1/x",
        "nosuchdatabase://me:s3cret@host/x",
        "sqlite:////no/such/folder/study.db?password=s3cret",
    ],
)
def test_a_url_that_cannot_be_opened_is_one_sentence_without_its_password(url: str) -> None:
    with pytest.raises(StudyError) as caught:
        open_storage(url)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_senseless_grace_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_GRACE_SECONDS", "long")
    with pytest.raises(StudyError, match="WORKBENCH_GRACE_SECONDS must be a number of seconds above 0, got 'long'"):
        open_storage("sqlite://")
