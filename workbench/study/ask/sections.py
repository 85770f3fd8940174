"""The tables of a ``study.toml``: what each key means, its default and what it may be.

A key that a person sets in a panel is declared with `described`, as a parameter of a configuration is.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from workbench.config.errors import shown
from workbench.config.section import described

ACCURACY_DROPS = {"o1": 0.005, "o2": 0.03}  # for the safe and the bold level; other metrics share no unit


class Part(BaseModel):
    """A table of the file: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class StudySection(Part):
    """``[study]``: what is trained, how long, and what counts."""

    name: str = ""  # empty takes the folder's
    task: str = described(
        ..., "Task", "Built-in name, package.module:attribute, or path/to/file.py:attribute.", min_length=1
    )
    seed: int = described(0, "Seed", "Seed of the search; the confirmation uses others.", ge=0)
    budget_steps: int = described(..., "Steps per trial", "Length of one run.", unit="micro-batches", ge=1)
    evaluate_every: int | None = described(
        None, "Evaluate every", "Unset evaluates after each tenth of the run.", unit="micro-batches", ge=1
    )
    # Finished trials of the whole study; equal plans count once.
    n_trials: int = described(..., "Trials", "Different plans in all, O0 included.", ge=1)
    timeout_seconds: float | None = described(  # of one ``tune`` command
        None,
        "How long may I search?",
        "Search and confirmation together; unset sets no limit.",
        unit="seconds",
        gt=0,
    )
    objective: Literal["time_to_target", "speed", "pareto", "time_to_quality"] = described(
        "time_to_target",
        "Objective",
        "What is minimised: the time until O0's final metric less the allowed drop is reached; the time of a step; "
        "both metric and step time at once, without pruning; or the total time of a whole run that ends there.",
    )
    device: str = described("auto", "Device", "Where to train: auto, cpu, cuda or npu.")
    # Of a training process. torch takes all cores; speed, too, is measured best with one.
    threads: int | None = described(
        None, "CPU threads", "Small networks train fastest with one; unset leaves it to torch.", ge=1
    )
    ranks: int = Field(1, ge=1)  # processes that train every run together; candidates and O0 alike
    device_hours: float | None = described(
        None, "Device-hours", "Trial time times devices, over all workers; unset sets no limit.", unit="hours", gt=0
    )
    patience: int | None = described(
        None,
        "Patience",
        "The search ends after so many trials in a row without a better one.",
        unit="trials",
        ge=1,
    )


_DROP = "How much of the metric the {} export may cost, in the metric's own unit; accuracies have {} when unset."
_Drop = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^ *\d+(\.\d+)? *% *$")]


class AllowedDrop(Part):
    """``[allowed_drop]``: how much of the metric each export may cost, in its unit or as a share ("2 %") of O0's value.

    The search aims at one of them, its *target*; the other is a further question asked of the same trials.
    """

    o1: _Drop | None = described(None, "How much may it drop?", _DROP.format("safe", ACCURACY_DROPS["o1"]))
    o2: _Drop | None = described(None, "Allowed drop, o2", _DROP.format("bold", ACCURACY_DROPS["o2"]))

    @property
    def target(self) -> str:
        """The export whose drop the search aims at: ``"o1"``, unless the file names a drop for o2 alone."""
        return "o2" if self.o1 is None and self.o2 is not None else "o1"


