"""Where the time of a loss-scaled step goes, beside the plain step without a scale.

The benchmark's three perceptrons under Adam(fused), one thread. Per part of a step the median over steps, microseconds;
both kinds of step take turns. What no part holds is Python between them.

    python studies/bench/scaled_step_profile.py
"""

from __future__ import annotations

import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam

from workbench.bench.questions import loss_scale
from workbench.config import BoostConfig
from workbench.training import apply

ROUNDS, STEPS = 40, 10
CONFIG = {"loss_scale": {"kind": "dynamic", "init": loss_scale.SCALE}, "amp": {"level": "O0"}}


class Clock:
    """Adds up, step by step, what the parts of a step take."""

    def __init__(self) -> None:
        self.taken: dict[str, float] = defaultdict(float)
        self.steps: dict[str, list[float]] = defaultdict(list)

    def part(self, name: str, work: Callable[..., object]) -> Callable[..., object]:
        """Return the same function, timed."""

        def timed(*args: object, **kwargs: object) -> object:
            began = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                self.taken[name] += time.perf_counter() - began

        return timed

    def end_of_step(self) -> None:
        """Keep what this step's parts have taken."""
        for name, seconds in self.taken.items():
            self.steps[name].append(seconds)
        self.taken.clear()

    def medians(self) -> dict[str, float]:
        """Return microseconds per part."""
        return {name: 1e6 * statistics.median(seconds) for name, seconds in self.steps.items()}


class TimedUpdate:
    """An update whose calls are timed; all else about it is its own."""

    def __init__(self, update: Any, clock: Clock) -> None:
        self._update, self._timed = update, clock.part("Adam", update)

    def __call__(self, *args: Any) -> object:
        """Update, timed."""
        return self._timed(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._update, name)


def stock_step(model: nn.Module, inputs: Tensor, classes: Tensor, clock: Clock) -> Callable[[], None]:
    """Return a plain step whose parts are timed."""
    optimizer = Adam(model.parameters(), lr=loss_scale.RATE, fused=True)
    forward = clock.part("forward", lambda: F.cross_entropy(model(inputs), classes))
    backward = clock.part("backward", lambda loss: loss.backward())
    update = clock.part("Adam", optimizer.step)
    clear = clock.part("gradients dropped", lambda: optimizer.zero_grad(set_to_none=True))

    def step() -> None:
        backward(forward())
        update()
        clear()

    return clock.part("whole step", step)


def scaled_step(model: nn.Module, inputs: Tensor, classes: Tensor, clock: Clock) -> Callable[[], None]:
    """Return a step of ours with a dynamic loss scale, its parts timed."""
    optimizer = Adam(model.parameters(), lr=loss_scale.RATE, fused=True)
    boosted = apply(BoostConfig.from_dict(CONFIG), model, optimizer, level="O0")
    scaling, update = boosted.loss_scaling, boosted.update
    scaling.unscale_ = clock.part("unscaling and check", scaling.unscale_)
    scaling.after_window = clock.part("rule of the scale", scaling.after_window)
    boosted.update = TimedUpdate(update, clock)
    optimizer.zero_grad = clock.part("gradients dropped", optimizer.zero_grad)

    def run_forward() -> Tensor:
        with boosted.autocast():
            return F.cross_entropy(boosted.model(inputs), classes)

    forward = clock.part("forward", run_forward)
    backward = clock.part("backward", boosted.backward)

    def step() -> None:
        backward(forward())
        boosted.step()

    return clock.part("whole step", step)


def main() -> None:
    """Print a table per network."""
    torch.set_num_threads(1)
    for net in loss_scale.NETS:
        model = net.network()
        ((inputs, classes),) = net.samples(torch.device("cpu"))
        clocks = {"plain": Clock(), "scaled": Clock()}
        sides = {
            "plain": stock_step(copy.deepcopy(model), inputs, classes, clocks["plain"]),
            "scaled": scaled_step(copy.deepcopy(model), inputs, classes, clocks["scaled"]),
        }
        for round_ in range(ROUNDS):
            for name in sides if round_ % 2 else reversed(sides):
                for _ in range(STEPS):
                    sides[name]()
                    clocks[name].end_of_step()
        plain, scaled = (clocks[name].medians() for name in sides)
        print(f"\n{net.layers} x {net.width}, batch {net.batch}, {len(list(model.parameters()))} tensors: microseconds")
        for name in {**scaled, **plain}:
            print(f"  {name:<20} {plain.get(name, 0.0):9.0f} plain {scaled.get(name, 0.0):9.0f} scaled")


if __name__ == "__main__":
    main()
