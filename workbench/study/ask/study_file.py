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
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from workbench.config import (
    BoostConfig,
    ConfigError,
    NetworkFacts,
    SnapshotConfig,
    requested_switches,
)
from workbench.config.errors import did_you_mean, sentence_of, shown
from workbench.study.ask.plans import StudyPlans
from workbench.study.ask.search_space import (
    Dimension,
    all_off,
    plans_by_level,
    read_space,
    within_layers,
)
from workbench.study.errors import StudyError
from workbench.study.sample.sampling import check_sampler, make_pruner
from workbench.study.sample.whole_space import SearchedSpace

__all__ = [
    "CANNOT_CHANGE_A_TRIAL",
    "AllowedDrop",
    "ConfirmSection",
    "FreezingLimitSection",
    "LossScaleReplaySection",
    "NamedOptions",
    "SetUpSection",
    "SpeedSection",
    "StudyFile",
    "StudySection",
    "WarmStartSection",
    "asked",
    "parse_study",
    "read_study",
    "study_folder",
]

CANNOT_CHANGE_A_TRIAL = (
    "study.name",
    "study.n_trials",
    "study.timeout_seconds",
    "study.device_hours",
    "study.patience",
    "confirm",
    "warm_start",
)
"""Keys, and sections as a whole, that say when to end, where to begin and what to do with the trials there are.

They may be edited while the study goes on, and are no part of the question (`asked`).
"""

_WARM_UP_SHARE = 4
"""A warm-up whose length nobody set takes this part of the budget: one in four."""

_USUAL_SHARE = "1 %"
"""Of O0's value: what a search for the fastest set-up may lose of a metric that is no accuracy."""

