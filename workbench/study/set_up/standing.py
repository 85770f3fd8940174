"""How a search for the fastest set-up stands: what was tried, what of it keeps the quality, and which plan leads.

Everything is read from the study's trials, so several processes see the same, and an interrupted search goes on where
it was.

A plan is compared with the baseline on the same seeds, but few seeds have few baseline runs, and all plans would share
their luck. So a plan's loss on a seed is corrected for the baseline's luck there, as far as plans do not share it: the
control variate of the plans that have several seeds (Lavenberg and Welch, "A Perspective on the Use of Control
Variables to Increase the Efficiency of Monte Carlo Simulations", Management Science 27, 1981).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from workbench.study.ask.search_space import Dimension
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.job import Trained
from workbench.study.set_up.quality import WORST, QualityModel, Tried, noise_of
from workbench.study.store.storage import BASELINE_RUN
from workbench.study.store.stored_records import allowed_drop_of

FURTHER = "further_runs"  # attribute of a study: deficits of leaders on further seeds
SEEDS = "seeds"  # attribute of a trial: the indices of its seeds, in the order of its deficits
MOST_SEEDS = "most_seeds"  # attribute of a trial: on how many seeds it is trained at most; else the study's own number

SURE = 0.9  # a plan leads only if it keeps the quality with at least this probability
LIKELY = 0.5  # where nothing is that sure, what more probably keeps it than not is tested
BOLD = 0.3  # a faster one is tested after it only if it does with at least this one
# How far below the allowed drop the search aims, in standard errors of the confirmation. A plan there is confirmed four
# times in five; with 2.0 it was three times in five, and one quickstart in three ended undecided.
_MARGIN = 2.6
_FEWEST_SEEDS = 2  # nor does a plan lead by a single run
_OWN_LUCK = 4  # pairs of runs that count for a seed's luck being the baseline's own

Run = tuple[int, float]  # index of a seed, and the deficit on it


class TrainedPlan(NamedTuple):
    """A trial's plan and what came of it, so far where the trial still runs."""

    number: int  # of the trial
    values: Mapping[str, Any]  # drawn, by config path
    runs: Sequence[Run]
    time: float  # in all, relative to the baseline's


# The latest standings: drawing, training and watching ask for the same, of all plans and of tuned plain alone.
_JUDGED: deque[tuple[Hashable, Standing]] = deque(maxlen=6)


@dataclass(frozen=True)
class Standing:
    """The trials of a search, judged together, by their numbers."""

    tried: Mapping[int, Tried]  # plans that were trained
    times: Mapping[int, float]  # their total time relative to the baseline's
    sure: Mapping[int, float]  # their probability of keeping the quality
    model: QualityModel  # the regression behind it
    noise: float  # standard deviation of one run's deficit

    @property
    def ranking(self) -> list[int]:
        """Numbers of the trials that may lead, fastest first: faster than the baseline, and sure enough."""
        known = [number for number, one in self.tried.items() if len(one.deficits) >= _FEWEST_SEEDS]
        able = [number for number in known if self.times[number] < 1.0 and self.sure[number] >= SURE]
        return sorted(able, key=self.times.__getitem__)

    @property
    def leader(self) -> int | None:
        """Number of the trial that leads; None while none does."""
        return next(iter(self.ranking), None)

    @property
    def best_time(self) -> float:
        """The leader's total time relative to the baseline's; 1 while nothing leads."""
        return 1.0 if self.leader is None else self.times[self.leader]


def standing_of(
    trials: Sequence[FrozenTrial],
    dimensions: Sequence[Dimension],
    allowed: float,
    n_confirming: int,
    attributes: Mapping[str, Any],
    also: TrainedPlan | None = None,
    margin: float = _MARGIN,
) -> Standing:
    """Judge the trials of a search that were trained to the end, and one that still runs.

    A plan whose drop comes close to the allowed one cannot be confirmed with the seeds that a confirmation takes, so
    the search aims lower, by a number of its standard errors. ``attributes`` are the study's.
    """
    plans = {plan.number: plan for plan in _trained_plans(trials, attributes)}
    if also is not None:
        plans[also.number] = also
    luck = _luck(attributes)
    spread = float(np.std(list(luck.values()), ddof=1))
    expected = math.sqrt(2.0) * spread or allowed
    worst = WORST * max(expected, allowed)  # what is worse has failed, as a run that diverged
    runs = {n: [(at, lost if lost <= worst else math.inf) for at, lost in one.runs] for n, one in plans.items()}
    share = _own_luck(list(runs.values()), luck, spread)
    pairs, tried = dict[int, Tried](), dict[int, Tried]()
    for number, row in runs.items():
        values = plans[number].values
        pairs[number] = Tried(values, tuple(deficit for _, deficit in row))
        tried[number] = Tried(values, tuple(deficit - share * luck.get(index, 0.0) for index, deficit in row))
    times = {number: plan.time for number, plan in plans.items()}
    noise = noise_of(list(tried.values()), expected, allowed)
    error = noise_of(list(pairs.values()), expected, allowed) / math.sqrt(n_confirming)
    shared = share * spread / math.sqrt(max(len(luck), 1))
    deficits = tuple(one.deficits for one in tried.values())
    asked = (repr(dimensions), allowed, margin * error, noise, shared, tuple(times.items()), deficits)
    for known, standing in tuple(_JUDGED):  # as it is now: another thread may judge meanwhile
        if known == asked:
            return standing
    aim = allowed - margin * error
    # Where seeds differ by much, nothing may be that much better; then what keeps the quality leads, undecided or not.
    for limit in dict.fromkeys((aim, max(aim, -allowed))):
        model = QualityModel(dimensions, list(tried.values()), limit, noise, shared)
        sure = model.probability([one.values for one in tried.values()])
        standing = Standing(tried, times, dict(zip(tried, map(float, sure), strict=True)), model, noise)
        if standing.leader is not None:
            break
    _JUDGED.append((asked, standing))
    return standing


