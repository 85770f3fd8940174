"""Plain records that every layer may use: steps, events, trials, candidates, the answer of a study.

Records are values. They hold Python numbers, strings and tuples, never tensors, so they can be pickled, written
as JSON and drawn without torch. What produces them (``training``), keeps them (``runs``), searches with them
(``study``) and draws them (``figures``) never need to know each other.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from workbench.core.headline import headline, tuned_plain_speed
from workbench.core.trial_counts import TrialCounts, count_trials


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
    """One thing that happened at a step."""

    step: int  # micro-batch index, counted from 0
    kind: EventKind
    subject: str = ""  # who it happened to: leaf module names joined by ", ", a metric's name, or empty
    value: float = math.nan  # the number that belongs to it (new scale, metric value, ...); NaN when there is none
    message: str = ""  # one sentence for a person


@runtime_checkable
class EventSink(Protocol):
    """Where lower layers report events without knowing who listens."""

    def emit(self, event: Event) -> None:
        """Take one event."""
        ...


@dataclass(frozen=True, slots=True)
class ExponentCounts:
    """Histogram of binary exponents of one parameter group's unscaled gradients.

    Bin i counts finite elements with 2**(lowest+i) <= abs(g) < 2**(lowest+i+1); empty bins at both ends are cut off.
    """

    group: str
    lowest: int
    counts: tuple[int, ...]
    zeros: int = 0  # elements that are exactly zero
    nonfinite: int = 0  # inf or NaN elements


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Measurements of one micro-batch, after its trace was drained to the host.

    A *window* is the micro-batches of one update; NaN stands where no update was due.
    """

    step: int  # micro-batch index, counted from 0
    seconds: float  # since the run began, when the step was dispatched
    step_ms: float  # wall-clock time of the step, milliseconds
    loss: float  # of this micro-batch, unscaled
    loss_scale: float = 1.0  # that the backward pass used (dimensionless; 1 without loss scaling)
    loss_scale_after: float = 1.0  # after the update rule ran
    overflow: bool = False  # whether a gradient of this window was inf or NaN; False where no window ends
    skipped: bool = False  # whether the optimizer update of this step was dropped because of it
    accumulated: int = 1  # micro-batches in the gradient when the step ended
    grad_norm: float = math.nan  # global L2 norm of the unscaled gradient
    grad_amax: float = math.nan  # its largest absolute value, over the tensors without inf or NaN
    # Share in [0, 1] of non-zero gradient elements below the smallest float16 number at the scale in use; what a
    # float16 gradient has already lost is zero and not among them.
    underflow_share: float = math.nan
    group_scales: tuple[float, ...] = ()  # loss scale per group; empty without group scales
    frozen_groups: int = 0  # leading parameter groups that were frozen
    learning_rate: float = math.nan  # of the first parameter group
    samples: int = 0  # in the micro-batch
    memory_bytes: int = 0  # allocated on the device (resident set size on a CPU), at most 0.1 s old
    grad_exponents: tuple[ExponentCounts, ...] = ()  # one per group; empty except on every k-th step
    columns: Mapping[str, float] = field(default_factory=dict)  # of the methods in use: {"time.forward": 1.3 (ms)}


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One trial of a study, as figures and reports see it; NaN stands for what is not known, or not yet."""

    number: int  # 0 is the O0 baseline
    state: str  # "complete", "pruned", "failed", "running" or "waiting"
    level: str = "O0"
    parameters: Mapping[str, Any] = field(default_factory=dict)  # searched config paths and their values
    config: Mapping[str, Any] = field(default_factory=dict)  # the full configuration
    summary: str = ""  # what is in effect, in a few words
    value: float = math.nan  # of the objective; smaller is better
    metric: float = math.nan  # final, in the task's own unit
    metric_deficit: float = math.nan  # how far it lies on the wrong side of the baseline's; positive = worse
    allowed_drop: float = math.nan  # deficit that the study's target allows; the same for all its trials
    relative_step_time: float = math.nan  # step time / step time of O0, measured interleaved
    relative_low: float = math.nan  # ends of its 95 % interval
    relative_high: float = math.nan
    steps_to_target: float = math.nan  # micro-batches until the target metric; inf when it was not reached
    seconds: float = math.nan  # wall-clock
    feasible: bool = False  # whether the deficit stays within the allowed drop, and surely where a chance is known
    chance: float = math.nan  # that it keeps the quality, by all runs of a search for set-ups; NaN where none is known
    curve: tuple[tuple[int, float], ...] = ()  # (step, metric) of every evaluation
    run_path: str = ""  # run directory, relative to the study; empty when there is none
    message: str = ""  # one sentence when something went wrong
    warm_up_steps: int = 0  # micro-batches of O0 before its own, for weight snapshots; not in steps_to_target
    overflows: int = 0  # updates that were skipped because a gradient was inf or NaN
    note: str = ""  # what a person has written about it

    @property
    def label(self) -> str:
        """Name of the trial in figures: O0 is the baseline's."""
        return "O0" if self.number == 0 else f"trial {self.number}"

    @property
    def speed(self) -> tuple[float, float, float]:
        """Steps per second relative to O0's, and the ends of the 95 % interval; NaN where no time is known."""
        times = (self.relative_step_time, self.relative_high, self.relative_low)
        middle, low, high = (1.0 / time if time > 0.0 else math.nan for time in times)
        return middle, low, high


