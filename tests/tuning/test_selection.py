"""Who competes for an export, who wins it, and what a loss-scale policy may touch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, TrialRecord, Verdict
from workbench.study.answer.not_exported import nothing_found
from workbench.study.answer.selection import competing_trials, select, with_policy
from workbench.study.ask.study_file import StudyFile, parse_study

CURVE = ((50, 0.8), (100, 0.9))
O0 = BoostConfig.from_dict({"boost": {"mode": "disable_all"}})


def trial(number: int, freeze_p: float = 0.5, **values: Any) -> TrialRecord:
    config = BoostConfig.from_dict(
        {"boost": {"mode": "manual", "less_bn": False, "grad_freeze": True}, "grad_freeze": {"freeze_p": freeze_p}}
    )
    known = {
        "state": "complete",
        "level": "O1",
        "config": config.to_dict(),
        "metric": 0.9,
        "metric_deficit": 0.0,
        "relative_step_time": 0.8,
        "curve": CURVE,
    }
    return TrialRecord(number, **{**known, **values})


BASELINE = trial(0, level="O0", config=O0.to_dict(), relative_step_time=1.0)


def asked(objective: str, ranks: int = 1) -> StudyFile:
    study = 'task = "t"\nbudget_steps = 100\nn_trials = 5'
    return parse_study(f'[study]\n{study}\nobjective = "{objective}"\nranks = {ranks}\n')


def told_of(*trials: TrialRecord, objective: str = "time_to_target") -> str:
    return nothing_found([BASELINE, *trials], 0.02, "accuracy", asked(objective))


def numbers(*trials: TrialRecord, target: str = "o1", objective: str = "speed", ranks: int = 1) -> list[int]:
    ranked = competing_trials(
        [BASELINE, *trials], BASELINE, target, 0.02, asked(objective, ranks), higher_is_better=True
    )
    return [one.number for one in ranked]


def test_the_fastest_within_the_allowed_drop_comes_first() -> None:
    slow, fast = trial(1, 0.6, relative_step_time=0.9), trial(2, 0.4, relative_step_time=0.7)
    harmful = trial(3, 0.1, relative_step_time=0.4, metric_deficit=0.03)
    assert numbers(slow, fast, harmful) == [2, 1]


def test_slower_than_o0_pruned_diverged_and_equal_plans_do_not_compete() -> None:
    assert numbers(trial(1, relative_step_time=1.1)) == []
    assert numbers(trial(1, state="pruned")) == []
    assert numbers(trial(1, metric=math.nan, metric_deficit=math.nan)) == []
    assert numbers(trial(1, config=O0.to_dict(), relative_step_time=0.99)) == []  # noise of O0 itself
    assert numbers(trial(1), trial(2)) == [1]


def test_time_to_target_ranks_by_time_and_counts_from_this_export_s_target() -> None:
    quick_steps = trial(1, 0.6, relative_step_time=0.6, curve=((90, 0.85), (100, 0.9)))
    quick_learner = trial(2, 0.4, relative_step_time=0.9, curve=((20, 0.9), (100, 0.9)))
    assert numbers(quick_steps, quick_learner, objective="time_to_target") == [2, 1]
    assert numbers(quick_steps, quick_learner, objective="speed") == [1, 2]


ALONE, AUTO = {"mode": "manual", "less_bn": True, "grad_freeze": False}, {"mode": "auto"}


@pytest.mark.parametrize(
    ("level", "boost", "ranks", "competes"),
    [
        ("O2", ALONE, 4, [[], [1]]),
        ("O2", ALONE, 1, [[1], [1]]),
        ("O1", AUTO, 4, [[1], [1]]),
        ("O1", AUTO, 1, [[1], [1]]),
        ("O0", AUTO, 1, [[], []]),
    ],
    ids=["AdaSum", "no ranks for AdaSum", "without AdaSum", "automatic", "nothing in effect"],
)
def test_what_only_level_o2_does_competes_for_o2_alone(
    level: str, boost: dict[str, Any], ranks: int, competes: list[list[int]]
) -> None:
    # What O2 adds needs several servers: on one process the mode "auto" asks for it, and it is not in effect.
    config = BoostConfig.from_dict({"boost": boost, "common": {"device_number": 2}})
    one = trial(1, level=level, config=config.to_dict())
    assert [numbers(one, target=target, ranks=ranks) for target in ("o1", "o2")] == competes


def test_a_warm_up_is_part_of_the_time_to_target() -> None:
    quick, late = trial(1, 0.6, warm_up_steps=30), trial(2, 0.4, relative_step_time=0.9)
    assert numbers(quick, late, objective="time_to_target") == [2]  # 0.8 * 90 + 30 is more than O0's 90
    assert numbers(replace(quick, warm_up_steps=5), late, objective="time_to_target") == [1, 2]


def candidate(number: int, verdict: Verdict, speedup: float = 1.2, **values: Any) -> CandidateRecord:
    known = {"speedup_low": speedup - 0.1, "drop": 0.0, "sentence": f"Sentence {number}.", "n_seeds": 5}
    known |= values
    return CandidateRecord(
        label=f"trial {number}",
        trial_number=number,
        target="o1",
        summary="LessBN",
        config={},
        speedup=speedup,
        speedup_high=speedup + 0.1,
        drop_bound=0.0,
        allowed_drop=0.02,
        verdict=verdict,
        **known,
    )


def test_what_is_confirmed_over_seeds_decides_and_not_the_search() -> None:
    first_in_the_search = candidate(1, Verdict.CONFIRMED, 1.1)
    better = candidate(16, Verdict.CONFIRMED, 1.2)
    choice = select("o1", [first_in_the_search, better])
    assert choice.candidate is better
    assert choice.sentence == "trial 16: LessBN. Sentence 16."
    assert choice.others == ("not trial 1: LessBN. Also confirmed, but 1.10 x against 1.20 x.",)


def test_confirmed_comes_before_undecided_and_refuted_never() -> None:
    refuted, open_, confirmed = (
        candidate(1, Verdict.REFUTED, 2.0),
        candidate(2, Verdict.UNDECIDED, 1.5),
        candidate(3, Verdict.CONFIRMED, 1.2),
    )
    assert select("o1", [refuted, open_, confirmed]).candidate is confirmed
    assert select("o1", [refuted, open_]).candidate is open_
    assert select("o1", [refuted, open_], require_confirmed=True).candidate is None
    assert select("o1", [refuted]).sentence == "O0 is exported: the only candidate was refuted."
    assert select("o2", [confirmed]).candidate is None  # it competes for another export


def test_an_interval_that_holds_one_is_no_gain_and_a_mean_beyond_the_drop_is_none_either() -> None:
    unclear = candidate(1, Verdict.UNDECIDED, 1.03, speedup_low=0.94)
    worse = candidate(2, Verdict.UNDECIDED, 1.3, drop=0.03)
    untested = candidate(3, Verdict.UNDECIDED, 1.1, speedup_low=1.05, drop=math.nan, n_seeds=0)
    choice = select("o1", [unclear, worse])
    assert choice.candidate is None
    assert choice.label == "O0"
    assert choice.sentence.endswith("no candidate is clearly faster than O0 without losing more than is allowed.")
    assert len(choice.others) == 2
    assert select("o1", [unclear, worse, untested]).candidate is None  # others were tested, and it was not
    assert select("o1", [untested]).candidate is untested


def test_nothing_found_says_what_was_tried_what_came_nearest_and_what_would_help() -> None:
    slow = trial(1, relative_step_time=0.98, summary="LessBN")
    harmful = trial(2, 0.4, relative_step_time=0.5, metric_deficit=0.03, summary="freezing")
    told = told_of(slow, harmful)
    told_first = "no set-up was faster than O0 within the allowed accuracy drop of 2 points; 2 set-ups were tried; "
    assert told.startswith(told_first)
    assert "of 1 within the drop the fastest, trial 1 (LessBN), is 1.02 x O0 per step, but reaches the target" in told
    assert "the nearest beyond it, trial 2 (freezing), is 2.00 x per step and loses 3 points" in told
    waits = told_of(trial(1, relative_step_time=0.2), objective="time_to_quality")
    assert waits.startswith("no set-up has been confirmed yet to be faster than O0 within the allowed accuracy drop")
    assert "another space" not in told_of(slow)
    assert "another space" in told_of(trial(1, relative_step_time=1.1))
    pruned = trial(1, state="pruned", relative_step_time=0.5)
    assert "given up early" in told_of(pruned)
    assert told_of().startswith("no other set-up has been tried")
    assert select("o1", [], nothing=told).sentence == f"O0 is exported: {told}."


def test_runs_within_the_drop_that_are_not_sure_to_keep_it_are_not_passed_over() -> None:
    unsure = trial(1, relative_step_time=0.4, metric_deficit=0.01, chance=0.4)
    harmful = trial(2, 0.4, relative_step_time=0.5, metric_deficit=0.03)
    told = told_of(unsure, harmful, objective="time_to_quality")
    assert told.startswith("no set-up was faster than O0 and surely within the allowed accuracy drop of 2 points; ")
    assert "nearest beyond" not in told


def test_a_policy_fills_in_only_what_was_not_searched_and_changes_no_float32_plan() -> None:
    policy = {"init": 1024.0, "factor": 4.0, "window": 50}
    config = with_policy(O0, policy, ["loss_scale.window"])
    assert (config.loss_scale.init, config.loss_scale.factor) == (1024.0, 4.0)
    assert config.loss_scale.window == O0.loss_scale.window
    assert config.resolve("O1").key() == O0.resolve("O1").key()
    assert with_policy(O0, None, []) is O0
