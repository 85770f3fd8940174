"""Samplers and pruners by name, with their options checked before anything runs.

A study's space is conditional, mixed and noisy. TPE models it in groups of parameters that occur together. Optuna's GP
and genetic samplers see it whole (``whole_space.py``, with the even sequences); CMA-ES (``evolution.py``) and the grids
(``grid.py``) are made for such spaces here.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial

from workbench.config.errors import cut, did_you_mean, shown
from workbench.study.ask.search_space import SearchedSpace
from workbench.study.errors import StudyError
from workbench.study.sample.evolution import EvolutionSampler
from workbench.study.sample.grid import GridSampler, check_finite, grid_points
from workbench.study.sample.whole_space import EvenSampler, OptunaOverAll

SAMPLERS = ("tpe", "random", "gp", "nsga2", "nsga3", "cmaes", "qmc", "grid", "brute_force", "promise")
_GRIDS = frozenset({"grid", "brute_force"})

# What an option's annotation names, in words, and the types a file gives it.
_KINDS: dict[str, tuple[str, set[type]]] = {
    "bool": ("true or false", {bool}),
    "int": ("a whole number", {int}),
    "float": ("a number", {int, float}),
    "str": ("a text", {str}),
    "Literal": ("a text", {str}),
    "np.ndarray": ("a list of rows of numbers", {list}),
}
# Options that Optuna checks only in the middle of a trial, or that cost memory in proportion.
_RANGES = {
    "prior_weight": (0.0, math.inf),
    "n_ei_candidates": (1, 100_000),
    "dividing_parameter": (1, 100),
    "bootstrap_count": (0, math.inf),
    "reduction_factor": (2, math.inf),
    "min_resource": (1, math.inf),
    "max_resource": (1, math.inf),
}

PRUNERS: dict[str, type[BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "percentile": optuna.pruners.PercentilePruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "threshold": optuna.pruners.ThresholdPruner,
    "none": optuna.pruners.NopPruner,
}


def make_sampler(
    name: str,
    options: Mapping[str, Any],
    *,
    space: SearchedSpace,
    seed: int,
    n_trials: int,
    objective: str = "time_to_target",
) -> PerTrialSampler:
    """Build the sampler of a study, one of `SAMPLERS`; each trial has its own instance."""
    check_sampler(name, options, space=space, n_trials=n_trials, objective=objective)
    if name not in _GRIDS:
        return PerTrialSampler(lambda own: _of_one_trial(name, options, space, own, seed, n_trials), seed)
    points = grid_points(space, options.get("points"))
    grid = GridSampler(space, points, seed=seed, study_seed=seed)
    return PerTrialSampler(lambda own: GridSampler(space, points, seed=own, study_seed=seed), seed, grid.is_exhausted)


def check_sampler(
    name: str, options: Mapping[str, Any], *, space: SearchedSpace, n_trials: int, objective: str = "time_to_target"
) -> None:
    """Refuse an unknown name, a bad option, and what does not fit the space or the objective."""
    _check_name("sampler", SAMPLERS, name)
    if name in _GRIDS:
        _check_options("sampler", name, options, ["points"] if name == "grid" else [])
        points = options.get("points")
        if points is not None and (type(points) is not int or points < 1):
            raise StudyError(f"`sampler.points` must be a whole number, 1 or more, got {points!r}")
        check_finite(space.dimensions, points)
    else:
        _of_one_trial(name, options, space, 0, 0, n_trials)
    if name == "promise" and objective != "time_to_quality":
        raise StudyError(
            f'`sampler.name` "promise" must know a set-up\'s time beforehand, which the objective "{objective}" '
            'does not allow; take "tpe", or the objective "time_to_quality"'
        )
    if "reference_points" in options:
        _check_reference_points(options["reference_points"], 2 if objective == "pareto" else 1)
    if name == "cmaes" and objective == "pareto":
        raise StudyError(
            '`sampler.name` "cmaes" minimises one number, but the objective "pareto" has two; take "tpe", "gp", '
            '"nsga2" or "nsga3"'
        )
    if name == "cmaes" and not space.numbers:
        raise StudyError('`sampler.name` "cmaes" needs a range in [space], and there are only lists; take "tpe"')


def _of_one_trial(
    name: str, options: Mapping[str, Any], space: SearchedSpace, seed: int, study_seed: int, n_trials: int
) -> BaseSampler:
    """Return the sampler of one trial, which draws with its own seed."""
    samplers = optuna.samplers
    # A study of a dozen trials would be random search if modelling began after Optuna's ten.
    startup = min(max(n_trials // 3, 4), 10)

    def built(maker: type[BaseSampler], **defaults: Any) -> BaseSampler:
        made: BaseSampler = _built("sampler", name, maker, options, {"seed": seed, **defaults})
        return made

    match name:
        case "tpe":
            return built(samplers.TPESampler, n_startup_trials=startup, multivariate=True, group=True)
        case "gp":
            inner = built(samplers.GPSampler, n_startup_trials=startup, warn_independent_sampling=False)
            return OptunaOverAll(inner, space, seed)
        case "nsga2" | "nsga3":
            maker = samplers.NSGAIISampler if name == "nsga2" else samplers.NSGAIIISampler
            # Optuna's generations of 50 would leave a study of a few dozen trials in the first, which is random.
            return OptunaOverAll(built(maker, population_size=min(max(n_trials // 5, 4), 50)), space, seed)
        case "cmaes":
            return built(EvolutionSampler, space=space)
        case "qmc":
            return built(EvenSampler, space=space, study_seed=study_seed)
        case "promise":
            from workbench.study.set_up.proposing import ProposingSampler

            return built(ProposingSampler, space=space)
        case "random":
            return built(samplers.RandomSampler)
    raise ValueError(f"the sampler {name!r} has no case here")


def make_pruner(name: str, options: Mapping[str, Any], *, budget_steps: int) -> BasePruner:
    """Build a pruner, one of `PRUNERS`; it sees metric deficits, so smaller is better whatever the metric.

    The median waits for four finished trials and half the budget: boosted runs often begin slowly and catch up.
    """
    _check_name("pruner", PRUNERS, name)
    defaults: dict[str, Any] = {"max_resource": budget_steps} if name == "hyperband" else {}
    if name in {"median", "percentile"}:
        defaults = {"n_startup_trials": 4, "n_warmup_steps": budget_steps // 2}
    pruner: BasePruner = _built("pruner", name, PRUNERS[name], options, defaults)
    return pruner


def _built(section: str, name: str, maker: type[Any], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    ours = {"self", "seed", "study_seed", "space", "args", "kwargs"}
    known = {one: kind for one, kind in inspect.signature(maker).parameters.items() if one not in ours}
    _check_options(section, name, options, known)
    for option, value in options.items():
        _check_kind(f"{section}.{option}", value, known[option].annotation)
    merged = {**defaults, **options}
    if merged.get("group") and not merged.get("multivariate"):
        merged["group"] = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return maker(**merged)
    except (TypeError, ValueError) as error:
        raise StudyError(f'the options of the {section} "{name}" are refused: {error}') from None


def _check_kind(option: str, value: Any, annotation: Any) -> None:
    """Refuse a value that is not of the kind its maker's annotation names, before Optuna falls over it in a trial.

    A function, or another part of a sampler, is not a kind that a file can hold.
    """
    words = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    named = [word.partition("[")[0] for word in words.split(" | ")]
    kinds = {rule: kind for word, (rule, kind) in _KINDS.items() if word in named}
    if not kinds:
        raise StudyError(f"`{option}` cannot be set in a file, so it must be left out")
    if type(value) not in set().union(*kinds.values()):
        raise StudyError(f"`{option}` must be {' or '.join(kinds)}, got {shown(value)}")
    low, high = _RANGES.get(option.partition(".")[2], (-math.inf, math.inf))
    if type(value) in {int, float} and not low <= value <= high:
        rule = f"be at least {low:g}" if high == math.inf else f"lie in [{low:g}, {high:g}]"
        raise StudyError(f"`{option}` must {rule}, got {shown(value)}")


def _check_reference_points(rows: Sequence[Any], width: int) -> None:
    if not (
        rows and all(isinstance(row, list) and len(row) == width and {*map(type, row)} <= {int, float} for row in rows)
    ):
        raise StudyError(
            f"`sampler.reference_points` must be rows of numbers, {width} each as the study has objectives, "
            f"got {shown(rows)}"
        )


def _check_name(section: str, known: Collection[str], name: str) -> None:
    if name not in known:
        names = ", ".join(f'"{one}"' for one in known)
        raise StudyError(f"`{section}.name` must be one of {names}, got {shown(name)}{did_you_mean(name, known)}")


def _check_options(section: str, name: str, options: Mapping[str, Any], known: Collection[str]) -> None:
    for option in options:
        if option not in known:
            hint = did_you_mean(option, known)
            raise StudyError(f'`{cut(f"{section}.{option}")}` is not an option of the {section} "{name}"{hint}')


class PerTrialSampler(BaseSampler):
    """Passes every call on to a sampler that ``make`` makes afresh for every trial, seeded by the trial's number.

    A study that was interrupted draws what it would have drawn anyway, and two processes never draw the same, since no
    number is given twice. What a sampler must remember beyond one trial has to be in the storage.
    """

    def __init__(
        self,
        make: Callable[[int], BaseSampler],
        seed: int,
        is_exhausted: Callable[[optuna.Study], bool] = lambda _: False,
    ) -> None:
        self._make, self._seed = make, seed
        self.is_exhausted = is_exhausted  # whether nothing is left to draw in a study
        self._inner: dict[int, BaseSampler] = {}  # by trial number: a driver may run several trials

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Make the trial's sampler; a new one where the trial is run again."""
        self._inner.pop(trial.number, None)
        self._of(trial).before_trial(study, trial)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """See `BaseSampler`."""
        return self._of(trial).infer_relative_search_space(study, trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: Any) -> dict[str, Any]:
        """See `BaseSampler`."""
        return self._of(trial).sample_relative(study, trial, search_space)

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, *asked: Any) -> Any:
        """See `BaseSampler`."""
        return self._of(trial).sample_independent(study, trial, *asked)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, *ended: Any) -> None:
        """Let the trial's sampler go, where it was drawn in this process."""
        inner = self._inner.pop(trial.number, None)
        if inner is not None:
            inner.after_trial(study, trial, *ended)

    def _of(self, trial: FrozenTrial) -> BaseSampler:
        if trial.number not in self._inner:
            seed = int(np.random.SeedSequence([self._seed, trial.number]).generate_state(1)[0])
            self._inner[trial.number] = self._make(seed)
        return self._inner[trial.number]