class Verdict(StrEnum):
    """The result of a candidate's confirmation."""

    CONFIRMED = "confirmed"
    UNDECIDED = "undecided"
    REFUTED = "refuted"


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """One confirmed, undecided or refuted candidate for export."""

    label: str  # for a person, for example "trial 7" or "O0"
    trial_number: int
    target: str  # export it competes for, "o1" or "o2"
    summary: str  # what is in effect, in a few words
    config: Mapping[str, Any]  # the full configuration
    speedup: float  # O0's time / this one's, larger is faster, of what the study minimises
    speedup_low: float  # ends of its 95 % interval
    speedup_high: float
    drop: float  # mean paired metric drop against O0 in the metric's unit; positive = worse
    drop_bound: float  # its one-sided 95 % upper bound
    allowed_drop: float  # that of the target
    n_seeds: int  # paired seeds behind the drop
    verdict: Verdict  # confirmed means faster and as good, both
    sentence: str  # the verdict with figures and, when undecided, how many more seeds it would take
    metrics: tuple[tuple[float, float], ...] = ()  # (O0 metric, candidate metric), one pair per seed


@dataclass(frozen=True, slots=True)
class Choice:
    """What an export takes, and why; made in one place and shown everywhere unchanged."""

    target: str  # "o1" or "o2"
    candidate: CandidateRecord | None  # what is exported; None for O0
    sentence: str  # what was chosen and what it brings; for O0 what was tried, what came nearest, what would help
    others: tuple[str, ...] = ()  # why not the other candidates, a sentence each

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

    The parts of an export are in the order in which they are built up from the task as given, and their factors
    multiply to the total.
    """

    part: str  # in a few words, for example "batch x 4"
    factor: float  # time of a run to the same quality without it / with it; above 1 it helps
    low: float = math.nan  # ends of the factor's 95 % interval; NaN where it was not measured by itself
    high: float = math.nan
    alone: float = math.nan  # the factor where it alone is left out of the whole; NaN where that was not measured
    note: str = ""  # what a reader should know, a clause; empty for most

    @property
    def effect(self) -> Literal["gain", "cost", "unsure", "unmeasured"]:
        """Whether it surely helps or surely costs time; ``"unsure"`` where its interval includes 1."""
        if not (math.isfinite(self.low) and math.isfinite(self.high)):
            return "unmeasured"
        return "gain" if self.low > 1.0 else "cost" if self.high < 1.0 else "unsure"

    @property
    def remark(self) -> str:
        """The remark shown with the numbers wherever parts are listed; empty for most."""
        if self.note or self.effect != "unsure":
            return self.note
        if self.alone > self.high:
            return f"no sure effect in this order, but {self.alone:.2f} x where it alone is left out"
        return "no sure effect: its interval includes 1"


@dataclass(frozen=True, slots=True)
class TunedPlain:
    """The task as given with a tuned length and learning rate and nothing else: what a fair baseline can do."""

    summary: str  # what it is, in a few words
    config: Mapping[str, Any]
    relative_time: float  # total time of its run / that of the task as given, as predicted by the search
    speedup: float = math.nan  # its time / the export's, each to the same quality: larger is better for the export
    speedup_low: float = math.nan  # ends of the 95 % interval
    speedup_high: float = math.nan
    drop: float = math.nan  # mean paired metric drop against the task as given, in the metric's unit
    n_runs: int = 0  # spent on finding it


def timed_per(objective: str) -> str:
    """Return the unit of a speed factor under an objective, in words that follow it."""
    return "per run" if objective == "time_to_quality" else "per step"


def objective_title(objective: str) -> str:
    """Return the axis title for a trial's value under an objective, with its unit."""
    if objective == "time_to_target":
        return "Time to target (O0 steps)"
    return "Time of a run (O0 = 1)" if objective == "time_to_quality" else "Step time relative to O0"