_ACCURACY_DROPS = {"o1": 0.005, "o2": 0.03}
"""Half a point for the safe level, three points for the bold one; only accuracies share a unit that allows defaults."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class StudySection(_Part):
    """``[study]``: what is trained, how long, and what counts.

    Attributes:
        name: Name of the study; empty takes the folder's.
        task: Task as on the command line.
        seed: Seed of the search (>= 0); confirmation uses others.
        budget_steps: Micro-batches of one trial.
        evaluate_every: Micro-batches between two evaluations; None means a tenth of the budget.
        n_trials: Finished trials of the whole study, O0 included; a repeat of an equal plan does not count.
        timeout_seconds: Time of one ``tune`` command for everything; None means no limit.
        objective: What is minimised.
        device: Where to train.
        threads: CPU threads of a training process; None leaves it to torch, which takes all cores. Small networks
            train fastest, and speed is measured best, with one.
        ranks: Processes that train every run together; candidates and O0 alike.
        device_hours: Hours the trials of the search may take, times ``ranks``, all workers and commands together; None
            means no limit.
        patience: The search ends when so many trials in a row found nothing better; None lets it go on.
    """

    name: str = ""
    task: str = Field(min_length=1)
    seed: int = Field(0, ge=0)
    budget_steps: int = Field(ge=1)
    evaluate_every: int | None = Field(None, ge=1)
    n_trials: int = Field(ge=1)
    timeout_seconds: float | None = Field(None, gt=0)
    objective: Literal["time_to_target", "speed", "pareto", "time_to_quality"] = "time_to_target"
    device: str = "auto"
    threads: int | None = Field(None, ge=1)
    ranks: int = Field(1, ge=1)
    device_hours: float | None = Field(None, gt=0)
    patience: int | None = Field(None, ge=1)


_Drop = Annotated[float, Field(ge=0)] | Annotated[str, Field(pattern=r"^ *\d+(\.\d+)? *% *$")]


class AllowedDrop(_Part):
    """``[allowed_drop]``: how much of the metric each export may cost, in its unit or as a share ("2 %") of O0's value.

    The search aims at one of them, its *target*; the other is a further question asked of the same trials.
    """

    o1: _Drop | None = None
    o2: _Drop | None = None

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
    """``[speed]``: how a trial's step time is compared with O0's.

    Attributes:
        rounds: Pairs of blocks (A B), at least 2; on a noisy machine up to four times as many are measured.
        steps_per_block: Micro-batches per block.
    """

    rounds: int = Field(8, ge=2)
    steps_per_block: int = Field(6, ge=1)


class LossScaleReplaySection(_Part):
    """``[loss_scale_replay]``: choose the loss-scale policy from one recorded run.

    Attributes:
        enabled: Whether to do it.
        steps: Micro-batches of the recording.
        amp_level: Mixed-precision level of the recording.
        dtype: Low-precision type; only float16 needs a scale.
        init: Loss scale the recording begins with; a large one shows where overflows begin.
        window: Growth window of the recording, short so that the scale keeps probing upward.
        exponents_every: Steps between two exponent counts.
        init_choices: Initial scales that are judged.
        factor_choices: Factors that are judged.
        window_choices: Growth windows that are judged.
        max_underflow_share: Gradient share that may underflow on average, in [0, 1].
        verify_steps: Micro-batches of the rerun under the chosen policy; None means as many as were recorded.
        fixed_choices: Fixed scales that are judged beside the dynamic ones, to compare; none of them is chosen, since a
            fixed scale has no way back when gradients grow.
        check_policies: So many of the judged policies, evenly spread, are trained for as long as the recording, each
            with its own overflows beside the predicted ones.
    """

    enabled: bool = True
    steps: int = Field(60, ge=2)
    amp_level: Literal["O2"] = "O2"
    dtype: Literal["float16"] = "float16"
    init: float = Field(2.0**24, ge=1)
    window: int = Field(20, ge=1)
    exponents_every: int = Field(2, ge=1)
    init_choices: list[float] = Field(default_factory=lambda: [2.0**power for power in range(8, 25, 2)], min_length=1)
    factor_choices: list[float] = Field(default_factory=lambda: [2.0, 4.0], min_length=1)
    window_choices: list[int] = Field(default_factory=lambda: [20, 50, 100, 200, 500, 1000, 2000], min_length=1)
    max_underflow_share: float = Field(0.01, ge=0, le=1)
    verify_steps: int | None = Field(None, ge=1)
    fixed_choices: list[Annotated[float, Field(ge=1)]] = Field(default_factory=list)
    check_policies: int = Field(0, ge=0)


class FreezingLimitSection(_Part):
    """``[freezing_limit]``: how much of what a freezing schedule promises its steps really save.

    Every finished trial that freezes is timed again beside O0 and beside a net in which the same layers rest for good.

    Attributes:
        enabled: Whether to do it.
        rounds: Rounds of blocks, at least 2.
        steps_per_block: Micro-batches per block.
    """

    enabled: bool = True
    rounds: int = Field(8, ge=2)
    steps_per_block: int = Field(4, ge=1)


class SetUpSection(_Part):
    """``[set_up]``: how the fastest set-up is searched; for the objective ``time_to_quality``.

    Attributes:
        baseline_seeds: Runs of O0 whose mean is the quality to keep, at least 2.
        most_seeds: Seeds that a plan takes when it is tried, at most.
        leader_seeds: Seeds that the final leader is trained on before it is confirmed over others.
        runtime: Config path -> values of what changes time alone; every combination is timed, the fastest is taken.
        plain_rates: Learning rates of *tuned plain*: the task as given with a shorter schedule and one of these.
        plain_shape: Shape of its schedule.
        plain_runs: Runs of tuned plain at least; 0 leaves it out.
        plain_share: Share of the time kept for it, in [0, 1).
        attribution_share: Share of the time kept to find out where the gain comes from, in [0, 1).
        left_out: Why what might have been searched is not, a sentence each, for the reader of the answer.
    """

    baseline_seeds: int = Field(5, ge=2)
    most_seeds: int = Field(4, ge=1)
    leader_seeds: int = Field(16, ge=2)
    runtime: dict[str, list[Any]] = Field(default_factory=dict)
    plain_rates: list[float] = Field(default_factory=list)
    plain_shape: str = "task"
    plain_runs: int = Field(12, ge=0)
    plain_share: float = Field(0.15, ge=0, lt=1)
    attribution_share: float = Field(0.2, ge=0, lt=1)
    left_out: list[str] = Field(default_factory=list)


class ConfirmSection(_Part):
    """``[confirm]``: train the best candidates again, paired with O0 over fresh seeds.

    Attributes:
        enabled: Whether to do it; without it candidates stay undecided.
        seeds_min: Fewest seeds of a test. How many it takes is fixed by the standard deviation of its first few pairs.
        seeds_max: Most seeds of a test.
        candidates: Candidates per export that are tested; refuted ones do not count.
        steps: Micro-batches per run; None means the trial's budget.
        time_share: Share of ``timeout_seconds`` kept for it, in [0, 1), once there is a candidate.
    """

    enabled: bool = True
    seeds_min: int = Field(10, ge=2)
    seeds_max: int = Field(100, ge=2)
    candidates: int = Field(2, ge=1)
    steps: int | None = Field(None, ge=1)
    time_share: float = Field(0.4, ge=0, lt=1)

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

    Attributes:
        sources: ``from`` in the file: folders of studies or exported boost_config.json files, relative to this study's
            folder; one or a list. Further ones may be added while the study goes on.
        trials: Best trials that are taken of each study.
    """

    sources: Annotated[list[str], BeforeValidator(_as_sources)] = Field(alias="from")
    trials: int = Field(5, ge=1)


