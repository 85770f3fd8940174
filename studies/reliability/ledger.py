"""What a study has finished, looked at between the kills; what was lost, doubled, left or changed; and the comparison.

A *finished* trial is complete or pruned and repeats no other. *Lost*: it was finished and is no more, or has changed.
*Doubled*: a plan that counts twice, a second O0, more trials than the study asks for. *Left*: neither finished nor
failed when the command has ended well. *Failed wrongly*: failed, although fewer than three of its own workers were
killed. *Different*: its state, parameters, configuration, metric or curve, or one loss of its recorded run, is not, bit
for bit, what the trial of that number is in a study of the same seed that nobody disturbed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from workbench.config import BoostConfig
from workbench.runs import read_run
from workbench.study.store.stored_records import SURPLUS

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)
DEATHS_THAT_FAIL = 3
_MEASURED = ("metric", "curve", "steps", "diverged", "overflows")


class Trials:
    """The trials of a study as its database has them, read beside the processes that write them.

    Args:
        url: Its database, which may not exist yet or be away.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._file = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite") else None
        self._storage: RDBStorage | None = None

    def read(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials, those of some states; none while there is no database.

        Raises:
            optuna.exceptions.StorageInternalError: When it cannot be read now.
        """
        if self._file is not None and not self._file.exists():
            return []
        if self._storage is None:  # never the first to make the tables
            self._storage = RDBStorage(self.url, skip_compatibility_check=True, skip_table_creation=True)
        return [
            trial
            for study in self._storage.get_all_studies()
            for trial in self._storage.get_all_trials(study._study_id, deepcopy=False, states=states or None)
        ]

    def look(self, *states: TrialState) -> list[FrozenTrial]:
        """Return the trials as `read` does; none when they cannot be read now."""
        try:
            return self.read(*states)
        except (SQLAlchemyError, optuna.exceptions.OptunaError):
            return []

    def close(self) -> None:
        """Let go of the database."""
        if self._storage is not None:
            self._storage.engine.dispose()
            self._storage = None


def process_of(trial: FrozenTrial) -> int:
    """Return the number of the process that runs a trial; 0 when it is not known."""
    return int((trial.user_attrs.get("process") or {}).get("pid", 0))


def finished(trials: list[FrozenTrial]) -> dict[int, FrozenTrial]:
    """Return the finished trials by number."""
    return {one.number: one for one in trials if one.state in FINISHED and "repeats" not in one.user_attrs}


@dataclass(slots=True)
class Findings:
    """What the kills of a setting have done, counted; and a sentence for each of it."""

    kills: int = 0
    inside: int = 0
    finished: int = 0
    lost: int = 0
    doubled: int = 0
    left: int = 0
    failed_wrongly: int = 0
    different: int = 0
    compared: int = 0
    sentences: list[str] = field(default_factory=list)

    def add(self, other: Findings) -> None:
        """Add what another study of the setting has shown."""
        for name in ("kills", "inside", "finished", "lost", "doubled", "left", "failed_wrongly", "different"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.compared += other.compared
        self.sentences += other.sentences

    @property
    def harm(self) -> int:
        """How much should not have happened."""
        return self.lost + self.doubled + self.left + self.failed_wrongly + self.different


class Ledger:
    """What was seen of a study that is being killed.

    Args:
        directory: Its folder.
        trials: Its database.
    """

    def __init__(self, directory: Path, trials: Trials) -> None:
        self.directory, self.trials, self.found = directory, trials, Findings()
        self.killed_workers: Counter[int] = Counter()  # by the number of the trial that they ran
        self._seen: dict[int, tuple[Any, ...]] = {}

    def killed(self, ran: list[FrozenTrial], *, worker: bool) -> None:
        """Note a kill that hit these trials; of a ``worker``, which ran one of them, or of its driver."""
        self.found.kills += 1
        self.found.inside += bool(ran)
        if worker:
            self.killed_workers.update(one.number for one in ran)

    def look(self) -> None:
        """Compare what has finished with what had, and see that every exported file is whole."""
        # A server may be killed before it has the first table; what has finished has to be there.
        trials = self.trials.read() if self._seen else self.trials.look()
        now = {number: _as_stored(one) for number, one in finished(trials).items()}
        for number, was in self._seen.items():
            if now.get(number) != was:
                self.found.lost += 1
                self.found.sentences.append(f"trial {number} had finished as {was} and is {now.get(number)}")
        self._seen = now
        for path in (self.directory / "result").glob("*.json"):
            json.loads(path.read_text(encoding="utf-8"))
        for path in (self.directory / "result").glob("boost_config*.json"):
            BoostConfig.from_json(path)

    def judge(self, n_trials: int, undisturbed: Mapping[int, FrozenTrial], reference: Path) -> Findings:
        """Count what has become of the study, whose command has ended well, beside one that nobody disturbed.

        Args:
            n_trials: How many trials the study asks for.
            undisturbed: Finished trials of the other study, by number.
            reference: Its folder.
        """
        self.look()
        found, trials = self.found, self.trials.read()
        ours = finished(trials)
        found.finished = len(ours)
        plans = Counter(str(one.user_attrs.get("config")) + str(one.user_attrs.get("level")) for one in ours.values())
        baselines = sum(bool(one.user_attrs.get("baseline")) for one in ours.values())
        found.doubled += sum(plans.values()) - len(plans) + max(baselines - 1, 0) + max(len(ours) - n_trials, 0)
        found.left += max(n_trials - len(ours), 0)
        for one in trials:
            if not one.state.is_finished():
                found.left += 1
                found.sentences.append(f"trial {one.number} is left {one.state.name}")
            elif one.state == TrialState.FAIL and not self._failed_rightly(one):
                found.failed_wrongly += 1
                killed = self.killed_workers[one.number]
                found.sentences.append(
                    f"trial {one.number} failed with {killed} of its own workers killed: "
                    f"{one.user_attrs.get('message', 'no message')}"
                )
        for number, one in ours.items():
            if number in undisturbed:
                found.compared += 1
                differs = differences(one, undisturbed[number], self.directory, reference)
                found.different += bool(differs)
                found.sentences += [f"trial {number}: {sentence}" for sentence in differs]
        return found

    def _failed_rightly(self, trial: FrozenTrial) -> bool:
        return SURPLUS in trial.user_attrs or self.killed_workers[trial.number] >= DEATHS_THAT_FAIL


def differences(trial: FrozenTrial, other: FrozenTrial, directory: Path, reference: Path) -> list[str]:
    """Return how a finished trial differs from the one of its number in an undisturbed study, each in a sentence."""
    sides = [_outcome(trial, directory), _outcome(other, reference)]
    return [
        f"{name} is {sides[0][name]}, undisturbed {sides[1][name]}"
        for name in sides[0]
        if sides[0][name] != sides[1][name]
    ]


def _outcome(trial: FrozenTrial, directory: Path) -> dict[str, Any]:
    attributes = trial.user_attrs
    trained = attributes.get("trained", {})
    told = {"state": trial.state.name, "params": trial.params, "level": attributes.get("level")}
    told |= {"config": attributes.get("config")} | {name: trained.get(name) for name in _MEASURED}
    run = directory / str(trained.get("path", ""))
    recorded = read_run(run).steps if trained.get("path") else None
    return told | {"losses": None if recorded is None else [float(one) for one in recorded["loss"]]}


def _as_stored(trial: FrozenTrial) -> tuple[Any, ...]:
    return trial.state.name, tuple(sorted(trial.params.items())), trial.values, trial.datetime_complete
