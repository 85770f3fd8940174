"""What a search believes of its plans: luck that seeds bring to the baseline is not counted as a plan's gain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial, TrialState, create_trial

from workbench.study.ask.space_table import read_space
from workbench.study.run.job import Trained
from workbench.study.set_up.standing import FURTHER, SEEDS, Standing, standing_of
from workbench.study.store.storage import BASELINE_RUN

LENGTH = "schedule.length"
DIMENSIONS = read_space({LENGTH: {"low": 0.1, "high": 1.0, "log": True}})
ALLOWED, N_CONFIRMING, N_BASELINE = 0.01, 20, 8
SPREAD = 0.006


def baseline_trial() -> FrozenTrial:
    attributes = {"baseline": True, "spread": SPREAD, "run_seconds": [1.0] * N_BASELINE}
    return numbered(create_trial(state=TrialState.COMPLETE, value=1.0, user_attrs=attributes), 0)


def plan_trial(number: int, length: float, runs: Sequence[tuple[int, float]]) -> FrozenTrial:
    attributes = {
        "parameters": {LENGTH: length},
        SEEDS: [seed for seed, _ in runs],
        "deficits": [lost for _, lost in runs],
        "speed": {"ratio": length},
    }
    return numbered(create_trial(state=TrialState.COMPLETE, value=length, user_attrs=attributes), number)


def numbered(trial: FrozenTrial, number: int) -> FrozenTrial:
    trial.number = number
    return trial


def judged(trials: Sequence[FrozenTrial], baseline: dict[int, float], *, higher: bool = True, **more: Any) -> Standing:
    runs = {f"{BASELINE_RUN}{seed}": Trained(metric, (), 1.0).to_json() for seed, metric in baseline.items()}
    attributes = {**runs, "higher_is_better": higher, **more}
    return standing_of(trials, DIMENSIONS, ALLOWED, N_CONFIRMING, attributes)


@pytest.mark.parametrize("higher", [True, False])
def test_bad_luck_of_the_baseline_s_first_seeds_is_taken_off_once_further_ones_show_it(higher: bool) -> None:
    """Eight baseline runs end .004 too low, a plan on these seeds seems to lose nothing; eight further runs tell."""
    sign = 1.0 if higher else -1.0
    rng = np.random.default_rng(0)
    plan = [(seed, 0.002 + float(rng.normal(0.0, 0.003))) for seed in range(3)]
    trials = [baseline_trial(), plan_trial(1, 0.3, plan)]
    early = {seed: sign * (0.980 + 0.005 * (-1) ** seed) for seed in range(N_BASELINE)}
    late = early | {seed: sign * (0.988 + 0.005 * (-1) ** seed) for seed in range(N_BASELINE, 2 * N_BASELINE)}
    before = judged(trials, early, higher=higher)
    after = judged(trials, late, higher=higher)
    lost = [float(np.mean(one.tried[1].deficits)) for one in (before, after)]
    assert lost[1] - lost[0] == pytest.approx(0.004, abs=0.002)
    assert after.sure[1] < before.sure[1] - 0.1


def test_luck_that_a_plan_has_too_is_left_in_its_pairs() -> None:
    """Where a plan goes up and down with the baseline, its pairs are the best estimate, and its noise is theirs."""
    rng = np.random.default_rng(1)
    baseline = {seed: 0.98 + float(rng.normal(0.0, 0.02)) for seed in range(N_BASELINE)}
    trials = [baseline_trial()]
    for number in range(1, 7):
        runs = [(seed, 0.004 + float(rng.normal(0.0, 0.001))) for seed in range(4)]
        trials.append(plan_trial(number, 0.1 * number + 0.2, runs))
    standing = judged(trials, baseline)
    for one in standing.tried.values():
        assert one.deficits == pytest.approx([0.004] * 4, abs=0.006)
    assert standing.noise < 0.5 * 0.02, "half of what pairs without a common luck would have"


def test_luck_of_the_baseline_alone_makes_no_plan_better_than_its_likes() -> None:
    """Two plans as good as each other, one tried on a seed that was good to the baseline, one on a bad seed."""
    rng = np.random.default_rng(2)
    baseline = {seed: 0.98 + float(rng.normal(0.0, 0.01)) for seed in range(N_BASELINE)}
    trials = [baseline_trial()]
    for number in range(1, 9):  # their metrics do not depend on the seed
        seeds = [(number + step) % N_BASELINE for step in range(2)]
        trials.append(plan_trial(number, 0.1 * number, [(seed, baseline[seed] - 0.975) for seed in seeds]))
    standing = judged(trials, baseline)
    means = [float(np.mean(one.deficits)) for one in standing.tried.values()]
    paired = [float(np.mean(trial.user_attrs["deficits"])) for trial in trials[1:]]
    assert np.ptp(means) < 0.35 * np.ptp(paired)


def test_further_seeds_count_with_those_of_the_trial_and_one_that_diverged_is_lost() -> None:
    baseline = dict.fromkeys(range(N_BASELINE + 2), 0.98)
    trials = [baseline_trial(), plan_trial(1, 0.5, [(0, 0.001), (1, 0.002)])]
    standing = judged(trials, baseline, **{FURTHER: {"1": [[N_BASELINE, 0.003], [N_BASELINE + 1, None]]}})
    assert standing.tried[1].deficits == pytest.approx((0.001, 0.002, 0.003, math.inf))
    assert standing.leader is None


def test_plans_that_go_wrong_on_several_seeds_leave_the_leader_where_it_was() -> None:
    """As seen where parts of a leader were left out, and SGD at four times the batch ended at a loss of 4e8."""
    rng = np.random.default_rng(3)
    baseline = {seed: 0.98 + float(rng.normal(0.0, 0.006)) for seed in range(N_BASELINE)}
    leader = plan_trial(1, 0.4, [(seed, -0.008 + float(rng.normal(0.0, 0.003))) for seed in range(8)])
    wrong = [plan_trial(2, 0.9, [(0, 0.02), (1, 4e8), (2, 1.3e8)]), plan_trial(3, 0.95, [(0, 0.3), (1, 25_000.0)])]
    before = judged([baseline_trial(), leader], baseline)
    after = judged([baseline_trial(), leader, *wrong], baseline)
    assert before.leader == after.leader == 1
    assert after.noise == pytest.approx(before.noise, rel=0.2)
    assert after.sure[2] < 0.1
    assert after.sure[3] < 0.1


@pytest.mark.parametrize(("better", "leads"), [(0.3, 2), (0.07, 1)])
def test_where_runs_scatter_by_far_more_than_may_be_lost_what_can_be_confirmed_leads(better: float, leads: int) -> None:
    """Runs scatter by 0.1: twenty pairs leave a gain of 0.07 undecided. It leads where nothing better is known."""
    baseline = {seed: 0.5 + 0.01 * (-1) ** seed for seed in range(N_BASELINE)}
    trials = [baseline_trial()]
    for number, (length, gain) in enumerate([(0.3, 0.07), (0.6, better)], start=1):
        runs = [(seed, -gain + 0.1 * (-1) ** (seed // 2)) for seed in range(N_BASELINE)]
        trials.append(plan_trial(number, length, runs))
    assert judged(trials, baseline).leader == leads
