"""Notes for optuna-dashboard: what a study asks, and what each of its trials came to, in words.

The dashboard keeps a note in the study's system attributes, under ``dashboard:note_ver`` and ``dashboard:note_str:0``,
with the trial's id in between for a trial's note (optuna-dashboard 0.21, ``save_note``). Written here, they are there
whether or not it is installed, and all new ones go to the database in one transaction: a commit takes as long for a
hundred notes as for one. A note that a person has edited in the dashboard stays as it is.

What a person writes about a trial in the table of trials is part of the same note, below a line; what was written in
the dashboard is read as well.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import optuna
import sqlalchemy
from optuna.trial import FrozenTrial

from workbench.core.credentials import hide_passwords
from workbench.core.records import TrialRecord, objective_title, timed_per
from workbench.core.trial_counts import outcome_of
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.objective import metric_scale_of
from workbench.study.run.patience import STORAGE_ERRORS
from workbench.study.store.stored_records import records_of
from workbench.study.store.study_storage import StudyStorage
from workbench.study.store.transactions import one_transaction
from workbench.study.store.trial_ids import id_of, storage_of

_LONGEST_PART = 2045  # what optuna-dashboard puts into one attribute
_OWN = "workbench:note"
_ENDED = frozenset({"complete", "pruned", "failed"})
_EVERY_SECONDS = 20.0
_ANSWER = "### Answer"
_FIRST_WORDS = "**In effect** ("  # of a trial's note as it is written here
_LINE = "\n\n---\n\n"  # above what a person has added

# Optuna returns a study's system attributes only all together, and each trial has a note: of 5,000 trials they would
# take tens of MB at each look. Hence these statements on its table.
_THERE = sqlalchemy.text("SELECT 1 FROM study_system_attributes WHERE study_id = :study AND key = :key")
_ROWS = sqlalchemy.text(
    "SELECT key, value_json FROM study_system_attributes WHERE study_id = :study AND (key LIKE :like OR key = :own)"
)
# Notes of trials that a person has changed, which makes another version of them, or written before there was ours.
_EDITED = sqlalchemy.text(
    "SELECT key FROM study_system_attributes WHERE study_id = :study AND (key LIKE :versions AND value_json <> '1' "
    "OR key LIKE :firsts AND value_json NOT LIKE :ours)"
)


class Notes:
    """Keeps the notes of one study up to date."""

    def __init__(self, study: optuna.Study, file: StudyFile) -> None:
        self._study = study
        self._file = file
        self._written = -math.inf
        self._noted = set[int]()  # numbers of trials whose notes are there

    def refresh(self, trials: Sequence[FrozenTrial]) -> None:
        """Write the notes that the study's trials lack, at the beginning and every twenty seconds from then on."""
        if time.monotonic() - self._written >= _EVERY_SECONDS:
            needed = [trial for trial in trials if trial.number == 0 or trial.number not in self._noted]
            self.write(records_of(needed, self._study.user_attrs))

    def write(self, trials: Sequence[TrialRecord], answer: Sequence[str] = ()) -> None:
        """Write the notes that are missing; if the database is away, they are written next time.

        Without ``answer``, an answer that was noted before stays.
        """
        (storage, study_id), attributes = _database(self._study), self._study.user_attrs
        self._written = time.monotonic()
        all_trials = self._study.get_trials(deepcopy=False)
        new = [trial for trial in trials if trial.state in _ENDED and trial.number not in self._noted]
        try:
            if not self._noted:  # Optuna reads all rows for it
                self._name_objectives()
            with one_transaction(storage._backend) as connection:
                own = connection.execute(_ROWS, {"study": study_id, "like": "dashboard:note%", "own": _OWN})
                stored = {key: json.loads(value) for key, value in own}
                rows = self._of_study(stored, attributes, trials, answer)
                for trial in new:
                    prefix = f"dashboard:{id_of(all_trials[trial.number])}:"
                    there = connection.execute(_THERE, {"study": study_id, "key": f"{prefix}note_ver"})
                    if there.first() is None:
                        rows |= _rows(prefix, 1, trial_note(trial, attributes), {})
                for key, value in rows.items():
                    storage._backend.set_study_system_attr(study_id, key, value)
        except STORAGE_ERRORS:
            return
        self._noted.update(trial.number for trial in new)

    def _of_study(
        self,
        stored: Mapping[str, Any],
        attributes: Mapping[str, Any],
        trials: Sequence[TrialRecord],
        answer: Sequence[str],
    ) -> dict[str, Any]:
        """Return the rows of the study's own note; none if it stays as it is."""
        body = study_note(self._file, attributes, trials, answer)
        before = _body("dashboard:", stored)
        is_ours = not before or stored.get(_OWN) == _digest(before)
        if not (is_ours and body != before and (answer or _ANSWER not in before)):
            return {}
        version = int(stored.get("dashboard:note_ver", 0)) + 1
        return {**_rows("dashboard:", version, body, stored), _OWN: _digest(body)}

    def _name_objectives(self) -> None:
        if self._study.metric_names is not None:
            return
        objective = self._file.study.objective
        metric = [metric_scale_of(self._study.user_attrs).name] if objective == "pareto" else []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self._study.set_metric_names([*metric, objective_title(objective)])


