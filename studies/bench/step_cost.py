"""What does a step of a user's own loop cost under `apply`, where the step is short and every microsecond shows?

Four layers of 64 units, 32 rows, one thread: about 0.4 ms. The same weights train in a plain loop, under ``apply`` with
nothing switched on, under torch's GradScaler and under a dynamic loss scale; before anything is timed, twenty steps of
each pair must leave equal weights.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from workbench import BoostConfig, apply
from workbench.bench import Benchmark, Finding, Request, interleaved, median_of_copies, require_equal, timed
from workbench.loss_scale import NonFusedOptimizerWarning

_WIDTH, _ROWS = 64, 32
_GOAL_SECONDS = 8e-6
_SCALE = 1024.0
_OFF = {"boost": {"mode": "disable_all"}}
_DYNAMIC = {**_OFF, "loss_scale": {"kind": "dynamic", "init": _SCALE, "window": 1_000_000}}

Named = Callable[[Iterable[Tensor]], Optimizer]
OPTIMIZERS: dict[str, Named] = {
    "SGD with momentum": partial(SGD, lr=1e-3, momentum=0.9),
    "Adam": partial(Adam, lr=1e-4),
    "fused Adam": partial(Adam, lr=1e-4, fused=True),
}


class _Loop:
    """One loop's model, data and step; called, it trains one step."""

    def __init__(self, make: Named, config: dict[str, Any] | None = None, *, scaled: bool = False) -> None:
        torch.manual_seed(0)
        hidden = [layer for _ in range(3) for layer in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU())]
        self.model = nn.Sequential(*hidden, nn.Linear(_WIDTH, 10))
        self.x, self.y = torch.randn(_ROWS, _WIDTH), torch.randint(0, 10, (_ROWS,))
        self.optimizer = make(self.model.parameters())
        self.boosted = None if config is None else apply(BoostConfig.from_dict(config), self.model, self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=_SCALE, growth_interval=1_000_000) if scaled else None
        self.step: Callable[[], None] = self._plain
        if self.boosted is not None:
            self.step = self._boosted
        elif scaled:
            self.step = self._scaled

    def _loss(self) -> Tensor:
        return nn.functional.cross_entropy(self.model(self.x), self.y)

    def _plain(self) -> None:
        self._loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _boosted(self) -> None:
        boosted = self.boosted
        assert boosted is not None
        with boosted.autocast():
            loss = self._loss()
        boosted.backward(loss)
        boosted.step()

    def _scaled(self) -> None:
        scaler = self.scaler
        assert scaler is not None
        scaler.scale(self._loss()).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()


def _alike(ours: Callable[[], _Loop], theirs: Callable[[], _Loop]) -> None:
    one, other = ours(), theirs()
    for _ in range(20):
        one.step()
        other.step()
    mine, wanted = (dict(loop.model.named_parameters()) for loop in (one, other))
    require_equal(mine, wanted, "weights after 20 steps", rtol=1e-5, atol=1e-6)


def measure(request: Request, *, optimizers: Sequence[str] = tuple(OPTIMIZERS), steps: int = 400) -> list[Finding]:
    """Measure steps under `apply` beside the plain loop and beside GradScaler's, so many of each in every round."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NonFusedOptimizerWarning)  # on a CPU there is nothing to wait for
        return _measured(request, optimizers, steps)


def _measured(request: Request, optimizers: Sequence[str], steps: int) -> list[Finding]:
    found: list[Finding] = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # no operation here is worth a second thread
    try:
        for name in optimizers:
            make = OPTIMIZERS[name]
            plain, off = partial(_Loop, make), partial(_Loop, make, _OFF)
            scaled, dynamic = partial(_Loop, make, scaled=True), partial(_Loop, make, _DYNAMIC)
            what = f"apply with nothing switched on, {name}: ours / plain loop"
            found += _compared(what, off, plain, 1.02, request, steps)
            found[-1:] = [replace(found[-1], what=f"what apply adds to a step, {name}", goal=_GOAL_SECONDS)]
            what = f"dynamic loss scale, {name}: ours / GradScaler's loop"
            found += _compared(what, dynamic, scaled, 0.90, request, steps)[:1]
    finally:
        torch.set_num_threads(threads)
    return found


def _compared(
    what: str,
    ours: Callable[[], _Loop],
    theirs: Callable[[], _Loop],
    goal: float,
    request: Request,
    steps: int,
) -> list[Finding]:
    """Return the ratio of two loops' steps and their difference in seconds; of different weights only that they differ.

    Single steps take turns, and each round tells a side's tenth percentile: what a step takes when nothing interrupts.
    """
    note = f"4 layers of {_WIDTH}, {_ROWS} rows"
    try:
        _alike(ours, theirs)
    except AssertionError as error:
        return [Finding(what, "x", None, goal, " ".join(str(error).split()), "differs")] * 2
    ratios, added = list[list[float]](), list[list[float]]()
    for _ in range(request.rounds):
        sides = [timed(loop.step) for loop in (ours(), theirs())]
        rows = interleaved(sides, steps, warm_up=20)
        mine, wanted = (quantiles(column, n=10)[0] for column in zip(*rows, strict=True))
        ratios.append([mine / wanted])
        added.append([mine - wanted])
    return [
        Finding(what, "x", median_of_copies(ratios), goal, note),
        Finding(what, "s", median_of_copies(added), None, note),
    ]


BENCHMARK = Benchmark(
    "step_cost",
    "What does a short step cost under apply, with nothing switched on and with a loss scale?",
    measure,
    rounds=12,
    place=3,
    quick=True,
    shown=("apply with", "dynamic loss scale", "what apply adds"),
)
