"""The id by which Optuna's storages know a trial, and which it keeps private; its own samplers read it the same way."""

from __future__ import annotations

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial


def id_of(trial: optuna.Trial | FrozenTrial) -> int:
    """Return the number under which a storage knows a trial, in all its studies."""
    return trial._trial_id


def storage_of(study: optuna.Study) -> BaseStorage:
    """Return the storage of a study, for those who are given no more than the study, such as samplers."""
    return study._storage
