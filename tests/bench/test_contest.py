"""Ours against a base: equal results first, ratios in which every side has its turn, peers that are not there."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable

import pytest
import torch

from workbench.bench import (
    Estimate,
    Request,
    Sides,
    contest,
    is_installed,
    require_equal,
)
from workbench.bench.contest import require_same
from workbench.bench.operations import operations_of


def waiting(seconds: float, heard: list[str], name: str) -> Callable[[], None]:
    def side() -> None:
        heard.append(name)
        time.sleep(seconds)

    return side


def test_ours_limit_and_peers_are_multiples_of_the_base() -> None:
    heard: list[str] = []
    found = contest(
        "waiting",
        lambda: Sides(
            waiting(0.004, heard, "ours"),
            waiting(0.002, heard, "base"),
            limit=waiting(0.001, heard, "limit"),
            peers={"slow": waiting(0.006, heard, "slow"), "gone": None},
        ),
        rounds=3,
        named="half",
        goal=3.0,
        note="asleep",
        least_seconds=0.012,
    )
    assert [one.what for one in found] == [
        "waiting: ours / half",
        "waiting: limit / half",
        "waiting: slow / half",
        "waiting: gone / half",
    ]
    assert [one.verdict for one in found] == ["met", "", "", "absent"]
    ours, limit, slow = (one.estimate.value for one in found if one.estimate)
    assert 0.3 < limit < 0.9 < ours < slow  # 0.5, 2 and 3 on a machine that does nothing else
    assert found[0].note == "asleep"
    # Each turn takes at least as long as was asked for.
    assert heard.count("base") > 5 * 4
    assert heard.count("slow") > 2 * 4


@pytest.mark.parametrize(
    ("ours", "sentence"),
    [
        (torch.tensor([1.0, 2.1]), "weights differs by up to 0.1"),
        (torch.tensor([1.0, float("nan")]), "weights differs by up to nan"),
        (torch.ones(3), "weights: shape (3,) against (2,)"),
    ],
)
def test_sides_whose_results_differ_are_not_timed(ours: torch.Tensor, sentence: str) -> None:
    theirs = torch.tensor([1.0, 2.0])
    called: list[str] = []
    (found,) = contest(
        "updating",
        lambda: Sides(lambda: called.append("ours"), lambda: called.append("base")),
        rounds=2,
        goal=1.0,
        guard=lambda: require_equal(ours, theirs, "weights", rtol=0.01, atol=0.0),
    )
    assert (found.verdict, found.estimate, found.goal) == ("differs", None, 1.0)
    assert found.note == sentence
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

    (found,) = contest("waiting", sides, rounds=10, repeats=2, clock=lambda: clock[0])
    assert alive == [0, 2, 2]
    assert found.estimate is not None
    assert found.estimate.rounds == 10
    assert found.estimate.value == pytest.approx(1.2)
    assert (found.estimate.low, found.estimate.high) == pytest.approx((1.1, 1.3))  # copies differ, their rounds do not


def test_operations_are_counted_where_that_is_asked_for() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)  # its buffer is made in the first step

    def once() -> None:
        optimizer.zero_grad()
        weight.view(1, 3).square().sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    def twice() -> None:
        once()
        once()

    assert operations_of(once)["aten.sum.default"] == 1
    assert "aten.view.default" not in operations_of(once)
    time, counted = contest("stepping", lambda: Sides(twice, once), rounds=1, repeats=1, counted=True)
    assert (time.what, counted.what) == (
        "stepping: ours / base",
        "stepping, operations of torch: ours / base",
    )
    assert counted.estimate == Estimate(2.0, 2.0, 2.0, 1)
    n = operations_of(once).total()
    assert counted.note == f"{2 * n} against {n}, counted"


def test_tensors_are_compared_by_name() -> None:
    one, other = {"a": torch.ones(2), "b": torch.zeros(2)}, {"b": torch.zeros(2), "a": torch.ones(2)}
    require_same(one.items(), other.items(), rtol=0.0, atol=0.0)
    for different, sentence in (
        ({"a": torch.ones(2)}, "ours has 1 tensors, theirs 2"),
        ({"a": torch.ones(2), "b": torch.ones(2)}, "b differs by up to 1"),
    ):
        (found,) = contest(
            "updating",
            lambda: Sides(lambda: None, lambda: None),
            rounds=1,
            guard=lambda different=different: require_same(different.items(), other.items(), rtol=0.0, atol=0.0),  # type: ignore[misc]
        )
        assert found.verdict == "differs"
        assert found.note.startswith(sentence)


def test_results_within_the_tolerance_are_equal() -> None:
    require_equal(torch.tensor([1.0, 2.01]), torch.tensor([1.0, 2.0]), "weights", rtol=0.01, atol=0.0)


def test_threads_are_set_one_after_the_other_and_left_as_they_were() -> None:
    before = torch.get_num_threads()
    cpu = torch.device("cpu")
    seen = [(told, torch.get_num_threads()) for told in Request(1, device=cpu, threads=(1, 3)).each_thread_count()]
    assert seen == [("1 thread", 1), ("3 threads", 3)]
    assert torch.get_num_threads() == before
    assert next(iter(Request(1, device=cpu).each_thread_count())) == "1 thread"


def test_what_is_installed() -> None:
    assert is_installed("torch")
    assert not is_installed("no_such_package")