def _trained_plans(trials: Sequence[FrozenTrial], attributes: Mapping[str, Any]) -> Iterator[TrainedPlan]:
    """Yield the plans that were trained to the end, with their runs on further seeds; the baseline is none of them."""
    further = further_of(attributes)
    for trial in trials:
        own = trial.user_attrs
        if trial.state == TrialState.COMPLETE and "deficits" in own and not own.get("baseline"):
            seen = zip(own[SEEDS], map(_deficit, own["deficits"]), strict=True)
            runs = [*seen, *further.get(trial.number, ())]
            yield TrainedPlan(trial.number, own["parameters"], runs, float(own["speed"]["ratio"]))


def _luck(attributes: Mapping[str, Any]) -> dict[int, float]:
    """Return by how much the baseline ends better on a seed than on average, by the seed's index."""
    metrics = {index: metric for index, metric in baseline_metrics(attributes).items() if math.isfinite(metric)}
    sign = 1.0 if attributes.get("higher_is_better", True) else -1.0
    mean = math.fsum(metrics.values()) / len(metrics)
    return {index: sign * (metric - mean) for index, metric in metrics.items()}


def _own_luck(rows: Sequence[Sequence[Run]], luck: Mapping[int, float], spread: float) -> float:
    """Return the share of the baseline's luck on a seed that plans do not share, from those with several seeds."""
    square = product = _OWN_LUCK * spread**2
    for row in rows:
        known = np.array([(luck[index], deficit) for index, deficit in row if index in luck and math.isfinite(deficit)])
        if len(known) > 1:
            at, lost = (known - known.mean(axis=0)).T
            square += float(at @ at)
            product += float(at @ lost)
    return min(max(product / square, 0.0), 1.0) if square > 0.0 else 0.0


def standing_now(
    study: optuna.Study, file: StudyFile, allowed: float | None = None, also: TrainedPlan | None = None
) -> Standing:
    """Return how a study with a finished baseline stands, at the target's allowed drop or another one."""
    attributes, n_confirming = study.user_attrs, file.confirm.usual_seeds
    allowed = allowed_drop_of(attributes) if allowed is None else allowed
    return standing_of(study.get_trials(deepcopy=False), file.dimensions, allowed, n_confirming, attributes, also)


# What is read from the attributes of a study, and of a trial


def baseline_metrics(attributes: Mapping[str, Any]) -> dict[int, float]:
    """Return the baseline's final metric by the seed's index; NaN where it diverged."""
    return {index: run.metric for index, run in baseline_runs(attributes).items()}


def baseline_runs(attributes: Mapping[str, Any]) -> dict[int, Trained]:
    """Return the baseline's runs by the seed's index."""
    stored = {name: run for name, run in attributes.items() if name.startswith(BASELINE_RUN) and run is not None}
    runs = {int(name.removeprefix(BASELINE_RUN)): Trained.from_json(run) for name, run in stored.items()}
    return dict(sorted(runs.items()))  # a database may give attributes in any order, and sums depend on it


def without_reference(attributes: Mapping[str, Any]) -> set[int]:
    """Return the indices of the seeds on which the baseline diverged, so that no plan is compared there."""
    return {index for index, metric in baseline_metrics(attributes).items() if not math.isfinite(metric)}


def further_of(attributes: Mapping[str, Any]) -> dict[int, list[Run]]:
    """Return the runs of leaders on further seeds, by the number of the trial."""
    stored = attributes.get(FURTHER, {})
    return {int(number): [(int(index), _deficit(one)) for index, one in row] for number, row in stored.items()}


def _deficit(stored: float | None) -> float:
    """Return a deficit, of which inf (it diverged) is stored as None."""
    return math.inf if stored is None else float(stored)
