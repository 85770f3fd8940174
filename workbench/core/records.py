"""Plain records that every layer may speak of: steps, events, trials, candidates, the answer of a study.

Records are values. They hold Python numbers, strings and tuples, never tensors, so they can be pickled, written
as JSON and drawn without torch. What produces them (``training``), keeps them (``runs``), searches with them
(``study``) and draws them (``figures``) never need to know each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from workbench.core.headline import headline, tuned_plain_speed
from workbench.core.trial_counts import TrialCounts, count_trials

__all__ = [
    "CandidateRecord",
    "Choice",
    "Event",
    "EventKind",
    "EventSink",
    "ExponentCounts",
    "GainPart",
    "StepRecord",
    "StudyResult",
    "TrialRecord",
    "TunedPlain",
    "Verdict",
    "objective_title",
    "timed_per",
]


class EventKind(StrEnum):
    """What can happen in a run besides an ordinary step."""

    OVERFLOW = "overflow"
    SCALE_UP = "scale_up"
    SCALE_DOWN = "scale_down"
    SCALE_FLOOR = "scale_floor"
    SCALE_COLLAPSE = "scale_collapse"
    LINE_SEARCH_FAILED = "line_search_failed"
    FACTORS_REFRESHED = "factors_refreshed"
    DAMPING_RAISED = "damping_raised"
    DIVERGED = "diverged"
    EVALUATION = "evaluation"
    RECORD_REJECTED = "record_rejected"
    DRIFT = "drift"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened at a step.

    Args:
        step: Micro-batch index, counted from 0, at which it happened.
        kind: What happened.
        subject: Who it happened to: leaf module names joined by ``", "``, a metric's name, or empty.
        value: The number that belongs to it (new scale, metric value, ...); NaN when there is none.
        message: One sentence for a person.
    """

    step: int
    kind: EventKind
    subject: str = ""
    value: float = float("nan")
    message: str = ""


@runtime_checkable
class EventSink(Protocol):
    """Where lower layers report events without knowing who listens."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True, slots=True)
class ExponentCounts:
    """Histogram of binary exponents of one group's unscaled gradients.

    Args:
        group: Name of the parameter group.
        lowest: Exponent e of the first bin; bin i counts elements with 2**(lowest+i) <= abs(g) < 2**(lowest+i+1).
        counts: Number of finite, non-zero elements per bin; leading and trailing empty bins are cut off.
        zeros: Number of elements that are exactly zero.
        nonfinite: Number of inf or NaN elements.
    """

    group: str
    lowest: int
    counts: tuple[int, ...]
    zeros: int = 0
    nonfinite: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """What is known of one micro-batch after its trace was drained to the host.

    Args:
        step: Micro-batch index, counted from 0.
        seconds: Time since the run began when the step was dispatched, seconds.
        step_ms: Wall-clock time of the step, milliseconds.
        loss: Unscaled loss of this micro-batch.
        loss_scale: Scale the backward pass used (dimensionless; 1 without loss scaling).
        loss_scale_after: Scale after the update rule ran.
        overflow: Whether a gradient of this window was inf or NaN (False on micro-batches that end no window).
        skipped: Whether the optimizer update of this step was dropped because of it.
        accumulated: Micro-batches in the gradient when the step ended (1 without accumulation).
        grad_norm: Global L2 norm of the unscaled gradient; NaN where no update was due.
        grad_amax: Largest absolute value of the unscaled gradient, over the tensors without inf or NaN; NaN where no
            update was due.
        underflow_share: Share of non-zero gradient elements below the smallest float16 number at the scale in use, in
            [0, 1]; what a float16 gradient has already lost is zero and not among them.
        group_scales: Loss scale per group; empty without group scales.
        frozen_groups: Number of leading parameter groups that were frozen.
        learning_rate: Rate of the first parameter group.
        samples: Number of samples in the micro-batch.
        memory_bytes: Memory allocated on the device (resident set size on a CPU), at most 0.1 s old, bytes.
        grad_exponents: Exponent histograms, one per group; empty except on every k-th step.
        columns: Namespaced columns of the methods in use, for example ``{"time.forward": 1.3}`` (milliseconds).
    """

    step: int
    seconds: float
    step_ms: float
    loss: float
    loss_scale: float = 1.0
    loss_scale_after: float = 1.0
    overflow: bool = False
    skipped: bool = False
    accumulated: int = 1
    grad_norm: float = float("nan")
    grad_amax: float = float("nan")
    underflow_share: float = float("nan")
    group_scales: tuple[float, ...] = ()
    frozen_groups: int = 0
    learning_rate: float = float("nan")
    samples: int = 0
    memory_bytes: int = 0
    grad_exponents: tuple[ExponentCounts, ...] = ()
    columns: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a study, as figures and reports see it.

    Args:
        number: Trial number; 0 is the O0 baseline.
        state: ``"complete"``, ``"pruned"``, ``"failed"``, ``"running"`` or ``"waiting"``.
        level: Boost level.
        parameters: Searched config paths and their values.
        config: The full configuration as a dictionary.
        summary: What is in effect, in a few words.
        value: Objective value, smaller is better; NaN while unknown.
        metric: Final metric in the task's own unit.
        metric_deficit: How far the metric lies on the wrong side of the baseline's (positive = worse).
        allowed_drop: Deficit that the study's target allows; the same for all its trials.
        relative_step_time: Step time / step time of O0, measured interleaved; NaN while unknown.
        relative_low: Lower end of its 95 % interval.
        relative_high: Upper end of its 95 % interval.
        steps_to_target: Micro-batches until the target metric, inf when it was not reached.
        seconds: Wall-clock time of the trial.
        feasible: Whether the deficit stays within the allowed drop.
        curve: Pairs (step, metric) of every evaluation.
        run_path: Run directory, relative to the study; empty when there is none.
        message: One sentence when something went wrong.
        warm_up_steps: Micro-batches of O0 trained before the trial's own, for weight snapshots; not among
            ``steps_to_target``.
        overflows: Updates that were skipped because a gradient was inf or NaN.
    """

    number: int
    state: str
    level: str = "O0"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""
    value: float = float("nan")
    metric: float = float("nan")
    metric_deficit: float = float("nan")
    allowed_drop: float = float("nan")
    relative_step_time: float = float("nan")
    relative_low: float = float("nan")
    relative_high: float = float("nan")
    steps_to_target: float = float("nan")
    seconds: float = float("nan")
    feasible: bool = False
    curve: tuple[tuple[int, float], ...] = ()
    run_path: str = ""
    message: str = ""
    warm_up_steps: int = 0
    overflows: int = 0


