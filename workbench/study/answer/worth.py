"""What is known of an export besides its configuration: how long its runs are, and what its parts are worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.config import BoostConfig
from workbench.core.records import GainPart, StudyResult
from workbench.study.ask.study_file import read_study
from workbench.study.set_up.parts import parts_of
from workbench.study.set_up.runtime_choice import ground_of


@dataclass(frozen=True)
class MeasuredExports:
    """What a study knows of its exports."""

    steps: int  # loader batches that the task is trained for today
    seed: int
    worth: Mapping[str, Mapping[str, str]]  # export -> config path -> what its part was measured to be worth


def measured_exports(result: StudyResult) -> MeasuredExports:
    """Return what a study knows of its exports, the attribution of each by the config paths of its parts."""
    file = read_study(Path(result.directory))
    plain = file.plans.resolve(ground_of(file.base_config(), {}), "O1")
    worth: dict[str, dict[str, str]] = {}
    for target, bars in result.attribution.items():
        plan = file.plans.resolve(BoostConfig.from_dict(result.taken[target].config), "O1")
        worth[target] = {
            path: said for part in parts_of(plan, plain) if (said := _worth(part.name, bars)) for path in part.paths
        }
    return MeasuredExports(file.set_up.todays_steps or file.study.budget_steps, file.study.seed, worth)


def _worth(name: str, bars: tuple[GainPart, ...]) -> str:
    """Return what a part was measured to be worth, by itself or with others; empty where no bar names it."""
    together = next((one for one in bars if name in one.part), None)
    found = next((one for one in bars if one.part == name), together)
    if found is None:
        return ""
    speed = f"{found.factor:.2f} x as fast"
    if found.part != name:
        beside = f"not measured separately; {speed} with the others that were not"
        return f"{beside}: {found.remark}" if found.remark else beside
    if found.effect != "unmeasured":
        speed += f" (95 % interval {found.low:.2f} to {found.high:.2f})"
    return f"{speed}, {found.remark}" if found.remark else speed
