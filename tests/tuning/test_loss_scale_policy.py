"""A policy is chosen by what replay predicts: few skipped updates, little underflow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from workbench.study.answer.loss_scale_policy import choose_policy, policies_of
from workbench.study.ask.sections import LossScaleReplaySection
from workbench.study.run.job import PolicyOutcome

GOOD = PolicyOutcome(2.0**12, 2.0, 100, 1.0, 0.0, 2.0, 0.02, 0.001, 4096.0)
RISKY = replace(GOOD, overflows_high=5.0, init=2.0**16)
SHORT = replace(GOOD, window=10, init=2.0**14)
UNKNOWN = replace(GOOD, underflow_share=math.nan, wasted_share=0.0)


@pytest.mark.parametrize(
    ("others", "best", "most_underflow"),
    [
        ([GOOD], replace(GOOD, init=2.0**10, wasted_share=0.01), 0.01),
        ([replace(GOOD, init=1.0, wasted_share=0.0, overflows_high=0.0, underflow_share=0.5)], GOOD, 0.01),
        ([replace(GOOD, underflow_share=0.4, wasted_share=0.0)], replace(GOOD, underflow_share=0.2), 0.01),
        ([RISKY, SHORT, replace(GOOD, init=2.0**8)], GOOD, 0.01),
        ([replace(UNKNOWN, wasted_share=0.5)], UNKNOWN, 0.0),
    ],
    ids=[
        "the fewest wasted steps",
        "not the fewest where too much underflows",
        "the least underflow where all have too much",
        "among equals the safer, the longer and the larger",
        "underflow that was not recorded excludes nobody",
    ],
)
def test_the_best_policy_wins(others: list[PolicyOutcome], best: PolicyOutcome, most_underflow: float) -> None:
    assert choose_policy([*others, best], most_underflow) == best
    assert choose_policy([best, *others], most_underflow) == best


def test_every_combination_is_judged_once() -> None:
    section = LossScaleReplaySection(init_choices=[1.0, 2.0], factor_choices=[2.0], window_choices=[10, 20, 30])
    policies = policies_of(section)
    assert len(policies) == 6
    assert {"init": 2.0, "factor": 2.0, "window": 30} in policies
