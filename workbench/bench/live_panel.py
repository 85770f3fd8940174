"""Does a live Train panel slow the training it shows?

The same task is trained with and without a panel, in turns. Without: ``facade.train`` in this thread, which records and
draws nothing. With: the panel's own thread trains, its pump takes what was recorded and redraws the figure, and every
widget encodes its messages as in a kernel. What a browser spends on drawing is not in it.

Two runs of one side differ by more than a panel costs. So its cost is found within its own runs as well: the steps
during which it was busy are compared with those beside them (``interference.py``; what recording costs is told by the
benchmark ``trace``), and the processor time of the display is counted: both threads share one interpreter, and where a
core is free training does not wait longer for the display than that is busy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workbench import facade
from workbench.bench.benchmark import Finding
from workbench.bench.interference import Interference
from workbench.bench.kernel_messages import speak_as_in_a_kernel
from workbench.bench.rounds import interleaved, median_of, ratio_of
from workbench.config import BoostConfig
from workbench.panels import SharedConfig, TrainPanel
from workbench.tasks import Task, load_task

__all__ = ["measure_live_panel"]

GOAL = 1.02
_PATIENCE_SECONDS = 600.0


def measure_live_panel(rounds: int, *, task: str = "digits-resnet", steps: int = 400) -> list[Finding]:
    """Measure what a live panel adds to the time of a run.

    Args:
        rounds: Runs of either side.
        task: Name of a task whose step takes 5 ms or more.
        steps: Micro-batches of a run, >= 2; some seconds' worth, as a panel redraws about once a second.
    """
    trained, clock = _watched(load_task(task))
    beside = Interference()
    panel = _NotedPanel(trained, SharedConfig(level="O0"), steps=steps, device="cpu", out=None, measure=False)
    with panel:
        speak_as_in_a_kernel(panel.widget)

        def alone() -> tuple[float, float, float]:
            clock.clear()
            result = facade.train(trained, BoostConfig(), level="O0", steps=steps, device="cpu", out=None)
            return result.seconds, clock.seconds(), 0.0

        def shown() -> tuple[float, float, float]:
            clock.clear()
            panel.turns.clear()
            panel.start()
            if not panel.wait(_PATIENCE_SECONDS) or panel.result is None:
                raise RuntimeError(f"the panel did not finish its run: {panel.error or panel.state}")
            beside.add(clock.times, panel.turns)
            return panel.result.seconds, clock.seconds(), panel.display_seconds

        rows = interleaved([alone, shown], rounds)
    wall = ratio_of([with_panel[0] for _, with_panel in rows], [plain[0] for plain, _ in rows])
    cpu = ratio_of([with_panel[1] for _, with_panel in rows], [plain[1] for plain, _ in rows])
    share = median_of([display / seconds for _, (seconds, _, display) in rows])
    step_ms = 1e3 * sorted(plain[0] for plain, _ in rows)[len(rows) // 2] / steps
    note = f"{steps} steps of {task}, {step_ms:.1f} ms each"
    return [
        Finding("time of a run, with / without a live panel", "x", wall, GOAL, note),
        Finding(
            "display's processor time / time of the run",
            "x",
            share,
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
        Finding("processor time of its steps, with / without", "x", cpu, None, "all threads; other processes apart"),
    ]


class _NotedPanel(TrainPanel):
    """A panel that notes when it is busy with what training tells.

    Attributes:
        turns: Beginning and end of each time, by ``time.perf_counter``.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.turns: list[tuple[float, float]] = []
        super().__init__(*args, **kwargs)

    def _take(self, messages: Sequence[Any]) -> None:
        began = time.perf_counter()
        super()._take(messages)
        self.turns.append((began, time.perf_counter()))


class _Clocks:
    """Reads the clock and this process's processor time at every batch."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.readings: list[float] = []

    def clear(self) -> None:
        """Forget the run before."""
        self.times.clear()
        self.readings.clear()

    def read(self) -> None:
        """Note both clocks."""
        self.times.append(time.perf_counter())
        self.readings.append(time.process_time())

    def seconds(self) -> float:
        """Processor time from the first batch to the last, seconds."""
        return self.readings[-1] - self.readings[0]


def _watched(task: Task) -> tuple[Task, _Clocks]:
    """Return the same task with a clock that is read whenever training asks for a batch."""
    clock, twin = _Clocks(), copy.copy(task)

    def batches(seed: int, start: int = 0) -> Iterator[Any]:
        for batch in task.batches(seed, start):
            clock.read()
            yield batch

    object.__setattr__(twin, "batches", batches)  # in the copy's own dictionary, before the method of its class
    return twin, clock
