"""How fast is a configuration, as a ratio of step times measured in one process?

Both sides train on equal copies, block by block in turn (A B, B A, ...), so that whatever the machine does to one it
does to the other. Many short blocks share more of that than few long ones: on two busy cores 48 blocks of one step
scatter by 2 %, 8 of six by 4 %. Each kind of step (groups frozen, end of a window) is visited in every block and
weighted by how often the schedule uses it. What an optimizer does only now and then (THOR's refresh) is done once per
block and spread over a cycle. On an accelerator several windows of a kind go between two synchronisations: one alone
begins with an empty queue, unlike any run. The ratio is the median over rounds, with an interval from a bootstrap.
Several ranks train every block together, by rank 0's clock.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch

from workbench.config import BoostConfig
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.methods.batch.section import BatchSection
from workbench.methods.protocol import GroupSchedule
from workbench.methods.runtime.section import RuntimeSection
from workbench.optim.thor.optimizer import Thor
from workbench.tasks import Task
from workbench.tasks.read_ahead import reading_turn
from workbench.training.setup import prepare
from workbench.training.task_look import epoch_batches

T = TypeVar("T")

_MEASURED_GROUPS = 5
_DISTINCT_BATCHES = 8
_MOST_ROUNDS = 4
_WARM_UP_WINDOWS = 3  # at least: some of what is compiled or allocated waits for the second step
_WARM_UP_SECONDS = (0.25, 2.0)  # least and most of an accelerator, whose clock rate rises under load
_CPU_WARM_UP = (24, 0.1)  # windows or seconds, the sooner: of steps of 3 ms the first dozen are up to twice as long
_NO_FASTER = 0.97  # the fastest of three blocks relative to those before: warm
_SECONDS_PER_SYNCHRONISATION = 0.05
# Where another process reads: for some milliseconds behind a block of the other side its threads keep the cores busy.
_BLOCK_OF_READERS, _MOST_IN_BLOCK, _FEWER_ROUNDS = 0.15, 16, 3  # seconds, windows, so many times
_READING_SECONDS = 1.0  # about, of samples that are kept from then on
_MOST_REPEATED = 64  # batches
_COURSE = 10_000  # updates for which a side is set up: schedules of some kinds end there, with an error
_KEPT_PASSES = 5_000  # after which a kept side is rebuilt


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """Step time of a candidate relative to a baseline, with the ends of its 95 % interval; smaller is faster."""

    ratio: float
    low: float
    high: float
    baseline_ms: float  # median step time
    candidate_ms: float
    rounds: int  # interleaved ones behind it
    cold_ms: float = 0.0  # what the candidate's first steps took beyond later ones: compilation above all
    cold_again: bool = False  # whether every run pays that; what is compiled, later ones of a process find
    reading_ms: float = 0.0  # what a loader's batch takes longer while samples are read that are kept from then on
    epoch: int = 0  # loader batches until all are kept


def measure_speed_ratio(
    task: Task,
    baseline: tuple[BoostConfig, str],  # and its level
    candidate: tuple[BoostConfig, str],
    *,
    device: torch.device | None = None,  # None takes the accelerator if there is one
    seed: int = 0,  # of weights and data
    rounds: int = 24,  # at least; each visits every kind of step of both sides
    steps_per_block: int = 1,  # at least
    precision: float = 0.05,  # width of the interval, relative to the ratio, at which no more rounds are added
    loading: bool = False,  # whether a step includes loading its batch
    apart: bool = False,  # time one after the other, where there is no memory for both; on one rank only
    kept: KeptBaseline | None = None,  # where the baseline's network stays between two measurements
    stop: Callable[[], bool] | None = None,  # asked between rounds; True ends the measurement after at least two
    # Called before every micro-batch, on an accelerator before some updates; what it raises ends the measurement.
    before_window: Callable[[], None] | None = None,
) -> SpeedRatio:
    """Measure the ratio of step times, in interleaved blocks.

    On a noisy machine rounds are added, up to four times as many, until the interval is narrow enough.
    """
    for name, value in (("rounds", rounds), ("steps_per_block", steps_per_block)):
        if not value >= 1:
            raise ValueError(f"`{name}` must be at least 1, got {value!r}")
    options: Any = {"seed": seed, "at_least": steps_per_block, "before_window": before_window, "loading": loading}
    options["device"], block_seconds = device or devices.select_device("auto"), 0.0
    if loading and "prefetch" in {config.part(RuntimeSection).data for config, _ in (baseline, candidate)}:
        block_seconds, rounds = _BLOCK_OF_READERS, max(rounds // _FEWER_ROUNDS, 2)
    options["block_seconds"] = block_seconds
    makes = [functools.partial(TimedSide, task, *side, **options) for side in (baseline, candidate)]
    if apart:
        return _measured_apart(makes, rounds, seed)
    kept = kept or KeptBaseline()
    try:
        sides = [kept.side((baseline, seed, steps_per_block, loading, block_seconds), makes[0]), makes[1]()]
        sides[0].before_window = before_window
        return _measured_in_turns(sides, rounds, precision, seed, stop)
    except BaseException:
        kept.drop()  # its state is unknown
        raise


def _measured_in_turns(
    sides: Sequence[TimedSide], rounds: int, precision: float, seed: int, stop: Callable[[], bool] | None
) -> SpeedRatio:
    """Measure two sides, of which the baseline is warm."""
    sides[1].warm_up()
    rows, turns = [], take_turns([side.block for side in sides])
    while True:
        rows.append(next(turns))
        measured = _answer(rows, rounds, precision, seed, stop) if ranks.rank() == 0 else None
        if measured is not None:
            measured = replace(measured, **sides[1].beginning(measured.candidate_ms / 1e3))
        measured = ranks.broadcast_object(measured)
        if measured is not None:
            return measured


class KeptBaseline:
    """Keeps the side of a baseline, warm, between two measurements of one task.

    For accelerators with memory to spare: on a CPU, long training on few batches ends in slow denormal numbers.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._side: TimedSide | None = None

    def side(self, key: object, make: Callable[[], TimedSide]) -> TimedSide:
        """Return the side that was kept under an equal key, or make and warm up one to be kept in its place."""
        if self._side is not None and key == self._key and self._side.position < _KEPT_PASSES:
            return self._side
        self.drop()
        side = make()
        side.warm_up()
        self._key, self._side = key, side
        return side

    def drop(self) -> None:
        """Release the side that is kept, and its memory."""
        self._key = self._side = None


