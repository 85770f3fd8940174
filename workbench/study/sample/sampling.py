"""Samplers and pruners by name, with their options checked before anything runs.

A study's space is conditional, mixed and noisy. TPE models it in groups of parameters that occur together. Optuna's GP
and genetic samplers see it whole (``whole_space.py``); CMA-ES (``evolution.py``), the even sequences
(``even_points.py``) and the grids (``grid.py``) are made for such spaces here.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from workbench.config.errors import did_you_mean
from workbench.study.errors import StudyError
from workbench.study.sample.even_points import EvenSampler
from workbench.study.sample.evolution import EvolutionSampler
from workbench.study.sample.grid import GridSampler, check_finite, grid_points
from workbench.study.sample.per_trial_sampler import PerTrialSampler
from workbench.study.sample.whole_space import SearchedSpace, WholeSpaceSampler

__all__ = ["PRUNERS", "SAMPLERS", "check_sampler", "make_pruner", "make_sampler"]

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
    """Build the sampler of a study.

    Args:
        name: One of `SAMPLERS`.
        options: Options of the class behind it.
        space: What is searched.
        seed: Seed of the study; each trial draws with one of its own.
        n_trials: Trials of the whole study.
        objective: What is minimised.

    Raises:
        StudyError: When the name or an option is unknown, an option's value is refused, or the sampler does not fit
            the space or the objective.
    """
    check_sampler(name, options, space=space, n_trials=n_trials, objective=objective)
    if name in _GRIDS:
        grid = grid_points(space, options.get("points"))
        whole = GridSampler(space, grid, seed=seed, study_seed=seed)
        return PerTrialSampler(
            lambda drawn: GridSampler(space, grid, seed=drawn, study_seed=seed),
            seed,
            lambda study: not whole.missing(study),
        )
    return PerTrialSampler(
        lambda drawn: SAMPLERS[name](options, space=space, seed=drawn, study_seed=seed, n_trials=n_trials), seed
    )


def check_sampler(
    name: str, options: Mapping[str, Any], *, space: SearchedSpace, n_trials: int, objective: str = "time_to_target"
) -> None:
    """Check a sampler without drawing: `make_sampler` says what the arguments and the errors are."""
    if name not in SAMPLERS:
        raise _unknown("sampler", SAMPLERS, name)
    SAMPLERS[name](options, space=space, seed=0, study_seed=0, n_trials=n_trials)
    if name in _GRIDS:
        check_finite(space.dimensions, options.get("points"))
    if name == "promise" and objective != "time_to_quality":
        raise StudyError(
            f'`sampler.name` "promise" knows the time of a plan beforehand, which the objective "{objective}" does not '
            'let it; take "tpe", or the objective "time_to_quality"'
        )
    if name == "cmaes" and objective == "pareto":
        raise StudyError(
            '`sampler.name` "cmaes" minimises one number, but the objective "pareto" has two; take "tpe", "gp", '
            '"nsga2" or "nsga3"'
        )
    if name == "cmaes" and not space.numbers:
        raise StudyError('`sampler.name` "cmaes" needs a range in [space], and there are only lists; take "tpe"')


def _tpe(options: Mapping[str, Any], *, seed: int, n_trials: int, **_: Any) -> BaseSampler:
    # A study of a dozen trials would be random search if modelling began after Optuna's ten.
    defaults = {"seed": seed, "n_startup_trials": _startup(n_trials), "multivariate": True, "group": True}
    return _built("sampler", "tpe", optuna.samplers.TPESampler, options, defaults)  # type: ignore[no-any-return]


def _random(options: Mapping[str, Any], *, seed: int, **_: Any) -> BaseSampler:
    return _built("sampler", "random", optuna.samplers.RandomSampler, options, {"seed": seed})  # type: ignore[no-any-return]


def _gp(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, n_trials: int, **_: Any) -> BaseSampler:
    defaults = {"seed": seed, "n_startup_trials": _startup(n_trials), "warn_independent_sampling": False}
    return WholeSpaceSampler(_built("sampler", "gp", optuna.samplers.GPSampler, options, defaults), space, seed)


def _genetic(name: str, maker: type[BaseSampler]) -> Callable[..., BaseSampler]:
    def make(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, n_trials: int, **_: Any) -> BaseSampler:
        # Optuna's generations of 50 would leave a study of a few dozen trials in the first, which is random.
        defaults = {"seed": seed, "population_size": min(max(n_trials // 5, 4), 50)}
        return WholeSpaceSampler(_built("sampler", name, maker, options, defaults), space, seed)

    return make


def _cmaes(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, **_: Any) -> BaseSampler:
    return _built("sampler", "cmaes", EvolutionSampler, options, {"space": space, "seed": seed})  # type: ignore[no-any-return]


def _qmc(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, study_seed: int, **_: Any) -> BaseSampler:
    given = {"space": space, "seed": seed, "study_seed": study_seed}
    return _built("sampler", "qmc", EvenSampler, options, given)  # type: ignore[no-any-return]


def _grid(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, study_seed: int, **_: Any) -> BaseSampler:
    _known_options("sampler", "grid", options, ["points"])
    points = options.get("points")
    if points is not None and (type(points) is not int or points < 1):
        raise StudyError(f"`sampler.points` must be a whole number, 1 or more, got {points!r}")
    return GridSampler(space, (), seed=seed, study_seed=study_seed)


def _brute_force(
    options: Mapping[str, Any], *, space: SearchedSpace, seed: int, study_seed: int, **_: Any
) -> BaseSampler:
    _known_options("sampler", "brute_force", options, [])
    return GridSampler(space, (), seed=seed, study_seed=study_seed)


def _promise(options: Mapping[str, Any], *, space: SearchedSpace, seed: int, **_: Any) -> BaseSampler:
    from workbench.study.set_up.proposing import ProposingSampler

    _known_options("sampler", "promise", options, [])
    return ProposingSampler(space, seed)


SAMPLERS: dict[str, Callable[..., BaseSampler]] = {
    "tpe": _tpe,
    "random": _random,
    "gp": _gp,
    "nsga2": _genetic("nsga2", optuna.samplers.NSGAIISampler),
    "nsga3": _genetic("nsga3", optuna.samplers.NSGAIIISampler),
    "cmaes": _cmaes,
    "qmc": _qmc,
    "grid": _grid,
    "brute_force": _brute_force,
    "promise": _promise,
}
"""Name -> what makes the sampler of one trial.

