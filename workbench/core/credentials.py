"""Passwords in URLs, kept out of everything that is shown or written.

A driver's error message may repeat the storage URL, and end up in a trial, a note, a table or a log.
"""

from __future__ import annotations

import re

# The greedy part takes a password with an @ in it, too; a path or a blank ends it. An = begins a connection string's
# value, quoted or not.
_IN_URL = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"]*):[^\s/'\"]*@")
_IN_CONNECTION_STRING = re.compile(r"(\bpassword\s*=\s*)('[^']*'|\"[^\"]*\"|[^\s&;,]+)", re.IGNORECASE)


def hide_passwords(text: str) -> str:
    """Return the text with ``***`` in place of every password of a URL or connection string in it.

    Example:
        >>> hide_passwords("cannot connect to postgresql+psycopg://me:secret@db.example/studies")
        'cannot connect to postgresql+psycopg://me:***@db.example/studies'
    """
    return _IN_CONNECTION_STRING.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))
