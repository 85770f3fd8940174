"""Work as a value: a `Job` is what to do, its `Outcome` what came of it.

    TrainJob           one training run                              -> Trained
    SpeedJob           step time relative to a baseline's            -> SpeedMeasured
    ReplayJob          loss-scale policies on a recorded run         -> Replayed
    FreezingLimitJob   a freezing schedule beside resting layers     -> FreezingLimitMeasured
    AgreementJob       losses and gradient beside a baseline's       -> Agreement

Jobs and outcomes are frozen and can be pickled, so a job runs in this process, over several ranks or on another machine
alike. A trial's outcomes are stored as ``to_json`` gives them. Callbacks stay behind, in a `Monitor`. Micro-batches
count steps; times are seconds unless they say milliseconds; an interval is one of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic_core import to_jsonable_python

from workbench.config import BoostConfig
from workbench.config.run_request import RunRequest
from workbench.methods.runtime.section import RuntimeSection

_KEPT_LATER = ("baseline_ms", "cold_ms", "cold_again", "reading_ms", "epoch", "untrained", "beside_seconds")

Side = tuple[BoostConfig, str]
"""A configuration and its boost level."""

_RecordT = TypeVar("_RecordT")


def plain(value: Any) -> Any:
    """Return a value, which may be a record, as strict JSON: NaN and infinities become None."""
    return to_jsonable_python(value, inf_nan_mode="null")


def read_record(kind: type[_RecordT], stored: Mapping[str, Any]) -> _RecordT:
    """Return a record that `plain` has stored; what is None there is NaN."""
    return kind(**{name: math.nan if value is None else value for name, value in stored.items()})


# -- outcomes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as strict JSON, as a study stores them: NaN and infinities are None.

        What was not asked for is left out, as studies begun before store it.
        """
        return {name: value for name, value in plain(self).items() if name not in _KEPT_LATER or value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Rebuild an outcome from what ``to_json`` gave."""
        return read_record(cls, stored)


@dataclass(frozen=True, slots=True)
class Trained(Outcome):
    """What one training run gave."""

    metric: float  # final, in the task's unit; NaN when the run ended early, as one that diverged always does
    curve: tuple[tuple[int, float], ...]  # (step, metric)
    seconds: float
    diverged: bool = False  # the loss became NaN or inf, or the loss scale collapsed
    message: str = ""  # one sentence when it did not end as planned
    path: str = ""  # run directory, relative to the study; empty when nothing was recorded
    overflows: int = 0  # updates whose gradients overflowed
    steps: int = 0
    untrained: float = math.nan  # the metric without any learning; NaN where the job did not ask for it
    # By the clock where it was trained, beyond those that count: building the model, evaluating it.
    beside_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.diverged:
            object.__setattr__(self, "metric", math.nan)

    @property
    def is_usable(self) -> bool:
        """Whether it tells a metric, and how long a whole run takes."""
        return math.isfinite(self.metric)

    def by_clock(self, time: float = 1.0) -> float:
        """Return what a run takes by the clock that takes ``time`` times as long as this one, and as much beside."""
        return time * self.seconds + self.beside_seconds

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Rebuild a run from what ``to_json`` gave."""
        curve = tuple((int(step), math.nan if metric is None else float(metric)) for step, metric in stored["curve"])
        return read_record(cls, {**stored, "curve": curve})


@dataclass(frozen=True, slots=True)
class SpeedMeasured(Outcome):
    """Step time relative to O0's, with its interval; smaller is faster."""

    ratio: float
    low: float
    high: float
    baseline_ms: float = math.nan  # O0's step time; NaN where it was not kept
    cold_ms: float = 0.0  # what the candidate's first steps took beyond later ones
    cold_again: bool = False  # whether every run pays that, not the first of a process alone
    reading_ms: float = 0.0  # what a loader's batch takes longer while samples are read that are kept from then on
    epoch: int = 0  # loader batches until all are kept


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What replay predicts for one loss-scale policy; the overflows with the ends of their error bar, NaN for none."""

    init: float
    factor: float
    window: int
    overflows: float
    overflows_low: float
    overflows_high: float
    wasted_share: float  # of the updates, skipped
    underflow_share: float  # of the gradient elements, on average; NaN when not recorded
    final_scale: float
    kind: str = "dynamic"  # or "fixed"


@dataclass(frozen=True, slots=True)
class Replayed(Outcome):
    """What replay predicts, one entry per policy asked about, in the same order."""

    policies: tuple[PolicyOutcome, ...]


@dataclass(frozen=True, slots=True)
class Agreement(Outcome):
    """Whether a choice computes what the baseline does, within rounding: what differs, empty where they agree."""

    why_not: str = ""


@dataclass(frozen=True, slots=True)
class FreezingLimitMeasured(Outcome):
    """Step times of a freezing schedule, medians with the ends of their intervals."""

    realised: float  # speed of the schedule's steps relative to full ones, larger is faster
    realised_low: float
    realised_high: float
    limit: float  # the same with layers that rest for good
    limit_low: float
    limit_high: float
    reached: float  # share of the time the limit saves that the schedule saves, too; NaN where that is nothing
    reached_low: float
    reached_high: float


# -- jobs --------------------------------------------------------------------------------------------------------------

OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class Job(Generic[OutcomeT]):
    """Something to be done for a study, with the kind of `Outcome` it has."""

    __slots__ = ()
    kind: ClassVar[str]  # in messages


@dataclass(frozen=True, slots=True)
class TrainJob(RunRequest, Job[Trained]):
    """Train one run; nothing is recorded without a ``run_id``.

    A run whose time counts (``is_timed``) does not go on from a checkpoint: the seconds before it are of another time.
    With ``also_untrained`` the untrained network is evaluated as well, which does not count towards the run's time.
    """

    kind: ClassVar[str] = "train"

    is_timed: bool = False
    also_untrained: bool = False


@dataclass(frozen=True, slots=True)
class _JobBesideBaseline(Job[OutcomeT]):
    """Compare a candidate with a baseline."""

    baseline: Side
    candidate: Side
    seed: int  # of weights and data


@dataclass(frozen=True, slots=True)
class SpeedJob(_JobBesideBaseline[SpeedMeasured]):
    """Measure a step time relative to the baseline's, in interleaved blocks of steps."""

    kind: ClassVar[str] = "speed"

    rounds: int  # pairs of blocks
    steps_per_block: int  # updates of a block, at least
    loading: bool = False  # whether a step includes loading its batch
    precision: float = 0.05  # relative width of the interval at which a noisy machine is measured no longer


@dataclass(frozen=True, slots=True)
class AgreementJob(_JobBesideBaseline[Agreement]):
    """Compare first losses and the first gradient with the baseline's, at the same weights."""

    kind: ClassVar[str] = "agreement"


@dataclass(frozen=True, slots=True)
class FreezingLimitJob(Job[FreezingLimitMeasured]):
    """Time a freezing schedule beside layers that rest for good."""

    kind: ClassVar[str] = "freezing_limit"

    candidate: Side  # freezes
    seed: int  # of weights, data and schedule
    rounds: int  # each visits every kind of step of all sides
    steps_per_block: int  # at least


@dataclass(frozen=True, slots=True)
class ReplayJob(Job[Replayed]):
    """Predict what loss-scale policies would have done to a recorded run."""

    kind: ClassVar[str] = "replay"

    run_path: str  # run directory, relative to the study
    policies: tuple[Mapping[str, Any], ...]  # `init`, `factor`, `window`, and where it is not dynamic `kind`


def compiles(job: Job[Any]) -> bool:
    """Return whether a configuration of a job asks for the compiler, whose first step may take minutes."""
    match job:
        case TrainJob():
            configs = [job.config]
        case _JobBesideBaseline():
            configs = [job.baseline[0], job.candidate[0]]
        case FreezingLimitJob():
            configs = [job.candidate[0]]
        case _:
            configs = []
    return any(config.part(RuntimeSection).compile != "off" for config in configs)


# -- who watches a job -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStep:
    """Where a run stands, for progress displays: micro-batches done and planned, last metric (NaN before the first)."""

    step: int
    steps: int
    metric: float


@dataclass(frozen=True, slots=True)
class Monitor:
    """Who watches a job, and may end it; called in the thread that runs it."""

    on_evaluation: Callable[[int, float], bool] | None = None  # with step and metric of a `TrainJob`; True ends the run
    on_step: Callable[[RunStep], None] | None = None  # of a `TrainJob`
    stop: Callable[[], bool] | None = None  # asked at each step of a job that trains; True ends it early


UNMONITORED = Monitor()
"""A monitor that does nothing."""