``grid`` walks through lists, steps and (with ``points``) a few values of each range; ``brute_force`` through all there
is, and takes no range that has no end of values.
"""

_GRIDS = frozenset({"grid", "brute_force"})


def _startup(n_trials: int) -> int:
    """Return how many trials are drawn at random before a model is made: a third of them, 4 to 10."""
    return min(max(n_trials // 3, 4), 10)


def make_pruner(name: str, options: Mapping[str, Any], *, budget_steps: int) -> BasePruner:
    """Build a pruner; it sees metric deficits, so smaller is better whatever the metric.

    The median waits for four finished trials and half the budget: boosted runs often begin slowly and catch up.

    Args:
        name: One of `PRUNERS`.
        options: Options of the Optuna class.
        budget_steps: Micro-batches of one trial.

    Raises:
        StudyError: When the name or an option is unknown or an option's value is refused.
    """
    defaults: dict[str, Any] = {}
    if name in {"median", "percentile"}:
        defaults = {"n_startup_trials": 4, "n_warmup_steps": budget_steps // 2}
    if name == "hyperband":
        defaults = {"max_resource": budget_steps}
    if name not in PRUNERS:
        raise _unknown("pruner", PRUNERS, name)
    return _built("pruner", name, PRUNERS[name], options, defaults)  # type: ignore[no-any-return]  # from a table


def _unknown(section: str, table: Mapping[str, Any], name: str) -> StudyError:
    known = ", ".join(f'"{key}"' for key in table)
    return StudyError(f'`{section}.name` must be one of {known}, got "{name}"{did_you_mean(name, table)}')


def _built(section: str, name: str, maker: type[Any], options: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    ours = {"self", "seed", "study_seed", "space", "args", "kwargs"}
    _known_options(section, name, options, [one for one in inspect.signature(maker).parameters if one not in ours])
    merged = {**defaults, **options}
    if merged.get("group") and not merged.get("multivariate"):
        merged["group"] = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return maker(**merged)
    except (TypeError, ValueError) as error:
        raise StudyError(f'the options of the {section} "{name}" are refused: {error}') from None


def _known_options(section: str, name: str, options: Mapping[str, Any], known: list[str]) -> None:
    for option in options:
        if option not in known:
            raise StudyError(
                f'`{section}.{option}` is no option of the {section} "{name}"{did_you_mean(option, known)}'
            )
