"""Notes for optuna-dashboard: what a study asks, and what each of its trials came to, in words.

The dashboard keeps a note in the study's system attributes, under ``dashboard:note_ver`` and ``dashboard:note_str:0``,
with the trial's id in between for a trial's note (optuna-dashboard 0.21, ``save_note``). These are written here, so
that the notes are there whether or not it is installed on the machine that searches, and all new notes of a study go
to the database in one transaction: a commit takes as long for a hundred rows as for one. A note that somebody has
edited in the dashboard stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.storages import RDBStorage
from optuna.storages._rdb import models  # the tables; their version is checked when a database is opened
from sqlalchemy import select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from workbench.core.credentials import hide_passwords
from workbench.core.records import TrialRecord
from workbench.core.trial_counts import outcome_of
from workbench.study.ask.study_file import StudyFile

__all__ = ["Notes", "study_note", "trial_note"]

_LONGEST_PART = 2045  # what optuna-dashboard puts into one attribute
_OWN = "workbench:note"
_ENDED = frozenset({"complete", "pruned", "failed"})
_EVERY_SECONDS = 20.0
_ANSWER = "### Answer"


class Notes:
    """Keep the notes of one study up to date.

    Args:
        study: The Optuna study.
        file: Its file.
    """

    def __init__(self, study: optuna.Study, file: StudyFile) -> None:
        self._study = study
        self._file = file
        self._written = -math.inf

    @property
    def are_due(self) -> bool:
        """Whether it is time to write: at the beginning, and every twenty seconds from then on."""
        return time.monotonic() - self._written >= _EVERY_SECONDS

    def write(self, trials: Sequence[TrialRecord], answer: Sequence[str] = ()) -> None:
        """Write the notes that are missing; a database that is away is no error, they are written next time.

        Args:
            trials: Records of the study's trials.
            answer: Sentences of the answer, once there is one; without them an answer that is there stays.
        """
        engine = _engine_of(self._study)
        if engine is None:
            return
        self._written = time.monotonic()
        ids = {trial.number: trial._trial_id for trial in self._study.get_trials(deepcopy=False)}
        try:
            self._name_objectives()
            with Session(engine) as session, session.begin():
                stored = _stored(session, self._study._study_id)
                for key, value in self._missing(stored, trials, ids, answer).items():
                    _put(session, self._study._study_id, key, value, is_new=key not in stored)
        except SQLAlchemyError:  # away, or another process wrote the same notes at the same moment
            return

    def _missing(
        self,
        stored: Mapping[str, Any],
        trials: Sequence[TrialRecord],
        ids: Mapping[int, int],
        answer: Sequence[str],
    ) -> dict[str, Any]:
        rows: dict[str, Any] = {}
        attributes = self._study.user_attrs
        metric = str(attributes.get("metric_name", "metric"))
        body = study_note(self._file, metric, attributes.get("allowed_drops", {}), trials, answer)
        before = _own_body(stored)
        is_ours = not before or stored.get(_OWN) == _digest(before)
        is_answered = _ANSWER in before and not answer
        if is_ours and not is_answered and body != before:
            rows |= _rows(None, int(stored.get(_version_key(None), 0)) + 1, body, stored)
            rows[_OWN] = _digest(body)
        for trial in trials:
            if trial.state in _ENDED and _version_key(ids[trial.number]) not in stored:
                note = trial_note(trial, metric, attributes.get("allowed_drops"))
                rows |= _rows(ids[trial.number], 1, note, stored)
        return rows

    def _name_objectives(self) -> None:
        if self._study.metric_names is not None:
            return
        names = {
            "time_to_target": "time to target (steps of O0)",
            "speed": _STEP_TIME,
            "time_to_quality": "time of a run (O0 = 1)",
        }
        metric = str(self._study.user_attrs.get("metric_name", "metric"))
        objective = self._file.study.objective
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.set_metric_names([metric, _STEP_TIME] if objective == "pareto" else [names[objective]])


_STEP_TIME = "step time (O0 = 1)"


def study_note(
    file: StudyFile,
    metric: str,
    allowed_drops: Mapping[str, float],
    trials: Sequence[TrialRecord] = (),
    answer: Sequence[str] = (),
) -> str:
    """Return what a study asks, in Markdown: question, baseline, allowed drop, command, and the answer if there is one.

    Args:
        file: The study's file.
        metric: Name of the metric.
        allowed_drops: Allowed drop per export.
        trials: Its trials; the baseline's metric is read from trial 0.
        answer: Sentences of the answer.
    """
    baseline = next((trial for trial in trials if trial.number == 0 and math.isfinite(trial.metric)), None)
    settings = ", ".join(f"`{path}` = {json.dumps(value)}" for path, value in _leaves(file.baseline).items())
    reached = f"; it reached {metric} {baseline.metric:.5g}" if baseline is not None else ""
    allowed = ", ".join(f"{drop:g} for {target}" for target, drop in allowed_drops.items())
    searched = ", ".join(f"`{dimension.path}`" for dimension in file.dimensions)
    aims = {
        "time_to_target": f"time until the baseline's final {metric}, less the allowed drop, is reached",
        "speed": "time of a step",
        "time_to_quality": f"total time of a run whose final {metric} is the baseline's, less the allowed drop",
        "pareto": f"{metric} and time of a step, both at once",
    }
    lines = [
        f"### Which boost configuration trains {file.study.task} fastest without losing more {metric} than allowed?",
        "",
        f"* **Objective**: {aims[file.study.objective]}, relative to O0 measured side by side.",
        f"* **Baseline**: trial 0 is O0, everything off{f', with {settings}' if settings else ''}{reached}.",
        f"* **Allowed drop** of {metric}: {allowed or 'not known yet'}. A trial is feasible when its constraint "
        "`metric_deficit` (drop less allowed drop) is at most 0.",
        f"* **Searched**: {searched or 'nothing'}; {file.study.budget_steps} micro-batches a trial.",
        f"* **Command**: `workbench tune` with the folder of study `{file.study.name}`; `workbench export` writes its "
        "boost_config.json.",
    ]
    if answer:
        lines += ["", _ANSWER, "", *(f"* {hide_passwords(sentence)}" for sentence in answer)]
    return "\n".join(lines)


def trial_note(trial: TrialRecord, metric: str, allowed_drops: Mapping[str, float] | None = None) -> str:
    """Return what a trial came to, in Markdown: what was in effect, speed, metric, verdict, message.

    Args:
        trial: The trial.
        metric: Name of the metric.
        allowed_drops: Allowed drop per export; None knows that of the study's target only.
    """
    lines = [f"**In effect** ({trial.level}): {trial.summary or 'nothing'}", ""]
    if math.isfinite(trial.relative_step_time):
        low, high = 1.0 / trial.relative_high, 1.0 / trial.relative_low
        lines.append(f"* {1.0 / trial.relative_step_time:.2f} times the speed of O0 per step ({low:.2f} to {high:.2f})")
    if math.isfinite(trial.metric):
        worse = f"{trial.metric_deficit:+.4g}" if math.isfinite(trial.metric_deficit) else "unknown"
        lines.append(f"* {metric} {trial.metric:.5g}, drop {worse} of {trial.allowed_drop:g} allowed")
    lines.append(
        f"* **{outcome_of(trial, allowed_drops)}**{f': {hide_passwords(trial.message)}' if trial.message else ''}"
    )
    if trial.run_path:
        lines.append(f"* recorded in `{trial.run_path}`")
    return "\n".join(lines)


def _engine_of(study: optuna.Study) -> Any:
    """Return the database engine of a study; None where it is kept elsewhere, as in a test's memory."""
    storage = study._storage
    storage = getattr(storage, "_backend", storage)  # Optuna's cache stands in front of it
    return storage.engine if isinstance(storage, RDBStorage) else None


