"""The tables of a ``study.toml``: what each key means, its default and what it may be.

A key that a person sets in a panel is declared with `described`, as a parameter of a configuration is.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from workbench.config.errors import shown
from workbench.config.section import described

TARGETS = {"o1": "O1", "o2": "O2"}  # export -> boost level at which it is loaded
ACCURACY_DROPS = {"o1": 0.005, "o2": 0.03}  # for the safe and the bold level; other metrics share no unit


class Part(BaseModel):
    """A table of the file: frozen, strict, no unknown keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class StudySection(Part):
    """``[study]``: what is trained, how long, and what counts."""

    name: str = described("", "Name", "What the study is called; empty takes the folder's name.")
    task: str = described(
        ..., "Task", "Built-in name, package.module:attribute, or path/to/file.py:attribute.", min_length=1
    )
    seed: int = described(0, "Seed", "Seed of the search; the confirmation uses others.", ge=0)
    budget_steps: int = described(
        ..., "Steps per trial", "Length of one run: as long as you train the task today.", unit="batches", ge=1
    )
    evaluate_every: int | None = described(
        None, "Evaluate every", "Unset evaluates after each tenth of the run.", unit="batches", ge=1
    )
    n_trials: int = described(..., "Trials", "Different set-ups in all, O0 included; only finished ones count.", ge=1)
    timeout_seconds: float | None = described(
        None,
        "How long may the search take?",
        "Search and confirmation of one command together; unset sets no limit.",
        unit="seconds",
        gt=0,
    )
    objective: Literal["time_to_target", "speed", "pareto", "time_to_quality"] = described(
        "time_to_target",
        "Objective",
        "What is minimised: the time until O0's final metric less the allowed drop is reached; the time of a step; "
        "both metric and step time at once, without pruning; or the total time of a whole run that ends there.",
        names={
            "time_to_quality": "the fastest whole set-up",
            "time_to_target": "boost methods: time to O0's metric",
            "speed": "boost methods: time of a step",
            "pareto": "boost methods: metric and step time",
        },
    )
    device: str = described("auto", "Device", "Where to train: auto, cpu, cuda or npu.")
    threads: int | None = described(
        None,
        "CPU threads",
        "Per training process; small networks train fastest with one. Unset leaves it to torch: all cores.",
        ge=1,
    )
    reading_cores: int | None = described(
        None,
        "Cores that read",
        "Kept busy by the worker processes of the task's loader, and left to them when several runs are trained at a "
        "time. Unset takes one for each.",
        ge=0,
    )
    ranks: int = described(
        1, "Ranks", "Processes that train every run together, those of O0 included.", unit="processes", ge=1
    )
    device_hours: float | None = described(
        None, "Device-hours", "Trial time times devices, over all workers; unset sets no limit.", unit="hours", gt=0
    )
    patience: int | None = described(
        None,
        "Patience",
        "The search ends after this many trials in a row without a better one.",
        unit="trials",
        ge=1,
    )


_DROP = (
    "How much of the metric the export {} may cost, in the metric's own unit or as a share of O0's (2 %); {} for "
    "accuracies when unset."
)
_Drop = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^ *\d+(\.\d+)? *% *$")]


class AllowedDrop(Part):
    """``[allowed_drop]``: how much of the metric each export may cost, in its unit or as a share ("2 %") of O0's value.

    The search aims at one of them, its *target*; the other is a further question asked of the same trials.
    """

    o1: _Drop | None = described(None, "How much may the metric drop?", _DROP.format("o1", ACCURACY_DROPS["o1"]))
    o2: _Drop | None = described(None, "Allowed drop, o2", _DROP.format("o2", ACCURACY_DROPS["o2"]))

    @property
    def target(self) -> str:
        """The export whose drop the search aims at: ``"o1"``, unless the file names a drop for o2 alone."""
        return "o2" if self.o1 is None and self.o2 is not None else "o1"


class NamedOptions(BaseModel):
    """``[sampler]`` and ``[pruner]``: a name, and options of the Optuna class behind it as further keys."""

    model_config = ConfigDict(frozen=True, strict=True, extra="allow", allow_inf_nan=False)

    name: str = described(..., "Name", "Which one; further keys are its options.")

    @property
    def options(self) -> dict[str, Any]:
        """The further keys."""
        return dict(self.model_extra or {})


class SpeedSection(Part):
    """``[speed]``: how a trial's step time is compared with O0's."""

    rounds: int = described(
        24,
        "Speed rounds",
        "Interleaved rounds in which a trial is timed against O0; up to four times as many on a noisy machine.",
        ge=2,
    )
    steps_per_block: int = described(1, "Steps per block", "Steps of one block of such a round, at least.", ge=1)


