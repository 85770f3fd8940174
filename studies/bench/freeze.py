"""Does gradient freezing cost what its schedule promises, and no more?

The limit of a schedule: for every group a network of its own whose front rests for good, with an optimizer that does
not know the front; each step of the schedule is done by the network of its group. Ours and the peer, who sets
``requires_grad`` of every parameter before every step, do the same steps with one network. The sides take turns step by
step, so that each of our steps has its neighbour in the limit; a round is a stretch of the schedule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle, islice

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from workbench.bench.benchmark import Benchmark, Finding, Request
from workbench.bench.operations import operations_of
from workbench.bench.rounds import (
    Estimate,
    fair_clock,
    median_of,
    ratio_of,
)
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.methods.grad_freeze.freeze_optimizer import FreezeOpt
from workbench.methods.grad_freeze.method import freeze_index_sequence
from workbench.training import Boosted, apply

from .image_nets import (
    Batch,
    copies,
    image_batches,
    residual_net,
    sgd,
    train_once,
)

__all__ = ["measure_freezing"]

GOAL = 1 / 0.975  # of the limit's time
SWITCHING_GOAL = 0.003  # of a step

_TYPES = {1: "interval", 0: "continuous"}
_SHARES = (0.7, 0.5, 0.3)
_SCHEDULE_STEPS = 1000
_GUARDED_STEPS = 6
_SEED = 0
_SWITCHES = 300

Step = Callable[[int, Batch], object]
"""Trains one step of a group on a batch."""


@dataclass(frozen=True, slots=True)
class _Setting:
    model: nn.Module
    freeze_type: int
    share: float
    groups: int

    def boosted(self) -> Boosted:
        config = BoostConfig.from_dict(
            {
                "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True},
                "amp": {"level": "O0"},
                "grad_freeze": {
                    "param_groups": self.groups,
                    "freeze_type": self.freeze_type,
                    "freeze_p": self.share,
                    "total_steps": _SCHEDULE_STEPS,
                },
            }
        )
        (model,) = copies(self.model, 1)
        return apply(config, model, sgd(model.parameters()), level="O1", seed=_SEED)

    def schedule(self) -> list[int]:
        rng = np.random.RandomState(_SEED)
        return freeze_index_sequence(self.groups, self.freeze_type, self.share, _SCHEDULE_STEPS, rng)


def measure_freezing(
    request: Request,
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    n_blocks: int = 3,
    batch: int = 32,
    side: int = 32,
    groups: int = 10,
    steps: int = 10,
    types: tuple[int, ...] = tuple(_TYPES),
    shares: tuple[float, ...] = _SHARES,
) -> list[Finding]:
    """Measure steps of freezing schedules as multiples of their limits, and what switching costs.

    Args:
        request: Rounds, peers, device, threads.
        widths: Channels per stage of the residual network.
        n_blocks: Blocks per stage.
        batch: Images per step.
        side: Height and width of an image, pixels.
        groups: Nested groups of parameters.
        steps: Steps of the schedule in a round.
        types: Kinds of schedule, 1 interval, 0 continuous.
        shares: Shares of full steps (``freeze_p``).

    Returns:
        For every schedule ours and the peer over the limit, and the time of switching over that of a step.
    """
    device = request.chosen_device()
    torch.manual_seed(_SEED)
    model = residual_net(widths, n_blocks).to(device)
    batches = image_batches(batch, side, device)
    findings = []
    for threads in request.each_thread_count():
        for freeze_type in types:
            for share in shares:
                setting = _Setting(model, freeze_type, share, groups)
                what = f"freezing {_TYPES[freeze_type]} {share:g}, {threads}"
                findings += _measure(what, setting, batches, request.rounds, steps, device)
    return findings


def _measure(
    what: str, setting: _Setting, batches: list[Batch], rounds: int, steps: int, device: torch.device
) -> list[Finding]:
    boosted, schedule = setting.boosted(), setting.schedule()
    freezing = boosted.optimizer
    assert isinstance(freezing, FreezeOpt)
    sizes = [len(freezing.group_parameters(index)) for index in range(freezing.n_groups)]
    title = f"{what}: ours / limit"
    if difference := _difference(setting, schedule, sizes, batches):
        return [Finding(title, "x", None, GOAL, difference, "differs")]
    sides = [_ours(boosted), _resting(setting.model, sizes, set(schedule)), _toggling(setting.model, sizes)]
    rows = _rounds(sides, schedule, batches, rounds, steps, device)
    ours, limit, toggling, first = (list(column) for column in zip(*rows, strict=True))
    note = f"{1e3 * float(np.median(limit)) / steps:.0f} ms per step, a full one {1e3 * float(np.median(first)):.0f}"
    switching = [_switching_seconds(freezing) * steps / seconds for seconds in limit]
    return [
        Finding(title, "x", ratio_of(ours, limit), GOAL, note),
        Finding(f"{what}: requires_grad of all, set every step / limit", "x", ratio_of(toggling, limit)),
        Finding(f"{what}: switching / step", "x", median_of(switching), SWITCHING_GOAL),
        _operations(what, setting, schedule, sizes, batches, 4 * steps),
    ]


def _operations(
    what: str, setting: _Setting, schedule: list[int], sizes: list[int], batches: list[Batch], steps: int
) -> Finding:
    """Count torch's operations in a stretch of the schedule, after one as long."""

    def total(step: Step) -> int:
        planned = cycle(schedule)

        def stretch() -> None:
            for group in islice(planned, steps):
                step(group, batches[0])

        return operations_of(stretch, warm_up=1).total()

    resting = _resting(setting.model, sizes, set(schedule))
    for group in set(schedule):
        resting(group, batches[0])  # what the first step alone takes, for each of its networks
    ours, limit = total(_ours(setting.boosted())), total(resting)
    ratio = Estimate(ours / limit, ours / limit, ours / limit, 1)
    note = f"{ours} against {limit} in {steps} steps, counted"
    return Finding(f"{what}, operations of torch: ours / limit", "x", ratio, note=note)


