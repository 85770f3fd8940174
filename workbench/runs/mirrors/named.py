"""Mirrors as they are named on the command line: ``tensorboard``, ``tensorboard=DIR``, ``mlflow``, ``mlflow=URI``."""

from __future__ import annotations

from collections.abc import Iterable

from workbench.core.credentials import hide_passwords
from workbench.core.rank_environment import is_first_rank
from workbench.runs.mirrors.live import LiveMirrors
from workbench.runs.mirrors.mirror import Mirror, MirrorError
from workbench.runs.mirrors.mlflow_mirror import MlflowMirror
from workbench.runs.mirrors.tensorboard_mirror import TensorBoardMirror

__all__ = ["live_mirrors", "mirrors_named"]


def mirrors_named(given: Iterable[Mirror | str]) -> list[Mirror]:
    """Return mirrors, made where only their names are given.

    Args:
        given: Mirrors or names; ``"tensorboard"`` is the folder ``tensorboard``, ``"mlflow"`` MLflow's own choice.

    Raises:
        MirrorError: When a name is unknown.

    Example:
        >>> [str(mirror) for mirror in mirrors_named(["tensorboard=logs", "mlflow=sqlite:///runs.db"])]
        ['TensorBoard in logs', 'MLflow at sqlite:///runs.db']
    """
    return [one if isinstance(one, Mirror) else _made(one) for one in given]


def live_mirrors(given: Iterable[Mirror | str]) -> LiveMirrors | None:
    """Return the mirrors of a run that is about to begin; None without any, and on every rank but the first.

    Raises:
        MirrorError: When a name is unknown or a library is not installed.
    """
    mirrors = list(given)
    return LiveMirrors(mirrors_named(mirrors)) if mirrors and is_first_rank() else None


def _made(name: str) -> Mirror:
    kind, equals, place = name.partition("=")
    if equals and not place:
        raise MirrorError(f"a mirror must be named like `{kind}` or `{kind}=PLACE`, got {name!r}")
    if kind == "tensorboard":
        return TensorBoardMirror(place) if place else TensorBoardMirror()
    if kind == "mlflow":
        return MlflowMirror(place or None)
    shown = hide_passwords(name)
    raise MirrorError(f"a mirror must be `tensorboard`, `tensorboard=DIR`, `mlflow` or `mlflow=URI`, got {shown!r}")
