"""How much each parameter matters for the objective of a study."""

from __future__ import annotations

import math
import warnings

import optuna
from optuna.trial import TrialState

from workbench.study.ask.study_file import StudyFile

__all__ = ["parameter_importance"]

_FEWEST_PLANS = 5


def parameter_importance(study: optuna.Study, file: StudyFile) -> tuple[dict[str, float], str]:
    """Return how much each parameter matters, or nothing and a sentence why; of O0 alone there is nothing to say."""
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    n_plans = sum("repeats" not in trial.user_attrs for trial in complete)
    if n_plans < _FEWEST_PLANS:
        few = f"The importance of the parameters needs {_FEWEST_PLANS} plans that ran to their end."
        return {}, few if n_plans > 1 else ""
    target = None
    if len(study.directions) > 1:
        target = _relative_time
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = optuna.importance.get_param_importances(study, target=target)
    except (ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        return {}, f"The importance of the parameters cannot be told from so few trials ({reason})."
    settings = {dimension.path for dimension in file.dimensions if len(dimension.extremes) == 1}
    return {name: float(share) for name, share in found.items() if math.isfinite(share) and name not in settings}, ""


def _relative_time(trial: optuna.trial.FrozenTrial) -> float:
    return float(trial.values[-1])
