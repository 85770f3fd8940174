from __future__ import annotations

import itertools
import queue
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.panels.looking import our_threads
from workbench.panels.worker import Outcome, RunControl, Worker, short_turns

LONG = 20.0
SHORT_TURN = pytest.approx(0.001, rel=0.01)


class Display:
    """Collects what a worker tells; ``draw`` and ``end`` are called with it, too."""

    def __init__(
        self, *, hz: float = 200, draw: Callable[[], Any] | None = None, end: Any = None, **options: Any
    ) -> None:
        self.batches: list[list[Any]] = []
        self.times: list[float] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self._draw, self._end = draw or (lambda: None), end or (lambda outcome: None)
        self.worker = Worker(self.take, self.ended, hz=hz, **options)

    def take(self, messages: list[Any]) -> None:
        self._draw()
        self.batches.append(messages)
        self.times.append(time.monotonic())

    def ended(self, outcome: Outcome) -> None:
        self.outcomes.put(outcome)
        self._end(outcome)

    @property
    def messages(self) -> list[Any]:
        return [message for batch in self.batches for message in batch]

    def outcome(self, work: Callable[[RunControl], Any] | None = None) -> Outcome:
        """Return how the work ended, that of a function if one is given to be begun."""
        if work is not None:
            self.worker.start(work)
        return self.outcomes.get(timeout=LONG)


@pytest.fixture
def make() -> Iterator[Callable[..., Display]]:
    """Make displays whose workers are closed afterwards."""
    made: list[Display] = []

    def new(**options: Any) -> Display:
        made.append(Display(**options))
        return made[-1]

    yield new
    assert all(display.worker.close(LONG) for display in made)


@pytest.fixture
def display(make: Callable[..., Display]) -> Display:
    return make()


def chat(control: RunControl) -> None:
    while not control.stop_requested():
        for _ in range(10):
            control.send("step")
        time.sleep(0.001)


def refreshed(make: Callable[..., Display], times: int, *, hz: float, draw: Callable[[], Any]) -> Display:
    """Return a display after work that has sent all the time until it was refreshed so many times."""

    def draw_or_stop() -> None:
        draw()
        if len(display.batches) + 1 == times:
            display.worker.stop()

    display = make(hz=hz, draw=draw_or_stop)
    display.outcome(chat)
    return display


def gaps(display: Display) -> list[float]:
    """Return the seconds between two refreshes, but for the last, which comes at once when the work has ended."""
    return [later - earlier for earlier, later in itertools.pairwise(display.times[:-1])]


def test_what_the_function_returns_becomes_the_outcome(display: Display) -> None:
    outcome = display.outcome(lambda control: 6 * 7)
    assert (outcome.result, outcome.error) == (42, None)


# A module of the user's may exit the interpreter: that ends the work only.
@pytest.mark.parametrize("error", [ZeroDivisionError("no such share"), SystemExit(3)], ids=["fails", "exits"])
def test_what_the_function_raises_becomes_the_outcome_with_its_traceback(
    display: Display, error: BaseException
) -> None:
    def fail(control: RunControl) -> None:
        raise error

    before = sys.getswitchinterval()
    outcome = display.outcome(fail)
    assert outcome.error is error
    trace = "".join(traceback.format_exception(outcome.error))
    assert "in fail" in trace
    assert str(error) in trace
    assert sys.getswitchinterval() == pytest.approx(before, rel=0.01)


def test_every_message_arrives_once_in_order_and_before_the_outcome(display: Display) -> None:
    def count(control: RunControl) -> None:
        for number in range(5000):
            control.send(number)

    display.outcome(count)
    assert display.messages == list(range(5000))


def test_messages_are_coalesced_to_the_given_rate(make: Callable[..., Display]) -> None:
    display = refreshed(make, 10, hz=50, draw=lambda: None)
    assert len(display.batches) <= 11  # and the last one
    assert all(gap > 0.016 for gap in gaps(display))
    assert len(display.messages) > 3 * len(display.batches)


def test_a_display_that_costs_much_is_refreshed_less_often(make: Callable[..., Display]) -> None:
    def draw() -> None:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass

    # 3 ms of drawing at 2 % of a core are one refresh in 0.15 s.
    assert all(gap > 0.14 for gap in gaps(refreshed(make, 4, hz=100, draw=draw)))


