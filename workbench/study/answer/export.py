"""Write what a study found: ``boost_config.o1.json``, ``boost_config.o2.json``, the table and the environment.

Each file appears as a whole or not at all. An exported configuration is read back and resolved before it is trusted:
it must mean the plan that was confirmed. A DimReduce plan is nothing without its subspace, so the matrix goes with the
file.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.config import BoostConfig, Plan
from workbench.core.files import write_text_atomically
from workbench.core.records import CandidateRecord, Choice
from workbench.methods.dim_reduce.pca_files import load_explained_variance, load_pca_matrix, save_pca_matrix
from workbench.methods.registry import METHODS
from workbench.study.answer.selection import TARGETS
from workbench.study.ask.plans import StudyPlans, explicit_config, needs_warm_up
from workbench.study.errors import StudyError
from workbench.study.run.job import plain

__all__ = ["EXPORT_SCHEMA_VERSION", "export_configs", "write_tables"]

EXPORT_SCHEMA_VERSION = 1


def export_configs(
    directory: Path,
    choices: Mapping[str, Choice],
    baseline: BoostConfig,
    origin: Mapping[str, Any],
    plans: StudyPlans,
    snapshots: Path | None = None,
) -> dict[str, Path]:
    """Write one configuration per export, what it takes or else O0's, and return the files.

    ``origin`` (study, task, seed, ...) goes to their section ``provenance``. A DimReduce export has its matrix
    ``pca_mat.<export>.npy`` beside it, from ``snapshots``: the search's own, if they are here.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for target, choice in choices.items():
        candidate, level = choice.candidate, TARGETS[target]
        config = baseline if candidate is None else BoostConfig.from_dict(candidate.config)
        plan = plans.resolve(config, "O0" if candidate is None else level)
        matrix = directory / f"pca_mat.{target}.npy"
        if plan.dim_reduce:  # before the file that names it
            plan = _with_matrix(plan, plans, snapshots, matrix)
        path = directory / f"boost_config.{target}.json"
        explicit_config(plan).with_values({"provenance": _provenance(choice, plan, origin)}).save(path)
        if not plan.dim_reduce:  # what an earlier choice left
            for left in (matrix, matrix.with_suffix(".json")):
                left.unlink(missing_ok=True)
        if plans.resolve(BoostConfig.from_json(path), level).key() != plan.key():
            raise RuntimeError(
                f"{path}: the exported file does not mean the plan {plan.summary()!r} it was written for"
            )
        files[target] = path
    return files


def write_tables(
    directory: Path,
    candidates: Sequence[CandidateRecord],
    choices: Mapping[str, Choice],
    environment: Mapping[str, Any],
) -> None:
    """Write ``candidates.csv``, whose column ``exported`` marks what each export takes, and ``environment.json``."""
    directory.mkdir(parents=True, exist_ok=True)
    taken = {(choice.target, choice.label) for choice in choices.values()}
    numbers = ("speedup", "speedup_low", "speedup_high", "drop", "drop_bound", "allowed_drop")
    head = {"target": "export", "label": "candidate", "trial_number": "trial", "summary": "in_effect"}
    head |= {name: name for name in numbers} | {"n_seeds": "seeds", "verdict": "verdict"}
    rows = [
        [*(getattr(one, name) for name in head), (one.target, one.label) in taken, one.sentence] for one in candidates
    ]
    table = pd.DataFrame(rows, columns=[*head.values(), "exported", "sentence"])
    known = table.replace([math.inf, -math.inf], math.nan)  # of what has no end, too, the cell is empty
    write_text_atomically(directory / "candidates.csv", known.to_csv(index=False, lineterminator="\n"))
    hardware = json.dumps(plain(dict(environment)), indent=2, ensure_ascii=False) + "\n"
    write_text_atomically(directory / "environment.json", hardware)


def _with_matrix(plan: Plan, plans: StudyPlans, snapshots: Path | None, matrix: Path) -> Plan:
    """Write the components of a plan and return the plan that reads them."""
    k, source = plan.config.dim_reduce.n_components, _subspace(plan, snapshots)
    shares = load_explained_variance(source)
    save_pca_matrix(matrix, load_pca_matrix(source, n_components=k), None if shares is None else shares[:k])
    # MindSpore asks for an absolute path.
    read = {"dim_reduce.pca_mat_path": str(matrix.absolute()), "dim_reduce.weight_load_dir": None}
    return plans.resolve(explicit_config(plan).with_values(read), plan.level)


def _subspace(plan: Plan, snapshots: Path | None) -> Path:
    """Return the file of the components that a plan was trained with."""
    section = plan.config.dim_reduce
    if section.pca_mat_path is not None and Path(section.pca_mat_path).is_file():
        return Path(section.pca_mat_path)
    folder = snapshots if needs_warm_up(plan) else Path(section.weight_load_dir or ".")
    files = [] if folder is None else sorted(folder.glob("pca_mat_*.npy"))
    fitting = {path: np.load(path, mmap_mode="r").shape for path in files}
    fitting = {path: shape for path, shape in fitting.items() if shape[0] == section.n_components}
    if not fitting:
        where = "the warm-up of this study" if folder is None else str(folder)
        raise StudyError(
            f"the {section.n_components} components of a DimReduce candidate are not in {where}; export on the machine "
            "that trained it, or copy its folder `runs` here"
        )
    if len(set(fitting.values())) > 1:
        raise StudyError(
            f"{folder} holds subspaces of several networks, so the one to export cannot be told; give the study a "
            "folder of its own in `dim_reduce.weight_load_dir`"
        )
    return max(fitting, key=lambda path: path.stat().st_mtime_ns)


def _provenance(choice: Choice, plan: Plan, origin: Mapping[str, Any]) -> dict[str, Any]:
    target, candidate = choice.target, choice.candidate
    told: dict[str, Any] = {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "ranks": plan.world_size,
        "in_effect": plan.summary(),
        "candidate": choice.label,
        "verdict": choice.verdict,
        "sentence": choice.sentence,
        "mindspore": (
            f'Pass boost_level="{TARGETS[target]}" so that mindspore.train.Model reads this file as '
            "boost_config_dict; sections MindSpore does not know are ignored there."
        ),
    }
    if candidate is not None:
        ends = (candidate.speedup, candidate.speedup_low, candidate.speedup_high)
        told["speedup"] = [float(f"{value:.4g}") for value in ends if math.isfinite(value)]
        told["allowed_drop"] = candidate.allowed_drop
        told["n_seeds"] = candidate.n_seeds
        if math.isfinite(candidate.drop) and math.isfinite(candidate.drop_bound):
            told["drop"], told["drop_bound"] = candidate.drop, candidate.drop_bound
    for method in METHODS:
        if method.n_ranks > 1 and plan.is_in_effect(method.name):
            told[method.name] = (
                f"{method.title} was in effect on {plan.world_size} ranks; `workbench validate --world-size N` says "
                "whether it is on N."
            )
    if plan.dim_reduce:
        told["dim_reduce"] = (
            f"The subspace lies in pca_mat.{target}.npy beside this file. When you move the two, set "
            "dim_reduce.pca_mat_path to its new absolute path. Its columns follow the order of the optimizer's "
            "parameters, each flattened row by row. It belongs to the initial weights of this task with seed "
            f"{origin['seed']}; other initial weights need snapshots of their own (snapshots.count, then "
            "dim_reduce.weight_load_dir in place of pca_mat_path)."
        )
    return dict(_without_none(plain({**told, **origin})))


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value if item is not None] if isinstance(value, list) else value
