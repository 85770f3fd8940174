"""Passwords leave no trace in what is shown."""

from __future__ import annotations

import pytest

from workbench.core.credentials import hide_passwords


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://me:secret@db/studies", "postgresql+psycopg://me:***@db/studies"),
        ("at 'mysql://me:s@cret@db:3306/x' and http://u:p@h", "at 'mysql://me:***@db:3306/x' and http://u:***@h"),
        ("host=db password=secret dbname=x", "host=db password=*** dbname=x"),
        ("host=db PASSWORD = 'two words' user=me", "host=db PASSWORD = *** user=me"),
        ("http://host:5000/a@b", "http://host:5000/a@b"),
        ("sqlite:////tmp/study.db is 12:30 late", "sqlite:////tmp/study.db is 12:30 late"),
    ],
)
def test_a_password_is_replaced_and_nothing_else(text: str, shown: str) -> None:
    assert hide_passwords(text) == shown
