"""The interactive shell that a notebook's cells run in."""

from __future__ import annotations

import sys
from typing import Any


def ipython_shell() -> Any:
    """Return IPython's shell, of a notebook or a terminal; None where there is none."""
    ipython = sys.modules.get("IPython")  # where it was never imported there is no cell
    return None if ipython is None else ipython.get_ipython()
