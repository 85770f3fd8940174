"""Texts for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

__all__ = ["texts"]

# All that UTF-8 can write. Asked for by that name, hypothesis encodes each of a million characters, for three seconds.
_CHARACTERS = st.characters(exclude_categories=["Cs"])


def texts(max_size: int) -> st.SearchStrategy[str]:
    return st.text(_CHARACTERS, max_size=max_size)
