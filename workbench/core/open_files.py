"""Whether an object may hold an open file, in which two processes would read from one place."""

from __future__ import annotations

import io
import pickle
import types
from typing import Any

import numpy as np
from torch import Tensor

from workbench.core.text import first_line

_MANY = 10_000  # entries of what holds data, not files
_CODE = types.FunctionType | types.MethodType | types.ModuleType | type


def held_file(holder: Any) -> str:
    """Return why an object may hold an open file; empty where it does not.

    Whatever holds one, or a connection or a lock, refuses to be pickled, so that everything but data and code is.
    """
    try:
        _Holdings(io.BytesIO()).dump(holder)
    except Exception as error:  # a class may refuse in its own way
        return first_line(error)
    return ""


class _Holdings(pickle.Pickler):
    def persistent_id(self, held: Any) -> str | None:
        """Return something for what is not looked into."""
        is_large = isinstance(held, list | tuple | dict | set) and len(held) > _MANY
        return "" if is_large or isinstance(held, Tensor | np.ndarray | str | bytes | _CODE) else None
