"""The second-order part of THOR: what is approximated, and when factors are collected, refreshed and applied.

The curvature of a layer with weight ``W`` (shape ``[out, in]``; a convolution's kernel is flattened to
``[out, channels * height * width]``) is taken as the Kronecker product of two covariances: ``A`` (``[in, in]``, of what
goes in) and ``G`` (``[out, out]``, of the gradient of what comes out). The natural gradient is then ``G^-1 dW A^-1``.
THOR keeps of A and G only the diagonal blocks of 128, so that a wide layer costs no more per weight than a narrow one.

One object per network. In the order of a training step::

    forward, backward     # taps of the layers whose refresh is due add to their factors
    refresh(...)          # those layers: average over ranks, invert, unless the gradients overflowed
    apply(gradients)      # G^-1 dW A^-1 for all layers, with the inverses in force
    advance()             # count the step; put up taps where the next step refreshes

What only the device knows (did the gradients overflow, did a block fail, was a layer left alone by the trace rule) is
decided there by masks and comes to the host ``SETTLE_AFTER`` steps later, at once on a CPU. Then events are emitted,
failed blocks are inverted with more damping from the factors that still lie there, and a refresh that an overflow
spoilt is scheduled again for the next step.

Reference:
    Martens and Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", ICML 2015,
    arXiv:1503.05671, sections 3 and 6.3 (factored damping); Grosse and Martens, "A Kronecker-factored approximate
    Fisher matrix for convolution layers", ICML 2016, arXiv:1602.01407; Chen et al., "THOR, Trace-based Hardware-driven
    Layer-Oriented Natural Gradient Descent Computation", AAAI 2021 (blocks, stale inverses, trace rule).
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from workbench.core.records import Event, EventKind, EventSink
from workbench.optim.host_copy import HostCopy
from workbench.optim.thor.collection import FirstOrder, Tally, Tap, find_layers
from workbench.optim.thor.formulas import FactorRules, split_damping
from workbench.optim.thor.layer_vectors import LayerVectors
from workbench.optim.thor.matrices import FactorBlocks, FactorExchange, LayerPlan

SETTLE_AFTER = 4  # steps; a device is seldom further behind its host, so reading then does not make it wait


@dataclass(slots=True)
class _Unsettled:
    """A refresh whose outcome the host does not know yet."""

    at: int  # count of steps at which it is read
    step: int  # for events
    layers: list[int]
    report: HostCopy  # skipped because of an overflow, then per layer: refreshed, factor failed (A, G)
    damping: Tensor
    multiplier: Tensor | None


class Preconditioner:
    """Factors and inverses of a network's layers; parameters that are not ``trained`` have none."""

    def __init__(self, network: nn.Module, trained: Sequence[nn.Parameter], rules: FactorRules) -> None:
        self.rules = rules
        self.layers, self.normalizations, self.first_order = find_layers(network, trained)
        if rules.factors == "mindspore":
            oblong = [one for one in self.layers if len(set(getattr(one.module, "kernel_size", ()))) > 1]
            self.layers = [layer for layer in self.layers if layer not in oblong]
            self.first_order += [FirstOrder(f"{layer.name}.weight", "kernel that is not square") for layer in oblong]
        self.steps = 0  # counted so far
        self.refreshed = False  # by the last step
        self.position = {id(layer.weight): i for i, layer in enumerate(self.layers)}
        self.device = device = trained[0].device
        double = any(layer.weight.dtype == torch.float64 for layer in self.layers)
        self.dtype = torch.float64 if double else torch.float32
        self._vectors = LayerVectors(self.layers, device, self.dtype)
        embeddings = [layer for layer in self.layers if layer.kind == "embedding"]
        for layer in embeddings:
            layer.counts = torch.zeros(layer.inputs, device=device, dtype=self.dtype)
            layer.row_scale = torch.ones(layer.inputs, device=device, dtype=self.dtype)
        reference_product: Tensor | None = None
        if rules.factors == "mindspore" and embeddings:
            reference_product = torch.zeros(len(self._vectors.sizes), dtype=torch.bool, device=device)
            reference_product[[layer.g for layer in embeddings]] = True
        self.blocks = FactorBlocks(self._vectors.sizes, rules.block_size, device, self.dtype, reference_product)
        n = len(self.layers)
        self._traces = torch.full((n,), -1.0, device=device, dtype=self.dtype)  # of the factors in force
        self._averaged = torch.zeros(n, dtype=torch.bool, device=device)
        self._armed: set[int] = set(range(n))
        self._unsettled: list[_Unsettled] = []
        self._exchange = FactorExchange(self.layers, self.blocks, rules.split_indices)
        self._taps = self._new_taps()
        self._plans: dict[int, LayerPlan] = {}
        self._put_up_taps()

    # Collecting

    def _put_up_taps(self) -> None:
        for i in self._armed - self._taps.keys():
            self._taps[i] = Tap(self.layers[i].module, self._receiver(i))
            if self.layers[i].tally.calls == 0:
                self.layers[i].clear(self.blocks)

    def _receiver(self, i: int) -> Callable[[Tensor, Tensor], None]:
        # A tap must not keep a dropped optimizer alive: neither would ever be freed.
        layer, blocks, rules = self.layers[i], weakref.ref(self.blocks), self.rules

        def receive(inputs: Tensor, gradient: Tensor) -> None:
            if (living := blocks()) is not None:
                layer.collect(inputs, gradient, living, rules.factors, rules.max_rows)

        return receive

    def _new_taps(self) -> dict[int, Tap]:
        """Return where taps are kept; they go with this object."""
        taps: dict[int, Tap] = {}
        weakref.finalize(self, _remove_all, taps)
        return taps

    def _take_off_taps(self, which: Iterable[int]) -> None:
        for i in list(which):
            self._taps.pop(i).remove()

    @property
    def due(self) -> list[int]:
        """Layers that refresh in this step: their time has come, or had come while they were frozen."""
        return sorted(i for i in self._armed if self.layers[i].weight.requires_grad)

    def arm(self) -> None:
        """Have every layer refresh in the coming step; call it before the forward pass."""
        self._armed = set(range(len(self.layers)))
        self._put_up_taps()

    # Refreshing

    def refresh(
        self,
        damping: Sequence[float],
        inverse_scale: Tensor | None,
        found_inf: Tensor | None,
        *,
        step: int,
        events: EventSink | None,
    ) -> None:
        """Make new inverses for the layers that are due (some are), by their damping d, unless ``found_inf`` is not 0.

        ``inverse_scale`` is one over the loss scale of output gradients, per layer, shape ``[layers]``; None for 1.
        """
        due, rules, blocks, vectors = self.due, self.rules, self.blocks, self._vectors
        self.refreshed = True
        self._take_off_taps(self._taps.keys() & set(due))
        self._armed -= set(due)
        take, skip = self._form_factors(due, inverse_scale, found_inf)
        a_traces, g_traces = vectors.of_layers(blocks.traces())
        product = a_traces * g_traces
        take &= torch.isfinite(product) & ~skip
        if rules.factor_decay:
            weight = self._averaged.to(self.dtype) * rules.factor_decay
            blocks.average_(vectors.repeated(weight), vectors.repeated(take))
            self._averaged |= take
            a_traces, g_traces = vectors.of_layers(blocks.traces())
            product = torch.where(take, a_traces * g_traces, product)
        if rules.trace_threshold is not None:
            change = (product - self._traces).abs() / self._traces
            take &= (self._traces < 0) | (change > rules.trace_threshold)
        self._traces = torch.where(take, product, self._traces)
        a_damping, g_damping, multiplier = self._dampings(damping, a_traces, g_traces)
        by_factor = vectors.of_factors(a_damping, g_damping)
        failed = self._exchange.invert_(by_factor, multiplier, vectors.repeated(take))
        for i in due:
            layer = self.layers[i]
            if layer.counts is not None and layer.row_scale is not None:
                fresh = (layer.counts + a_damping[i]).reciprocal()
                layer.row_scale.copy_(torch.where(take[i], fresh, layer.row_scale))
            layer.tally = Tally()
        report = torch.cat([skip.reshape(1).to(self.dtype), take.to(self.dtype), failed.to(self.dtype)])
        lag = 0 if self.blocks.host_decides else SETTLE_AFTER
        self._unsettled.append(_Unsettled(self.steps + lag, step, due, HostCopy(report), by_factor, multiplier))
        self.settle(events)

    def _form_factors(
        self, due: list[int], inverse_scale: Tensor | None, found_inf: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Turn sums into factors, averaged over ranks; return the layers that have new ones, and the overflow flag."""
        coefficients = [layer.coefficients(self.rules.factors, self.rules.batch_size) for layer in self.layers]
        is_due = [float(i in due) for i in range(len(self.layers))]
        is_alive = [float(layer.tally.calls > 0) for layer in self.layers]
        of_a, of_g = [pair[0] for pair in coefficients], [pair[1] for pair in coefficients]
        chosen, alive, a, g = self._vectors.over_layers(is_due, is_alive, of_a, of_g)
        if inverse_scale is not None:
            g = g * inverse_scale.square()
        self.blocks.scale_(self._vectors.of_factors(a, g), self._vectors.repeated(chosen > 0))
        for i in due:
            if (counts := self.layers[i].counts) is not None:
                counts.mul_(a[i])
        skip = torch.zeros((), device=self.device, dtype=self.dtype)
        if found_inf is not None:
            skip = (found_inf.reshape(()) != 0).to(self.dtype)
        self._exchange.average_(due, alive, skip)
        return (chosen > 0) & (alive > 0), skip > 0

    def _dampings(
        self, damping: Sequence[float], a_traces: Tensor, g_traces: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return what is added to A and to G per layer, and the factor of the inverses per factor."""
        norms = [layer.norms(self.rules.factors) for layer in self.layers]
        a_norms, g_norms = [pair[0] for pair in norms], [pair[1] for pair in norms]
        a_norm, g_norm, root = self._vectors.over_layers(a_norms, g_norms, [math.sqrt(d) for d in damping])
        means = a_traces / self._vectors.inputs, g_traces / self._vectors.outputs
        a_damping, g_damping = split_damping(root, means, (a_norm, g_norm), self.rules)
        multiplier = None if self.rules.factors == "default" else self._vectors.repeated(a_norm.rsqrt())
        return a_damping, g_damping, multiplier

    def settle(self, events: EventSink | None, *, everything: bool = False) -> None:
        """Act on what refreshes of some steps ago, or with ``everything`` of the last ones, turned out to have done."""
        while self._unsettled and (everything or self._unsettled[0].at <= self.steps):
            entry = self._unsettled.pop(0)
            values = entry.report.read().tolist()
            n = len(self.layers)
            spoilt, taken, failed = bool(values[0]), values[1 : n + 1], values[n + 1 :]
            for f, bad in enumerate(failed):
                if bad:
                    self._invert_with_more_damping(f, entry, events)
            kept = sum(taken)
            if spoilt:
                self._armed.update(entry.layers)
            elif events is not None:
                message = f"step {entry.step}: factors of {kept:.0f} layers were recomputed"
                if self.rules.trace_threshold is not None:
                    message += f", {len(entry.layers) - kept:.0f} left alone by the trace rule"
                events.emit(Event(entry.step, EventKind.FACTORS_REFRESHED, value=kept, message=message))

    def _invert_with_more_damping(self, factor: int, entry: _Unsettled, events: EventSink | None) -> None:
        if any(factor in self.layers[i].numbers for i in self._taps):
            return  # its sums have been cleared for the next refresh, which is near; the old inverse stays until then
        before = float(entry.damping[factor])
        multiplier = 1.0 if entry.multiplier is None else float(entry.multiplier[factor])
        value = self.blocks.rescue_(factor, before, multiplier)
        if events is not None:
            layer = next(layer for layer in self.layers if factor in layer.numbers)
            side = f"factor {'A' if layer.a == factor else 'G'} of {layer.name} was not positive definite"
            message = f"step {entry.step}: {side} and is damped by {value:g} in place of {before:g}"
            events.emit(Event(entry.step, EventKind.DAMPING_RAISED, layer.name, value, message))

    # Applying

    def apply(self, gradients: Sequence[tuple[int, Tensor]]) -> list[Tensor]:
        """Return the preconditioned gradients of some layers' weights, given as pairs (number of the layer, gradient).

        They have the shape and dtype of the weights, and the next call overwrites them.
        """
        for i, _ in gradients:
            if i not in self._plans:
                self._plans[i] = LayerPlan(self.layers[i], self.blocks)
        return [self._plans[i](gradient) for i, gradient in gradients]

    def advance(self, events: EventSink | None) -> None:
        """End the step: count it and get ready for the next one."""
        self.steps += 1
        if self._unsettled:
            self.settle(events)
        if self.steps % self.rules.frequency == 0:
            self.arm()
        elif self._armed:
            self._put_up_taps()

    # Memory

    def state_dict(self) -> dict[str, Any]:
        """Return what the next step depends on; waits for the device. Blocks are one vector, ``armed`` layers due.

        ``factors`` are None unless something was collected since the last step, ``running`` without averages.
        """
        self.settle(None, everything=True)
        blocks = self.blocks
        collecting = any(layer.tally.calls for layer in self.layers)
        return {
            "steps": self.steps,
            "layers": [layer.name for layer in self.layers],
            "block_size": blocks.block_size,
            "armed": sorted(self._armed),
            "inverses": blocks.packed(blocks.inverses),
            "running": None if blocks.running is None else blocks.packed(blocks.running),
            "factors": blocks.packed(blocks.factors) if collecting else None,
            "traces": self._traces.clone(),
            "averaged": self._averaged.clone(),
            "tallies": [list(layer.tally) for layer in self.layers],
            "counts": [None if layer.counts is None else layer.counts.clone() for layer in self.layers],
            "row_scales": [None if layer.row_scale is None else layer.row_scale.clone() for layer in self.layers],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue exactly where ``state_dict`` was taken; a ValueError where that was another network."""
        names, blocks = [layer.name for layer in self.layers], self.blocks
        if list(state["layers"]) != names:
            raise ValueError(f"the state is of layers {list(state['layers'])}, this network has {names}")
        if state["block_size"] != blocks.block_size:
            raise ValueError(f"`block_size` must be {state['block_size']} for this state, got {blocks.block_size}")
        if state["inverses"].numel() != blocks.packed(blocks.inverses).numel():
            raise ValueError("the state is of layers of other sizes")
        self._unsettled = []
        self._take_off_taps(self._taps)
        self.steps = int(state["steps"])
        blocks.unpack_(blocks.inverses, state["inverses"])
        if state["factors"] is not None:
            blocks.unpack_(blocks.factors, state["factors"])
        blocks.running = None
        if state["running"] is not None:
            blocks.running = {bin_: torch.zeros_like(values) for bin_, values in blocks.factors.items()}
            blocks.unpack_(blocks.running, state["running"])
        self._traces = state["traces"].to(self.device, copy=True)
        self._averaged = state["averaged"].to(self.device, copy=True)
        of_layers = state["tallies"], state["counts"], state["row_scales"]
        for layer, tally, counts, scale in zip(self.layers, *of_layers, strict=True):
            layer.tally = Tally(*tally)
            if layer.counts is not None and layer.row_scale is not None:
                layer.counts.copy_(counts)
                layer.row_scale.copy_(scale)
        self._armed = set(state["armed"])
        self._put_up_taps()

    def take_over(self, other: Preconditioner) -> None:
        """Continue another one's count, with its inverses for the layers that both have.

        ``other`` is of the network before some of its modules were replaced.
        """
        other.settle(None, everything=True)
        self.steps = other.steps
        theirs = {id(layer.weight): layer for layer in other.layers}
        for i, layer in enumerate(self.layers):
            old = theirs.get(id(layer.weight))
            if old is None or old.module is not layer.module:
                continue
            mine = self.blocks.blocks_of(layer.numbers, self.blocks.inverses)
            its = other.blocks.blocks_of(old.numbers, other.blocks.inverses)
            for block, before in zip(mine, its, strict=True):
                block.copy_(before)
            if layer.row_scale is not None and old.row_scale is not None:
                layer.row_scale.copy_(old.row_scale)
            number = other.position[id(layer.weight)]
            self._traces[i] = other._traces[number]
            if number not in other._armed:
                self._armed.discard(i)
        self._take_off_taps(self._taps.keys() - self._armed)

    def release(self) -> None:
        """Take all taps off: this object will not be used any more."""
        self._take_off_taps(self._taps)

    def __getstate__(self) -> dict[str, Any]:
        self.settle(None, everything=True)
        return {**self.__dict__, "_taps": None, "_plans": {}, "_unsettled": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._taps = self._new_taps()
        self.position = {id(layer.weight): i for i, layer in enumerate(self.layers)}
        self._put_up_taps()


def _remove_all(taps: dict[int, Tap]) -> None:
    for tap in taps.values():
        tap.remove()
