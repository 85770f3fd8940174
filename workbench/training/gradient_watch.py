"""What a trace sees of the gradients at the end of a window: norm, largest value, what is not finite, exponents.

All of it stays on the device, except where the host can have norm and largest value without waiting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from workbench.core import devices
from workbench.core.records import ExponentCounts
from workbench.core.wrapped_model import unwrapped
from workbench.loss_scale import ExponentTable, underflow_share
from workbench.loss_scale.gradient_statistics import (
    EXPONENT_BINS,
    exponent_counts,
    group_by_module,
    norm_and_maximum_of_finite,
    tensor_norms_and_maxima,
)
from workbench.training.boosted import Boosted

_FINITE_BINS, _LOWEST_EXPONENT = EXPONENT_BINS - 2, -127  # and the exponent of the first; then inf and NaN, zeros

_Counts = NDArray[np.int64]


class GradientNumbers(NamedTuple):
    """What was seen of a window's gradients, on the device; scalars of shape ``()``."""

    norm: Tensor
    amax: Tensor
    half_amax: Tensor  # of those in float16; NaN without any
    nonfinite: Tensor  # per tensor, bool
    positions: Tensor  # of these tensors among the model's parameters


class ExponentHistograms(NamedTuple):
    """Counts of exponents, on the device; a row belongs to a group of modules and a scale group (-1 for none).

    The share that underflows needs both.
    """

    counts: Tensor  # shape [rows, EXPONENT_BINS]
    groups: tuple[tuple[int, int], ...]


class SeenGradients(NamedTuple):
    """What was seen since it was last asked for; nothing where no window ended, or no parameter has a gradient."""

    numbers: GradientNumbers | None = None
    on_host: tuple[float, float] | None = None  # norm and largest value, in place of the numbers: all are finite
    histograms: ExponentHistograms | None = None


class GradientWatch:
    """Looks at the gradients of every window.

    Args:
        boosted: Whose gradients.
        exponents_every: Updates between two exponent histograms; 0 never.
    """

    def __init__(self, boosted: Boosted, exponents_every: int) -> None:
        self._boosted, self._exponents_every = boosted, exponents_every
        model = unwrapped(boosted.model)  # names as the user knows them
        named = list(model.named_parameters())
        group_of = group_by_module(model)
        self.groups = list(dict.fromkeys(group_of.values()))
        self._index = {id(p): i for i, (_, p) in enumerate(named)}
        self._group_index = [self.groups.index(group_of[name]) for name, _ in named]
        self._nan = torch.full((), math.nan, device=boosted.device)
        self._positions: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}  # and whether in float16; by parameters
        self._float16: set[int] = set()  # parameters with gradients in it
        self._graphs_seen: set[tuple[int, bool]] = set()  # by freezing group and whether in mixed precision
        self._seen = SeenGradients()
        self.updates = 0

    def take(self) -> SeenGradients:
        """Return what was seen since the last call."""
        seen, self._seen = self._seen, SeenGradients()
        return seen

    def look_at_graph(self, loss: Tensor) -> None:
        """Note which parameters get float16 gradients; once per freezing group and precision, whose graphs differ."""
        graph = self._boosted.frozen_groups, self._boosted.loss_scaling.autocast_allowed
        if graph in self._graphs_seen:
            return
        self._graphs_seen.add(graph)
        found = {id(p) for p in float16_gradient_parameters(loss)} - self._float16
        if found:
            self._float16 |= found
            self._positions.clear()

    def observe(self, parameters: list[nn.Parameter]) -> None:
        """Look at the gradients of a window, a ``GradientObserver``."""
        known = [p for p in parameters if id(p) in self._index]
        gradients = [p.grad for p in known if p.grad is not None]
        if not gradients:
            return
        on_host = None if self._float16 else norm_and_maximum_of_finite(gradients)
        numbers = self._numbers(known, gradients) if on_host is None else None
        is_due = bool(self._exponents_every) and self.updates % self._exponents_every == 0
        self._seen = SeenGradients(numbers, on_host, self._histograms(known) if is_due else None)
        self.updates += 1

    def _numbers(self, known: list[nn.Parameter], gradients: list[Tensor]) -> GradientNumbers:
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
        return GradientNumbers(norms.norm(), finite_maxima.max(), half_amax, ~finite, positions)

    def _histograms(self, known: list[nn.Parameter]) -> ExponentHistograms:
        scaling = self._boosted.loss_scaling
        split: dict[tuple[int, int], list[Tensor]] = {(group, -1): [] for group in range(len(self.groups))}
        present = [(parameter, parameter.grad) for parameter in known if parameter.grad is not None]
        for parameter, gradient in present:
            key = self._group_index[self._index[id(parameter)]], scaling.group_of(parameter)
            split.setdefault(key, []).append(gradient)
        device = present[0][1].device  # where zeros of groups that are frozen have to lie as well
        counts = torch.stack([exponent_counts(gradients, device) for gradients in split.values()])
        return ExponentHistograms(counts, tuple(split))


def float16_gradient_parameters(loss: Tensor) -> list[nn.Parameter]:
    """Return the parameters whose gradients are computed in float16 under autocast; only these can overflow.

    They come back through the cast by which the parameter of a linear or convolutional layer went in. The walk takes
    milliseconds for thousands of nodes, and finds nothing where ``torch.compile`` hides it.
    """
    through_cast: dict[Tensor, None] = {}
    directly: set[Tensor] = set()
    waiting = [] if loss.grad_fn is None else [loss.grad_fn]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        for source, _ in node.next_functions:
            if source is None:
                continue
            leaf = getattr(source, "variable", None)  # only AccumulateGrad has one
            if leaf is not None:
                if node.name().startswith("ToCopyBackward"):
                    through_cast[leaf] = None
                else:
                    directly.add(leaf)
            elif source not in seen:
                seen.add(source)
                waiting.append(source)
    return [leaf for leaf in through_cast if leaf not in directly and isinstance(leaf, nn.Parameter)]


def read_histograms(
    taken: Mapping[int, ExponentHistograms], scales: Sequence[float | list[float]], names: Sequence[str]
) -> dict[int, tuple[float, tuple[ExponentCounts, ...]]]:
    """Return the underflowing share and a histogram per group of modules, for the rows of a trace that have counted.

    A frozen group has no histogram.

    Args:
        taken: What was counted, by row.
        scales: The loss scale of each row, or those of its groups.
        names: Of the groups of modules.
    """
    if not taken:
        return {}
    counts = torch.cat([one.counts for one in taken.values()]).cpu().numpy()
    owners = [(at, group, own) for at, one in taken.items() for group, own in one.groups]
    shares = _underflow_shares(counts, [(at, _scale_of(scales[at], own)) for at, _, own in owners])
    # Scale groups may split a group of modules: its counts are added up.
    keys = np.array([at * len(names) + group for at, group, _ in owners])
    order = np.argsort(keys, kind="stable")
    present, begins = np.unique(keys[order], return_index=True)
    sums = np.add.reduceat(counts[order], begins, axis=0)
    found: dict[int, list[ExponentCounts]] = {at: [] for at in taken}
    for key, low, end, row in zip(present.tolist(), *_used_bins(sums), sums, strict=True):
        at, group = divmod(key, len(names))
        bins, (nonfinite, zeros) = row[low:end].tolist(), row[_FINITE_BINS:].tolist()
        if bins or zeros or nonfinite:
            found[at].append(ExponentCounts(names[group], _LOWEST_EXPONENT + low, tuple(bins), zeros, nonfinite))
    return {at: (shares[at], tuple(histograms)) for at, histograms in found.items()}


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
