"""Why trials that look better are not exported, and what a search without any candidate came to: in sentences."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from workbench.config import BoostConfig
from workbench.core.metric_scale import MetricScale
from workbench.core.records import Choice, StudyResult, TrialRecord, timed_per
from workbench.study.answer.selection import idle_values, plan_of
from workbench.study.ask.study_file import StudyFile
from workbench.study.set_up.standing import SURE

_FEWEST_SHORTER = 5  # trainings, of which none keeps the quality: fewer tell nothing
_SHORT = 0.5  # share of today's training: a longer run in a search leaves hardly less to save


def faster_untested(
    choice: Choice, trials: Sequence[TrialRecord], tested: Collection[int], attributes: Mapping[str, Any]
) -> list[str]:
    """Say why trials that were not tested over seeds are not exported, though they look faster: a sentence per reason.

    The study's ``attributes`` name the leader's parts that are no gain; set-ups with such a part do not compete.
    """
    idle = idle_values(attributes)
    own = None if choice.candidate is None else choice.candidate.trial_number
    limit = next((one.relative_step_time for one in trials if one.number == own), 1.0)
    known = [one for one in trials if one.state == "complete" and one.number not in tested]
    faster = [one for one in known if one.metric_deficit <= one.allowed_drop and one.relative_step_time < limit]
    unsure = [one for one in faster if one.chance < SURE]
    leaves = {one.number: BoostConfig.from_dict(one.config).leaves() for one in faster if not one.chance < SURE}
    idling = [one for one in faster if any(leaves.get(one.number, idle)[path] != value for path, value in idle.items())]
    ends = dict.fromkeys(f"{100 * end(one.chance for one in unsure):.0f}" for end in (min, max) if unsure)
    chance = f"that the quality holds in a confirmation is {' to '.join(ends)} % likely"
    words = _though_faster(unsure, "in few runs", f"{chance}, and {100 * SURE:.0f} % is asked of a leader")
    return words + _though_faster(idling, "in the search", "a part of it was found to be no sure gain")


def _though_faster(trials: Sequence[TrialRecord], where: str, why: str) -> list[str]:
    more = f" or {len(trials) - 1} more" if len(trials) > 1 else ""
    best = sorted((one.relative_step_time, one.number) for one in trials)[:1]
    return [f"not trial {one}{more}, though faster {where} (up to {1.0 / at:.2f} x): {why}." for at, one in best]


def nothing_found(
    trials: Sequence[TrialRecord], allowed_drop: float, metric_name: str, file: StudyFile, *, steps_alone: bool = False
) -> str:
    """Say what a search without any candidate tried, what came nearest and what would help, without a full stop.

    Trials that train alike count as one plan. A search of ``steps_alone`` has timed set-ups before it trained any.
    """
    tried = [one for one in trials if one.number and one.state in {"complete", "pruned"} and one.relative_step_time > 0]
    if not tried:
        return "nothing that was timed makes its steps faster" if steps_alone else _nothing_tried(file)
    written = MetricScale(metric_name).difference_text
    known = [one for one in tried if one.state == "complete" and math.isfinite(one.metric_deficit)]
    within = [one for one in known if one.metric_deficit <= allowed_drop and not one.chance < SURE]
    unsure = [one for one in known if one.metric_deficit <= allowed_drop and one.chance < SURE]
    # Without a candidate a faster one is there only if the search was ended before it confirmed any.
    is_cut_short = file.study.objective != "time_to_target" and any(one.relative_step_time < 1.0 for one in within)
    verdict = "no set-up has been confirmed yet to be" if is_cut_short else "no set-up was"
    n_tried = len({plan_of(one, file.plans)[0] for one in tried})
    count = f"{n_tried} set-ups were tried" if n_tried > 1 else "one set-up was tried"
    within_drop = "and surely within" if unsure else "within"
    words = [
        f"{verdict} faster than O0 {within_drop} the allowed {metric_name} drop of {written(allowed_drop)}; {count}"
    ]
    if within:
        best = min(within, key=lambda one: one.relative_step_time)
        is_late = file.study.objective == "time_to_target" and best.relative_step_time < 1.0
        words.append(
            f"of {len(within)} within the drop the fastest, trial {best.number} ({best.summary}), is "
            f"{1.0 / best.relative_step_time:.2f} x O0 {timed_per(file.study.objective)}"
            f"{', but reaches the target later' if is_late else ''}"
        )
    beyond = [one for one in known if one.metric_deficit > allowed_drop and one.relative_step_time < 1.0]
    if beyond and not unsure:  # those are nearer, and `faster_untested` says why they are not exported
        near = min(beyond, key=lambda one: one.metric_deficit)
        words.append(
            f"the nearest beyond it, trial {near.number} ({near.summary}), is {1.0 / near.relative_step_time:.2f} x "
            f"{timed_per(file.study.objective)} and loses {written(near.metric_deficit)}: a larger allowed drop or a "
            "longer training may admit it"
        )
    elif all(one.relative_step_time >= 1.0 for one in tried):
        words.append("what is searched does not speed up this network: another space or another method would be needed")
    elif not known:
        words.append("all of them diverged or were given up early: gentler ranges or a longer training may help")
    return "; ".join(words)


def nothing_shorter(result: StudyResult, file: StudyFile) -> str:
    """Say so where a search, cut to a part of today's training, found no shorter one, and what would help."""
    if file.share_of_today > _SHORT or file.study.objective != "time_to_quality":
        return ""
    taken = {one.trial_number for one in result.taken.values()}
    trained = [one for one in result.trials if one.state == "complete"]
    shorter = [one.number for one in trained if BoostConfig.from_dict(one.config).leaves()["schedule.length"] < 1.0]
    if len(shorter) < _FEWEST_SHORTER or not taken.isdisjoint(shorter):
        return ""
    budget, today = file.study.budget_steps, file.set_up.todays_steps
    return (
        f"None of the {len(shorter)} shorter trainings that were tried surely keeps the quality. The {budget} of "
        f"today's {today} batches that a run has here may leave less to save than all of them: give the search more "
        "minutes, so that its runs are longer, and start over (--minutes, --fresh)."
    )


def _nothing_tried(file: StudyFile) -> str:
    why_not = file.not_drawn() if file.most_plans() == 1 or not file.dimensions else ()
    if reasons := "; ".join(sentence.rstrip(".") for sentence in why_not):
        return f"nothing that is searched acts on this network: {reasons}"
    return "no other set-up has been tried; the search needs more time or more trials"