class Verdict(StrEnum):
    """What the confirmation of a candidate says."""

    CONFIRMED = "confirmed"
    UNDECIDED = "undecided"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """One confirmed, undecided or refuted candidate for export.

    Args:
        label: Name for a person, for example ``"trial 7"`` or ``"O0"``.
        trial_number: Trial it comes from.
        target: Export it competes for, ``"o1"`` or ``"o2"``.
        summary: What is in effect, in a few words.
        config: The full configuration as a dictionary.
        speedup: O0's time / this one's (larger is faster), of what the study minimises: a step, or the way to the
            target; with ``speedup_low`` and ``speedup_high`` as the ends of its 95 % interval.
        speedup_low: See ``speedup``.
        speedup_high: See ``speedup``.
        drop: Mean paired metric drop against O0 in the metric's unit (positive = worse).
        drop_bound: One-sided 95 % upper bound of the drop.
        allowed_drop: Drop the target allows.
        n_seeds: Paired seeds behind the drop.
        verdict: Confirmed means faster and as good, both.
        sentence: The verdict in one sentence, with figures and, when undecided, how many more seeds it would take.
        metrics: Pairs (O0 metric, candidate metric), one per seed.
    """

    label: str
    trial_number: int
    target: str
    summary: str
    config: Mapping[str, Any]
    speedup: float
    speedup_low: float
    speedup_high: float
    drop: float
    drop_bound: float
    allowed_drop: float
    n_seeds: int
    verdict: Verdict
    sentence: str
    metrics: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What an export takes, and why; made in one place and shown everywhere as it is.

    Args:
        target: ``"o1"`` or ``"o2"``.
        candidate: What is exported; None for O0.
        sentence: What was chosen and what it brings; for O0 what was tried, what came nearest and what would help.
        others: Why not the other candidates, a sentence each.
    """

    target: str
    candidate: CandidateRecord | None
    sentence: str
    others: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """Label of what is exported."""
        return "O0" if self.candidate is None else self.candidate.label

    @property
    def verdict(self) -> str:
        """Verdict of what is exported; ``"O0"`` when nothing was left to export."""
        return "O0" if self.candidate is None else str(self.candidate.verdict)


@dataclass(frozen=True, slots=True)
class GainPart:
    """What one part of a set-up contributes to its gain: a bar of the waterfall from 1 to the total.

    The parts of an export stand in the order in which they are built up from the task as given, and their factors
    multiply to the total.

    Args:
        part: What it is, in a few words, for example ``"batch x 4"``.
        factor: Time of a run to the same quality without it / with it; above 1 it helps.
        low: Lower end of the factor's 95 % interval; NaN where it was not measured by itself.
        high: Upper end.
        alone: The same factor where the part alone is left out of the whole set-up; NaN where that was not measured.
        note: What a reader should know, a sentence; empty for most.
    """

    part: str
    factor: float
    low: float = math.nan
    high: float = math.nan
    alone: float = math.nan
    note: str = ""


@dataclass(frozen=True, slots=True)
class TunedPlain:
    """The task as given with a tuned length and learning rate and nothing else: what a fair baseline can do.

    Args:
        summary: What it is, in a few words.
        config: Its configuration as a dictionary.
        relative_time: Total time of its run / that of the task as given, as predicted by the search.
        speedup: Its time / the export's, each to the same quality; larger is better for the export. NaN while
            unknown.
        speedup_low: Lower end of the 95 % interval.
        speedup_high: Upper end.
        drop: Mean paired metric drop against the task as given, in the metric's unit.
        n_runs: Runs that were spent on finding it.
    """

    summary: str
    config: Mapping[str, Any]
    relative_time: float
    speedup: float = math.nan
    speedup_low: float = math.nan
    speedup_high: float = math.nan
    drop: float = math.nan
    n_runs: int = 0


def timed_per(objective: str) -> str:
    """Return what a trial's relative time is of, in words that follow a factor.

    Args:
        objective: What the study minimises.
    """
    return "to the same quality" if objective == "time_to_quality" else "per step"


def objective_title(objective: str) -> str:
    """Return what a trial's value is and its unit, as the title of an axis.

    Args:
        objective: What the study minimises.
    """
    if objective == "time_to_target":
        return "Time to target (O0 steps)"
    return "Time of a run (O0 = 1)" if objective == "time_to_quality" else "Step time relative to O0"


@dataclass(frozen=True, slots=True)
class StudyResult:
    """The answer of a study, as terminal, panels, report and result files read it.

    It stands among the records because who shows it, the report above all, must not load Optuna.

    Args:
        name: Name of the study.
        directory: Its folder.
        task: Task as named on the command line.
        metric_name: Name of the metric.
        higher_is_better: Direction of the metric.
        objective: What was minimised.
        n_trials: Trials the study is meant to have.
        trials: Record of every trial.
        candidates: Judged candidates, best first within each export.
        exported: Export (``"o1"``, ``"o2"``) -> file.
        choices: Export -> what it takes and why; empty before the confirmation has ended.
        loss_scale_policy: What `tune_loss_scale` found; None when the study does not ask for it.
        freezing_limits: What `measure_freezing_limits` found, one row per trial; empty when nobody asked.
        importance: Parameter -> share of its influence on the objective; empty when it cannot be computed.
        environment: Versions and hardware.
        messages: Sentences for the user, the most important first.
        allowed_drops: Allowed drop per export, in the metric's unit.
        report: The HTML report, once somebody wrote it.
        seconds: Time this command took.
        attribution: Export -> where its gain comes from; empty for other objectives than the fastest set-up.
        tuned_plain: Export -> the fair baseline beside it.
        left_out: Why what might have been searched was not, a sentence each.
    """

    name: str
    directory: Path
    task: str
    metric_name: str
    higher_is_better: bool
    objective: str
    n_trials: int
    trials: list[TrialRecord]
    candidates: list[CandidateRecord] = field(default_factory=list)
    exported: dict[str, Path] = field(default_factory=dict)
    choices: dict[str, Choice] = field(default_factory=dict)
    loss_scale_policy: Mapping[str, Any] | None = None
    freezing_limits: list[dict[str, Any]] = field(default_factory=list)
    importance: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    allowed_drops: Mapping[str, float] = field(default_factory=dict)
    report: Path | None = None
    seconds: float = math.nan
    attribution: Mapping[str, tuple[GainPart, ...]] = field(default_factory=dict)
    tuned_plain: Mapping[str, TunedPlain] = field(default_factory=dict)
    left_out: Sequence[str] = ()

    @property
    def ended(self) -> list[TrialRecord]:
        """Trials that were run to an end."""
        return [trial for trial in self.trials if trial.state in ("complete", "pruned")]

    @property
    def counts(self) -> TrialCounts:
        """How many trials came to what."""
        return count_trials(self.trials, self.allowed_drops)

    @property
    def choice_sentences(self) -> list[str]:
        """What each export takes, then why not the others; exports that share a sentence share its line."""
        chosen = [(choice.target, choice.sentence) for choice in self.choices.values()]
        others = [(choice.target, other) for choice in self.choices.values() for other in choice.others]
        targets: dict[str, list[str]] = {}
        for target, sentence in chosen + others:
            targets.setdefault(sentence, []).append(target)
        return [f"{', '.join(sharing)}: {sentence}" for sentence, sharing in targets.items()]

    @property
    def is_over(self) -> bool:
        """Whether the study has its answer and no trial of it waits or runs."""
        return bool(self.exported) and not {"waiting", "running"} & self.counts.others.keys()

    def in_effect(self, target: str) -> str:
        """Return what an export switches on, in words; for O0 what O0 itself does."""
        choice = self.choices.get(target)
        if choice is not None and choice.candidate is not None:
            return choice.candidate.summary
        return next((trial.summary for trial in self.trials if trial.number == 0), "") or "nothing switched on"

    @property
    def baseline_metric(self) -> float:
        """Metric of O0 in the task's own unit; NaN while unknown."""
        return next((trial.metric for trial in self.trials if trial.number == 0), math.nan)

    @property
    def per(self) -> str:
        """What the speed-ups of candidates are of: a step, the way to the target, or a run to the same quality."""
        return "to the target" if self.objective == "time_to_target" else self.per_trial

    @property
    def per_trial(self) -> str:
        """What a trial's relative time is of: a step, or a whole run to the same quality."""
        return timed_per(self.objective)

    @property
    def chosen(self) -> dict[str, str]:
        """Export -> label of what it takes, ``"O0"`` when nothing was left."""
        return {target: choice.label for target, choice in self.choices.items()}

    @property
    def headlines(self) -> dict[str, str]:
        """Export -> its answer in one sentence, for a search of the fastest set-up; empty for other objectives."""
        if self.objective != "time_to_quality":
            return {}
        return {
            target: headline(choice, self.metric_name, self.tuned_plain.get(target))
            for target, choice in self.choices.items()
        }

    @property
    def fair_baselines(self) -> dict[str, tuple[TunedPlain, float]]:
        """Export -> tuned plain, and how many times faster than the task as given it is; NaN while unknown."""
        return {
            target: (tuned, tuned_plain_speed(self.choices[target], tuned))
            for target, tuned in self.tuned_plain.items()
            if target in self.choices
        }

    @property
    def exports(self) -> dict[str, dict[str, Any]]:
        """Export -> what it takes as plain values; ``--json`` prints them."""
        return {target: self._export(choice) for target, choice in self.choices.items()}

    def _export(self, choice: Choice) -> dict[str, Any]:
        taken = choice.candidate
        tuned = self.tuned_plain.get(choice.target)
        ends = ("speedup", "speedup_low", "speedup_high")
        parts = self.attribution.get(choice.target, ())
        return {
            "label": choice.label,
            "summary": self.in_effect(choice.target),
            "verdict": choice.verdict,
            "headline": self.headlines.get(choice.target, choice.sentence),
            "sentence": choice.sentence,
            "speedup": 1.0 if taken is None else taken.speedup,
            "speedup_low": 1.0 if taken is None else taken.speedup_low,
            "speedup_high": 1.0 if taken is None else taken.speedup_high,
            "drop": 0.0 if taken is None else taken.drop,
            "drop_bound": 0.0 if taken is None else taken.drop_bound,
            "seeds": 0 if taken is None else taken.n_seeds,
            "path": self.exported.get(choice.target),
            "tuned_plain": None if tuned is None else {name: getattr(tuned, name) for name in ends},
            "attribution": [
                {"part": one.part, "factor": one.factor, "low": one.low, "high": one.high} for one in parts
            ],
        }
