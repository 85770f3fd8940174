"""The answer of a search for the fastest set-up in one sentence: the same for terminal, panel, report and JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench.core.metric_scale import MetricScale
from workbench.core.text import format_interval

if TYPE_CHECKING:
    from workbench.core.records import CandidateRecord, Choice, GainPart, StudyResult, TunedPlain

_AGREE = 0.02  # relative; below, what the parts make and what was measured look the same


def headline(
    choice: Choice, metric_name: str, tuned: TunedPlain | None = None, shortened: tuple[int, int] | None = None
) -> str:
    """Return in what share of O0's time an export trains, how well and how surely, and what tuned plain needs.

    ``shortened`` are the batches of the runs that say so, and those of today's, where these are more.
    """
    taken = choice.candidate
    if taken is None or not (0.0 < taken.speedup < math.inf):
        return choice.sentence
    has_ends = math.isfinite(taken.speedup_high) and taken.speedup_low < taken.speedup_high  # a calculated one has none
    interval = f", 95 % interval {taken.speedup_low:.2f} to {taken.speedup_high:.2f}" if has_ends else ""
    trains = "trains" if choice.verdict == "confirmed" else "may train"
    became = "" if shortened else f"; 10 hours become {_of_ten_hours(taken.speedup)}"
    speed = f"{taken.speedup:.2f} x as fast{interval}{became}"
    sure = f"{choice.verdict} {f'on {taken.n_seeds} seeds' if taken.n_seeds else 'without a test over seeds'}"
    share = f"{_share(1.0 / taken.speedup)} of O0's time ({speed})"
    runs = f", in runs of {shortened[0]} batches where today's have {shortened[1]}" if shortened else ""
    sentence = f"{taken.label} {trains} in {share}, {_quality(taken, MetricScale(metric_name))}; {sure}{runs}."
    plain = "" if tuned is None else f" {tuned_plain_sentence(choice, tuned)}"
    return f"{sentence[:1].upper()}{sentence[1:]}{plain}"


def _of_ten_hours(speedup: float) -> str:
    hours, minutes = divmod(round(600.0 / speedup), 60)
    return " ".join(f"{n} {unit}" for n, unit in ((hours, "h"), (minutes, "min")) if n) or "less than a minute"


def _quality(taken: CandidateRecord, metric: MetricScale) -> str:
    """Say what a candidate does to the metric; a clause."""
    allowed = f"{metric.difference_text(taken.allowed_drop)} allowed"
    if not math.isfinite(taken.drop):
        return f"{allowed} in {metric.name}"
    reached = [own for _, own in taken.metrics if math.isfinite(own)]
    value = f" {metric.value_text(sum(reached) / len(reached))}," if reached else ""
    compared = f"{change} than" if (change := metric.change_text(taken.drop)) != "as good" else "as good as"
    return f"with {metric.name}{value} {compared} O0's ({allowed})"


def tuned_plain_sentence(choice: Choice, tuned: TunedPlain) -> str:
    """Say what the fair baseline needs."""
    taken = choice.candidate
    if taken is not None and taken.config == tuned.config:
        return "It is tuned plain itself: a tuned length and learning rate, and nothing else."
    if tuned.relative_time == 1.0 and tuned.n_runs:
        runs = f"{tuned.n_runs} run{'s' if tuned.n_runs > 1 else ''}"
        lost = f"no shorter schedule and no other learning rate alone was faster and kept the quality in {runs}"
        return f"Tuned plain is the task as given: {lost}."
    speed = tuned_plain_speed(choice, tuned)
    if not math.isfinite(speed):
        return "Tuned plain was not tried, so that how long it takes is not known."
    lost = " but loses more than is allowed" if taken is not None and tuned.drop > taken.allowed_drop else ""
    share = f"{_share(1.0 / speed)} of O0's time{lost}"
    if taken is None or not math.isfinite(tuned.speedup):
        is_quicker = taken is not None and not lost and speed > taken.speedup
        unshown = ", but no full runs have confirmed that" if is_quicker else ""
        return f"Tuned plain is predicted to need {share}{unshown}."
    ratio = format_interval(tuned.speedup, tuned.speedup_low, tuned.speedup_high, " x")
    unsure = "" if tuned.speedup_low > 1.0 else ", which is no sure gain"
    worth = ", so tuned plain is the faster one" if tuned.speedup_high < 1.0 else unsure
    return f"Tuned plain needs {share}; the export is {ratio} as fast as tuned plain{worth}."


def tuned_plain_speed(choice: Choice, tuned: TunedPlain) -> float:
    """Return how many times faster than the task as given the fair baseline is, NaN while unknown.

    As measured together with the export where that was done, else as the search predicts.
    """
    if choice.candidate is not None and tuned.speedup > 0.0:
        return choice.candidate.speedup / tuned.speedup
    return 1.0 / tuned.relative_time if tuned.relative_time > 0.0 else math.nan


def parts_against_total(parts: Sequence[GainPart], candidate: CandidateRecord | None) -> str:
    """Say what the parts of a gain multiply to where that is not what the whole set-up was measured at, within 2 %.

    The search knows the time of a run from its steps, and the confirmation times whole runs: they may differ a little.
    """
    product = math.prod(part.factor for part in parts)
    if not parts or candidate is None or not abs(candidate.speedup / product - 1.0) > _AGREE:
        return ""
    made = "the parts multiply" if len(parts) > 1 else "the one part comes"
    return f"{made} to {product:.2f} x, whole runs were measured at {candidate.speedup:.2f} x"


def search_against_confirmation(study: StudyResult) -> str:
    """Say how fast the confirmation measured the candidates, and what the search had for them; empty if it has none."""
    trials = {one.number: one.speed for one in study.trials}
    told = []
    for one in {one.label: one for one in study.candidates}.values():
        searched = format_interval(*trials.get(one.trial_number, (math.nan,) * 3), " x")
        measured = format_interval(one.speedup, one.speedup_low, one.speedup_high, " x")
        if one.n_seeds and study.per == study.per_trial and "(" in measured and searched != "unknown":
            told.append(f"{one.label} at {measured}, where the search had {searched}")
    timed = "whole runs" if study.objective == "time_to_quality" else "steps"
    how = f"95 % intervals, {timed} in turn with O0's"
    return f"The confirmation measured {'; '.join(told)} ({how})." if told else ""


def _share(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"
