"""Work as a value: a `Job` says what to do, its `Outcome` what came of it.

    TrainJob           one training run                              -> Trained
    SpeedJob           step time relative to a baseline's            -> SpeedMeasured
    ReplayJob          loss-scale policies on a recorded run         -> Replayed
    FreezingLimitJob   a freezing schedule beside resting layers     -> FreezingLimitMeasured
    AgreementJob       losses and gradient beside a baseline's       -> Agreement

Jobs and outcomes are frozen and can be pickled, so a job runs in this process, over several ranks or on another machine
alike. A trial's outcomes are stored as ``to_json`` gives them. Callbacks stay with whoever asked for the job: they
travel beside it, in a `Monitor`, and never leave the process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Generic, TypeVar

from workbench.config import BoostConfig
from workbench.config.run_request import RunRequest

__all__ = [
    "UNMONITORED",
    "Agreement",
    "AgreementJob",
    "FreezingLimitJob",
    "FreezingLimitMeasured",
    "Job",
    "Monitor",
    "Outcome",
    "OutcomeT",
    "PolicyOutcome",
    "ReplayJob",
    "Replayed",
    "RunStep",
    "Side",
    "SpeedJob",
    "SpeedMeasured",
    "TrainJob",
    "Trained",
    "plain",
]

_KEPT_LATER = ("baseline_ms", "cold_ms")

Side = tuple[BoostConfig, str]
"""A configuration and its boost level."""


def plain(value: Any) -> Any:
    """Return a value as strict JSON: NaN and infinities become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


# -- outcomes ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a job."""

    def to_json(self) -> dict[str, Any]:
        """Return the fields as strict JSON, as a study stores them: NaN and infinities are None."""
        stored: dict[str, Any] = plain(asdict(self))
        return stored


@dataclass(frozen=True, slots=True)
class Trained(Outcome):
    """What one training run gave.

    Args:
        metric: Final metric in the task's unit; NaN when the run ended early.
        curve: Pairs (micro-batches, metric).
        seconds: Wall-clock time.
        diverged: Whether the loss became NaN or inf, or the loss scale collapsed.
        message: One sentence when it did not end as planned.
        path: Run directory, relative to the study; empty when nothing was recorded.
        overflows: Updates whose gradients overflowed.
        steps: Micro-batches trained.
    """

    metric: float
    curve: tuple[tuple[int, float], ...]
    seconds: float
    diverged: bool = False
    message: str = ""
    path: str = ""
    overflows: int = 0
    steps: int = 0

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Trained:
        """Rebuild a run from what ``to_json`` gave."""
        curve = tuple((int(step), _number(metric)) for step, metric in stored["curve"])
        return cls(**{**stored, "metric": _number(stored["metric"]), "curve": curve})


@dataclass(frozen=True, slots=True)
class SpeedMeasured(Outcome):
    """Step time relative to O0 with its 95 % interval; smaller is faster.

    Args:
        ratio: The candidate's step time / O0's.
        low: Lower end of the interval.
        high: Upper end.
        baseline_ms: O0's step time, milliseconds; NaN where it was not kept.
        cold_ms: What the candidate's first steps took beyond later ones, milliseconds.
    """

    ratio: float
    low: float
    high: float
    baseline_ms: float = math.nan
    cold_ms: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields as strict JSON; what was not kept is left out, as studies begun before store it."""
        stored = Outcome.to_json(self)
        return {name: value for name, value in stored.items() if name not in _KEPT_LATER or value}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> SpeedMeasured:
        """Rebuild a measurement from what ``to_json`` gave."""
        return cls(**{name: _number(value) for name, value in stored.items()})


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What replay predicts for one loss-scale policy.

    Args:
        init: Initial scale.
        factor: Growth and back-off factor.
        window: Finite steps before the scale grows.
        overflows: Predicted overflows.
        overflows_low: Lower end of their error bar; NaN when there is none.
        overflows_high: Upper end of their error bar; NaN when there is none.
        wasted_share: Share of updates that are skipped, in [0, 1].
        underflow_share: Mean share of gradient elements that underflow, in [0, 1]; NaN when not recorded.
        final_scale: Scale at the end.
        kind: ``"dynamic"`` or ``"fixed"``.
    """

    init: float
    factor: float
    window: int
    overflows: float
    overflows_low: float
    overflows_high: float
    wasted_share: float
    underflow_share: float
    final_scale: float
    kind: str = "dynamic"


@dataclass(frozen=True, slots=True)
class Replayed(Outcome):
    """What replay predicts, one entry per policy asked about, in the same order."""

    policies: tuple[PolicyOutcome, ...]


@dataclass(frozen=True, slots=True)
class Agreement(Outcome):
    """Whether a choice computes what the baseline does, within rounding.

    Args:
        why_not: What differs, a sentence; empty where they agree.
    """

    why_not: str = ""