def _rows(prefix: str, version: int, body: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a note; parts left over from a longer earlier one are emptied."""
    parts = [body[at : at + _LONGEST_PART] for at in range(0, len(body), _LONGEST_PART)]
    rows = {f"{prefix}note_str:{number}": part for number, part in enumerate(parts)}
    left_over = {key: "" for key in stored if key.startswith(f"{prefix}note_str:") and key not in rows}
    return {f"{prefix}note_ver": version, **rows, **left_over}


def _body(prefix: str, stored: Mapping[str, Any]) -> str:
    return "".join(str(stored.get(f"{prefix}note_str:{number}", "")) for number in range(len(stored)))


def _database(study: optuna.Study) -> tuple[StudyStorage, int]:
    """Return the storage of a study and the study's id in it."""
    storage = storage_of(study)
    assert isinstance(storage, StudyStorage)  # as `open_storage` gives it
    return storage, storage.get_study_id_from_name(study.study_name)


def with_notes(study: optuna.Study, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return trials with what people have written about them, here or in the dashboard."""
    storage, study_id = _database(study)
    with storage.engine.connect() as connection:
        likes = {"versions": "dashboard:%:note_ver", "firsts": "dashboard:%:note_str:0"}
        likes["ours"] = json.dumps(_FIRST_WORDS).rstrip('"') + "%"
        keys = connection.execute(_EDITED, {"study": study_id, **likes}).scalars().all()
        bodies = {}
        for trial_id in {int(key.split(":")[1]) for key in keys}:
            prefix = f"dashboard:{trial_id}:"
            rows = connection.execute(_ROWS, {"study": study_id, "like": f"{prefix}%", "own": ""})
            bodies[trial_id] = _body(prefix, {key: json.loads(value) for key, value in rows})
    if not bodies:
        return list(trials)
    ids = {trial.number: id_of(trial) for trial in study.get_trials(deepcopy=False)}

    def written(number: int) -> str:
        body = bodies.get(ids[number], "")
        ours, line, added = body.partition(_LINE)
        return added if line and ours.startswith(_FIRST_WORDS) else body

    return [replace(trial, note=note) if (note := written(trial.number)) else trial for trial in trials]


def note_trial(study: optuna.Study, trial: TrialRecord, text: str) -> None:
    """Keep what a person has written about a trial, below the rest of its note; an empty text removes it."""
    (storage, study_id), stored_trial = _database(study), study.get_trials(deepcopy=False)[trial.number]
    prefix = f"dashboard:{id_of(stored_trial)}:"
    stored = storage.get_study_system_attrs(study_id)
    ours = _body(prefix, stored).partition(_LINE)[0]
    if not ours.startswith(_FIRST_WORDS):
        ours = trial_note(trial, study.user_attrs)
    rows = _rows(prefix, int(stored.get(f"{prefix}note_ver", 0)) + 1, f"{ours}{_LINE}{text.strip()}", stored)
    for key, value in rows.items():
        storage.set_study_system_attr(study_id, key, value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def study_note(
    file: StudyFile, attributes: Mapping[str, Any], trials: Sequence[TrialRecord], answer: Sequence[str]
) -> str:
    """Return what a study with these attributes asks, in Markdown, and the answer if it is known."""
    metric, allowed_drops = metric_scale_of(attributes).name, attributes.get("allowed_drops", {})
    baseline = next((trial for trial in trials if trial.number == 0 and math.isfinite(trial.metric)), None)
    settings = ", ".join(f"`{path}` = {json.dumps(value)}" for path, value in file.baseline_values.items())
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
        f"### Which set-up trains {file.study.task} fastest with {metric} within the allowed drop?",
        "",
        f"* **Objective**: {aims[file.study.objective]}, relative to O0 measured side by side.",
        f"* **Baseline**: trial 0 is O0, everything off{f', with {settings}' if settings else ''}{reached}.",
        f"* **Allowed drop** of {metric}: {allowed or 'not known yet'}. A trial is feasible when its constraint "
        "`metric_deficit` (drop less allowed drop) is at most 0.",
        f"* **Searched**: {searched or 'nothing'}; {file.study.budget_steps} batches a trial.",
        f"* **Command**: `workbench tune` with the folder of study `{file.study.name}`; `workbench export` writes its "
        "boost_config.json.",
    ]
    if answer:
        lines += ["", _ANSWER, "", *(f"* {hide_passwords(sentence)}" for sentence in answer)]
    return "\n".join(lines)


def trial_note(trial: TrialRecord, attributes: Mapping[str, Any]) -> str:
    """Return what a trial of a study with these attributes came to, in Markdown: speed, metric, verdict, message."""
    lines = [f"{_FIRST_WORDS}{trial.level}): {trial.summary or 'nothing'}", ""]
    if math.isfinite(trial.relative_step_time):
        speed, low, high = trial.speed
        objective = attributes.get("study_file", {}).get("study", {}).get("objective", "")
        lines.append(f"* {speed:.2f} x the speed of O0 {timed_per(objective)} ({low:.2f} to {high:.2f})")
    if math.isfinite(trial.metric):
        worse = f"{trial.metric_deficit:+.4g}" if math.isfinite(trial.metric_deficit) else "unknown"
        metric = metric_scale_of(attributes).name
        lines.append(f"* {metric} {trial.metric:.5g}, drop {worse} of {trial.allowed_drop:g} allowed")
    message = f": {hide_passwords(trial.message)}" if trial.message else ""
    lines.append(f"* **{outcome_of(trial, attributes.get('allowed_drops'))}**{message}")
    if trial.run_path:
        lines.append(f"* recorded in `{trial.run_path}`")
    return "\n".join(lines)