def _measured_apart(makes: Sequence[Callable[[], TimedSide]], rounds: int, seed: int) -> SpeedRatio:
    """Measure one side after the other, the baseline first; a machine that slows down in between shows."""
    columns, beginning = [], {}
    for make in makes:
        side = make()
        side.warm_up()
        columns.append([side.block() for _ in range(rounds)])
        beginning = side.beginning(float(np.median(columns[-1])))
        del side  # its memory is needed
    measured = _answer(list(zip(*columns, strict=True)), rounds, math.inf, seed, None)
    assert measured is not None  # there are enough rounds
    return replace(measured, **beginning)


def take_turns(sides: Sequence[Callable[[], T]]) -> Iterator[tuple[T, ...]]:
    """Yield what sides return round after round, endlessly; every other round goes backwards (A B C, C B A, ...)."""
    order = list(range(len(sides)))
    while True:
        answers = {index: sides[index]() for index in order}
        yield tuple(answers[index] for index in range(len(sides)))
        order.reverse()


def fair_clock(device: torch.device) -> Callable[[], float]:
    """Return processor time for one thread on a CPU, as on a machine that does nothing else; else time as it passes."""
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.process_time if alone else time.perf_counter


def _answer(
    rows: Sequence[Sequence[float]], rounds: int, precision: float, seed: int, stop: Callable[[], bool] | None
) -> SpeedRatio | None:
    done = len(rows)
    if done < rounds and not (stop is not None and done >= 2 and stop()):
        return None
    times = np.array(rows)
    ratios = times[:, 1] / times[:, 0]
    ratio = float(np.median(ratios))
    low, high = bootstrap_median_interval(ratios, seed)
    if high - low > precision * ratio and done < _MOST_ROUNDS * rounds and not (stop is not None and stop()):
        return None
    base_ms, other_ms = (float(median) * 1e3 for median in np.median(times, axis=0))
    return SpeedRatio(ratio, low, high, base_ms, other_ms, done)