class LossScaleReplaySection(Part):
    """``[loss_scale_replay]``: choose the loss-scale policy from one recorded run."""

    enabled: bool = described(True, "Enabled", "Whether the policy is chosen by replay.")
    steps: int = described(60, "Recorded steps", "Length of the recorded run.", unit="batches", ge=2)
    amp_level: Literal["O2"] = described("O2", "Mixed precision", "That of the recorded run.")
    dtype: Literal["float16"] = described("float16", "Low precision type", "The only one that needs a loss scale.")
    init: float = described(
        2.0**24, "Initial scale", "Scale that the recording begins with; a large one shows where overflows begin.", ge=1
    )
    window: int = described(
        20,
        "Window",
        "Growth window of the recording, short so that the scale keeps probing upward.",
        unit="steps",
        ge=1,
    )
    exponents_every: int = described(
        2, "Exponents every", "Distance between two counts of the gradients' exponents.", unit="steps", ge=1
    )
    init_choices: list[float] = described(
        [2.0**power for power in range(8, 25, 2)],
        "Initial scales",
        "Initial scales that are judged, in every combination with factors and windows.",
        min_length=1,
    )
    factor_choices: list[float] = described([2.0, 4.0], "Factors", "Factors that are judged.", min_length=1)
    window_choices: list[int] = described(
        [20, 50, 100, 200, 500, 1000, 2000], "Windows", "Growth windows that are judged, in steps.", min_length=1
    )
    max_underflow_share: float = described(
        0.01, "Allowed underflow", "Share of the gradient elements that may underflow on average.", ge=0, le=1
    )
    verify_steps: int | None = described(
        None,
        "Verified steps",
        "Length of the rerun under the chosen policy; unset means as many as were recorded.",
        unit="batches",
        ge=1,
    )
    fixed_choices: list[Annotated[float, Field(ge=1)]] = described(
        [],
        "Fixed scales",
        "Fixed scales that are judged beside the dynamic ones, for comparison only, since a fixed scale cannot follow "
        "gradients that grow.",
    )
    check_policies: int = described(
        0,
        "Checked policies",
        "How many of the judged policies, evenly spread, are trained for as long as the recording, to compare.",
        unit="policies",
        ge=0,
    )


class FreezingLimitSection(Part):
    """``[freezing_limit]``: how much of what a freezing schedule promises its steps really save.

    Every finished trial that freezes is timed again beside O0 and beside a net in which the same layers rest for good.
    """

    enabled: bool = described(True, "Enabled", "Whether trials that freeze are timed again.")
    rounds: int = described(8, "Rounds", "Interleaved rounds of the comparison.", unit="rounds", ge=2)
    steps_per_block: int = described(4, "Steps per block", "Length of one block.", unit="batches", ge=1)


SHORTENED: Final = "The study trains "
"""Beginning of the sentence in ``set_up.left_out`` that says that runs are shorter than the task's own."""


class SetUpSection(Part):
    """``[set_up]``: how the fastest set-up is searched; for the objective ``time_to_quality``.

    With the objective ``speed``, no ``[space]`` and a ``runtime`` the study finds the runtime that makes steps fastest.

    *Tuned plain* is the task as given with a shorter schedule and another learning rate, and nothing else.
    """

    baseline_seeds: int = described(
        5, "Baseline seeds", "Runs of O0 whose mean is the quality to keep.", unit="runs", ge=2
    )
    most_seeds: int = described(4, "Most seeds", "Seeds of a trial at most, unless it leads.", unit="runs", ge=1)
    leader_seeds: int = described(
        16,
        "Leader's seeds",
        "Seeds that the final leader is trained on before it is confirmed on others.",
        unit="runs",
        ge=2,
    )
    runtime: dict[str, list[Any]] = described(
        {},
        "Runtime",
        "Configuration path and values of what changes the time alone; every combination is timed, and the fastest is "
        "taken.",
    )
    plain_rate: Literal["optimizer.lr", "optimizer.lr_factor"] = described(
        "optimizer.lr",
        "Rate of tuned plain",
        "What its rates are: one for all of the task's groups, or a factor on each one's own.",
    )
    plain_rates: list[float] = described([], "Rates of tuned plain", "Learning rates that tuned plain tries.")
    plain_shape: str = described("task", "Shape of tuned plain", "Shape of tuned plain's shorter schedule.")
    plain_runs: int = described(
        12, "Runs of tuned plain", "How many trials it has at most; 0 leaves it out.", unit="runs", ge=0
    )
    plain_share: float = described(0.08, "Tuned plain's share", "Share of the time that tuned plain takes.", ge=0, lt=1)
    attribution_share: float = described(
        0.2, "Attribution's share", "Share of the time for finding out where the gain comes from.", ge=0, lt=1
    )
    todays_steps: int | None = described(
        None,
        "Today's length",
        "For how long the task is trained today, where runs of the study are shorter.",
        unit="loader batches",
        ge=1,
    )
    left_out: list[str] = described(
        [], "Left out", "Why what might have been searched is not, a sentence each; `workbench tune TASK` writes them."
    )

    @property
    def shortened(self) -> str:
        """The sentence that says that runs are shorter than the task's own; empty where they are not."""
        return next((one for one in self.left_out if one.startswith(SHORTENED)), "")


class ConfirmSection(Part):
    """``[confirm]``: train the best candidates again, paired with O0 over fresh seeds."""

    enabled: bool = described(True, "Enabled", "Whether candidates are confirmed; otherwise they stay undecided.")
    seeds_min: int = described(
        10,
        "Confirmation seeds, least",
        "Fewest paired seeds of a test; the scatter of its first pairs decides how many it takes.",
        ge=2,
    )
    seeds_max: int = described(100, "Confirmation seeds, most", "Most paired seeds of a test.", ge=2)
    candidates: int = described(2, "Candidates", "Candidates tested per export, without refuted ones.", ge=1)
    steps: int | None = described(
        None, "Steps per run", "Length of one run; unset means that of a trial.", unit="batches", ge=1
    )
    time_share: float = described(
        0.4, "Time kept", "Largest share of `study.timeout_seconds` kept for confirming.", ge=0, lt=1
    )

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

    sources: Annotated[list[str], BeforeValidator(_as_sources)] = Field(
        alias="from",
        title="Sources",
        description="Folders of studies or exported boost_config.json files, one or a list.",
    )
    trials: int = described(5, "Trials", "How many of the best trials are taken from each study.", unit="trials", ge=1)
