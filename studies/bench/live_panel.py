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

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.bench import Benchmark, Finding, Request, median_of, ratio_of
from workbench.panels import SharedConfig, TrainPanel
from workbench.tasks import Task, load_task

from .interference import Interference
from .kernel_messages import speak_as_in_a_kernel

_GOAL = 1.02
_LONGEST_SECONDS = 600.0


def measure(
    request: Request, *, task: str = "digits-resnet", turn: int = 60, pairs: int = 8, warm_up: int = 1
) -> list[Finding]:
    """Measure what a live panel adds to the time of a step.

    A round is a run of so many pairs of turns, each with and without display, every other one in reverse order. The
    task's step should take 5 ms or more, and a turn a second or more, as a line is drawn anew every second or two.
    """
    steps = turn * (1 + 2 * pairs) + 1  # the first turn makes the figure and is in no pair, the last step ends one
    trained, clock = _watched(load_task(task))
    beside = Interference()
    at_work: list[float] = []
    at_rest: list[float] = []
    shares: list[float] = []
    with _RestingPanel(trained, steps, lambda: _rests(max(len(clock) - 1, 0) // turn)) as panel:
        speak_as_in_a_kernel(panel.widget)
        for number in range(warm_up + request.rounds):
            clock.clear()
            panel.busy.clear()
            panel.start()
            if not panel.wait(_LONGEST_SECONDS) or panel.result is None:
                raise RuntimeError(f"the panel did not finish its run: {panel.error or panel.state}")
            if number < warm_up:
                continue
            turns = np.diff(clock[::turn]).tolist()
            worked = [seconds for place, seconds in enumerate(turns) if place and not _rests(place)]
            at_work += worked
            at_rest += [seconds for place, seconds in enumerate(turns) if _rests(place)]
            shown = turns[0] + sum(worked)
            shares.append(panel.display_seconds / shown)
            beside.add(clock, panel.busy, shown)
    of_turns = f"turns of {turn} steps of {task}, {1e3 * float(np.median(at_rest)) / turn:.1f} ms each"
    waits = "what training waits if it can do nothing while the display is busy; a core free"
    neighbours = "steps during which it was busy, against three on either side"
    return [
        Finding("time of its steps, display at work / at rest", "x", ratio_of(at_work, at_rest), _GOAL, of_turns),
        Finding("display's processor time / time of the steps it shows", "x", median_of(shares), _GOAL - 1.0, waits),
        Finding("its steps, with / without what the display costs them", "x", beside.ratio(), _GOAL, neighbours),
    ]


def _rests(place: int) -> bool:
    """Return whether the display rests in a turn of a run: the first is in no pair, then come A B, B A, A B, ..."""
    return place % 4 in (2, 3)


class _RestingPanel(TrainPanel):
    """A panel whose display rests at times, and that notes in ``busy`` when it is not.

    ``rests`` tells whether it does at the moment; it is asked whenever training has told something.
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


def _watched(task: Task) -> tuple[Task, list[float]]:
    """Return the same task, and a list to which the time is added whenever training asks for a batch."""
    times: list[float] = []
    return replace(task, train=lambda seed: _Watched(task, seed, times)), times


@dataclass(frozen=True, slots=True)
class _Watched:
    """The batches of a task, which note when they are asked for."""

    task: Task
    seed: int
    times: list[float]

    def stream(self, start: int) -> Iterator[Any]:
        for batch in self.task.batches(self.seed, start):
            self.times.append(time.perf_counter())
            yield batch


BENCHMARK = Benchmark(
    "live_panel",
    "Does a live Train panel slow the training it shows?",
    measure,
    rounds=10,
    place=19,
    group="panels",
    quick=True,
    shown=("display's processor time", "its steps, with"),
)
