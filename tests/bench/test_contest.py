"""Ours against a base: equal results first, ratios in which every side has its turn, peers that are not there."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable

import pytest
import torch

from workbench.bench import Estimate, Request, Sides, contest, is_installed, require_equal
from workbench.bench.questions import operations

CPU = torch.device("cpu")


@pytest.fixture
def short_turns() -> None:
    """Take turns of their usual length here."""


class Clock:
    """A clock that sides move on, and that knows who did."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard: list[str] = []

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, seconds: float) -> Callable[[], None]:
        def wait() -> None:
            self.heard.append(name)
            self.now += seconds

        return wait


def test_ours_limit_and_peers_are_multiples_of_the_base() -> None:
    clock = Clock()
    found = contest(
        "waiting",
        lambda: Sides(
            clock.side("ours", 0.016),
            clock.side("base", 0.008),
            limit=clock.side("limit", 0.004),
            peers={"slow": clock.side("slow", 0.024), "gone": None},
        ),
        Request(3, device=CPU),
        named="half",
        goal=3.0,
        note="asleep",
        clock=clock,
    )
    assert [one.what for one in found] == [f"waiting: {side} / half" for side in ("ours", "limit", "slow", "gone")]
    assert [one.verdict for one in found] == ["met", "", "", "absent"]
    assert [one.estimate.value for one in found if one.estimate] == pytest.approx([2.0, 0.5, 3.0])
    assert found[0].note == "asleep"
    # Each turn takes at least 50 ms.
    assert clock.heard.count("base") > 7 * 4
    assert clock.heard.count("slow") > 3 * 4


@pytest.mark.parametrize(
    ("ours", "sentence"),
    [
        (torch.tensor([1.0, 2.1]), "Greatest absolute difference: 0.09999990463256836 at index (1,)"),
        (torch.tensor([1.0, float("nan")]), "Greatest absolute difference: nan at index (1,)"),
        (torch.ones(3), "torch.Size([3]) != torch.Size([2])"),
    ],
)
def test_sides_whose_results_differ_are_not_timed(ours: torch.Tensor, sentence: str) -> None:
    theirs = torch.tensor([1.0, 2.0])
    called: list[str] = []
    (found,) = contest(
        "updating",
        lambda: Sides(lambda: called.append("ours"), lambda: called.append("base")),
        Request(2, device=CPU),
        goal=1.0,
        guard=lambda: require_equal(ours, theirs, "weights", rtol=0.01, atol=0.0),
    )
    assert (found.verdict, found.estimate, found.goal) == ("differs", None, 1.0)
    assert found.note.startswith("weights: ")
    assert sentence in found.note
    assert called == []


def test_sides_are_made_anew_every_four_rounds_while_those_before_are_there() -> None:
    made: list[weakref.ref[Made]] = []
    alive: list[int] = []
    clock = [0.0]

    class Made:
        def __init__(self, seconds: float) -> None:
            self.seconds, self.calls = seconds, 0
            made.append(weakref.ref(self))

        def __call__(self) -> None:
            self.calls += 1
            clock[0] += self.seconds

    def sides() -> Sides:
        alive.append(sum(one() is not None for one in made))
        copy = len(alive)
        return Sides(Made(1.0 + 0.1 * copy), Made(1.0))

    (found,) = contest("waiting", sides, Request(10, device=CPU), repeats=2, clock=lambda: clock[0])
    assert alive == [0, 2, 2]
    assert found.estimate.rounds == 10
    assert found.estimate.value == pytest.approx(1.2)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((1.1, 1.3))  # copies differ, their rounds do not


def test_operations_are_counted() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)  # its buffer is made in the first step

    def once() -> None:
        optimizer.zero_grad()
        weight.view(1, 3).square().sum().backward()
        optimizer.step()

    def twice() -> None:
        once()
        once()

    assert operations.operations_of(once)["aten.sum.default"] == 1
    assert "aten.view.default" not in operations.operations_of(once)
    n = operations.operations_of(once).total()
    counted = operations.compared_operations("stepping", operations.operations_of(twice).total(), n)
    assert counted.estimate == Estimate(2.0, 2.0, 2.0, 1)
    assert counted.note == f"{2 * n} against {n}, counted"


def test_tensors_are_compared_by_name_and_within_the_tolerance() -> None:
    require_equal(torch.tensor([1.0, 2.01]), torch.tensor([1.0, 2.0]), "weights", rtol=0.01, atol=0.0)
    one, other = {"a": torch.ones(2), "b": torch.zeros(2)}, {"b": torch.zeros(2), "a": torch.ones(2)}
    require_equal(one, other, "weights", rtol=0.0, atol=0.0)
    for different, sentence in (
        ({"a": torch.ones(2)}, "weights: ours has 1 tensors, theirs 2"),
        ({"a": torch.ones(2), "b": torch.ones(2)}, "item ['b']"),
    ):
        with pytest.raises(AssertionError, match=re.escape(sentence)):
            require_equal(different, other, "weights", rtol=0.0, atol=0.0)


def test_threads_are_set_one_after_the_other_and_left_as_they_were() -> None:
    before = torch.get_num_threads()
    seen = [(told, torch.get_num_threads()) for told in Request(1, device=CPU, threads=(1, 3)).each_thread_count()]
    assert seen == [("1 thread", 1), ("3 threads", 3)]
    assert torch.get_num_threads() == before
    assert next(iter(Request(1, device=CPU).each_thread_count())) == "1 thread"


def test_what_is_installed() -> None:
    assert is_installed("torch")
    assert not is_installed("no_such_package")


def test_a_goal_below_the_limit_is_none() -> None:
    clock = Clock()

    def sides() -> Sides:
        return Sides(*(clock.side(name, seconds) for name, seconds in (("ours", 0.8), ("base", 1.0), ("limit", 0.5))))

    options = {"request": Request(4, device=CPU), "repeats": 1, "clock": clock}
    kept, _ = contest("line", sides, goal=0.6, **options)
    assert (kept.goal, kept.verdict) == (0.6, "missed")
    retired, _ = contest("line", sides, goal=0.4, note="of all", **options)
    assert (retired.goal, retired.verdict) == (None, "")
    assert retired.note == "of all; no goal: 0.4 lies below the limit"
