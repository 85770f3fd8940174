"""Samplers and pruners by name, with their options checked before anything runs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler

from workbench.config.errors import did_you_mean
from workbench.tuning.errors import StudyError

__all__ = ["PRUNERS", "SAMPLERS", "make_pruner", "make_sampler"]

SAMPLERS: dict[str, type[BaseSampler]] = {
    "tpe": optuna.samplers.TPESampler,
    "random": optuna.samplers.RandomSampler,
    "gp": optuna.samplers.GPSampler,
    "nsga2": optuna.samplers.NSGAIISampler,
    "qmc": optuna.samplers.QMCSampler,
}
"""Samplers that need nothing beyond our dependencies."""

PRUNERS: dict[str, type[BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "percentile": optuna.pruners.PercentilePruner,
    "successive_halving": optuna.pruners.SuccessiveHalvingPruner,
    "hyperband": optuna.pruners.HyperbandPruner,
    "threshold": optuna.pruners.ThresholdPruner,
    "none": optuna.pruners.NopPruner,
}


def make_sampler(name: str, options: Mapping[str, Any], *, seed: int, n_trials: int) -> BaseSampler:
    """Build a sampler.

    TPE starts modelling after a third of the trials (4 to 10), because a study of a dozen trials would otherwise be
    random search, and models conditional parameters in groups.

    Args:
        name: One of `SAMPLERS`.
        options: Options of the Optuna class.
        seed: Seed of its draws; QMC alone needs the same one in every process to walk one sequence.
        n_trials: Trials of the whole study.

    Raises:
        StudyError: When the name or an option is unknown or an option's value is refused.
    """
    defaults: dict[str, Any] = {"seed": seed}
    if name == "tpe":
        defaults |= {"n_startup_trials": min(max(n_trials // 3, 4), 10), "multivariate": True, "group": True}
    if name == "qmc":
        defaults |= {"warn_independent_sampling": False, "warn_asynchronous_seeding": False}
    return _built("sampler", SAMPLERS, name, options, defaults)  # type: ignore[no-any-return]  # built from a table


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
    return _built("pruner", PRUNERS, name, options, defaults)  # type: ignore[no-any-return]  # built from a table


def _built(
    section: str, table: Mapping[str, type[Any]], name: str, options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> Any:
    if name not in table:
        hint = did_you_mean(name, table)
        known = ", ".join(f'"{key}"' for key in table)
        raise StudyError(f'`{section}.name` must be one of {known}, got "{name}"{hint}')
    maker = table[name]
    known_options = [
        option for option in inspect.signature(maker).parameters if option not in {"self", "seed", "args", "kwargs"}
    ]
    for option in options:
        if option not in known_options:
            hint = did_you_mean(option, known_options)
            raise StudyError(f'`{section}.{option}` is no option of the {section} "{name}"{hint}')
    merged = {**defaults, **options}
    if merged.get("group") and not merged.get("multivariate"):
        merged["group"] = False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return maker(**merged)
    except (TypeError, ValueError) as error:
        raise StudyError(f'the options of the {section} "{name}" are refused: {error}') from None