def _rounds(
    sides: list[Step],
    schedule: list[int],
    batches: list[Batch],
    rounds: int,
    steps: int,
    device: torch.device,
) -> Iterator[tuple[float, ...]]:
    """Yield the seconds of each side for a stretch of the schedule, and of one full step of the limit."""
    clock = fair_clock(device)

    def timed(step: Step, group: int, batch: Batch) -> float:
        devices.synchronize(device)
        began = clock()
        step(group, batch)
        devices.synchronize(device)
        return clock() - began

    for group in sorted(set(schedule)):
        sides[1](group, batches[0])  # what the first time alone costs, for each of its networks
    images = cycle(batches)
    planned = cycle(schedule)
    for number in range(rounds + 1):
        seconds = [0.0] * len(sides)
        for step in range(steps):
            group, batch = next(planned), next(images)
            for turn in range(len(sides)):
                index = (turn + step + number) % len(sides)
                seconds[index] += timed(sides[index], group, batch)
        if number > 0:
            yield (*seconds, timed(sides[1], 0, batches[0]) if 0 in schedule else float("nan"))


def _ours(boosted: Boosted) -> Step:
    """Return our step; which group rests it knows itself."""

    def step(group: int, batch: Batch) -> None:
        if boosted.frozen_groups != group:
            raise RuntimeError(f"the schedule says group {group}, the step freezes for group {boosted.frozen_groups}")
        images, classes = batch
        with boosted.autocast():
            loss = F.cross_entropy(boosted.model(images), classes)
        boosted.backward(loss)
        boosted.step()

    return step


def _resting(model: nn.Module, sizes: list[int], groups: set[int]) -> Step:
    """Return the step of the limit."""
    nets = {}
    for group in groups | {0}:
        (net,) = copies(model, 1)
        parameters = list(net.parameters())
        for parameter in parameters[: len(parameters) - sizes[group]]:
            parameter.requires_grad_(False)
        nets[group] = net, sgd([parameter for parameter in parameters if parameter.requires_grad])
    return lambda group, batch: train_once(*nets[group], batch)


def _toggling(model: nn.Module, sizes: list[int]) -> Step:
    """Return the step as it is written by hand."""
    (net,) = copies(model, 1)
    parameters = list(net.parameters())
    # torch's fused SGD cannot begin a parameter later than the others, so this is the default one.
    optimizer = SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(group: int, batch: Batch) -> None:
        for index, parameter in enumerate(parameters):
            parameter.requires_grad_(index >= len(parameters) - sizes[group])
        train_once(net, optimizer, batch)

    step.net = net  # type: ignore[attr-defined]  # the guard looks at its weights
    return step


def _difference(setting: _Setting, schedule: list[int], sizes: list[int], batches: list[Batch]) -> str:
    """Return what a few steps make different from freezing by hand; empty when nothing."""
    boosted = setting.boosted()
    freezing = boosted.optimizer
    assert isinstance(freezing, FreezeOpt)
    if freezing.strategy != schedule:
        return "the steps freeze by another schedule"
    ours, theirs = _ours(boosted), _toggling(setting.model, sizes)
    for step, batch in zip(range(_GUARDED_STEPS), cycle(batches), strict=False):
        group = boosted.frozen_groups
        ours(group, batch)
        theirs(group, batch)
        if group != schedule[step]:
            return f"step {step} freezes for group {group} instead of {schedule[step]}"
    by_hand = theirs.net.parameters()  # type: ignore[attr-defined]
    for ours_now, theirs_now in zip(boosted.model.parameters(), by_hand, strict=True):
        one, other = ours_now.detach(), theirs_now.detach()
        # The fused kernel rounds otherwise than the loop; a step that was taken or left out wrongly is 100 times more.
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
            return f"weights differ by up to {float((one - other).abs().max()):.3g} after {_GUARDED_STEPS} steps"
    return ""


def _switching_seconds(freezing: FreezeOpt) -> float:
    """Return what moving on in the schedule takes, seconds per step."""
    began = time.perf_counter()
    for _ in range(_SWITCHES):
        freezing.advance()
        freezing.begin_step()
    return (time.perf_counter() - began) / _SWITCHES


BENCHMARK = Benchmark(
    "freeze",
    "Does gradient freezing cost what its schedule promises, and no more?",
    measure_freezing,
    rounds=7,
    quick=False,
    place=2,
)
