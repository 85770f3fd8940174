"""What a study imports on its way, imported once: a process that is forked from this one begins at once."""

from __future__ import annotations

import alembic.command
import psycopg
import scipy.stats
import sqlalchemy.dialects.postgresql

from workbench.study import join_study, tune
from workbench.study.store.storage import open_storage

__all__ = ["alembic", "join_study", "psycopg", "scipy", "sqlalchemy", "tune"]

open_storage("sqlite://").engine.dispose()  # Optuna imports its tables when the first database is opened
