"""Write what a study found: ``boost_config.o1.json``, ``boost_config.o2.json``, the table and the environment.

Each file appears as a whole or not at all. An exported configuration is read back and resolved before it is trusted:
it must mean the plan that was confirmed.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.atomic_file import write_text_atomically
from workbench.config import BoostConfig
from workbench.records import CandidateRecord
from workbench.tuning.objective import plain
from workbench.tuning.plans import StudyPlans
from workbench.tuning.selection import TARGETS

__all__ = ["EXPORT_SCHEMA_VERSION", "ExportContext", "candidates_table", "export_configs", "write_tables"]

EXPORT_SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class ExportContext:
    """What every exported file says about its origin.

    Args:
        study: Name of the study.
        task: Task as named on the command line.
        seed: Seed of the search.
        metric: Name of the metric.
        objective: What the study minimised.
        data_hash: Hash of the training data.
        environment: Versions and hardware.
        loss_scale: Sentence about the loss-scale policy; empty when none was chosen.
    """

    study: str
    task: str
    seed: int
    metric: str
    objective: str
    data_hash: str
    environment: Mapping[str, Any]
    loss_scale: str = ""


def export_configs(
    directory: Path,
    chosen: Mapping[str, CandidateRecord | None],
    baseline: BoostConfig,
    reasons: Mapping[str, str],
    context: ExportContext,
    plans: StudyPlans,
) -> dict[str, Path]:
    """Write one configuration per export.

    Args:
        directory: Folder of the files; it is made when missing.
        chosen: Export -> candidate, or None when O0 is exported.
        baseline: O0's configuration, everything off.
        reasons: Export -> why O0 is exported, where it is.
        context: Origin.
        plans: How the study resolves configurations.

    Returns:
        Export -> file.

    Raises:
        RuntimeError: When a written file does not mean the plan it was written for.
        OSError: When it cannot be written; the old file is untouched then.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for target, level in TARGETS.items():
        candidate = chosen.get(target)
        config = baseline if candidate is None else BoostConfig.from_dict(candidate.config)
        plan = plans.resolve(config, "O0" if candidate is None else level)
        explicit = plan.explicit_config()
        provenance = _provenance(target, candidate, reasons.get(target, ""), plan.summary(), context)
        path = directory / f"boost_config.{target}.json"
        explicit.with_values({"provenance": provenance}).save(path)
        if plans.resolve(BoostConfig.from_json(path), level).key() != plan.key():
            raise RuntimeError(
                f"{path}: the exported file does not mean the plan {plan.summary()!r} it was written for"
            )
        files[target] = path
    return files


def candidates_table(candidates: Sequence[CandidateRecord], exported: Mapping[str, int | None]) -> pd.DataFrame:
    """Return one row per candidate; ``exported`` marks the one each export took."""
    rows = [
        {
            "export": one.target,
            "candidate": one.label,
            "trial": one.trial_number,
            "in_effect": one.summary,
            "speedup": one.speedup,
            "speedup_low": one.speedup_low,
            "speedup_high": one.speedup_high,
            "drop": one.drop,
            "drop_bound": one.drop_bound,
            "allowed_drop": one.allowed_drop,
            "seeds": one.n_seeds,
            "verdict": str(one.verdict),
            "exported": exported.get(one.target) == one.trial_number,
            "sentence": one.sentence,
        }
        for one in candidates
    ]
    columns = [
        *("export", "candidate", "trial", "in_effect", "speedup", "speedup_low", "speedup_high", "drop", "drop_bound"),
        *("allowed_drop", "seeds", "verdict", "exported", "sentence"),
    ]
    return pd.DataFrame(rows, columns=columns)


def write_tables(
    directory: Path,
    candidates: Sequence[CandidateRecord],
    exported: Mapping[str, int | None],
    environment: Mapping[str, Any],
) -> list[Path]:
    """Write ``candidates.csv`` and ``environment.json``.

    Args:
        directory: Folder of the files; it is made when missing.
        candidates: Judged candidates.
        exported: Export -> number of the trial it took, None for O0.
        environment: Versions and hardware.

    Returns:
        The files.
    """
    directory.mkdir(parents=True, exist_ok=True)
    table, hardware = directory / "candidates.csv", directory / "environment.json"
    write_text_atomically(table, candidates_table(candidates, exported).to_csv(index=False, lineterminator="\n"))
    write_text_atomically(hardware, json.dumps(plain(dict(environment)), indent=2, ensure_ascii=False) + "\n")
    return [table, hardware]


def _provenance(
    target: str, candidate: CandidateRecord | None, reason: str, summary: str, context: ExportContext
) -> dict[str, Any]:
    level = TARGETS[target]
    told: dict[str, Any] = {
        "schema_version": EXPORT_SCHEMA_VERSION,
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "study": context.study,
        "task": context.task,
        "seed": context.seed,
        "objective": context.objective,
        "metric": context.metric,
        "data_hash": context.data_hash,
        "in_effect": summary,
        "candidate": "O0" if candidate is None else candidate.label,
        "verdict": "O0" if candidate is None else str(candidate.verdict),
        "sentence": reason if candidate is None else candidate.sentence,
        "mindspore": (
            f'Pass boost_level="{level}" so that mindspore.train.Model reads this file as boost_config_dict; sections '
            "MindSpore does not know are ignored there."
        ),
    }
    if candidate is not None:
        told["speedup"] = _numbers(candidate.speedup, candidate.speedup_low, candidate.speedup_high)
        told["allowed_drop"] = candidate.allowed_drop
        told["n_seeds"] = candidate.n_seeds
        if math.isfinite(candidate.drop) and math.isfinite(candidate.drop_bound):
            told["drop"], told["drop_bound"] = candidate.drop, candidate.drop_bound
    if context.loss_scale:
        told["loss_scale"] = context.loss_scale
    told["environment"] = _without_none(plain(dict(context.environment)))
    return told


def _numbers(*values: float) -> list[float]:
    return [float(f"{value:.4g}") for value in values if math.isfinite(value)]


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value if item is not None]
    return value
