"""A recorded run, and what its replay shows, in words and in lines of lists."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from workbench.figures import replay_policies
from workbench.figures.labels import counted, percent, superscripted
from workbench.panels.style import words

if TYPE_CHECKING:
    from workbench.loss_scale import ScalePolicy
    from workbench.runs import Run
    from workbench.runs.replayed_run import ReplayedRun

EMPTY: Final = "This run has recorded no step yet, so there is nothing to see or to replay."


def has_group_scales(run: Run) -> bool:
    """Return whether a run had a loss scale for each group."""
    return bool(len(run.steps) and run.steps["group_scales"].map(len).any())


def facts_html(run: Run) -> str:
    """Describe a run, and what about it limits a replay."""
    named = [str(run.environment.get(name) or "") for name in ("task", "level")]
    counts = [counted(len(run.steps), "step"), counted(len(run.overflow_steps), "overflow")]
    lines = [", ".join(part for part in (*named, *counts) if part)]
    if not len(run.steps):
        lines.append(EMPTY)
    elif not run.finished:
        lines.append("Not finished: still running, or killed; what had reached the disk is shown.")
    if len(run.steps) and not is_watched(run):
        lines.append("It ran without a loss scale or a watch for overflow: a replay rests on gradient sizes alone.")
    if has_group_scales(run):
        lines.append("It ran with group scales; a replay asks what one scale for all would do.")
    return f"<div><b>{words(run.name)}</b></div>" + "".join(f"<div>{words(line)}</div>" for line in lines)


def is_watched(run: Run) -> bool:
    """Return whether a run had a loss scale, or a watch for overflow; one in float32 has neither."""
    from workbench.runs.replayed_run import recorded_policy

    policy = recorded_policy(run)
    return policy is None or policy.kind == "dynamic" or policy.init != 1.0 or bool(len(run.overflow_steps))


def why_not(run: Run, error: ValueError) -> str:
    """Say why a run cannot be replayed."""
    if len(run.steps) and not run.steps["grad_amax"].notna().any():
        return "This run recorded no gradient sizes, so there is nothing to replay; record it again with `out` set."
    return str(error)


def error_sentence(replayed: ReplayedRun) -> str:
    """Say how far off the thresholds may be, and what they were calibrated on."""
    thresholds = replayed.thresholds
    factor = f"{2.0**thresholds.error_log2:.2g}"
    off = "" if factor == "1" else f"; all thresholds may be off by a factor of {factor} either way"
    if not thresholds.calibrated:
        return f"Nothing overflowed in this run, so nothing could be calibrated{off}."
    overflows = counted(len(replayed.run.overflow_steps), "overflow")
    return f"Calibrated on {overflows}; {percent(thresholds.misclassified)} of the updates are misjudged{off}."


def prediction_sentence(replayed: ReplayedRun, policy: ScalePolicy, judged: Any) -> str:
    """Say what a policy would have done, from its row of the judged table."""
    text = f"{policy_name(policy)}: {counted(int(judged['overflows']), 'overflow')}"
    text += f" in {counted(replayed.n_windows, 'update')}"
    if "overflows_low" in judged and judged["overflows_high"] > judged["overflows_low"]:
        text += f" (likely {int(judged['overflows_low'])} to {int(judged['overflows_high'])})"
    text += f", {percent(float(judged['wasted_share']))} of them wasted"
    lost = float(judged["underflow_share"])
    if math.isfinite(lost):
        text += f"; {percent(lost)} of the gradient lost to underflow"
    return f"{text}. The recorded run had {counted(len(replayed.run.overflow_steps), 'overflow')}."


def policy_name(policy: ScalePolicy) -> str:
    """Return a policy as the figures name it."""
    return superscripted(replay_policies.policy_name(policy.init, policy.factor, policy.window, policy.kind))


def policy_line(name: str, judged: Any) -> str:
    """Return the line of a judged policy in a list, from its row of the table."""
    short = superscripted(name).removeprefix("init ")
    recorded = " \u200b(recorded)" if judged["recorded"] else ""  # a line of a list breaks at no blank
    return f"{percent(float(judged['wasted_share']))}: {short}{recorded}"