@dataclass(frozen=True, slots=True)
class ExportedScript:
    """An export as a file in the words of another framework."""

    framework: str  # "torch", "transformers", ...
    target: str  # the export: "o1"
    name: str  # of the file
    text: str
    needs: str  # what it needs to run, a clause
    carried: Mapping[str, str] = field(default_factory=dict)  # config path -> what of the framework carries it
    left: Mapping[str, str] = field(default_factory=dict)  # config path -> why the framework cannot say it
    path: Path | None = None  # of the file, where it was written


@dataclass(frozen=True, slots=True, repr=False)
class StudyResult:
    """The answer of a study, as terminal, panels, report and result files read it.

    It is a record because whatever shows it, the report above all, must not load Optuna. Mappings by export
    have the keys ``"o1"`` and ``"o2"``.
    """

    name: str
    directory: Path
    task: str  # as named on the command line
    metric_name: str
    higher_is_better: bool
    objective: str  # what was minimised
    n_trials: int  # that the study is meant to have
    trials: list[TrialRecord]
    candidates: list[CandidateRecord] = field(default_factory=list)  # judged, best first within each export
    exported: dict[str, Path] = field(default_factory=dict)  # export -> file
    choices: dict[str, Choice] = field(default_factory=dict)  # by export; empty before the confirmation has ended
    loss_scale_policy: Mapping[str, Any] | None = None  # of `tune_loss_scale`; None when the study asks for none
    freezing_limits: list[dict[str, Any]] = field(default_factory=list)  # of `measure_freezing_limits`, by trial
    importance: Mapping[str, float] = field(default_factory=dict)  # parameter -> share of its influence on the value
    environment: Mapping[str, Any] = field(default_factory=dict)  # versions and hardware
    messages: list[str] = field(default_factory=list)  # sentences for the user, the most important first
    allowed_drops: Mapping[str, float] = field(default_factory=dict)  # by export, in the metric's unit
    report: Path | None = None  # the HTML report, once it is written
    seconds: float = math.nan  # that this command took
    attribution: Mapping[str, tuple[GainPart, ...]] = field(default_factory=dict)  # where an export's gain comes from
    tuned_plain: Mapping[str, TunedPlain] = field(default_factory=dict)  # the fair baseline beside an export
    left_out: Sequence[str] = ()  # why what might have been searched was not, a sentence each
    scripts: Sequence[ExportedScript] = ()  # the exports in the words of other frameworks
    shortened: tuple[int, int] | None = None  # batches of the study's runs and of today's, where these are more
    doubt: str = ""  # why the answer means nothing, a sentence; empty where it means something

    @property
    def ended(self) -> list[TrialRecord]:
        """Trials that ran to an end."""
        return [trial for trial in self.trials if trial.state in ("complete", "pruned")]

    @property
    def counts(self) -> TrialCounts:
        """How many trials came to what."""
        return count_trials(self.trials, self.allowed_drops)

    @property
    def progress(self) -> str:
        """How many trials have finished, and of how many; a search for set-ups ends with its time, and adds its own."""
        of = "" if self.objective == "time_to_quality" else f"of {self.n_trials} "
        return f"{self.counts.n_finished} {of}trials finished"

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
        """What the candidates' speed-ups refer to: a step, the way to the target, or a whole run."""
        return "to the target" if self.objective == "time_to_target" else self.per_trial

    @property
    def drop_of_trials(self) -> str:
        """What the drop of a trial is of: a search for the fastest set-up trains one on several seeds."""
        if self.objective == "time_to_quality":
            return "drop: the mean over a trial's seeds, each beside O0 on that seed"
        return "one run each"

    @property
    def per_trial(self) -> str:
        """What a trial's relative time refers to: a step, or a whole run."""
        return timed_per(self.objective)

    @property
    def chosen(self) -> dict[str, str]:
        """Export -> label of what it takes, ``"O0"`` when nothing was left."""
        return {target: choice.label for target, choice in self.choices.items()}

    @property
    def taken(self) -> dict[str, CandidateRecord]:
        """Export -> the candidate that it takes; without those that take O0."""
        return {target: one.candidate for target, one in self.choices.items() if one.candidate is not None}

    @property
    def headlines(self) -> dict[str, str]:
        """Export -> its answer in one sentence, where a search of the fastest set-up took another one than O0."""
        if self.objective != "time_to_quality":
            return {}
        return {
            target: headline(self.choices[target], self.metric_name, self.tuned_plain.get(target), self.shortened)
            for target in self.taken
        }

    @property
    def remarks(self) -> list[str]:
        """The messages but for those that a headline repeats: of confirmed exports, unless they tell of compiling."""
        confirmed = (self.choices[one] for one in self.headlines if self.choices[one].verdict == "confirmed")
        told = {one.sentence for one in confirmed if "compiling" not in one.sentence}
        return [one for one in self.messages if one.partition(": ")[2] not in told]

    def __str__(self) -> str:
        """Return the answer as a terminal shows it: a sentence per export, further messages, and the files."""
        files = [*self.exported.values(), *([self.report] if self.report is not None else [])]
        lines = [self.doubt] if self.doubt else []
        lines += [f"{target}: {sentence}" for target, sentence in self.headlines.items()]
        return "\n".join([*lines, *self.remarks, *(f"wrote {path}" for path in files)])

    def __repr__(self) -> str:
        """Return the answer, too: a console would otherwise be flooded with the records of all trials."""
        return f"<{type(self).__name__} {self.name!r}\n{self}>"

    def _repr_html_(self) -> str:
        """Return the same for a notebook cell that ends with the result."""
        return "".join(f"<p>{html.escape(line)}</p>" for line in str(self).splitlines())

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
        taken, tuned = choice.candidate, self.tuned_plain.get(choice.target)
        ends = ("speedup", "speedup_low", "speedup_high")
        parts = self.attribution.get(choice.target, ())
        return {
            "label": choice.label,
            "summary": self.in_effect(choice.target),
            "verdict": choice.verdict,
            "headline": self.headlines.get(choice.target, choice.sentence),
            "sentence": choice.sentence,
            **{name: 1.0 if taken is None else getattr(taken, name) for name in ends},
            **{name: 0.0 if taken is None else getattr(taken, name) for name in ("drop", "drop_bound")},
            "seeds": 0 if taken is None else taken.n_seeds,
            "path": self.exported.get(choice.target),
            "tuned_plain": None if tuned is None else {name: getattr(tuned, name) for name in ends},
            "attribution": [{name: getattr(one, name) for name in ("part", "factor", "low", "high")} for one in parts],
        }
