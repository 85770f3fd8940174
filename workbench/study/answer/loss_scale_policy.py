"""Choose a loss-scale policy from one recorded float16 run.

Every policy of the study (initial scale, factor, window) is replayed on it, the best is chosen, and one rerun shows
whether the prediction holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import optuna

from workbench.study.ask.search_space import all_off
from workbench.study.ask.sections import LossScaleReplaySection
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import Monitor, PolicyOutcome, ReplayJob, RunStep, Trained, TrainJob, plain
from workbench.study.run.runner import Experimenter


def policies_of(section: LossScaleReplaySection) -> list[dict[str, Any]]:
    """Return every combination of the section's initial scales, factors and windows, and its fixed scales."""
    combinations = itertools.product(section.init_choices, section.factor_choices, section.window_choices)
    dynamic = [{"init": init, "factor": factor, "window": window} for init, factor, window in combinations]
    fixed = [{"init": init, "factor": 2.0, "window": 1, "kind": "fixed"} for init in section.fixed_choices]
    return [*dynamic, *fixed]


def choose_policy(outcomes: Sequence[PolicyOutcome], max_underflow_share: float) -> PolicyOutcome:
    """Return the policy that skips fewest updates among those that let little underflow.

    Among equals it is the one whose error bar promises fewest overflows, then the longest window (it probes, and so
    overflows, least often beyond the recording), then the largest initial scale (gradients shrink while training goes
    on, so room below is worth more than room above). When every policy lets more underflow than allowed, those with the
    least are compared. Fixed scales do not compete.
    """
    outcomes = [outcome for outcome in outcomes if outcome.kind == "dynamic"]
    limit = max(max_underflow_share, min(_or_zero(outcome.underflow_share) for outcome in outcomes))
    allowed = [outcome for outcome in outcomes if _or_zero(outcome.underflow_share) <= limit]
    return min(
        allowed, key=lambda one: (one.wasted_share, _or_zero(one.overflows_high), -one.window, -one.init, one.factor)
    )


def tune_loss_scale(
    study: optuna.Study,
    file: StudyFile,
    experimenter: Experimenter,
    on_step: Callable[[RunStep], None] | None = None,
) -> None:
    """Record, replay, choose and verify, if the study asks for it; a finished stage is stored and not repeated.

    The study keeps the chosen ``loss_scale_policy`` (``init``, ``factor``, ``window``) with what was predicted, what
    the rerun showed, all judged ``policies`` and a ``sentence``; or ``{"failed": sentence}``.
    """
    section = file.loss_scale_replay
    if section is None or not section.enabled or "loss_scale_policy" in study.user_attrs:
        return

    def train(name: str, policy: Mapping[str, Any], steps: int, exponents_every: int) -> Trained:
        values: dict[str, Any] = {f"loss_scale.{key}": policy[key] for key in ("kind", "init", "factor", "window")}
        values |= {"amp.level": section.amp_level, "amp.dtype": section.dtype}
        run_id, config = f"loss_scale_{name}", all_off(file.base_config()).with_values(values)
        job = TrainJob(config, "O0", file.study.seed, steps, steps, run_id=run_id, exponents_every=exponents_every)
        return experimenter.run(job, Monitor(on_step=on_step))

    recording = study.user_attrs.get("loss_scale_recording")
    if recording is None:
        first = {"kind": "dynamic", "init": section.init, "factor": 2.0, "window": section.window}
        trained = train("recording", first, section.steps, section.exponents_every)
        recording = {"path": trained.path, "overflows": trained.overflows, "steps": trained.steps}
        if trained.diverged or not trained.path:
            why = trained.message or "nothing was recorded"
            sentence = f"the loss-scale policy was not chosen, the float16 recording cannot be used: {why}"
            recording = {"failed": sentence}
        study.set_user_attr("loss_scale_recording", recording)
    if "failed" in recording:
        study.set_user_attr("loss_scale_policy", recording)
        return
    try:
        outcomes = experimenter.run(ReplayJob(recording["path"], tuple(policies_of(section)))).policies
    except ValueError as error:
        study.set_user_attr("loss_scale_policy", {"failed": f"the loss-scale policy was not chosen: {error}"})
        return
    chosen = choose_policy(outcomes, section.max_underflow_share)
    checked: list[dict[str, Any]] = []
    for outcome in _evenly(outcomes, section.check_policies):
        name = f"{outcome.kind}_2p{math.log2(outcome.init):g}_{outcome.factor:g}_{outcome.window}"
        seen = study.user_attrs.get(f"loss_scale_check:{name}")
        if seen is None:
            trained = train(f"check_{name}", asdict(outcome), section.steps, 0)
            seen = plain({"observed": trained.overflows, "metric": trained.metric, "diverged": trained.diverged})
            study.set_user_attr(f"loss_scale_check:{name}", seen)
        checked.append({**asdict(outcome), **seen})
    rerun = train("rerun", asdict(chosen), section.verify_steps or section.steps, section.exponents_every)
    result: dict[str, Any] = {
        **asdict(chosen),
        "recording": recording["path"],
        "recorded_overflows": recording["overflows"],
        "recorded_steps": recording["steps"],
        "rerun": rerun.path,
        "rerun_overflows": rerun.overflows,
        "rerun_steps": rerun.steps,
        "rerun_diverged": rerun.diverged,
        "policies": [asdict(outcome) for outcome in outcomes],
        "checked": checked,
    }
    study.set_user_attr("loss_scale_policy", plain({**result, "sentence": policy_sentence(result)}))


def _evenly(outcomes: Sequence[PolicyOutcome], n: int) -> list[PolicyOutcome]:
    """Return ``n`` policies, evenly spread from the fewest overflows predicted to the most."""
    by_overflows = sorted(outcomes, key=lambda one: (one.kind, one.overflows, one.init, one.window))
    n = min(n, len(by_overflows))
    return [by_overflows[round(i * (len(by_overflows) - 1) / max(n - 1, 1))] for i in range(n)]


def policy_sentence(policy: dict[str, Any]) -> str:
    """Say what was chosen, what was predicted and what the rerun showed."""
    predicted = f"{policy['overflows']:g}"
    if math.isfinite(policy["overflows_low"]) and policy["overflows_low"] != policy["overflows_high"]:
        predicted += f" ({policy['overflows_low']:g} to {policy['overflows_high']:g})"
    checked = policy.get("checked", [])
    within = sum(one["overflows_low"] <= one["observed"] <= one["overflows_high"] for one in checked)
    agrees = f" Of {len(checked)} policies that were trained, {within} overflowed as often as their range says."
    recorded = f"{policy['recorded_steps']} recorded float16 steps ({policy['recorded_overflows']} overflows)"
    return (
        f"Loss scale: begin at 2^{math.log2(policy['init']):g}, factor {policy['factor']:g}, window "
        f"{policy['window']}; best of {len(policy['policies'])} policies replayed on {recorded}. Predicted "
        f"overflows: {predicted}; a rerun of {policy['rerun_steps']} steps had {policy['rerun_overflows']}."
        f"{agrees if checked else ''}"
    )


def _or_zero(value: float) -> float:
    """Return the value, or 0 if it was not recorded: what is unknown for all policies decides nothing."""
    return 0.0 if math.isnan(value) else value