@dataclass(frozen=True, slots=True)
class FreezingLimitMeasured(Outcome):
    """Step times of a freezing schedule, medians with the ends of their 95 % intervals.

    Args:
        realised: Speed of the schedule's steps relative to full ones; larger is faster.
        realised_low: Lower end of its interval.
        realised_high: Upper end of its interval.
        limit: The same with layers that rest for good.
        limit_low: Lower end of its interval.
        limit_high: Upper end of its interval.
        reached: Share of the time the limit saves that the schedule saves, too; NaN where the limit saves nothing.
        reached_low: Lower end of its interval.
        reached_high: Upper end of its interval.
    """

    realised: float
    realised_low: float
    realised_high: float
    limit: float
    limit_low: float
    limit_high: float
    reached: float
    reached_low: float
    reached_high: float


# -- jobs --------------------------------------------------------------------------------------------------------------

OutcomeT = TypeVar("OutcomeT", bound=Outcome)


class Job(ABC, Generic[OutcomeT]):
    """Something to be done for a study, with the kind of `Outcome` it has.

    Attributes:
        kind: Its name in messages.
        trains: Whether a network takes steps: such a job takes all ranks of the study, and ends early when its
            monitor says so. Arithmetic on a recorded run takes one process, and goes to its end.
    """

    __slots__ = ()
    kind: ClassVar[str]
    trains: ClassVar[bool] = True

    @property
    @abstractmethod
    def configs(self) -> tuple[BoostConfig, ...]:
        """Configurations that it trains."""


@dataclass(frozen=True, slots=True)
class TrainJob(RunRequest, Job[Trained]):
    """Train one run; nothing is recorded without a ``run_id``."""

    kind: ClassVar[str] = "train"

    @property
    def configs(self) -> tuple[BoostConfig, ...]:
        """Configurations that it trains."""
        return (self.config,)


@dataclass(frozen=True, slots=True)
class SpeedJob(Job[SpeedMeasured]):
    """Measure a step time relative to the baseline's by interleaved blocks.

    Args:
        baseline: What it is compared with.
        candidate: What is measured.
        seed: Seed of weights and data.
        rounds: Pairs of blocks.
        steps_per_block: Optimizer steps of a block at least.
        loading: Whether a step includes loading its batch.
        precision: Width of the interval, relative to the ratio, at which a noisy machine is measured no longer.
    """

    kind: ClassVar[str] = "speed"

    baseline: Side
    candidate: Side
    seed: int
    rounds: int
    steps_per_block: int
    loading: bool = False
    precision: float = 0.05

    @property
    def configs(self) -> tuple[BoostConfig, ...]:
        """Configurations that it trains."""
        return (self.baseline[0], self.candidate[0])


@dataclass(frozen=True, slots=True)
class ReplayJob(Job[Replayed]):
    """Predict what loss-scale policies would have done to a recorded run.

    Args:
        run_path: Run directory, relative to the study.
        policies: ``init``, ``factor``, ``window`` and where it is not dynamic ``kind`` of each.
    """

    kind: ClassVar[str] = "replay"
    trains: ClassVar[bool] = False

    run_path: str
    policies: tuple[Mapping[str, Any], ...]

    @property
    def configs(self) -> tuple[BoostConfig, ...]:
        """None: nothing is trained."""
        return ()


@dataclass(frozen=True, slots=True)
class FreezingLimitJob(Job[FreezingLimitMeasured]):
    """Time a freezing schedule beside layers that rest for good.

    Args:
        candidate: A configuration that freezes.
        seed: Seed of weights, data and schedule.
        rounds: Rounds; each visits every kind of step of all sides.
        steps_per_block: Steps per block at least.
    """

    kind: ClassVar[str] = "freezing_limit"

    candidate: Side
    seed: int
    rounds: int
    steps_per_block: int

    @property
    def configs(self) -> tuple[BoostConfig, ...]:
        """Configurations that it trains."""
        return (self.candidate[0],)


@dataclass(frozen=True, slots=True)
class AgreementJob(Job[Agreement]):
    """Compare first losses and the first gradient with a baseline's, at the same weights.

    Args:
        baseline: What they should be.
        candidate: What changes the time of a step, and should not change them.
        seed: Seed of weights and data.
    """

    kind: ClassVar[str] = "agreement"

    baseline: Side
    candidate: Side
    seed: int

    @property
    def configs(self) -> tuple[BoostConfig, ...]:
        """Configurations that it trains."""
        return (self.baseline[0], self.candidate[0])


# -- who watches a job -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunStep:
    """Where a run stands, for progress displays: micro-batches done and planned, last metric (NaN before the first)."""

    step: int
    steps: int
    metric: float


@dataclass(frozen=True, slots=True)
class Monitor:
    """Who watches a job, and may end it; called in the thread that runs it.

    Args:
        on_evaluation: Told step and metric of each evaluation of a `TrainJob`; True ends the run.
        on_step: Told where a `TrainJob` stands.
        stop: Asked at each step of a job that trains; True ends it early.
    """

    on_evaluation: Callable[[int, float], bool] | None = None
    on_step: Callable[[RunStep], None] | None = None
    stop: Callable[[], bool] | None = None


UNMONITORED = Monitor()
"""Nobody watches."""


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
