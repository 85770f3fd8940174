"""What a report shows besides a study's answer: its exported files, its float16 recording, a freezing schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt
import pandas as pd

from workbench.config import BoostConfig
from workbench.core.records import StudyResult
from workbench.figures.replay_policies import policy_name
from workbench.methods.registry import METHODS
from workbench.runs import read_run


@dataclass(frozen=True, eq=False)
class Recording:
    """The float16 recording of a study and what other loss-scale policies would have done to it."""

    steps: pd.DataFrame
    events: pd.DataFrame
    replayed: pd.DataFrame  # one row per policy; see ``figures.replay_policies_numbers``
    traces: Mapping[str, npt.ArrayLike]  # of a few of them: name -> scale at every recorded step
    chosen: str  # name of the policy that was chosen
    note: str = ""  # assumption and error bar of the replay


@dataclass(frozen=True, eq=False)
class FreezingSchedule:
    """Which layers an exported configuration freezes."""

    file: str
    frozen: Sequence[int]  # leading frozen groups of each update of a run
    n_groups: int
    share: float = float("nan")  # of steps that freeze, as the plan's summary says it; NaN counts them


@dataclass(frozen=True, eq=False)
class Sources:
    """What was read; anything missing has no section on the page."""

    exported: Mapping[str, BoostConfig] = field(default_factory=dict)  # by export: "o1"
    recording: Recording | None = None  # of a study that chose a loss-scale policy
    freezing: FreezingSchedule | None = None  # of the first export that freezes


def read_sources(answer: StudyResult) -> Sources:
    """Read the files that a study's answer names; a ConfigError or a RunError says which one cannot be read."""
    exported = {target: BoostConfig.from_json(path) for target, path in answer.exported.items()}
    return Sources(exported, _recording(answer), _freezing(answer, exported))


def hardware_of(answer: StudyResult) -> dict[str, Any]:
    """Return what a study ran on, in words; anything missing is left out, and memory is in GiB."""
    known = {key.replace("_", " "): one for key, one in (answer.environment.get("device") or {}).items() if one}
    memory = {key: f"{one / 1024**3:.1f} GiB" for key, one in known.items() if key.endswith("bytes")}
    return {key.removesuffix(" bytes"): memory.get(key, one) for key, one in known.items()}


def _recording(answer: StudyResult) -> Recording | None:
    from workbench.loss_scale import ScalePolicy  # torch, which a page without a recording does not need
    from workbench.runs.replayed_run import ReplayedRun

    policy = answer.loss_scale_policy
    if policy is None or "recording" not in policy:
        return None
    run = ReplayedRun(read_run(answer.directory / str(policy["recording"])))
    chosen = ScalePolicy(init=policy["init"], factor=policy["factor"], window=int(policy["window"]))
    name = policy_name(policy["init"], policy["factor"], policy["window"])
    replayed = pd.DataFrame(policy["policies"]).assign(recorded=False)
    note = policy.get("sentence", "")
    if run.recorded is not None:
        judged = run.ranges([run.recorded])
        replayed = pd.concat([replayed, judged.table.assign(recorded=True)], ignore_index=True)
        note = f"{judged.assumption} {note}".strip()
    return Recording(run.run.steps, run.run.events, replayed, {f"chosen: {name}": run.scales(chosen)}, name, note)


def _freezing(answer: StudyResult, exported: Mapping[str, BoostConfig]) -> FreezingSchedule | None:
    for target, config in exported.items():
        plan = config.resolve("O1")
        for method in METHODS:
            if method.schedules_groups and method.is_in_effect(plan):
                from workbench.methods.in_effect import MethodsInEffect, fitted_config  # torch, as the method itself

                steps = max((step for trial in answer.trials[:1] for step, _ in trial.curve), default=0)  # O0's
                fitted = fitted_config(config, plan.level, steps) if steps else config
                frozen, n_groups = method.load().groups_at_rest(fitted)
                n_updates = MethodsInEffect(plan).updates(steps) if steps else len(frozen)
                share = getattr(config, method.section).frozen_share()
                return FreezingSchedule(answer.exported[target].name, frozen[:n_updates], n_groups, share)
    return None
