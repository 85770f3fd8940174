"""How the trials of a study are read: what has ended is checked once, kept once, and shares its equal parts.

SQLite and PostgreSQL do not notice that a bit of a value has turned on the disk. So a trial is finished together with a
checksum of all that is stored of it but the dates, and what is read later is compared with it.
"""

from __future__ import annotations

import functools
import json
import sys
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import distribution_to_json, json_to_distribution
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState

from workbench.study.store.ended_trials import EndedTrials

SEAL = "crc32"
"""Name of the system attribute that has the checksum of a trial."""

_SEAL_OF = f"{SEAL} of "
_SHARED_PARTS = 512


class TrialReader:
    """Reads the trials of a study, in one thread at a time; optuna's own study object remembers those that have ended.

    Args:
        backend: The database.
        name: The study's.
    """

    def __init__(self, backend: RDBStorage, name: str) -> None:
        self._study = optuna.load_study(study_name=name, storage=backend, sampler=optuna.samplers.RandomSampler())
        self._ended, self._damage = EndedTrials(), ""

    def read(self) -> list[FrozenTrial]:
        """Return the trials.

        Raises:
            LookupError: When one that has ended is not what was stored.
        """
        trials = self._study.get_trials(deepcopy=False)
        for trial in self._ended.new(trials):
            if SEAL in trial.system_attrs and not _is_whole(trial):  # earlier versions wrote none
                self._damage = f"trial {trial.number} is not what its checksum says"
            else:
                _share_parts(trial)
        if self._damage:
            raise LookupError(self._damage)
        return trials


class Attributes(dict[str, Any]):
    """The attributes of a study. A deep copy shares their values: Optuna makes one whenever they are asked for."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Attributes:
        return Attributes(self)


def seal_of(trial: FrozenTrial, state: TrialState | None = None, values: Sequence[float] | None = None) -> int:
    """Return the checksum of a trial, or of one that ends now in a state and with values."""
    content = {
        "number": trial.number,
        "state": (state or trial.state).name,
        "values": [float(one) for one in (trial.values if state is None else values) or ()],
        "params": trial.params,
        "reports": trial.intermediate_values,
        "user": trial.user_attrs,
        "system": {name: value for name, value in trial.system_attrs.items() if name != SEAL},
    }
    return checksum(content)


def _is_whole(trial: FrozenTrial) -> bool:
    """Return whether a trial is what its checksum says; names that are no text have none."""
    try:
        return bool(trial.system_attrs[SEAL] == seal_of(trial))
    except TypeError:
        return False


def checksum(value: Any) -> int:
    """Return the CRC-32 of a value of JSON, as a database gives it back: names are text, tuples are lists."""
    return _crc_of(json.dumps(value, sort_keys=True))


@functools.lru_cache(_SHARED_PARTS)
def _crc_of(text: str) -> int:
    return zlib.crc32(json.dumps(json.loads(text), sort_keys=True).encode())


def with_seal(name: str, value: Any) -> dict[str, Any]:
    """Return an attribute of a study, and the one that has its checksum: read together, they are of one moment."""
    return {name: value, f"{_SEAL_OF}{name}": checksum(value)}


def without_seals(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a study but those that have checksums.

    Raises:
        LookupError: When one is not what was stored.
    """
    own = {name: value for name, value in attributes.items() if not name.startswith(_SEAL_OF)}
    for name, value in own.items():
        if attributes.get(f"{_SEAL_OF}{name}", seal := checksum(value)) != seal:
            raise LookupError(f"its attribute {name} is not what its checksum says")
        if name[len(_SEAL_OF) :] in own:  # the name of a checksum
            raise LookupError(f"the name of its attribute {name} is not what was stored")
    for name in attributes:
        if name.startswith(_SEAL_OF) and name.removeprefix(_SEAL_OF) not in own:
            raise LookupError(f"its attribute {name.removeprefix(_SEAL_OF)} is not there")
    return own


def _share_parts(trial: FrozenTrial) -> None:
    """Let a trial that has ended use equal names, distributions and attributes of trials before it.

    A study keeps thousands in memory, and by itself each would take some 20 kB.
    """
    trial.params = {sys.intern(name): value for name, value in trial.params.items()}
    ranges = ((name, distribution_to_json(one)) for name, one in trial.distributions.items())
    trial.distributions = {sys.intern(name): _distribution(text) for name, text in ranges}
    trial.user_attrs = {sys.intern(name): _shared(value) for name, value in trial.user_attrs.items()}
    trial.system_attrs = {sys.intern(name): value for name, value in trial.system_attrs.items()}
    if json.dumps(trial.user_attrs.get("parameters")) == json.dumps(trial.params):
        trial.user_attrs["parameters"] = trial.params


_distribution = functools.lru_cache(_SHARED_PARTS)(json_to_distribution)  # by its text, as values in `_of_text`


def _shared(value: Any) -> Any:
    """Return a value of JSON whose parts are those of equal values before it, as far as these are remembered.

    The configuration of a trial takes some 20 kB, and differs from the next one's in a few places.
    """
    if isinstance(value, str):
        return sys.intern(value)
    return _of_text(json.dumps(value)) if isinstance(value, dict | list) else value


@functools.lru_cache(_SHARED_PARTS)
def _of_text(text: str) -> Any:
    value = json.loads(text)  # by its text, since 1, 1.0 and True are equal
    if isinstance(value, dict):
        return {sys.intern(name): _shared(one) for name, one in value.items()}
    return [_shared(one) for one in value]
