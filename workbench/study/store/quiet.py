"""Keep Optuna's internal messages off the user's screen."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

import optuna


@contextlib.contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna's own log lines and its notes on experimental parts off the user's screen."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)
