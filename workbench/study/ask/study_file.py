"""The question a study asks: ``study.toml``, read, checked and put into one canonical form.

The file is checked completely before anything runs: names against the configuration and Optuna, ranges against the
rules of each parameter. A message names the file, the path, the rule and the nearest known name.

The canonical form (`StudyFile.canonical`) is what the storage keeps: comments and layout may change freely, and so may
`CANNOT_CHANGE_A_TRIAL`; any other value that changed is a different question and needs ``--fresh``.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections.abc import Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

from pydantic import PrivateAttr, ValidationError

from workbench.config import BoostConfig, ConfigError, NetworkFacts, Plan, SnapshotConfig
from workbench.config.errors import did_you_mean, first_problem, sentence_of, shown
from workbench.config.section import described
from workbench.core.metric_scale import MetricScale
from workbench.study.ask.network_limits import may_ask_for, why_off, within_network, without_equal_levels
from workbench.study.ask.plans import FROM_SNAPSHOTS, StudyPlans
from workbench.study.ask.search_space import Dimension, SearchedSpace, all_off, plans_by_level
from workbench.study.ask.sections import (
    ACCURACY_DROPS,
    AllowedDrop,
    ConfirmSection,
    FreezingLimitSection,
    LossScaleReplaySection,
    NamedOptions,
    Part,
    SetUpSection,
    SpeedSection,
    StudySection,
    WarmStartSection,
)
from workbench.study.ask.space_table import read_space
from workbench.study.ask.study_text import flat
from workbench.study.errors import StudyError
from workbench.study.sample.sampling import check_sampler, make_pruner

# Keys, and sections as a whole, that say when to end, where to begin and what to do with the trials there are: they may
# be edited while the study goes on, and are not part of the question (`asked`).
CANNOT_CHANGE_A_TRIAL = (
    *(f"study.{key}" for key in ("name", "n_trials", "timeout_seconds", "reading_cores", "device_hours", "patience")),
    *("confirm", "speed", "warm_start"),
)
_WARM_UP_SHARE = 4  # a warm-up whose length the file leaves open takes a quarter of the budget
_USUAL_SHARE = "1 %"  # of O0's value: what a search for the fastest set-up may lose of a metric that is not an accuracy


class StudyFile(Part):
    """A whole ``study.toml``, checked."""

    study: StudySection
    baseline: dict[str, Any] = described(
        {}, "Baseline", "What O0 means here, by configuration path: every candidate starts from it."
    )
    allowed_drop: AllowedDrop = AllowedDrop()
    sampler: NamedOptions = described(NamedOptions(name="tpe"), "Sampler", "Who proposes trials.")
    pruner: NamedOptions = described(
        NamedOptions(name="median"), "Pruner", "Which rule ends trials that fall behind O0 at equal time."
    )
    speed: SpeedSection = SpeedSection()
    loss_scale_replay: LossScaleReplaySection | None = None  # None when the study does not ask for it; so below
    freezing_limit: FreezingLimitSection | None = None
    confirm: ConfirmSection = ConfirmSection()
    set_up: SetUpSection = SetUpSection()
    warm_start: WarmStartSection | None = None
    space: dict[str, Any] = described(
        {},
        "Space",
        "What is searched: configuration path, and the values or the range that are drawn; `true` takes the "
        "parameter's usual range.",
    )
    _network: NetworkFacts | None = PrivateAttr(None)  # no part of the question, but of what it means here
    _searched: SearchedSpace | None = PrivateAttr(None)  # found once: it is needed several times a trial

    def on_network(self, network: NetworkFacts | None) -> StudyFile:
        """Return the same question about a network with these facts; None if nothing is known of it."""
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
            self._searched = space.with_usual()
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
        said = {one.replace(" is left out, because ", " is not in effect because ") for one in self.set_up.left_out}
        sentences = (f"{one}." for one in (*values, *levels, *why_off(self._asked_space)))
        return [one for one in sentences if one not in said]

    def most_plans(self) -> int | None:
        """Return how many plans the study has, O0's among them; None if a level has more than one."""
        if self._network is None or self.study.objective == "time_to_quality":  # which proposes its own plans
            return None
        plans = plans_by_level(self.searched).values()
        return None if None in plans else len({*plans, self.baseline_plan().key()})

    @property
    def finds_steps_alone(self) -> bool:
        """Whether the file asks for nothing but the runtime that makes steps fastest."""
        return self.study.objective == "speed" and bool(self.set_up.runtime) and not self.space

    @property
    def share_of_today(self) -> float:
        """What share of today's training a run of the study is, by loader batches."""
        today = self.set_up.todays_steps
        return 1.0 if today is None else self.study.budget_steps / today

    @property
    def _asked_space(self) -> SearchedSpace:
        return SearchedSpace(read_space(self.space), self.base_config(), self.plans)

    @property
    def evaluate_every(self) -> int:
        """Micro-batches between two evaluations."""
        return self.study.evaluate_every or max(self.study.budget_steps // 10, 1)

    @property
    def baseline_values(self) -> dict[str, Any]:
        """What the file sets for the baseline, by config path."""
        return flat(self.baseline)

    def base_config(self) -> BoostConfig:
        """Return O0's configuration, from which every candidate starts; it keeps no snapshots, a warm-up does."""
        return self._stated().with_values({"snapshots.count": 0})

    def baseline_plan(self) -> Plan:
        """Return what is in effect in O0."""
        return self.plans.resolve(all_off(self.base_config()), "O0")

    def _stated(self) -> BoostConfig:
        # An exported configuration may stand here, with where it comes from.
        values = {path: value for path, value in self.baseline_values.items() if not path.startswith("provenance.")}
        return BoostConfig().with_values(values)

    @property
    def warm_up(self) -> SnapshotConfig:
        """When a warm-up keeps weights: section ``snapshots`` of the baseline.

        If that keeps none, as few as a method can do with, over a quarter of the budget.
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
        """Return the allowed drop of each export, in the metric's unit; a share of an unknown value of O0 is NaN."""
        given = {"o1": self.allowed_drop.o1, "o2": self.allowed_drop.o2}
        usual = ACCURACY_DROPS if MetricScale(metric).is_share else {}
        if self.study.objective == "time_to_quality" or self.set_up.todays_steps is not None:  # asked of a task alone
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
        if self.finds_steps_alone:
            content["set_up"] = {"runtime": self.set_up.runtime}
        elif self.study.objective != "time_to_quality":
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


def study_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a study that is named by its folder or by its file."""
    path = Path(path)
    return path.parent if path.suffix == ".toml" else path


def read_study(path: str | Path) -> StudyFile:
    """Read and check a study, by its folder or its ``study.toml``; its name is the folder's when the file gives none.

    A file that is missing, unreadable or breaks a rule is a StudyError.
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
    """Check the text of a study file; a StudyError, which names the ``source``, says what is wrong with it."""
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


def wrong_paths(values: Mapping[str, Any]) -> list[str]:
    """Return the paths of values, by path, that no study's file takes, such as ``study.budget_steps`` of 0.5."""
    tables: dict[str, dict[str, Any]] = {"study": {"task": "any", "budget_steps": 1, "n_trials": 1}}
    for path, value in values.items():
        section, _, key = path.partition(".")
        tables.setdefault(section, {})[key] = value
    try:
        StudyFile.model_validate(tables)
    except ValidationError as error:
        found = {".".join(map(str, problem["loc"][:2])) for problem in error.errors()}
        return [path for path in values if path in found]
    return []


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
    plain = [("plain_rates", file.set_up.plain_rate, rate) for rate in file.set_up.plain_rates]
    for key, path, value in [("plain_shape", "schedule.shape", file.set_up.plain_shape), *plain]:
        try:
            base.with_values({path: value})
        except ConfigError as error:
            raise StudyError(f"`set_up.{key}`: {error}") from None
    _check_warm_up(file)
    factors = [
        base.leaves()["batch.factor"],
        *(x for one in file.dimensions if one.path == "batch.factor" for x in one.extremes),
    ]
    if study.objective != "time_to_quality" and set(factors) != {1.0}:
        raise StudyError(
            f"`batch.factor` changes what a step is, and the objective {study.objective!r} compares steps; ask it with "
            '`study.objective = "time_to_quality"`'
        )
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
    problem = first_problem(error)
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"`{path}` is missing"
    if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
        return f"unknown section {shown(path)}{did_you_mean(path, StudyFile.model_fields)}"
    return sentence_of(error, StudyFile)
