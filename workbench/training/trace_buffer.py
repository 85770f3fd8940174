"""The trace of a run: numbers stay on the device, and reach the host in blocks.

Reading a loss every step would make the host wait for the device every step. The buffer keeps one row per step in
device memory and copies whole blocks, at most one second or ``capacity`` steps late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.core import devices
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale import ExponentTable, host_values, underflow_share
from workbench.loss_scale.gradient_statistics import (
    EXPONENT_BINS,
    exponent_counts_of,
    group_by_module,
    norm_and_maximum_of_finite,
    tensor_norms_and_maxima,
)
from workbench.loss_scale.host_values import float32
from workbench.training.boosted import Boosted
from workbench.training.float16_gradients import float16_gradient_parameters
from workbench.training.outcome import StepOutcome

_LOSS, _SCALE, _AFTER, _OVERFLOW, _NORM, _AMAX, _HALF_AMAX, _RATE = range(8)
_N_COLUMNS = 8
_MEMORY_SECONDS = 0.1  # how old a reading of the memory may be: to ask for it takes 50 to 200 us amid a training
_HALF_COLUMN = "amp.float16_grad_amax"
_SHOWN_MODULES = 3

AT_FLOOR_COLUMN = "loss_scale.at_floor"
"""Column that is 1 where a step overflowed and no group's scale could fall any further."""

_FINITE_BINS, _LOWEST_EXPONENT = EXPONENT_BINS - 2, -127  # and the exponent of the first; then inf and NaN, zeros

Mean = Callable[[Sequence[float]], list[float]]
_Counts = NDArray[np.int64]
_Pairs = tuple[tuple[int, int], ...]
"""Group of modules and scale group (-1 for none) of each exponent histogram: the share that underflows needs both."""