def bootstrap_median_interval(values: np.ndarray, seed: int = 0, level: float = 0.95) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the median of observations, shape ``[n]``, n >= 1."""
    tail = (1 - level) / 2
    low, high = np.quantile(resampled_medians(values, seed), [tail, 1 - tail])
    return float(low), float(high)


def resampled_medians(values: np.ndarray, seed: int) -> np.ndarray:
    """Return medians of observations ``[n, ...]``, of as many that are drawn again with repetition: ``[2000, ...]``."""
    picks = np.random.default_rng(seed).integers(0, len(values), size=(2000, len(values)))
    medians: np.ndarray = np.median(np.asarray(values)[picks], axis=1)
    return medians


def _gets_faster(steps: Sequence[float]) -> bool:
    """Return whether the last three blocks still show a faster step than all before them, or are the first."""
    return len(steps) <= 3 or min(steps[-3:]) < _NO_FASTER * min(steps[:-3])


class TimedSide:
    """Trains a configuration in blocks and measures what an average step of its schedule costs."""

    def __init__(
        self,
        task: Task,
        config: BoostConfig,
        level: str,
        *,
        device: torch.device,
        seed: int,
        at_least: int,
        before_window: Callable[[], None] | None,
        loading: bool = False,
        block_seconds: float = 0.0,
    ) -> None:
        self.before_window = before_window
        self.block_seconds = block_seconds  # that a block takes at least, once it is warm
        self.clock = time.perf_counter
        self.device, self.at_least = device, at_least
        config = config.with_values({"schedule.length": 1.0})  # a shorter run's steps are the same, but sooner over
        steps = math.ceil(_COURSE * max(config.part(BatchSection).factor, 1.0))
        prepared = prepare(task, config, level=level, seed=seed, device=device, steps=steps)
        self.boosted, self.task = prepared.boosted, prepared.task
        self._compiles = prepared.plan.config.part(RuntimeSection).compile != "off"
        # What reads ahead rests while the other side trains: it would read for nothing, on a core that is needed there.
        self._turn = reading_turn() if loading and prepared.reading == "prefetch" else None
        stream = prepared.batches(seed, self._turn)
        distinct, seconds = self._loaded(stream, _DISTINCT_BATCHES)
        self._reading_seconds, self._epoch = 0.0, 0
        if loading and prepared.reading == "resident":
            # Some batches over and over, whose samples are kept from the first time on.
            self._epoch, per_pass = epoch_batches(task, seed) or 0, prepared.batches_per_pass
            read = float(np.median(seconds[: max(int(self._epoch / per_pass), 1)]))
            n_batches = min(max(round(_READING_SECONDS / max(read, 1e-9)), _DISTINCT_BATCHES), _MOST_REPEATED)
            self._loaded(prepared.batches(seed), n_batches)
            _, seconds = self._loaded(prepared.batches(seed), n_batches)
            self._reading_seconds = max(read - float(np.median(seconds)), 0.0) / per_pass
            stream = itertools.chain.from_iterable(
                itertools.islice(prepared.batches(seed), n_batches) for _ in itertools.count()
            )
        self.batches = stream if loading else itertools.cycle(distinct)
        # How soon batches follow each other; the first opens the data.
        self._soonest = float(np.median(seconds)) if loading else 0.0
        self.position = 0
        self.warm_up_seconds, self.warm_up_passes = 0.0, 0
        self.repeats = 1  # windows between two synchronisations
        self._refreshed = False  # whether an expensive step was among the last of these
        optimizer = self.boosted.optimizer
        self.schedule = optimizer if isinstance(optimizer, GroupSchedule) else None
        strategy: Sequence[int] = [0]
        if self.schedule is not None:  # without a strategy the groups take turns
            strategy = self.schedule.strategy or range(self.schedule.n_groups)
        self.frequency = {group: count / len(strategy) for group, count in Counter(strategy).items()}
        groups = sorted(self.frequency)  # of which some are timed, evenly spread, the first and the last among them
        picks = np.linspace(0, len(groups) - 1, min(len(groups), _MEASURED_GROUPS)).round().astype(int)
        self.groups = [groups[i] for i in picks]
        if self._turn is not None:
            self._turn.acquire()
        inner = optimizer if self.schedule is None else self.schedule.optimizer_of(self.groups[0])
        self.cyclic = inner if isinstance(inner, Thor) else None  # which does something expensive now and then

    def _loaded(self, stream: Iterator[Any], n_batches: int) -> tuple[list[Any], list[float]]:
        """Return the next batches of a stream, and the seconds that each takes."""
        batches, seconds = [], []
        for _ in range(n_batches):
            began = self.clock()
            batches.append(next(stream))
            seconds.append(self.clock() - began)
        return batches, seconds

    def warm_up(self) -> None:
        """Train blocks that are not counted: allocations, lazy initialisation, compilation, an accelerator's clock."""
        began = self.clock()
        steps = [self.block()]
        windows, until = _CPU_WARM_UP[0], self.clock() + _CPU_WARM_UP[1]
        while self.position < _WARM_UP_WINDOWS * self.boosted.window.n_steps:
            steps.append(self.block())
        if self.device.type == "cpu":
            enough = windows * self.boosted.window.n_steps
            while self.position < enough and ranks.broadcast_object(self.clock() < until):
                steps.append(self.block())
        else:
            least, most = (self.clock() + seconds for seconds in _WARM_UP_SECONDS)  # after whatever was compiled
            while ranks.broadcast_object((now := self.clock()) < least or (now < most and _gets_faster(steps))):
                steps.append(self.block())
            window = max(steps[-1], 1e-9) * self.boosted.window.n_steps
            # A cycle has room for as many cheap windows as are timed together.
            room = sys.maxsize if self.cyclic is None else max(1, self.cyclic.frequency - 1)
            self.repeats = ranks.broadcast_object(min(max(1, round(_SECONDS_PER_SYNCHRONISATION / window)), room))
        self.warm_up_seconds, self.warm_up_passes = self.clock() - began, self.position
        wanted = min(self.block_seconds / max(steps[-1], 1e-9), _MOST_IN_BLOCK * self.boosted.window.n_steps)
        self.at_least = ranks.broadcast_object(max(self.at_least, round(wanted)))

    def beginning(self, step: float) -> dict[str, Any]:
        """Return what a run's first steps take beyond later ones of ``step`` seconds, as fields of a `SpeedRatio`."""
        return {
            "cold_ms": 1e3 * max(self.warm_up_seconds - self.warm_up_passes * step, 0.0),
            "cold_again": self.boosted.replays_passes and not self._compiles,
            "reading_ms": 1e3 * self._reading_seconds,
            "epoch": self._epoch,
        }

    def block(self) -> float:
        """Train one block and return the schedule's mean step time, seconds per micro-batch."""
        by_group: dict[int, list[float]] = {group: [] for group in self.groups}
        passes = max(1, -(-self.at_least // (len(self.groups) * self.boosted.window.n_steps * self.repeats)))
        expensive = 0.0
        with self.boosted.methods.running():
            for _ in range(passes):
                for group in self.groups:
                    seconds = self._windows(group)
                    if self._refreshed:
                        seconds = self._windows(group)  # an expensive step is counted below
                    by_group[group].append(seconds)
            measured = np.array([np.mean(by_group[group]) for group in self.groups])
            if self.cyclic is not None:
                self.cyclic.refresh_next()
                beyond = (self._windows(self.groups[0]) - float(measured[0])) * self.repeats
                expensive = beyond / self.cyclic.frequency
        cost = np.interp(list(self.frequency), self.groups, measured)
        step = float(np.dot(cost, list(self.frequency.values()))) + expensive
        # Workers load while the other side trains, too: of what they cannot keep up with, a run shows more.
        return max(step, self._soonest)

    def _windows(self, group: int) -> float:
        """Train the windows between two synchronisations with a freezing group; return seconds per micro-batch."""
        if self.before_window is not None:
            self.before_window()
        self._enter(group)
        n_steps = self.boosted.window.n_steps
        self._refreshed = False
        devices.synchronize(self.device)
        ranks.barrier()  # a rank that lags from the window before would be waited for in this one
        began = self.clock()
        if self._turn is not None:
            self._turn.release()
        for number in range(self.repeats):
            if number:
                self._enter(group)  # the schedule has gone on
            for step in range(n_steps):
                if step and self.before_window is not None and self.device.type == "cpu":
                    self.before_window()  # a micro-batch may take seconds; asking takes a microsecond
                self._train(next(self.batches), group, ends=step + 1 == n_steps)
                self.position += 1
            self._refreshed |= self.cyclic is not None and self.cyclic.refreshed
        devices.synchronize(self.device)
        if self._turn is not None:
            self._turn.acquire()  # as soon as it has read what was taken, for which the next step would wait
        return (self.clock() - began) / (n_steps * self.repeats)

    def _enter(self, group: int) -> None:
        if self.schedule is not None:
            self.boosted.use_freezing_group(group)

    def _train(self, batch: Any, group: int, *, ends: bool) -> None:
        boosted, compute_loss = self.boosted, self.task.compute_loss
        boosted.forward_backward(compute_loss, batch)
        boosted.step(functools.partial(compute_loss, boosted.model, batch))  # an update may try its steps
