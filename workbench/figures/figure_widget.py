"""Plotly's widget, imported without what takes longest and is not asked for.

Plotly imports nbformat where it is installed, that jsonschema, and that rfc3987-syntax, which builds a parser of
international web addresses as it is imported, which takes longer than torch's import (``python -X importtime``). Until
an address is to be checked a function of the same name does as well.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Final

_SLOW: Final = "rfc3987_syntax"


@contextmanager
def _addresses_read_later() -> Iterator[None]:
    """Let what is imported meanwhile have the parser's function, which loads the parser when it is first called."""
    if _SLOW in sys.modules or importlib.util.find_spec(_SLOW) is None:
        yield
        return
    stand_in = ModuleType(_SLOW)
    vars(stand_in)["is_valid_syntax"] = _is_valid_syntax
    sys.modules[_SLOW] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_SLOW) is stand_in:
            del sys.modules[_SLOW]


def _is_valid_syntax(term: str, value: str) -> bool:
    parser = importlib.import_module(_SLOW)
    return bool(parser.is_valid_syntax(term, value))


with _addresses_read_later():
    from plotly.graph_objects import FigureWidget

__all__ = ["FigureWidget"]
