"""Write what a study found: ``boost_config.o1.json``, ``boost_config.o2.json``, the table and the environment.

Each file appears as a whole or not at all. An exported configuration is read back and resolved before it is trusted:
it must mean the plan that was confirmed. What a method in effect needs besides (`Description.exported_files`) goes with
the file.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from workbench.config import BoostConfig, Plan
from workbench.config.mindspore_notes import mindspore_notes
from workbench.core.files import write_text_atomically
from workbench.core.records import Choice, StudyResult
from workbench.methods.registry import METHODS
from workbench.study.ask.plans import StudyPlans, explicit_config, needs_warm_up
from workbench.study.ask.sections import TARGETS
from workbench.study.errors import StudyError
from workbench.study.run.job import plain

EXPORT_SCHEMA_VERSION = 1


def export_configs(
    directory: Path,
    choices: Mapping[str, Choice],
    baseline: BoostConfig,
    origin: Mapping[str, Any],
    plans: StudyPlans,
    snapshots: Path | None = None,
) -> dict[str, Path]:
    """Write one configuration per export, the chosen one or else O0's, and return the files.

    ``origin`` (study, task, seed, ...) becomes their section ``provenance``. What methods need besides is written
    beside the file, from the search's own ``snapshots`` if they are here. A StudyError says what is missing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for target, choice in choices.items():
        candidate, level = choice.candidate, TARGETS[target]
        config = baseline if candidate is None else BoostConfig.from_dict(candidate.config)
        plan = plans.resolve(config, "O0" if candidate is None else level)
        exporting = [method for method in METHODS if method.exported_files and method.is_in_effect(plan)]
        for method in exporting:  # before the file that names theirs
            folder = snapshots if needs_warm_up(plan) else Path(attrgetter(method.snapshot_folder)(plan.config) or ".")
            try:
                read = method.load().export(plan, directory, target, folder)
            except LookupError as error:
                raise StudyError(str(error)) from None
            plan = plans.resolve(explicit_config(plan).with_values(read), plan.level)
        path = directory / f"boost_config.{target}.json"
        explicit_config(plan).with_values({"provenance": _provenance(choice, plan, origin)}).save(path)
        left = (name for method in METHODS if method not in exporting for name in method.exported_files)
        for name in left:  # by an earlier choice
            (directory / name.format(export=target)).unlink(missing_ok=True)
        if plans.resolve(BoostConfig.from_json(path), level).key() != plan.key():
            raise RuntimeError(
                f"{path}: the exported file does not mean the set-up {plan.summary()!r} it was written for"
            )
        files[target] = path
    return files


def write_tables(directory: Path, result: StudyResult) -> None:
    """Write ``candidates.csv``, whose column ``exported`` marks what each export takes, and ``environment.json``."""
    import pandas as pd  # here: a study's state is read without it

    directory.mkdir(parents=True, exist_ok=True)
    taken = result.chosen.items()
    numbers = ("speedup", "speedup_low", "speedup_high", "drop", "drop_bound", "allowed_drop")
    head = {"target": "export", "label": "candidate", "trial_number": "trial", "summary": "in_effect"}
    head |= {name: name for name in numbers} | {"n_seeds": "seeds", "verdict": "verdict"}
    rows = [
        [*(getattr(one, name) for name in head), (one.target, one.label) in taken, one.sentence]
        for one in result.candidates
    ]
    table = pd.DataFrame(rows, columns=[*head.values(), "exported", "sentence"])
    known = table.replace([math.inf, -math.inf], math.nan)  # of what has no end, too, the cell is empty
    write_text_atomically(directory / "candidates.csv", known.to_csv(index=False, lineterminator="\n"))
    hardware = json.dumps(plain(dict(result.environment)), indent=2, ensure_ascii=False) + "\n"
    write_text_atomically(directory / "environment.json", hardware)


def _provenance(choice: Choice, plan: Plan, origin: Mapping[str, Any]) -> dict[str, Any]:
    target, candidate = choice.target, choice.candidate
    content: dict[str, Any] = {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": plan.world_size,
        "in_effect": plan.summary(),
        "candidate": choice.label,
        "verdict": choice.verdict,
        "sentence": choice.sentence,
        "mindspore": mindspore_notes(plan.config, plan)[0],
    }
    if candidate is not None:
        ends = (candidate.speedup, candidate.speedup_low, candidate.speedup_high)
        content["speedup"] = [float(f"{value:.4g}") for value in ends if math.isfinite(value)]
        content["allowed_drop"] = candidate.allowed_drop
        content["n_seeds"] = candidate.n_seeds
        if math.isfinite(candidate.drop) and math.isfinite(candidate.drop_bound):
            content["drop"], content["drop_bound"] = candidate.drop, candidate.drop_bound
    for method in METHODS:
        if method.n_ranks > 1 and plan.is_in_effect(method.name):
            content[method.name] = (
                f"{method.title} was in effect on {plan.world_size} ranks; `workbench validate --world-size N` says "
                "whether it is on N."
            )
        if method.export_note and plan.is_in_effect(method.name):
            content[method.name] = method.export_note.format(export=target, seed=origin["seed"])
    return dict(_without_none(plain({**content, **origin})))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value
