"""The question a study asks: ``study.toml``, read, checked and said back in one canonical form.

The file is checked completely before anything runs: names against the configuration and Optuna, ranges against the
rules of each parameter. A message names the file, the path, the rule and the nearest known name.

The canonical form (`StudyFile.canonical`) is what the storage keeps: comments and layout may change freely, and so may
`CANNOT_CHANGE_A_TRIAL`; any other value that changed is a different question and needs ``--fresh``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from workbench.config import BoostConfig, ConfigError, NetworkFacts, SnapshotConfig
from workbench.config.errors import did_you_mean, sentence_of, shown
from workbench.config.section import described
from workbench.study.ask.network_limits import may_ask_for, why_off, within_network, without_equal_levels
from workbench.study.ask.plans import FROM_SNAPSHOTS, StudyPlans
from workbench.study.ask.search_space import Dimension, SearchedSpace, all_off, plans_by_level, read_space
from workbench.study.errors import StudyError
from workbench.study.sample.sampling import check_sampler, make_pruner

# Keys, and sections as a whole, that say when to end, where to begin and what to do with the trials there are: they may
# be edited while the study goes on, and are no part of the question (`asked`).
CANNOT_CHANGE_A_TRIAL = (
    *(f"study.{key}" for key in ("name", "n_trials", "timeout_seconds", "device_hours", "patience")),
    *("confirm", "warm_start"),
)
_WARM_UP_SHARE = 4  # a warm-up whose length the file leaves open takes a quarter of the budget
_USUAL_SHARE = "1 %"  # of O0's value: what a search for the fastest set-up may lose of a metric that is no accuracy
_ACCURACY_DROPS = {"o1": 0.005, "o2": 0.03}  # for the safe and the bold level; other metrics share no unit


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class StudySection(_Part):
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


class AllowedDrop(_Part):
    """``[allowed_drop]``: how much of the metric each export may cost, in its unit or as a share ("2 %") of O0's value.

    The search aims at one of them, its *target*; the other is a further question asked of the same trials.
    """

    o1: _Drop | None = described(None, "How much may it drop?", _DROP.format("safe", _ACCURACY_DROPS["o1"]))
    o2: _Drop | None = described(None, "Allowed drop, o2", _DROP.format("bold", _ACCURACY_DROPS["o2"]))

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


class SpeedSection(_Part):
    """``[speed]``: how a trial's step time is compared with O0's."""

    # Pairs of blocks (A B); on a noisy machine up to four times as many are measured.
    rounds: int = described(8, "Speed rounds", "Interleaved rounds in which a trial is timed against O0.", ge=2)
    steps_per_block: int = described(6, "Steps per block", "Steps of one block of such a round.", ge=1)


class LossScaleReplaySection(_Part):
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


class FreezingLimitSection(_Part):
    """``[freezing_limit]``: how much of what a freezing schedule promises its steps really save.

    Every finished trial that freezes is timed again beside O0 and beside a net in which the same layers rest for good.
    """

    enabled: bool = True
    rounds: int = Field(8, ge=2)
    steps_per_block: int = Field(4, ge=1)  # micro-batches


class SetUpSection(_Part):
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


class ConfirmSection(_Part):
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


class WarmStartSection(_Part):
    """``[warm_start]``: what was found before and is tried first, after O0.

    ``from`` names folders of studies or exported boost_config.json files, relative to this study's folder; one or a
    list. Further ones may be added while the study goes on.
    """

    sources: Annotated[list[str], BeforeValidator(_as_sources)] = Field(alias="from")
    trials: int = Field(5, ge=1)  # best trials that are taken of each study


class StudyFile(_Part):
    """A whole ``study.toml``, checked."""

    study: StudySection
    baseline: dict[str, Any] = Field(default_factory=dict)  # what O0 means here; every candidate starts from it
    allowed_drop: AllowedDrop = AllowedDrop()
    sampler: NamedOptions = described(NamedOptions(name="tpe"), "Sampler", "Who proposes trials.")
    pruner: NamedOptions = described(
        NamedOptions(name="median"), "Pruner", "Who ends trials that fall behind O0 at equal time."
    )
    speed: SpeedSection = SpeedSection()
    loss_scale_replay: LossScaleReplaySection | None = None  # None when the study does not ask for it; so below
    freezing_limit: FreezingLimitSection | None = None
    confirm: ConfirmSection = ConfirmSection()
    set_up: SetUpSection = SetUpSection()
    warm_start: WarmStartSection | None = None
    space: dict[str, Any] = Field(default_factory=dict)  # what is searched
    _network: NetworkFacts | None = PrivateAttr(None)  # no part of the question, but of what it means here
    _searched: SearchedSpace | None = PrivateAttr(None)  # found once: it is asked for several times a trial

    def on_network(self, network: NetworkFacts | None) -> StudyFile:
        """Return the same question about a network of which so much is known; None for one of which nothing is."""
        file = self.model_copy()
        file._network, file._searched = network, None
        return file

    @property
    def plans(self) -> StudyPlans:
        """How configurations are resolved here."""
        return StudyPlans(self.study.ranks, self._network)

    @property
    def searched(self) -> SearchedSpace:
        """What is searched, without what could never act on the network."""
        if self._searched is None:
            space = self._asked_space
            if self._network is not None:
                space = without_equal_levels(within_network(space)[0])[0]
            self._searched = space
        return self._searched

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """The dimensions of `searched`, in the file's order."""
        return self.searched.dimensions

    def not_drawn(self) -> list[str]:
        """Return what the network makes pointless to search, in sentences; nothing where it is not known."""
        if self._network is None:
            return []
        within, values = within_network(self._asked_space)
        levels = without_equal_levels(within)[1] if self.most_plans() != 1 else []  # where `why_off` says why
        return [f"{one}." for one in (*values, *levels, *why_off(self._asked_space))]

    def most_plans(self) -> int | None:
        """Return how many plans the study has, O0's among them; None for more than one per level."""
        if self._network is None or self.study.objective == "time_to_quality":  # which proposes plans of its own
            return None
        plans = plans_by_level(self.searched).values()
        return None if None in plans else len({*plans, self.plans.resolve(all_off(self.base_config()), "O0").key()})

    @property
    def _asked_space(self) -> SearchedSpace:
        return SearchedSpace(read_space(self.space), self.base_config(), self.plans)

    @property
    def evaluate_every(self) -> int:
        """Micro-batches between two evaluations."""
        return self.study.evaluate_every or max(self.study.budget_steps // 10, 1)

    @property
    def baseline_values(self) -> dict[str, Any]:
        """What the file says of the baseline, by config path."""
        return _flat(self.baseline)

    def base_config(self) -> BoostConfig:
        """Return O0's configuration, from which every candidate starts; it keeps no snapshots, a warm-up does."""
        return self._stated().with_values({"snapshots.count": 0})

    def _stated(self) -> BoostConfig:
        # An exported configuration may stand here, with where it comes from.
        values = {path: value for path, value in self.baseline_values.items() if not path.startswith("provenance.")}
        return BoostConfig().with_values(values)

    @property
    def warm_up(self) -> SnapshotConfig:
        """When a warm-up keeps weights: section ``snapshots`` of the baseline.

        Where that keeps none: as few as a method can do with, over a quarter of the budget.
        """
        stated = self._stated().snapshots
        if stated.count > 0:
            return stated
        count = max(_largest(method.snapshots_above, self) for method in FROM_SNAPSHOTS) + 1
        every_steps = max(self.study.budget_steps // _WARM_UP_SHARE // (count - 1), 1)
        return SnapshotConfig(every_steps=every_steps, count=count)

    @property
    def warm_up_steps(self) -> int:
        """Micro-batches of a warm-up: up to its last snapshot."""
        asked = self.warm_up
        return max(asked.start_step + (asked.count - 1) * asked.every_steps, 1)

    def allowed_drops(self, metric: str, baseline: float = math.nan) -> dict[str, float]:
        """Return the allowed drop of each export, in the metric's unit; a search for a set-up may have one alone.

        A drop may be a share of O0's value; both are NaN while that is not known. Only accuracies have a default.
        """
        given = {"o1": self.allowed_drop.o1, "o2": self.allowed_drop.o2}
        is_accuracy = metric.lower() in {"acc", "accuracy"} or metric.lower().endswith(("_accuracy", " accuracy"))
        usual = _ACCURACY_DROPS if is_accuracy else {}
        if self.study.objective == "time_to_quality":
            given = {target: drop for target, drop in given.items() if drop is not None}
            given = given or {"o1": usual.get("o1", _USUAL_SHARE)}
        drops: dict[str, float] = {}
        for target, drop in given.items():
            chosen = usual.get(target) if drop is None else drop
            if chosen is None:
                raise StudyError(
                    f"`allowed_drop.{target}` must be given for the metric {metric!r}: only accuracies have a default"
                )
            if isinstance(chosen, str):
                chosen = float(chosen.replace("%", "")) / 100.0 * abs(baseline)
            drops[target] = chosen
        return drops

    def canonical(self) -> dict[str, Any]:
        """Return the content as plain values, defaults filled in: equal for two files that ask the same."""
        content = self.model_dump(mode="json")
        if self.study.ranks == 1:
            del content["study"]["ranks"]  # studies that were begun before there was this key ask the same
        if self.freezing_limit is None:
            del content["freezing_limit"]
        if self.study.objective != "time_to_quality":
            del content["set_up"]
        if self.loss_scale_replay is not None:
            for name in ("fixed_choices", "check_policies"):
                if not content["loss_scale_replay"][name]:
                    del content["loss_scale_replay"][name]
        content["baseline"] = self.baseline_values
        content["space"] = {dimension.path: dimension.describe() for dimension in read_space(self.space)}
        return asked(content)


def asked(canonical: Mapping[str, Any]) -> dict[str, Any]:
    """Return a canonical form without what cannot change a trial; earlier versions stored such keys, too.

    Of the allowed drops only the target's is part of the question: another is asked of the same trials.
    """
    content = {name: dict(part) if isinstance(part, Mapping) else part for name, part in canonical.items()}
    for path in CANNOT_CHANGE_A_TRIAL:
        section, _, key = path.partition(".")
        if not key:
            content.pop(section, None)
        elif section in content:
            content[section].pop(key, None)
    drops = AllowedDrop.model_validate(content.get("allowed_drop", {}))
    content["allowed_drop"] = {drops.target: getattr(drops, drops.target)}
    return content


def study_folder(path: str | Path) -> Path:
    """Return the folder of a study that is named by its folder or by its file."""
    path = Path(path)
    return path.parent if path.suffix == ".toml" else path


def read_study(path: str | Path) -> StudyFile:
    """Read and check a study; its name is the folder's when the file gives none.

    Args:
        path: Folder of the study, or its ``study.toml``.

    Raises:
        StudyError: When the file is missing, unreadable or breaks a rule.
    """
    path = Path(path) if Path(path).suffix == ".toml" else Path(path) / "study.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such study file") from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a null byte
        raise StudyError(f"{path}: cannot be read ({error})") from None
    return parse_study(text, source=str(path), default_name=path.resolve().parent.name)


def parse_study(text: str, *, source: str = "study.toml", default_name: str = "study") -> StudyFile:
    """Check the text of a study file.

    Args:
        text: TOML.
        source: Name of the file for messages.
        default_name: Name of the study when the text gives none.

    Raises:
        StudyError: When it is no TOML or breaks a rule.
    """
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise StudyError(f"{source}: is not valid TOML: {error}") from None
    except ValueError:  # Python refuses whole numbers of more than 4300 digits
        raise StudyError(f"{source}: a number has too many digits") from None
    except RecursionError:
        raise StudyError(f"{source}: is nested too deeply") from None
    try:
        return _checked(content, default_name)
    except ValidationError as error:
        raise StudyError(f"{source}: {_sentence(error)}") from None
    except (ConfigError, StudyError) as error:
        raise StudyError(f"{source}: {error}") from None


def _checked(content: dict[str, Any], default_name: str) -> StudyFile:
    file = StudyFile.model_validate(content)
    if not file.study.name:
        file = file.model_copy(update={"study": file.study.model_copy(update={"name": default_name})})
    study, confirm = file.study, file.confirm
    try:
        base = file.base_config()
    except ConfigError as error:
        raise StudyError(f"[baseline] {error}") from None
    for dimension in file.dimensions:
        dimension.check(base)
    for path, values in file.set_up.runtime.items():
        for value in values:
            try:
                base.with_values({path: value})
            except ConfigError as error:
                raise StudyError(f"[set_up.runtime] {error}") from None
    _check_warm_up(file)
    if file.evaluate_every > study.budget_steps:
        rule = f"must not exceed `study.budget_steps` ({study.budget_steps})"
        raise StudyError(f"`study.evaluate_every` {rule}, got {study.evaluate_every}")
    if file.freezing_limit is not None and study.ranks > 1:
        raise StudyError(f"[freezing_limit] is measured in one process, but `study.ranks` is {study.ranks}")
    if confirm.seeds_max < confirm.seeds_min:
        rule = f"must be at least `confirm.seeds_min` ({confirm.seeds_min})"
        raise StudyError(f"`confirm.seeds_max` {rule}, got {confirm.seeds_max}")
    # Names and options only; the search builds its own.
    searched: Any = {"space": file.searched, "n_trials": study.n_trials, "objective": study.objective}
    check_sampler(file.sampler.name, file.sampler.options, **searched)
    make_pruner(file.pruner.name, file.pruner.options, budget_steps=study.budget_steps)
    return file


def _check_warm_up(file: StudyFile) -> None:
    for dimension in file.dimensions:
        if dimension.path.startswith("snapshots."):
            raise StudyError(
                f"[space] `{dimension.path}` cannot be searched: all trials share one warm-up; set it in [baseline]"
            )
    for method in FROM_SNAPSHOTS:
        count, most = file.warm_up.count, _largest(method.snapshots_above, file)
        if count <= most and may_ask_for(file.searched, method.name):
            raise StudyError(
                f"[baseline] `snapshots.count` must exceed the largest `{method.snapshots_above}` of the study "
                f"({most}), got {count}; record more snapshots, or leave it out for as many as needed"
            )


def _largest(path: str, file: StudyFile) -> int:
    searched = [number for one in file.dimensions if one.path == path for number in one.extremes]
    return int(max(searched or [attrgetter(path)(file.base_config())]))


def _sentence(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"`{path}` is missing"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        return f'unknown section "{path}"{did_you_mean(path, StudyFile.model_fields)}'
    return sentence_of(error, StudyFile)


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values by dotted path; quoted dotted keys and sections, both TOML spellings, mean the same."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat
