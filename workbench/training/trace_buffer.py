"""The trace of a run: numbers stay on the device, and reach the host in blocks.

Reading a loss every step would make the host wait for the device every step. The buffer keeps one row per step in
device memory and copies whole blocks, at most one second or ``capacity`` steps late.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core import devices, host_values
from workbench.core.records import Event, ExponentCounts, StepRecord
from workbench.core.wrapped_model import unwrapped
from workbench.training.boosted import Boosted
from workbench.training.gradient_watch import ExponentHistograms, GradientWatch, SeenGradients, read_histograms
from workbench.training.outcome import StepOutcome
from workbench.training.step_events import AT_FLOOR_COLUMN, StepEvents

_LOSS, _SCALE, _AFTER, _OVERFLOW, _NORM, _AMAX, _HALF_AMAX, _RATE = range(8)
_N_COLUMNS = 8
_MEMORY_SECONDS = 0.1  # how old a reading of the memory may be: to ask for it takes 50 to 200 us amid a training
_HALF_COLUMN = "amp.float16_grad_amax"

Mean = Callable[[Sequence[float]], list[float]]


@dataclass(slots=True)
class _HostRow:
    """What the host knew when a step was dispatched."""

    outcome: StepOutcome
    seconds: float
    step_ms: float
    samples: int
    memory_bytes: int
    columns: Mapping[str, float]
    histograms: ExponentHistograms | None
    n_scales: int
    values: list[float] | None  # the device's columns, where the host could read them without waiting


class TraceBuffer:
    """Record a boosted run step by step; the buffer attaches itself as its gradient observer."""

    def __init__(
        self,
        boosted: Boosted,
        *,
        exponents_every: int = 0,  # updates between exponent histograms; 0 never
        capacity: int = 1024,  # rows on the device before a drain is due
        max_seconds: float = 1.0,  # age of the oldest row at which it is
        gradients: bool = True,  # norm, maximum and non-finite modules: three passes over the gradients
        figures: Callable[[StepOutcome], Mapping[str, float]] | None = None,  # more numbers of each step, by column
    ) -> None:
        self.boosted = boosted
        self.capacity = capacity
        self.max_seconds = max_seconds
        self._figures = figures
        self._events: list[Event] = []
        named = [name for name, _ in unwrapped(boosted.model).named_parameters()]  # as the user knows them
        self._modules = [name.rpartition(".")[0] or name for name in named]
        self._gradients, self._step_events = GradientWatch(boosted, exponents_every), StepEvents(boosted)
        device = boosted.device
        self._nan = torch.full((), math.nan, device=device)
        self._columns = torch.zeros(capacity, _N_COLUMNS, device=device)
        self._nonfinite = torch.zeros(capacity, max(len(named), 1), dtype=torch.bool, device=device)
        # Group scales used and left behind, per row; there are none before groups have been found.
        self._scales: Tensor | None = None
        self._rows: list[_HostRow] = []
        self._began = self._last = self._oldest = time.perf_counter()
        self._memory_bytes, self._memory_read = 0, -math.inf
        self._before = boosted.observer, boosted.graph_observer, boosted.events
        boosted.events = self
        if gradients:
            boosted.observer = self._gradients.observe
            if boosted.precision.level == "O2" and boosted.precision.dtype == "float16":
                boosted.graph_observer = self._gradients.look_at_graph

    @property
    def room(self) -> int:
        """How many steps can be recorded before the next drain."""
        return self.capacity - len(self._rows)

    def emit(self, event: Event) -> None:
        """Take an event from a method below (``EventSink``); it is handed out with the next drain."""
        self._events.append(event)

    def state_dict(self) -> dict[str, float]:
        """Return the part of the state that outlasts a drain."""
        elapsed, at_floor = time.perf_counter() - self._began, float(self._step_events.was_at_floor)
        return {"updates": self._gradients.updates, "was_at_floor": at_floor, "elapsed": elapsed}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where ``state_dict`` was taken, after a drain."""
        self._gradients.updates, self._step_events.was_at_floor = int(state["updates"]), bool(state["was_at_floor"])
        self._began = time.perf_counter() - state["elapsed"]

    def detach(self) -> None:
        """Give the boosted pair back its earlier observers."""
        self.boosted.observer, self.boosted.graph_observer, self.boosted.events = self._before

    def restart_clock(self, left_out: float = 0.0) -> None:
        """Start timing the next step now, and leave ``left_out`` seconds out of the run's time."""
        self._last = time.perf_counter()
        self._began += left_out

    def record(self, outcome: StepOutcome, samples: int, columns: Mapping[str, float] | None = None) -> None:
        """Add one step, with namespaced numbers the host knows (``{"time.forward": 1.2}``); no host synchronisation."""
        if len(self._rows) == self.capacity:
            raise RuntimeError("the trace buffer is full; call drain() when due() says so")
        if self._figures is not None:
            columns = {**(columns or {}), **self._figures(outcome)}
        now = time.perf_counter()
        row = len(self._rows)
        if row == 0:
            self._oldest = now
        seen = self._gradients.take()
        values = _values_on_host(outcome, seen)
        if values is None:
            self._record_on_device(row, outcome, seen)
        scales, after = outcome.group_scales, self.boosted.loss_scaling.group_scales
        if after is not None:
            if scales is None:  # the groups were found in this step, which ran at scale 1
                scales = torch.ones_like(after)
            if self._scales is None or self._scales.shape[2] != len(scales):
                self._scales = torch.zeros(self.capacity, 2, len(scales), device=self.boosted.device)
            self._scales[row] = torch.stack([scales, after])
        if now - self._memory_read >= _MEMORY_SECONDS:
            self._memory_bytes, self._memory_read = devices.memory_bytes(self.boosted.device), now
        self._rows.append(
            _HostRow(
                outcome,
                self._last - self._began,
                (now - self._last) * 1e3,
                samples,
                self._memory_bytes,
                {**(columns or {}), **outcome.columns},
                seen.histograms,
                0 if scales is None else len(scales),
                values,
            )
        )
        self._last = now

    def due(self) -> bool:
        """Return whether the buffer is full or its oldest row is too old."""
        full = len(self._rows) >= self.capacity
        return full or (bool(self._rows) and time.perf_counter() - self._oldest >= self.max_seconds)

    def drain(self, mean: Mean | None = None) -> tuple[list[StepRecord], list[Event]]:
        """Copy what was recorded to the host, in one transfer, and empty the buffer: step records in order, and events.

        The events are overflows with the leaf modules whose gradients went non-finite, changes of the scale, a scale at
        its floor, a loss that is not finite, and what was emitted. ``mean`` turns losses into their means over ranks.
        """
        n, emitted = len(self._rows), len(self._events)
        known = [host.values for host in self._rows]
        on_device = self._columns[:n].cpu().tolist() if None in known else known
        values: list[list[float]] = [row or other for row, other in zip(known, on_device, strict=True)]
        if mean is not None:
            losses = mean([row[_LOSS] for row in values])
            values = [[loss, *row[1:]] for loss, row in zip(losses, values, strict=True)]
        # A row that was known on the host had finite gradients only, or none.
        overflowed = any(row[_OVERFLOW] for row, host in zip(values, self._rows, strict=True) if host.values is None)
        nonfinite = self._nonfinite[:n].cpu() if overflowed else None
        grouped = [] if self._scales is None else self._scales[:n].cpu().tolist()
        rows = list(enumerate(zip(self._rows, values, strict=True)))
        scales = [row[_SCALE] if host.n_scales == 0 else grouped[i][0] for i, (host, row) in rows]
        taken = {i: host.histograms for i, host in enumerate(self._rows) if host.histograms is not None}
        histograms = read_histograms(taken, scales, self._gradients.groups)
        records, events = [], list(self._events)
        for i, (host, row) in rows:
            used, left = grouped[i] if host.n_scales else ([], [])
            records.append(self._record(host, row, tuple(used), left, histograms.get(i, (math.nan, ()))))
            flags = nonfinite[i] if nonfinite is not None and host.values is None else None
            events += self._step_events.of(records[-1], self._modules_at(flags), left)
        # Cleared last and together, so that an interrupt on the way here loses nothing.
        self._rows, self._events = [], self._events[emitted:]
        return records, sorted(events, key=lambda event: event.step)

    def _modules_at(self, nonfinite: Tensor | None) -> list[str]:
        """Return the modules of some parameters, last registered first: the backward pass met them so."""
        hit = [] if nonfinite is None else torch.nonzero(nonfinite).flatten().tolist()
        return list(dict.fromkeys(self._modules[i] for i in reversed(hit)))

    def _record_on_device(self, row: int, outcome: StepOutcome, seen: SeenGradients) -> None:
        norm = amax = half_amax = self._nan
        if seen.numbers is not None:
            norm, amax, half_amax, nonfinite, positions = seen.numbers
            self._nonfinite[row].zero_()
            self._nonfinite[row].index_copy_(0, positions, nonfinite)
        elif seen.on_host is not None:
            norm, amax = (torch.tensor(value, device=self._nan.device) for value in seen.on_host)
        rate = outcome.learning_rate  # here only where the host would have to wait for it
        self._columns[row] = torch.stack(
            [
                outcome.loss.float().reshape(()),
                outcome.loss_scale.reshape(()),
                outcome.loss_scale_after.reshape(()),
                outcome.overflow.float().reshape(()),
                norm,
                amax,
                half_amax,
                rate.float().reshape(()) if isinstance(rate, Tensor) and not rate.is_cpu else self._nan,
            ]
        )

    def _record(
        self,
        host: _HostRow,
        row: list[float],
        group_scales: tuple[float, ...],
        left: list[float],
        histograms: tuple[float, tuple[ExponentCounts, ...]],
    ) -> StepRecord:
        outcome, overflow = host.outcome, bool(row[_OVERFLOW])
        amax, half = row[_AMAX], row[_HALF_AMAX]
        columns = dict(host.columns)
        if not (math.isnan(half) or overflow):
            columns[_HALF_COLUMN] = half
        if overflow and group_scales and not any(now < used for used, now in zip(group_scales, left, strict=True)):
            # An overflow lowers a scale, unless those to blame are on their floor.
            columns[AT_FLOOR_COLUMN] = 1.0
        return StepRecord(
            step=outcome.step,
            seconds=host.seconds,
            step_ms=host.step_ms,
            loss=row[_LOSS],
            loss_scale=row[_SCALE],
            loss_scale_after=row[_AFTER],
            overflow=overflow,
            skipped=overflow and self.boosted.loss_scaling.drop_overflow_update,
            accumulated=outcome.accumulated,
            grad_norm=row[_NORM],
            grad_amax=amax if amax > 0 or not overflow else math.nan,
            underflow_share=histograms[0],
            group_scales=group_scales,
            frozen_groups=outcome.frozen_groups,
            learning_rate=row[_RATE] if math.isfinite(row[_RATE]) else float(outcome.learning_rate),
            samples=host.samples,
            memory_bytes=host.memory_bytes,
            grad_exponents=histograms[1],
            columns=columns,
        )


def _values_on_host(outcome: StepOutcome, seen: SeenGradients) -> list[float] | None:
    """Return the numbers of a step that are already in host memory; None if the device has to be asked."""
    scalars = (outcome.loss, outcome.loss_scale, outcome.loss_scale_after, outcome.overflow)
    if seen.numbers is not None or not host_values.reads_without_waiting(*scalars):
        return None
    norm, amax = seen.on_host or (math.nan, math.nan)
    numbers = (ctypes.c_float(scalar.item()).value for scalar in scalars)  # rounded as in a row of the device
    return [*numbers, norm, amax, math.nan, math.nan]