@dataclass(slots=True)
class _HostRow:
    """What the host knew when a step was dispatched."""

    outcome: StepOutcome
    seconds: float
    step_ms: float
    samples: int
    memory_bytes: int
    columns: Mapping[str, float]
    exponents: Tensor | None
    pairs: _Pairs
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
        self.exponents_every = exponents_every
        self.capacity = capacity
        self.max_seconds = max_seconds
        self._figures = figures
        self._events: list[Event] = []
        model, device = unwrapped(boosted.model), boosted.device  # names as the user knows them
        named = list(model.named_parameters())
        group_of = group_by_module(model)
        self._groups = list(dict.fromkeys(group_of.values()))
        self._index = {id(p): i for i, (_, p) in enumerate(named)}
        self._modules = [name.rpartition(".")[0] or name for name, _ in named]  # of each parameter, and its group
        self._group_index = [self._groups.index(group_of[name]) for name, _ in named]
        self._nan = torch.full((), math.nan, device=device)
        self._columns = torch.zeros(capacity, _N_COLUMNS, device=device)
        self._nonfinite = torch.zeros(capacity, max(len(named), 1), dtype=torch.bool, device=device)
        # Norm, maximum, that of float16 gradients, what is not finite, and its positions; where the host has norm and
        # maximum, these instead.
        self._gradient_row: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None
        self._gradient_values: tuple[float, float] | None = None
        # Group scales used and left behind, per row; there are none before groups have been found.
        self._scales: Tensor | None = None
        self._pending_exponents: Tensor | None = None
        self._pending_pairs: _Pairs = ()
        self._positions: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}
        self._float16: set[int] = set()
        self._graphs_seen: set[int] = set()
        self._rows: list[_HostRow] = []
        self._updates = 0
        self._began = self._last = self._oldest = time.perf_counter()
        self._memory_bytes, self._memory_read = 0, -math.inf
        self._was_at_floor = self._diverged = False
        self._before = boosted.observer, boosted.graph_observer, boosted.events
        boosted.events = self
        if gradients:
            boosted.observer = self._observe
            if boosted.precision.level == "O2" and boosted.precision.dtype == "float16":
                boosted.graph_observer = self._look_at_graph

    def emit(self, event: Event) -> None:
        """Take an event from a method below (``EventSink``); it is handed out with the next drain."""
        self._events.append(event)

    def state_dict(self) -> dict[str, float]:
        """Return the part of the state that outlasts a drain."""
        elapsed = time.perf_counter() - self._began
        return {"updates": self._updates, "was_at_floor": float(self._was_at_floor), "elapsed": elapsed}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on where ``state_dict`` was taken, after a drain."""
        self._updates, self._was_at_floor = int(state["updates"]), bool(state["was_at_floor"])
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
        values = self._values_on_host(outcome)
        if values is None:
            self._record_on_device(row, outcome)
        scales, after = outcome.group_scales, self.boosted.loss_scaling.group_scales
        if after is not None:
            if scales is None:  # the groups were found in this step, which ran at scale 1
                scales = torch.ones_like(after)
            if self._scales is None or self._scales.shape[2] != len(scales):
                self._scales = torch.zeros(self.capacity, 2, len(scales), device=self.boosted.device)
            self._scales[row] = torch.stack([scales, after])
        if now - self._memory_read >= _MEMORY_SECONDS:
            self._memory_bytes, self._memory_read = devices.memory_bytes(self.boosted.device), now
        exponents, self._pending_exponents = self._pending_exponents, None
        self._rows.append(
            _HostRow(
                outcome,
                now - self._began,
                (now - self._last) * 1e3,
                samples,
                self._memory_bytes,
                {**(columns or {}), **outcome.columns},
                exponents,
                self._pending_pairs,
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
        histograms = self._histograms(scales)
        records, events = [], list(self._events)
        for i, (host, row) in rows:
            used, left = grouped[i] if host.n_scales else ([], [])
            records.append(self._record(host, row, tuple(used), left, histograms.get(i, (math.nan, ()))))
            flags = nonfinite[i] if nonfinite is not None and host.values is None else None
            events += self._events_of(records[-1], flags, left)
        # Cleared last and together, so that an interrupt on the way here loses nothing.
        self._rows, self._events = [], self._events[emitted:]
        return records, sorted(events, key=lambda event: event.step)

    def _values_on_host(self, outcome: StepOutcome) -> list[float] | None:
        """Return the numbers of a step that are already in host memory; None if the device has to be asked."""
        scalars = (outcome.loss, outcome.loss_scale, outcome.loss_scale_after, outcome.overflow)
        if self._gradient_row is not None or not host_values.reads_without_waiting(*scalars):
            return None
        norm, amax = self._gradient_values or (math.nan, math.nan)
        self._gradient_values = None
        return [*(float32(scalar.item()) for scalar in scalars), norm, amax, math.nan, math.nan]

    def _record_on_device(self, row: int, outcome: StepOutcome) -> None:
        norm = amax = half_amax = self._nan
        if self._gradient_row is not None:
            norm, amax, half_amax, nonfinite, positions = self._gradient_row
            self._nonfinite[row].zero_()
            self._nonfinite[row].index_copy_(0, positions, nonfinite)
            self._gradient_row = None
        elif self._gradient_values is not None:
            norm, amax = (torch.tensor(value, device=self._nan.device) for value in self._gradient_values)
            self._gradient_values = None
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

    def _look_at_graph(self, loss: Tensor) -> None:
        """Note which parameters get float16 gradients; once per freezing group, whose graphs differ."""
        group = self.boosted.frozen_groups
        if group in self._graphs_seen:
            return
        self._graphs_seen.add(group)
        found = {id(p) for p in float16_gradient_parameters(loss)} - self._float16
        if found:
            self._float16 |= found
            self._positions.clear()

    def _observe(self, parameters: list[nn.Parameter]) -> None:
        known = [p for p in parameters if id(p) in self._index]
        gradients = [p.grad for p in known if p.grad is not None]
        if not gradients:
            return
        self._gradient_values = None if self._float16 else norm_and_maximum_of_finite(gradients)
        if self._gradient_values is None:
            self._look_at_each(known, gradients)
        if self.exponents_every and self._updates % self.exponents_every == 0:
            split = self._split(known)
            self._pending_pairs = tuple(split)
            device = gradients[0].device  # where zeros of groups that are frozen have to lie as well
            self._pending_exponents = exponent_counts_of(list(split.values()), device)
        self._updates += 1

    def _look_at_each(self, known: list[nn.Parameter], gradients: list[Tensor]) -> None:
        norms, maxima = tensor_norms_and_maxima(gradients)
        finite = norms.isfinite()
        finite_maxima = torch.where(finite, maxima, torch.zeros_like(maxima))
        key = tuple(id(p) for p in known)
        if key not in self._positions:  # one entry per freezing group
            indices = devices.tensor_on(norms.device, [self._index[i] for i in key])
            self._positions[key] = indices, devices.tensor_on(norms.device, [i in self._float16 for i in key])
        positions, in_float16 = self._positions[key]
        half_amax = self._nan
        if self._float16:
            half_amax = torch.where(in_float16, finite_maxima, torch.zeros_like(maxima)).max()
        self._gradient_row = (norms.norm(), finite_maxima.max(), half_amax, ~finite, positions)

    def _split(self, parameters: list[nn.Parameter]) -> dict[tuple[int, int], list[Tensor]]:
        """Sort gradients by group of modules and scale group (-1 for none)."""
        scaling = self.boosted.loss_scaling
        split: dict[tuple[int, int], list[Tensor]] = {(group, -1): [] for group in range(len(self._groups))}
        for parameter in parameters:
            if parameter.grad is not None:
                key = self._group_index[self._index[id(parameter)]], scaling.group_of(parameter)
                split.setdefault(key, []).append(parameter.grad)
        return split

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

    def _histograms(self, scales: Sequence[float | list[float]]) -> dict[int, tuple[float, tuple[ExponentCounts, ...]]]:
        """Return the underflowing share and a histogram per group of modules, for rows that counted exponents.

        ``scales`` are the loss scale of each row, or those of its groups. A frozen group has no histogram.
        """
        counting = [(at, host) for at, host in enumerate(self._rows) if host.exponents is not None]
        if not counting:
            return {}
        counts = torch.cat([host.exponents for _, host in counting if host.exponents is not None]).cpu().numpy()
        pairs = [(at, group, own) for at, host in counting for group, own in host.pairs]
        shares = _underflow_shares(counts, [(at, _scale_of(scales[at], own)) for at, _, own in pairs])
        # Scale groups may split a group of modules: its counts are added up.
        keys = np.array([at * len(self._groups) + group for at, group, _ in pairs])
        order = np.argsort(keys, kind="stable")
        present, begins = np.unique(keys[order], return_index=True)
        sums = np.add.reduceat(counts[order], begins, axis=0)
        found: dict[int, list[ExponentCounts]] = {at: [] for at, _ in counting}
        for key, low, end, row in zip(present.tolist(), *_used_bins(sums), sums, strict=True):
            at, group = divmod(key, len(self._groups))
            bins, (nonfinite, zeros) = row[low:end].tolist(), row[_FINITE_BINS:].tolist()
            if bins or zeros or nonfinite:
                found[at].append(
                    ExponentCounts(self._groups[group], _LOWEST_EXPONENT + low, tuple(bins), zeros, nonfinite)
                )
        return {at: (shares[at], tuple(histograms)) for at, histograms in found.items()}

    def _events_of(self, record: StepRecord, nonfinite: Tensor | None, scales_after: list[float]) -> list[Event]:
        events: list[Event] = []
        scaling, before, after = self.boosted.loss_scaling, record.loss_scale, record.loss_scale_after

        def add(kind: EventKind, subject: str, value: float, text: str) -> None:
            events.append(Event(record.step, kind, subject, value, f"step {record.step}: {text}"))

        if record.overflow:
            hit = [] if nonfinite is None else torch.nonzero(nonfinite).flatten().tolist()
            # Last registered first: the backward pass met them so.
            modules = list(dict.fromkeys(self._modules[i] for i in reversed(hit)))
            rest = len(modules) - _SHOWN_MODULES  # the event's subject holds them all
            who = ", ".join(modules[:_SHOWN_MODULES]) + (f" and {rest} more" if rest > 0 else "")
            then = "skipped" if record.skipped else "applied anyway"
            at = "" if record.group_scales else f"at loss scale {before:g} "
            text = f"gradients overflowed {at}in {who or 'a gradient'}; the update was {then}"
            add(EventKind.OVERFLOW, ", ".join(modules), before, text)
        changes = [("", "loss scale", before, after)]
        if record.group_scales:
            of_groups = zip(scaling.group_names, record.group_scales, scales_after, strict=True)
            changes = [(name, f"loss scale of {name}", used, now) for name, used, now in of_groups]
        for name, what, used, now in changes:
            if now < used:
                add(EventKind.SCALE_DOWN, name, now, f"{what} fell to {now:g}")
            elif now > used and (not name or _is_news(used, now)):
                add(EventKind.SCALE_UP, name, now, f"{what} grew to {now:g}")
        ended = record.accumulated == self.boosted.window.n_steps  # a window, so it was judged
        if ended and (record.group_scales or scaling.adapts):
            at_floor = record.overflow and after <= scaling.minimum
            text = f"loss scale is at its floor {after:g}; further overflows cannot lower it"
            if record.group_scales:
                at_floor, text = AT_FLOOR_COLUMN in record.columns, "no loss scale of a group can fall any further"
            if at_floor and not self._was_at_floor:
                add(EventKind.SCALE_FLOOR, "", after, text)
            self._was_at_floor = at_floor
        # Once: every loss after it is as bad. Where overflows are skipped, the rule of the loss scale judges instead.
        if not (math.isfinite(record.loss) or scaling.drop_overflow_update or self._diverged):
            self._diverged = True
            add(EventKind.DIVERGED, "loss", record.loss, f"the loss is {record.loss:g}; training diverged")
        return events


def _scale_of(scales: float | list[float], own: int) -> float:
    """Return the scale of a group's gradients; those without one have no scale where others do."""
    if isinstance(scales, float):
        return scales
    return scales[own] if own >= 0 else 1.0


