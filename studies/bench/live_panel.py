"""Does a live Train panel slow the training it shows?

A panel trains as it does in a notebook: its own thread computes, its pump takes what was recorded and redraws the
figure, and every widget encodes its messages as in a kernel. What a browser spends on drawing is not in it. In turns
the display is at work for a second or two, and then at rest for as long: what training tells is thrown away. Neighbours
in time suffer alike from whatever else the machine does; two whole runs differ by more than a panel costs.

Two more looks at the same runs. The steps during which the display was busy are compared with those beside them
(``interference.py``), which counts a rare drawing of the whole figure by its cost, where a median passes it over. And
the processor time of the display is counted: both threads share one interpreter, and where a core is free training does
not wait longer for the display than that is busy. What recording costs is told by the benchmark ``trace``.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.bench.benchmark import Benchmark, Finding
from workbench.bench.rounds import median_of, ratio_of
from workbench.panels import SharedConfig, TrainPanel
from workbench.tasks import Task, load_task

from .interference import Interference
from .kernel_messages import speak_as_in_a_kernel

__all__ = ["measure_live_panel"]

GOAL = 1.02
_PATIENCE_SECONDS = 600.0


def measure_live_panel(
    rounds: int, *, task: str = "digits-resnet", turn: int = 60, pairs: int = 8, warm_up: int = 1
) -> list[Finding]:
    """Measure what a live panel adds to the time of a step.

    Args:
        rounds: Runs.
        task: Name of a task whose step takes 5 ms or more.
        turn: Micro-batches of a turn; a second's worth or more, as a line is drawn anew every second or two.
        pairs: Pairs of turns in a run, each with and without display, every other one in reverse order.
        warm_up: Runs before them that do not count.
    """
    steps = turn * (1 + 2 * pairs) + 1  # the first turn makes the figure and is in no pair, the last step ends one
    trained, clock = _watched(load_task(task))
    beside = Interference()
    at_work: list[float] = []
    at_rest: list[float] = []
    shares: list[float] = []
    with _RestingPanel(trained, steps, lambda: _rests(clock.steps // turn)) as panel:
        speak_as_in_a_kernel(panel.widget)
        for number in range(warm_up + rounds):
            clock.clear()
            panel.busy.clear()
            panel.start()
            if not panel.wait(_PATIENCE_SECONDS) or panel.result is None:
                raise RuntimeError(f"the panel did not finish its run: {panel.error or panel.state}")
            if number < warm_up:
                continue
            turns = np.diff(clock.times[::turn]).tolist()
            worked = [seconds for place, seconds in enumerate(turns) if place and not _rests(place)]
            at_work += worked
            at_rest += [seconds for place, seconds in enumerate(turns) if _rests(place)]
            shown = turns[0] + sum(worked)
            shares.append(panel.display_seconds / shown)
            beside.add(clock.times, panel.busy, shown)
    step_ms = 1e3 * float(np.median(at_rest)) / turn
    return [
        Finding(
            "time of its steps, display at work / at rest",
            "x",
            ratio_of(at_work, at_rest),
            GOAL,
            f"turns of {turn} steps of {task}, {step_ms:.1f} ms each",
        ),
        Finding(
            "display's processor time / time of the steps it shows",
            "x",
            median_of(shares),
            GOAL - 1.0,
            "what training waits if it can do nothing while the display is busy; a core free",
        ),
        Finding(
            "its steps, with / without what the display costs them",
            "x",
            beside.ratio(),
            GOAL,
            "steps during which it was busy, against three on either side",
        ),
    ]


def _rests(place: int) -> bool:
    """Return whether the display rests in a turn of a run: the first is in no pair, then come A B, B A, A B, ..."""
    return place % 4 in (2, 3)


class _RestingPanel(TrainPanel):
    """A panel whose display rests at times, and that notes when it is busy.

    Args:
        task: What is trained.
        steps: Micro-batches.
        rests: Whether the display rests at the moment; asked whenever training has told something.

    Attributes:
        busy: Beginning and end of each time, by ``time.perf_counter``.
    """

    def __init__(self, task: Task, steps: int, rests: Callable[[], bool]) -> None:
        self.busy: list[tuple[float, float]] = []
        self._rests = rests
        super().__init__(task, SharedConfig(level="O0"), steps=steps, device="cpu", out=None, measure=False)

    def _take(self, messages: Sequence[Any]) -> None:
        if self._rests():
            return
        began = time.perf_counter()
        super()._take(messages)
        self.busy.append((began, time.perf_counter()))


class _Clock:
    """Reads the clock at every batch."""

    def __init__(self) -> None:
        self.times: list[float] = []

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return max(len(self.times) - 1, 0)

    def clear(self) -> None:
        """Forget the run before."""
        self.times.clear()

    def read(self) -> None:
        """Note the time."""
        self.times.append(time.perf_counter())


def _watched(task: Task) -> tuple[Task, _Clock]:
    """Return the same task with a clock that is read whenever training asks for a batch."""
    clock, twin = _Clock(), copy.copy(task)

    def batches(seed: int, start: int = 0) -> Iterator[Any]:
        for batch in task.batches(seed, start):
            clock.read()
            yield batch

    object.__setattr__(twin, "batches", batches)  # in the copy's own dictionary, before the method of its class
    return twin, clock


BENCHMARK = Benchmark(
    "live_panel",
    "Does a live Train panel slow the training it shows?",
    lambda request: measure_live_panel(request.rounds),
    rounds=10,
    group="panels",
    place=19,
)
