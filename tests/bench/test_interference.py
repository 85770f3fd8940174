"""The cost of what is busy beside steps, found from the steps themselves."""

import numpy as np
import pytest

from workbench.bench.questions import interference


def run(costs: dict[int, float], drift: float = 0.0, steps: int = 200) -> interference.Interference:
    """Steps of 10 ms that slow down, and at some of them something that costs so many seconds."""
    took = 0.01 * (1.0 + drift * np.arange(steps) / steps)
    began = np.concatenate(([0.0], took.cumsum()))
    turns = [(began[at] + 0.001, began[at] + 0.002) for at in costs]
    for at, cost in costs.items():
        took[at] += cost
    beside = interference.Interference()
    beside.add(np.concatenate(([0.0], took.cumsum())).tolist(), _moved(turns, costs))
    return beside


def _moved(turns: list[tuple[float, float]], costs: dict[int, float]) -> list[tuple[float, float]]:
    """Shift every turn by what those before it have cost."""
    late = np.concatenate(([0.0], np.cumsum(list(costs.values()))[:-1]))
    return [(began + more, ended + more) for (began, ended), more in zip(turns, late, strict=True)]


@pytest.mark.parametrize("drift", [0.0, 0.5])
def test_the_cost_is_found_whatever_else_makes_steps_slower(drift: float) -> None:
    beside = run(dict.fromkeys(range(10, 200, 20), 0.005), drift)
    assert beside.excess == pytest.approx([0.005] * 10, abs=2e-5)
    spent = sum(beside.excess)
    assert beside.ratio().value == pytest.approx(beside.seconds / (beside.seconds - spent))
    assert beside.ratio().value == pytest.approx(1.0 + 0.05 / (beside.seconds - 0.05), rel=1e-4)


def test_what_costs_nothing_is_one() -> None:
    estimate = run(dict.fromkeys(range(10, 200, 20), 0.0)).ratio()
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.0, 1.0, 1.0))


def test_a_cost_that_lingers_in_the_next_step_counts() -> None:
    beside = interference.Interference()
    beside.add([0.0, 1.0, 2.0, 4.0, 7.0, 8.0, 9.0], [(2.5, 2.6)])
    assert beside.excess == [3.0]  # 2 + 3 seconds instead of 1 + 1


def test_steps_that_were_never_disturbed_or_always_tell_nothing() -> None:
    beside = interference.Interference()
    beside.add([0.0, 1.0, 2.0], [])
    beside.add([0.0, 1.0, 2.0], [(0.0, 2.0)])
    with pytest.raises(ValueError, match="nothing to compare"):
        beside.ratio()