def test_a_pause_holds_the_function_until_it_is_resumed(display: Display) -> None:
    held, entered, steps = threading.Event(), threading.Event(), list[int]()

    def work(control: RunControl) -> int:
        for step in range(3):
            if step == 1:
                held.set()
                entered.wait(LONG)
            control.pause.wait()
            steps.append(step)
        return len(steps)

    display.worker.start(work)
    assert held.wait(LONG)
    display.worker.pause()
    entered.set()
    assert not display.worker.join(0.05)
    assert steps == [0]
    display.worker.resume()
    assert display.outcome().result == 3


def test_a_request_to_stop_ends_a_pause(display: Display) -> None:
    def work(control: RunControl) -> bool:
        display.worker.pause()
        control.pause.wait()
        return control.stop_requested()

    display.worker.start(work)
    display.worker.stop()
    assert display.outcome().result is True


def test_one_run_at_a_time(display: Display) -> None:
    release = threading.Event()
    display.worker.start(lambda control: release.wait(LONG))
    with pytest.raises(RuntimeError, match="work is under way"):
        display.worker.start(lambda control: None)
    release.set()
    display.outcome()


def test_the_next_run_may_begin_where_the_last_outcome_is_told(make: Callable[..., Display]) -> None:
    def again(outcome: Outcome) -> None:
        if outcome.result == "first":
            display.worker.start(lambda control: "second")

    display = make(end=again)
    assert [display.outcome(lambda control: "first").result, display.outcome().result] == ["first", "second"]


def test_a_display_that_fails_leaves_the_work_alone(make: Callable[..., Display]) -> None:
    def work(control: RunControl) -> str:
        control.send(1)
        return "done"

    outcome = make(draw=lambda: dict[str, int]()["no such trace"]).outcome(work)
    assert outcome.result == "done"
    assert isinstance(outcome.display_error, KeyError)


def test_closing_stops_the_work_and_leaves_no_thread(display: Display) -> None:
    display.worker.start(lambda control: control._stop.wait(LONG))
    assert len(our_threads()) == 2
    assert display.worker.close(LONG)
    assert our_threads() == []
    assert display.outcomes.empty(), "a closed panel is told nothing"
    with pytest.raises(RuntimeError, match="closed"):
        display.worker.start(lambda control: None)


def test_closing_does_not_wait_for_ever_for_a_step_that_does_not_end(display: Display) -> None:
    release = threading.Event()
    display.worker.start(lambda control: release.wait(LONG))
    assert not display.worker.close(timeout=0.05)
    release.set()
    assert display.worker.join(LONG)
    assert our_threads() == []


def test_fifty_runs_leave_no_thread(display: Display) -> None:
    for number in range(50):
        assert display.outcome(lambda control, number=number: number).result == number  # type: ignore[misc]
        assert display.worker.join(LONG)
    assert our_threads() == []


def test_warnings_of_the_work_go_to_its_listener_and_others_where_they_went(make: Callable[..., Display]) -> None:
    def work(control: RunControl) -> None:
        warnings.warn("the network has no BatchNorm", UserWarning, stacklevel=1)

    heard: list[str] = []
    display = make(on_warning=heard.append)
    with warnings.catch_warnings(record=True) as elsewhere:
        warnings.simplefilter("always")
        for _ in range(2):
            assert display.outcome(work).error is None
            assert display.worker.join(LONG)
        warnings.warn("of somebody else", UserWarning, stacklevel=1)
    assert heard == ["the network has no BatchNorm"] * 2
    assert [str(warning.message) for warning in elsewhere] == ["of somebody else"]


def test_turns_are_short_while_blocks_overlap_and_as_they_were_afterwards(display: Display) -> None:
    before = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    assert sys.getswitchinterval() == SHORT_TURN
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() == SHORT_TURN
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == pytest.approx(before, rel=0.01)
    assert display.outcome(lambda control: sys.getswitchinterval()).result == SHORT_TURN


def test_turns_shorter_still_are_left_alone() -> None:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.0002)
    try:
        with short_turns():
            assert sys.getswitchinterval() == pytest.approx(0.0002, rel=0.01)
    finally:
        sys.setswitchinterval(before)