def _stored(session: Session, study_id: int) -> dict[str, Any]:
    """Return the keys that are there, with the values of those that the study's own note consists of."""
    table = models.StudySystemAttributeModel
    mine = select(table.key).where(table.study_id == study_id)
    found: dict[str, Any] = dict.fromkeys(session.scalars(mine))
    own = [key for key in found if key in (_OWN, _version_key(None)) or key.startswith(_part_prefix(None))]
    values = select(table.key, table.value_json).where(table.study_id == study_id, table.key.in_(own))
    return found | {key: json.loads(value) for key, value in session.execute(values)}


def _put(session: Session, study_id: int, key: str, value: Any, *, is_new: bool) -> None:
    table = models.StudySystemAttributeModel
    if is_new:
        session.add(table(study_id=study_id, key=key, value_json=json.dumps(value)))
    else:
        mine = update(table).where(table.study_id == study_id, table.key == key)
        session.execute(mine.values(value_json=json.dumps(value)))


def _rows(trial_id: int | None, version: int, body: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    prefix = _part_prefix(trial_id)
    parts = [body[at : at + _LONGEST_PART] for at in range(0, len(body), _LONGEST_PART)]
    rows = {f"{prefix}{number}": part for number, part in enumerate(parts)}
    left_over = {key: "" for key in stored if key.startswith(prefix) and key not in rows}
    return {_version_key(trial_id): version, **rows, **left_over}


def _own_body(stored: Mapping[str, Any]) -> str:
    prefix = _part_prefix(None)
    return "".join(str(stored.get(f"{prefix}{number}", "")) for number in range(len(stored)))


def _version_key(trial_id: int | None) -> str:
    return "dashboard:note_ver" if trial_id is None else f"dashboard:{trial_id}:note_ver"


def _part_prefix(trial_id: int | None) -> str:
    return "dashboard:note_str:" if trial_id is None else f"dashboard:{trial_id}:note_str:"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for key, value in values.items():
        leaves |= _leaves(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return leaves
