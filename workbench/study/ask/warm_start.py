"""Begin with what was found before: the best trials of an earlier study, or an exported boost_config.json.

They are enqueued after O0, each as the values that this study would have to draw to train the same plan. Where a value
lies outside its range or is not a choice here, the nearest one is taken or it is left to the sampler, and a sentence
says so. Every plan is trained again, on this study's task and at its own length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna

from workbench.config import SWITCHES, TASKS_OWN, BoostConfig, ConfigError
from workbench.study.ask.search_space import Dimension, SearchedSpace
from workbench.study.ask.sections import TARGETS
from workbench.study.ask.study_file import StudyFile, read_study, study_folder
from workbench.study.errors import StudyError
from workbench.study.store import storage as kept
from workbench.study.store.stored_records import trials_of

_LABEL = "warm_start"
_NOTES = "warm_start_notes"
_DEFAULT_TRIALS = 5


@dataclass(frozen=True, slots=True)
class EarlierPlan:
    """Something that was found before; its label tells where."""

    label: str
    config: BoostConfig
    level: str


def enqueue_warm_start(
    study: optuna.Study, file: StudyFile, directory: Path, besides: Sequence[str | Path], n_trials: int
) -> None:
    """Enqueue what the study's file and the command (``besides``) name, unless it was enqueued before.

    Paths in the file are relative to the study's folder. No more are enqueued than ``n_trials`` leaves room for.
    """
    section = file.warm_start
    named = [] if section is None else [(name, directory / name) for name in section.sources]
    named += [(str(name), Path(name)) for name in besides]
    if not named:
        return
    best = _DEFAULT_TRIALS if section is None else section.trials
    trials = study.get_trials(deepcopy=False)
    earlier = [trial for trial in trials if trial.user_attrs.get(_LABEL)]
    known = {trial.user_attrs[_LABEL] for trial in earlier}
    tried: list[dict[str, Any]] = [dict(trial.system_attrs["fixed_params"]) for trial in earlier]
    notes: list[str] = list(study.user_attrs.get(_NOTES, []))
    room = n_trials - len(trials)
    for name, path in named:
        if path.resolve() == directory.resolve():
            raise StudyError(f"{name}: a study cannot start from itself")
        for plan in earlier_plans(name, path, best):
            if plan.label in known:
                continue
            values, remarks = mapped_values(plan, file.searched)
            if not values:
                remarks = [f"{plan.label}: none of it can be searched here, so it is not tried."]
            elif values in tried:
                remarks = []
            elif room < 1:
                remarks = [f"{plan.label}: is not tried, since the study has only {n_trials} trials."]
            else:
                study.enqueue_trial(values, user_attrs={_LABEL: plan.label})
                tried.append(values)
                room -= 1
            notes += [one for one in remarks if one not in notes]
    if notes != study.user_attrs.get(_NOTES, []):
        study.set_user_attr(_NOTES, notes)


def sources_in(archived: Path | None) -> list[Path]:
    """Return an archived study as a source to begin with; none if it has no trial to begin with."""
    try:
        return [archived] if archived is not None and earlier_plans(archived.name, archived, 1) else []
    except StudyError:
        return []


def earlier_plans(name: str, path: Path, best: int) -> list[EarlierPlan]:
    """Read a source: the best trials of a study or, without its database, its exports; or an exported file."""
    if path.suffix == ".json":
        return [_exported(name, path)]
    folder = study_folder(path)
    if (folder / "study.db").exists():
        found = list(_best_trials(name, folder, best))
        if not found:
            raise StudyError(f"{name}: that study has no finished trial within its allowed drop to start from")
        return found
    exports = [folder / "result" / f"boost_config.{target}.json" for target in TARGETS]
    found = [_exported(f"{name}/result/{one.name}", one) for one in exports if one.exists()]
    if not found:
        raise StudyError(
            f"{name}: there is nothing to start from; name the folder of a study that has run, or a boost_config.json"
        )
    return found


def _best_trials(name: str, folder: Path, best: int) -> Iterator[EarlierPlan]:
    earlier = read_study(folder)
    study = kept.find_study(kept.open_storage(kept.default_storage(folder)), earlier.study.name)
    plans = kept.on_its_network(earlier, study).plans
    useful = [one for one in trials_of(study) if one.state == "complete" and one.feasible and one.level != "O0"]
    seen: set[str] = set()
    for record in sorted((one for one in useful if one.config), key=lambda one: (one.value, one.number)):
        config = BoostConfig.from_dict(record.config)
        key = f"{record.level} {plans.resolve(config, record.level).training_key()}"
        if key not in seen and len(seen) < best:
            seen.add(key)
            yield EarlierPlan(f"{name} trial {record.number}", config, record.level)


def _exported(name: str, path: Path) -> EarlierPlan:
    try:
        config = BoostConfig.from_json(path)
    except (ConfigError, OSError) as error:
        raise StudyError(f"a warm start needs a boost_config.json: {error}") from None
    level = next((level for target, level in TARGETS.items() if f".{target}." in path.name), "O1")
    return EarlierPlan(name, config, level)


def mapped_values(plan: EarlierPlan, space: SearchedSpace) -> tuple[dict[str, Any], list[str]]:
    """Return what a trial of this study has to draw for an earlier plan, and what differs, as sentences."""
    try:
        resolved = space.plans.resolve(plan.config, plan.level)
    except ConfigError as error:
        return {}, [f"{plan.label}: {error}"]
    known = {**resolved.parameters_in_effect(), "level": plan.level, "boost.mode": "manual"}
    if any(one.path == "optimizer.name" and TASKS_OWN in one.choices for one in space.dimensions):
        known.setdefault("optimizer.name", TASKS_OWN)
    values: dict[str, Any] = {}
    remarks: list[str] = []
    for dimension in space.dimensions:
        if dimension.parameter not in known or not dimension.belongs_to(plan.config):
            continue  # it had no effect there; if it has one here, the sampler draws it
        value, sentence = _nearest(dimension, known[dimension.parameter])
        if sentence:
            remarks.append(f"{plan.label}: {sentence}")
        if value is not None:
            values[dimension.path] = value
    searched = {dimension.path for dimension in space.dimensions}
    if "boost.mode" in searched:
        return values, remarks
    here, there = space.plans.resolve(space.start, plan.level).in_effect(), resolved.in_effect()
    for switch in SWITCHES:
        if f"boost.{switch}" not in searched and (switch in there) != (switch in here):
            words = "on there and off here" if switch in there else "off there and on here"
            remarks.append(f"{plan.label}: {switch} is {words}, where it is not searched.")
    return values, remarks


def _nearest(dimension: Dimension, value: Any) -> tuple[Any, str]:
    """Return what is enqueued for a value, None for nothing, and a sentence when it is not the value itself."""
    if dimension.kind == "choice":
        places = [place for place, one in enumerate(dimension.choices) if _same(one, value)]
        if not places:
            if len(dimension.choices) == 1:
                return None, ""  # a setting of this study, not something it searches
            return None, f"`{dimension.path}` = {value!r} is not a choice here, so the sampler draws it."
        return (dimension.choices[places[0]] if dimension.is_plain else places[0]), ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None, f"`{dimension.path}` = {value!r} is not a number, so the sampler draws it."
    near = min(max(float(value), dimension.low), dimension.high)
    step = dimension.step or (1.0 if dimension.kind == "int" else None)
    if step is not None:
        near = min(dimension.low + round((near - dimension.low) / step) * step, dimension.high)
    near = int(near) if dimension.kind == "int" else near
    if abs(near - value) <= 1e-9 * max(abs(value), 1.0):
        return near, ""
    return near, f"`{dimension.path}` = {value:g} cannot be drawn here; {near:g} is tried instead."


def _same(one: Any, other: Any) -> bool:
    """Return whether two values mean the same in a configuration; 1 and 1.0 do, 1 and true do not."""
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)