class StudyFile(_Part):
    """A whole ``study.toml``, checked.

    Attributes:
        study: What is trained, how long, and what counts.
        baseline: What O0 means here, as nested sections of a boost_config; every candidate starts from it.
        allowed_drop: Allowed drop per export.
        sampler: Sampler and its options.
        pruner: Pruner and its options.
        speed: How speed is measured.
        loss_scale_replay: Loss-scale policy by replay; None when the study does not ask for it.
        freezing_limit: What freezing could save at best; None when the study does not ask for it.
        confirm: Confirmation.
        set_up: How the fastest set-up is searched.
        warm_start: What is tried first; None when nothing is.
        space: What is searched; filled from ``[space]``.
    """

    study: StudySection
    baseline: dict[str, Any] = Field(default_factory=dict)
    allowed_drop: AllowedDrop = AllowedDrop()
    sampler: NamedOptions = NamedOptions(name="tpe")
    pruner: NamedOptions = NamedOptions(name="median")
    speed: SpeedSection = SpeedSection()
    loss_scale_replay: LossScaleReplaySection | None = None
    freezing_limit: FreezingLimitSection | None = None
    confirm: ConfirmSection = ConfirmSection()
    set_up: SetUpSection = SetUpSection()
    warm_start: WarmStartSection | None = None
    space: dict[str, Any] = Field(default_factory=dict)
    _network: NetworkFacts | None = PrivateAttr(None)  # no part of the question, but of what it means here

    def on_network(self, network: NetworkFacts | None) -> StudyFile:
        """Return the same question about a network of which so much is known; None for one of which nothing is."""
        file = self.model_copy()
        file._network = network
        return file

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """What is searched, in the file's order; without what could never act on the network."""
        return self._drawn()[0]

    def not_drawn(self) -> list[str]:
        """Return what the network makes pointless to search, in sentences; nothing where it is not known."""
        if self._network is None:
            return []
        told = list(self._drawn()[1])
        if self.most_plans() == 1:  # why the methods do not act says why the levels are equal
            told = [one for one in told if not one.startswith("Level ")]
        of_groups = next((i for i, one in enumerate(told) if "grad_freeze." in one), None)
        may_freeze = self._may_freeze()
        if _may_ask_for(self, "less_bn"):
            told.append(_not_in_effect("less_bn", self._network.why_no_less_bn(self.base_config())))
        if not may_freeze and of_groups is not None:
            told[of_groups] += ", so nothing is frozen"
        elif not may_freeze and _may_ask_for(self, "grad_freeze"):
            reason = self._network.why_no_freezing(self.base_config(), less_bn=self._may_reduce_norms())
            told.append(_not_in_effect("grad_freeze", reason))
        return [f"{one}." for one in told if one]

    def most_plans(self) -> int | None:
        """Return how many plans the study has, O0's among them; None for more than one per level."""
        if self._network is None or self.study.objective == "time_to_quality":  # which proposes plans of its own
            return None
        base = self.base_config()
        plans = plans_by_level(self.dimensions, base, self.plans).values()
        return None if None in plans else len({*plans, self.plans.resolve(all_off(base), "O0").key()})

    def _drawn(self) -> tuple[tuple[Dimension, ...], list[str]]:
        """Return what is searched, and a sentence about whatever the network makes pointless of it."""
        dimensions = read_space(self.space)
        if self._network is None:
            return dimensions, []
        dimensions, sentence = within_layers(dimensions, self._fewest_layers(self._network))
        told = [sentence] if sentence else []
        levels = next((one for one in dimensions if one.path == "level"), None)
        if levels is None:
            return dimensions, told
        by_level = plans_by_level(dimensions, self.base_config(), self.plans)
        first: dict[str | None, str] = {}
        for level, plan in sorted(by_level.items()):
            if plan is not None and first.setdefault(plan, level) != level:
                told.append(f"Level {level} is not tried: on this network it is equal to {first[plan]}")
        left = tuple(level for level, plan in by_level.items() if plan is None or first[plan] == level)
        return tuple(replace(one, choices=left) if one is levels else one for one in dimensions), told

    def _fewest_layers(self, network: NetworkFacts) -> int:
        """Return the layers that any trial has: those that LessBN leaves, where it may be in effect."""
        config = self.base_config()
        return min(network.layers_of(config, less_bn=less_bn) for less_bn in {False, self._may_reduce_norms()})

    def _may_reduce_norms(self) -> bool:
        network = self._network
        return network is not None and network.less_bn_acts(self.base_config()) and _may_ask_for(self, "less_bn")

    def _may_freeze(self) -> bool:
        """Return whether some number of groups that a trial may have fits the network."""
        groups = [one for one in self.dimensions if one.path == "grad_freeze.param_groups"]
        return bool(groups) or not (
            self._network is not None
            and self._network.why_no_freezing(self.base_config(), less_bn=self._may_reduce_norms())
        )

    @property
    def plans(self) -> StudyPlans:
        """How configurations are resolved here."""
        return StudyPlans(self.study.ranks, self._network)

    @property
    def searched(self) -> SearchedSpace:
        """What is searched, with O0's configuration and how this study resolves it."""
        return SearchedSpace(self.dimensions, self.base_config(), self.plans)

    @property
    def evaluate_every(self) -> int:
        """Micro-batches between two evaluations."""
        return self.study.evaluate_every or max(self.study.budget_steps // 10, 1)

    def base_config(self) -> BoostConfig:
        """Return O0's configuration, from which every candidate starts; it keeps no snapshots, a warm-up does."""
        return self._stated().with_values({"snapshots.count": 0})

    @property
    def warm_up(self) -> SnapshotConfig:
        """When a warm-up keeps weights: section ``snapshots`` of the baseline.

        Where that keeps none: one snapshot more than the components searched, over a quarter of the budget.
        """
        stated = self._stated().snapshots
        if stated.count > 0:
            return stated
        count = _most_components(self) + 1
        every_steps = max(self.study.budget_steps // _WARM_UP_SHARE // (count - 1), 1)
        return SnapshotConfig(every_steps=every_steps, count=count)

    @property
    def warm_up_steps(self) -> int:
        """Micro-batches of a warm-up: up to its last snapshot."""
        asked = self.warm_up
        return max(asked.start_step + (asked.count - 1) * asked.every_steps, 1)

    def allowed_drops(self, metric: str, baseline: float = math.nan) -> dict[str, float]:
        """Return the allowed drop of each export for a metric.

        Args:
            metric: Name of the task's metric.
            baseline: O0's value, of which a drop may be a share; NaN while it is not known.

        Returns:
            ``{"o1": ..., "o2": ...}`` in the metric's unit; one that is a share of an unknown value is NaN. A search
            for the fastest set-up has the exports that its file names, or o1.

        Raises:
            StudyError: When the metric is no accuracy and the file names no drop for it.
        """
        given = {"o1": self.allowed_drop.o1, "o2": self.allowed_drop.o2}
        is_accuracy = metric.lower() in {"acc", "accuracy"} or metric.lower().endswith(("_accuracy", " accuracy"))
        if self.study.objective == "time_to_quality":
            usual = _ACCURACY_DROPS["o1"] if is_accuracy else _USUAL_SHARE
            given = {target: drop for target, drop in given.items() if drop is not None} or {"o1": usual}
        drops: dict[str, float] = {}
        for target, drop in given.items():
            if drop is None and not is_accuracy:
                raise StudyError(
                    f"`allowed_drop.{target}` must be given for the metric {metric!r}: only accuracies have a default"
                )
            chosen = _ACCURACY_DROPS[target] if drop is None else drop
            share = float(chosen.replace("%", "")) / 100.0 if isinstance(chosen, str) else math.nan
            drops[target] = share * abs(baseline) if isinstance(chosen, str) else chosen
        return drops

    def _stated(self) -> BoostConfig:
        return BoostConfig.from_dict(_nested(self.baseline))

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
        content["baseline"] = _flat(_nested(self.baseline))
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


def read_study(path: str | Path) -> StudyFile:
    """Read and check a study.

    Args:
        path: Folder of the study, or its ``study.toml``.

    Returns:
        The checked study; its name is the folder's when the file gives none.

    Raises:
        StudyError: When the file is missing, unreadable or breaks a rule.
    """
    path = Path(path)
    if path.suffix != ".toml":
        path = path / "study.toml"
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise StudyError(f"{path}: there is no such study file") from None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a path with a null byte
        raise StudyError(f"{path}: cannot be read ({error})") from None
    return parse_study(text, source=str(path), default_name=path.resolve().parent.name)


def study_folder(path: str | Path) -> Path:
    """Return the folder of a study that is named by its folder or by its file."""
    path = Path(path)
    return path.parent if path.suffix == ".toml" else path


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
    evaluate_every = file.study.evaluate_every
    if evaluate_every is not None and evaluate_every > file.study.budget_steps:
        raise StudyError(
            f"`study.evaluate_every` must not exceed `study.budget_steps` ({file.study.budget_steps}), "
            f"got {evaluate_every}"
        )
    if file.freezing_limit is not None and file.study.ranks > 1:
        raise StudyError(f"[freezing_limit] is measured in one process, but `study.ranks` is {file.study.ranks}")
    if file.confirm.seeds_max < file.confirm.seeds_min:
        raise StudyError(
            f"`confirm.seeds_max` must be at least `confirm.seeds_min` ({file.confirm.seeds_min}), "
            f"got {file.confirm.seeds_max}"
        )
    # Built once only to see that names and options are right; the search builds its own.
    check_sampler(
        file.sampler.name,
        file.sampler.options,
        space=file.searched,
        n_trials=file.study.n_trials,
        objective=file.study.objective,
    )
    make_pruner(file.pruner.name, file.pruner.options, budget_steps=file.study.budget_steps)
    return file


def _check_warm_up(file: StudyFile) -> None:
    for dimension in file.dimensions:
        if dimension.path.startswith("snapshots."):
            raise StudyError(
                f"[space] `{dimension.path}` cannot be searched: all trials share one warm-up; set it in [baseline]"
            )
    count, components = file.warm_up.count, _most_components(file)
    if count <= components and _may_ask_for(file, "dim_reduce"):
        raise StudyError(
            f"[baseline] `snapshots.count` must exceed the largest `dim_reduce.n_components` of the study "
            f"({components}), got {count}; record more snapshots, or leave it out for as many as needed"
        )


def _most_components(file: StudyFile) -> int:
    searched = [number for one in file.dimensions if one.path == "dim_reduce.n_components" for number in one.extremes]
    return int(max(searched or [file.base_config().dim_reduce.n_components]))


def _not_in_effect(method: str, reason: str) -> str:
    return f"{method} is not in effect because {reason}" if reason else ""


def _may_ask_for(file: StudyFile, switch: str) -> bool:
    """Return whether some candidate may have a switch on."""
    space = {one.path: one for one in read_space(file.space)}
    asking = {f"boost.{switch}": True, "boost.mode": "enable_all"}
    if any(value in space[path].choices for path, value in asking.items() if path in space):
        return True
    by_mode = "boost.mode" in space and "auto" in space["boost.mode"].choices
    if f"boost.{switch}" in space and not by_mode:
        return False
    levels = space["level"].choices if "level" in space else ("O1",)
    base = file.base_config().with_values(
        {"boost.mode": "manual"} if any(p.startswith("boost.") for p in space) else {}
    )
    return any(requested_switches(base, level)[switch] for level in levels)


def _sentence(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    if problem["type"] == "missing":
        path = ".".join(str(part) for part in problem["loc"])
        return f"`{path}` is missing"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        name = str(problem["loc"][0])
        return f'unknown section "{name}"{did_you_mean(name, StudyFile.model_fields)}'
    return sentence_of(error, StudyFile)


def _nested(content: Mapping[str, Any]) -> dict[str, Any]:
    """Turn quoted dotted keys into sections, so that both TOML spellings mean the same."""
    nested: dict[str, Any] = {}
    for key, value in content.items():
        *sections, name = key.split(".")
        place = nested
        for section in sections:
            place = place.setdefault(section, {})
            if not isinstance(place, dict):
                raise StudyError(f"[baseline] `{key}` and `{section}` cannot both have a value")
        if isinstance(value, Mapping) and isinstance(place.get(name), dict):
            place[name].update(_nested(value))
        else:
            place[name] = _nested(value) if isinstance(value, Mapping) else value
    return nested


def _flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(_flat(value, f"{path}."))
        else:
            flat[path] = value
    return flat
