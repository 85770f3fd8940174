"""Warnings that name the user's own line, however deep in the package they are raised."""

from __future__ import annotations

import sys
import warnings

_BETWEEN = frozenset({"workbench", "torch", "contextlib", "pydantic", "transformers", "accelerate", "lightning"})
"""Packages whose frames may lie between the user's line and ours."""


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn about the innermost line that is neither ours nor that of a library which calls us back."""
    frame = sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    module, registry = frame.f_globals.get("__name__"), frame.f_globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, frame.f_code.co_filename, frame.f_lineno, module, registry)
