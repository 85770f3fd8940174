from __future__ import annotations

import queue
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from workbench.panels.worker import Outcome, RunControl, Worker

LONG = 20.0


class Display:
    """Collects what a worker tells."""

    def __init__(self, **options: Any) -> None:
        self.batches: list[list[Any]] = []
        self.times: list[float] = []
        self.outcomes: queue.Queue[Outcome] = queue.Queue()
        self.worker = Worker(self.take, self.outcomes.put, **options)

    def take(self, messages: list[Any]) -> None:
        self.batches.append(messages)
        self.times.append(time.monotonic())

    @property
    def messages(self) -> list[Any]:
        return [message for batch in self.batches for message in batch]

    def outcome(self) -> Outcome:
        return self.outcomes.get(timeout=LONG)


@pytest.fixture
def display() -> Iterator[Display]:
    made = Display(hz=200)
    yield made
    assert made.worker.close(LONG)


def ours() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("workbench")]


def test_what_the_function_returns_becomes_the_outcome(display: Display) -> None:
    display.worker.start(lambda control: 6 * 7)
    outcome = display.outcome()
    assert (outcome.result, outcome.error) == (42, None)


def test_what_the_function_raises_becomes_the_outcome_with_its_traceback(display: Display) -> None:
    def fail(control: RunControl) -> None:
        raise ZeroDivisionError("no such share")

    display.worker.start(fail)
    outcome = display.outcome()
    assert isinstance(outcome.error, ZeroDivisionError)
    trace = "".join(traceback.format_exception(outcome.error))
    assert "in fail" in trace
    assert "no such share" in trace


def test_a_module_that_exits_the_interpreter_ends_the_work_only(display: Display) -> None:
    def leave(control: RunControl) -> None:
        raise SystemExit(3)

    display.worker.start(leave)
    assert isinstance(display.outcome().error, SystemExit)


def test_every_message_arrives_once_in_order_and_before_the_outcome(display: Display) -> None:
    def count(control: RunControl) -> None:
        for number in range(5000):
            control.send(number)

    display.worker.start(count)
    display.outcome()
    assert display.messages == list(range(5000))


def test_messages_are_coalesced_to_the_given_rate() -> None:
    display = Display(hz=20)
    release = threading.Event()

    def chat(control: RunControl) -> None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            control.send("step")
        release.set()

    display.worker.start(chat)
    display.outcome()
    assert release.is_set()
    gaps = [later - earlier for earlier, later in zip(display.times[:-2], display.times[1:-1], strict=True)]
    assert len(display.batches) <= 12  # 0.5 s at 20 Hz, and the last one
    assert all(gap > 0.04 for gap in gaps)
    assert len(display.messages) > 100
    assert display.worker.close()


def test_a_display_that_costs_much_is_refreshed_less_often() -> None:
    batches: list[float] = []
    done: queue.Queue[Outcome] = queue.Queue()

    def draw(messages: list[Any]) -> None:
        until = time.thread_time() + 0.01
        while time.thread_time() < until:
            pass
        batches.append(time.monotonic())

    def chat(control: RunControl) -> None:
        while not control.stop_requested():
            control.send("step")
            time.sleep(0.001)

    worker = Worker(draw, done.put, hz=50)
    worker.start(chat)
    threading.Timer(1.2, worker.stop).start()
    done.get(timeout=LONG)
    # 10 ms of drawing at 2 % of a core is one refresh in half a second.
    assert 2 <= len(batches) <= 5
    assert worker.close()


def test_a_request_to_stop_is_seen_by_the_function(display: Display) -> None:
    def work(control: RunControl) -> str:
        while not control.stop_requested():
            control.send("step")
        return "stopped"

    display.worker.start(work)
    display.worker.stop()
    assert display.outcome().result == "stopped"


def test_a_pause_holds_the_function_until_it_is_resumed(display: Display) -> None:
    held, steps = threading.Event(), list[int]()

    def work(control: RunControl) -> int:
        for step in range(3):
            if step == 1:
                held.set()
                entered.wait(LONG)
            control.pause.wait()
            steps.append(step)
        return len(steps)

    entered = threading.Event()
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
    display.worker.start(lambda control: control.pause.wait() if not control.stop_requested() else None)
    display.outcome()
    release = threading.Event()
    display.worker.start(lambda control: release.wait(LONG))
    with pytest.raises(RuntimeError, match="work is under way"):
        display.worker.start(lambda control: None)
    release.set()
    display.outcome()


def test_the_next_run_may_begin_where_the_last_outcome_is_told() -> None:
    results: queue.Queue[Any] = queue.Queue()

    def again(outcome: Outcome) -> None:
        results.put(outcome.result)
        if outcome.result == "first":
            worker.start(lambda control: "second")

    worker = Worker(lambda messages: None, again, hz=200)
    worker.start(lambda control: "first")
    assert [results.get(timeout=LONG), results.get(timeout=LONG)] == ["first", "second"]
    assert worker.close()


def test_a_display_that_fails_leaves_the_work_alone() -> None:
    outcomes: queue.Queue[Outcome] = queue.Queue()

    def broken(messages: list[Any]) -> None:
        raise KeyError("no such trace")

    def work(control: RunControl) -> str:
        control.send(1)
        return "done"

    worker = Worker(broken, outcomes.put, hz=200)
    worker.start(work)
    outcome = outcomes.get(timeout=LONG)
    assert outcome.result == "done"
    assert isinstance(outcome.display_error, KeyError)
    assert worker.close()


def test_closing_stops_the_work_and_leaves_no_thread() -> None:
    display = Display(hz=200)
    display.worker.start(lambda control: control._stop.wait(LONG))
    assert len(ours()) == 2
    assert display.worker.close(LONG)
    assert ours() == []
    assert display.outcomes.empty(), "a closed panel is told nothing"
    with pytest.raises(RuntimeError, match="closed"):
        display.worker.start(lambda control: None)


def test_closing_does_not_wait_for_ever_for_a_step_that_does_not_end() -> None:
    display, release = Display(hz=200), threading.Event()
    display.worker.start(lambda control: release.wait(LONG))
    assert not display.worker.close(timeout=0.05)
    release.set()
    assert display.worker.join(LONG)
    assert ours() == []


def test_fifty_runs_leave_no_thread(display: Display) -> None:
    for number in range(50):
        display.worker.start(lambda control, number=number: number)  # type: ignore[misc]
        assert display.outcome().result == number
        assert display.worker.join(LONG)
    assert ours() == []


def test_warnings_of_the_work_go_to_its_listener_and_others_where_they_went() -> None:
    heard: list[str] = []
    done: queue.Queue[Outcome] = queue.Queue()
    worker = Worker(lambda messages: None, done.put, hz=200, on_warning=heard.append)

    def work(control: RunControl) -> None:
        warnings.warn("the network has no BatchNorm", UserWarning, stacklevel=1)

    with warnings.catch_warnings(record=True) as elsewhere:
        warnings.simplefilter("always")
        for _ in range(2):
            worker.start(work)
            assert done.get(timeout=LONG).error is None
            assert worker.join(LONG)
        warnings.warn("of somebody else", UserWarning, stacklevel=1)
    assert heard == ["the network has no BatchNorm"] * 2
    assert [str(warning.message) for warning in elsewhere] == ["of somebody else"]
    assert worker.close()