def _underflow_shares(counts: _Counts, owners: list[tuple[int, float]]) -> dict[int, float]:
    """Return by row the share of non-zero elements that float16 cannot represent at their scale; NaN if unknown.

    ``owners`` has for each row of ``counts`` its row of the trace and its scale.
    """
    bins = counts[:, :_FINITE_BINS]
    elements = bins.sum(axis=1)
    scales = np.array([scale for _, scale in owners])
    scales[elements == 0] = 1.0  # whatever it is, nothing was lost by it
    lost = np.nan_to_num(underflow_share(ExponentTable(_LOWEST_EXPONENT, bins.astype(np.float64)), scales)) * elements
    places = np.array([at for at, _ in owners])
    totals = np.bincount(places, elements).tolist()
    of_all = np.bincount(places, lost).tolist()
    return {at: of_all[at] / totals[at] if totals[at] else math.nan for at, _ in owners}


def _used_bins(counts: _Counts) -> tuple[list[int], list[int]]:
    """Return for each row of counts the first bin that holds an element and the end of the last; 0 without any."""
    used = counts[:, :_FINITE_BINS] > 0
    end = np.where(used.any(axis=1), _FINITE_BINS - used[:, ::-1].argmax(axis=1), 0)
    return used.argmax(axis=1).tolist(), end.tolist()


def _is_news(before: float, after: float) -> bool:
    """Return whether a scale grew by a tenth, or past a power of two: the reference's grow by 0.07 % in every step."""
    return after >= 1.1 * before or (after > before and math.floor(math.log2(after)) > math.floor(math.log2(before)))