class NamedOptions(BaseModel):
    """``[sampler]`` and ``[pruner]``: a name, and options of the Optuna class behind it as further keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    name: str

    @property
    def options(self) -> dict[str, Any]:
        """The further keys."""
        return dict(self.model_extra or {})


class SpeedSection(Part):
    """``[speed]``: how a trial's step time is compared with O0's."""

    # Pairs of blocks (A B); on a noisy machine up to four times as many are measured.
    rounds: int = described(8, "Speed rounds", "Interleaved rounds in which a trial is timed against O0.", ge=2)
    steps_per_block: int = described(6, "Steps per block", "Steps of one block of such a round.", ge=1)


class LossScaleReplaySection(Part):
    """``[loss_scale_replay]``: choose the loss-scale policy from one recorded run."""

    enabled: bool = True
    steps: int = Field(60, ge=2)  # micro-batches of the recording
    amp_level: Literal["O2"] = "O2"
    dtype: Literal["float16"] = "float16"  # the only one that needs a scale
    init: float = Field(2.0**24, ge=1)  # the recording begins with it; a large one shows where overflows begin
    window: int = Field(20, ge=1)  # growth window of the recording, short so that the scale keeps probing upward
    exponents_every: int = Field(2, ge=1)  # steps between two exponent counts
    # What is judged: every combination of initial scale, factor and growth window.
    init_choices: list[float] = Field(default_factory=lambda: [2.0**power for power in range(8, 25, 2)], min_length=1)
    factor_choices: list[float] = Field(default_factory=lambda: [2.0, 4.0], min_length=1)
    window_choices: list[int] = Field(default_factory=lambda: [20, 50, 100, 200, 500, 1000, 2000], min_length=1)
    max_underflow_share: float = Field(0.01, ge=0, le=1)  # share of the gradient that may underflow on average
    verify_steps: int | None = Field(None, ge=1)  # of the rerun under the chosen policy; None: as many as were recorded
    # Fixed scales are judged beside the dynamic ones, to compare; none is chosen: they have no way back when gradients
    # grow.
    fixed_choices: list[Annotated[float, Field(ge=1)]] = Field(default_factory=list)
    # So many of the judged policies, evenly spread, are trained for as long as the recording, to compare.
    check_policies: int = Field(0, ge=0)


class FreezingLimitSection(Part):
    """``[freezing_limit]``: how much of what a freezing schedule promises its steps really save.

    Every finished trial that freezes is timed again beside O0 and beside a net in which the same layers rest for good.
    """

    enabled: bool = True
    rounds: int = Field(8, ge=2)
    steps_per_block: int = Field(4, ge=1)  # micro-batches


class SetUpSection(Part):
    """``[set_up]``: how the fastest set-up is searched; for the objective ``time_to_quality``."""

    baseline_seeds: int = Field(5, ge=2)  # runs of O0 whose mean is the quality to keep
    most_seeds: int = Field(4, ge=1)  # that a plan takes when it is tried
    leader_seeds: int = Field(16, ge=2)  # that the final leader is trained on before it is confirmed over others
    # Config path -> values of what changes time alone; every combination is timed, the fastest is taken.
    runtime: dict[str, list[Any]] = Field(default_factory=dict)
    # *Tuned plain* is the task as given with a shorter schedule of such a shape and one of these learning rates.
    plain_rates: list[float] = Field(default_factory=list)
    plain_shape: str = "task"
    plain_runs: int = Field(12, ge=0)  # at least; 0 leaves it out
    plain_share: float = Field(0.15, ge=0, lt=1)  # of the time
    attribution_share: float = Field(0.2, ge=0, lt=1)  # of the time, to find out where the gain comes from
    left_out: list[str] = Field(default_factory=list)  # why what might have been searched is not, a sentence each


class ConfirmSection(Part):
    """``[confirm]``: train the best candidates again, paired with O0 over fresh seeds."""

    enabled: bool = True  # without it candidates stay undecided
    # How many seeds a test takes is fixed by the standard deviation of its first few pairs.
    seeds_min: int = described(10, "Confirmation seeds, least", "Fewest paired seeds of a test.", ge=2)
    seeds_max: int = described(100, "Confirmation seeds, most", "Most paired seeds of a test.", ge=2)
    candidates: int = described(2, "Candidates", "Candidates tested per export, without refuted ones.", ge=1)
    steps: int | None = Field(None, ge=1)  # micro-batches per run; None: the trial's budget
    time_share: float = Field(0.4, ge=0, lt=1)  # of ``timeout_seconds`` kept for it, once there is a candidate

    @property
    def usual_seeds(self) -> int:
        """Seeds that a test takes where neither limit binds, as far as is known before the pilots."""
        return min(self.seeds_max, 2 * self.seeds_min)


def _as_sources(value: Any) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not names or not all(isinstance(one, str) and one for one in names):
        raise ValueError(f"`warm_start.from` must be a path or a list of paths, got {shown(value)}")
    return names


class WarmStartSection(Part):
    """``[warm_start]``: what was found before and is tried first, after O0.

    ``from`` names folders of studies or exported boost_config.json files, relative to this study's folder; one or a
    list. Further ones may be added while the study goes on.
    """

    sources: Annotated[list[str], BeforeValidator(_as_sources)] = Field(alias="from")
    trials: int = Field(5, ge=1)  # best trials that are taken of each study
