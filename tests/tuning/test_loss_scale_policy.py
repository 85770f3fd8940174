"""A policy is chosen by what replay predicts: few skipped updates, little underflow."""

from __future__ import annotations

import math
from dataclasses import replace

from workbench.study.answer.loss_scale_policy import choose_policy, policies_of
from workbench.study.ask.sections import LossScaleReplaySection
from workbench.study.run.job import PolicyOutcome

GOOD = PolicyOutcome(2.0**12, 2.0, 100, 1.0, 0.0, 2.0, 0.02, 0.001, 4096.0)


def test_fewest_wasted_steps_win_when_underflow_is_allowed() -> None:
    better = replace(GOOD, init=2.0**10, wasted_share=0.01)
    assert choose_policy([GOOD, better], 0.01) == better


def test_a_scale_that_lets_too_much_underflow_does_not_win_by_wasting_nothing() -> None:
    tiny = replace(GOOD, init=1.0, wasted_share=0.0, overflows_high=0.0, underflow_share=0.5)
    assert choose_policy([GOOD, tiny], 0.01) == GOOD


def test_when_all_underflow_too_much_the_least_wins() -> None:
    worse = replace(GOOD, underflow_share=0.4, wasted_share=0.0)
    least = replace(GOOD, underflow_share=0.2)
    assert choose_policy([worse, least], 0.01) == least


def test_among_equals_the_safer_the_longer_and_the_larger() -> None:
    risky = replace(GOOD, overflows_high=5.0, init=2.0**16)
    short = replace(GOOD, window=10, init=2.0**14)
    low = replace(GOOD, init=2.0**8)
    assert choose_policy([risky, short, low, GOOD], 0.01) == GOOD


def test_unrecorded_underflow_excludes_nobody() -> None:
    unknown = replace(GOOD, underflow_share=math.nan, wasted_share=0.0)
    assert choose_policy([replace(unknown, wasted_share=0.5), unknown], 0.0) == unknown


def test_every_combination_is_judged_once() -> None:
    section = LossScaleReplaySection(init_choices=[1.0, 2.0], factor_choices=[2.0], window_choices=[10, 20, 30])
    policies = policies_of(section)
    assert len(policies) == 6
    assert {"init": 2.0, "factor": 2.0, "window": 30} in policies
