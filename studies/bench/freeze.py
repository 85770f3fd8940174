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
from torch.optim import SGD, Optimizer

from workbench.bench import Benchmark, Finding, Request, fair_clock, median_of, ratio_of
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.methods.grad_freeze.method import freeze_index_sequence
from workbench.training import Boosted, apply

from .nets import Batch, noise, residual_net, sgd, twin
from .operations import compared_operations, operations_of

GOAL = 1 / 0.975  # of the limit's time
SWITCHING_GOAL = 0.003  # of a step

_TYPES = {1: "interval", 0: "continuous"}
_SCHEDULE_STEPS, _GUARDED_STEPS, _SWITCHES, _SEED = 1000, 6, 300, 0

Step = Callable[[int, Batch], object]
"""Trains one step of a group on a batch."""


def measure(
    request: Request,
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    n_blocks: int = 3,
    batch: int = 32,
    side: int = 32,
    groups: int = 10,
    steps: int = 10,
    types: tuple[int, ...] = tuple(_TYPES),
    shares: tuple[float, ...] = (0.7, 0.5, 0.3),
) -> list[Finding]:
    """Measure steps of freezing schedules as multiples of their limits, and what switching costs of a step.

    ``steps`` of a schedule, by its kind (1 interval, 0 continuous) and its share of full steps (``freeze_p``), are a
    round; the network is residual, ``side`` is an image's height and width in pixels.
    """
    device = request.chosen_device()
    torch.manual_seed(_SEED)
    model = residual_net(widths, n_blocks).to(device)
    batches = noise((batch, 3, side, side), device, 4)
    findings = []
    for threads in request.each_thread_count():
        for freeze_type in types:
            for share in shares:
                schedule = _Schedule(model, freeze_type, share, groups)
                what = f"freezing {_TYPES[freeze_type]} {share:g}, {threads}"
                findings += _measure(what, schedule, batches, request, steps)
    return findings


@dataclass(frozen=True, slots=True)
class _Schedule:
    model: nn.Module
    freeze_type: int
    share: float
    groups: int

    def boosted(self) -> Boosted:
        freezing = {"param_groups": self.groups, "freeze_type": self.freeze_type, "freeze_p": self.share}
        config = BoostConfig.from_dict(
            {
                "boost": {"mode": "manual", "less_bn": False, "grad_freeze": True},
                "amp": {"level": "O0"},
                "grad_freeze": {**freezing, "total_steps": _SCHEDULE_STEPS},
            }
        )
        model = twin(self.model)
        return apply(config, model, sgd(model.parameters()), level="O1", seed=_SEED)

    def frozen_groups(self) -> list[int]:
        """Return the group of every step."""
        rng = np.random.RandomState(_SEED)
        return freeze_index_sequence(self.groups, self.freeze_type, self.share, _SCHEDULE_STEPS, rng)


def _measure(what: str, schedule: _Schedule, batches: list[Batch], request: Request, steps: int) -> list[Finding]:
    boosted, planned = schedule.boosted(), schedule.frozen_groups()
    count = len(list(schedule.model.parameters()))
    resting = {group: count - len(boosted.optimizer.group_parameters(group)) for group in {*planned, 0}}
    trained = {group: [index >= first for index in range(count)] for group, first in resting.items()}
    title = f"{what}: ours / limit"
    if difference := _difference(schedule, planned, trained, batches):
        return [Finding(title, "x", None, GOAL, difference, "differs")]
    sides = [_ours(boosted), _resting(schedule.model, trained, batches[0]), _toggling(twin(schedule.model), trained)]
    rows = _rounds(sides, planned, batches, request, steps)
    ours, limit, toggling, full = (list(column) for column in zip(*rows, strict=True))
    note = f"{1e3 * float(np.median(limit)) / steps:.0f} ms per step, a full one {1e3 * float(np.median(full)):.0f}"
    switching = [_switching_seconds(boosted.optimizer) * steps / seconds for seconds in limit]
    counts = []
    for step in (_ours(schedule.boosted()), _resting(schedule.model, trained, batches[0])):
        stretch = _Stretch(step, planned, batches[0], 4 * steps)
        counts.append(operations_of(stretch, warm_up=1).total())
    return [
        Finding(title, "x", ratio_of(ours, limit), GOAL, note),
        Finding(f"{what}: requires_grad of all, set every step / limit", "x", ratio_of(toggling, limit)),
        Finding(f"{what}: switching / step", "x", median_of(switching), SWITCHING_GOAL),
        compared_operations(f"{what}, operations of torch: ours / limit", *counts, f" in {4 * steps} steps"),
    ]


class _Stretch:
    """Does so many steps of a schedule, and goes on where it was."""

    def __init__(self, step: Step, planned: list[int], batch: Batch, steps: int) -> None:
        self._step, self._planned, self._batch, self._steps = step, cycle(planned), batch, steps

    def __call__(self) -> None:
        for group in islice(self._planned, self._steps):
            self._step(group, self._batch)


def _rounds(
    sides: list[Step], planned: list[int], batches: list[Batch], request: Request, steps: int
) -> Iterator[tuple[float, ...]]:
    """Yield the seconds of each side for a stretch of the schedule, and of one full step of the limit."""
    device = request.chosen_device()
    clock = fair_clock(device)

    def timed(step: Step, group: int, batch: Batch) -> float:
        devices.synchronize(device)
        began = clock()
        step(group, batch)
        devices.synchronize(device)
        return clock() - began

    images, groups = cycle(batches), cycle(planned)
    for number in range(request.rounds + 1):
        seconds = [0.0] * len(sides)
        for step in range(steps):
            group, batch = next(groups), next(images)
            for turn in range(len(sides)):
                index = (turn + step + number) % len(sides)
                seconds[index] += timed(sides[index], group, batch)
        if number > 0:
            yield (*seconds, timed(sides[1], 0, batches[0]) if 0 in planned else float("nan"))


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


def _train(model: nn.Module, optimizer: Optimizer, batch: Batch) -> None:
    images, classes = batch
    F.cross_entropy(model(images), classes).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _resting(model: nn.Module, trained: dict[int, list[bool]], batch: Batch) -> Step:
    """Return the step of the limit, after what each of its networks does the first time alone."""
    nets = {}
    for group, flags in trained.items():
        net = twin(model)
        for parameter, flag in zip(net.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)
        nets[group] = net, sgd([parameter for parameter in net.parameters() if parameter.requires_grad])
        _train(*nets[group], batch)
    return lambda group, batch: _train(*nets[group], batch)


def _toggling(net: nn.Module, trained: dict[int, list[bool]]) -> Step:
    """Return the step as it is written by hand."""
    parameters = list(net.parameters())
    # torch's fused SGD cannot begin a parameter later than the others, so this is the default one.
    optimizer = SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4)

    def step(group: int, batch: Batch) -> None:
        for parameter, flag in zip(parameters, trained[group], strict=True):
            parameter.requires_grad_(flag)
        _train(net, optimizer, batch)

    return step


def _difference(schedule: _Schedule, planned: list[int], trained: dict[int, list[bool]], batches: list[Batch]) -> str:
    """Return what a few steps make different from freezing by hand; empty when nothing."""
    boosted, by_hand = schedule.boosted(), twin(schedule.model)
    if boosted.optimizer.strategy != planned:
        return "the steps freeze by another schedule"
    ours, theirs = _ours(boosted), _toggling(by_hand, trained)
    for step, batch in zip(range(_GUARDED_STEPS), cycle(batches), strict=False):
        group = boosted.frozen_groups
        ours(group, batch)
        theirs(group, batch)
        if group != planned[step]:
            return f"step {step} freezes for group {group} instead of {planned[step]}"
    for ours_now, theirs_now in zip(boosted.model.parameters(), by_hand.parameters(), strict=True):
        one, other = ours_now.detach(), theirs_now.detach()
        # The fused kernel rounds otherwise than the loop; a step that was taken or left out wrongly is 100 times more.
        if not torch.allclose(one, other, rtol=1e-3, atol=1e-4):
            return f"weights differ by up to {float((one - other).abs().max()):.3g} after {_GUARDED_STEPS} steps"
    return ""


def _switching_seconds(freezing: Optimizer) -> float:
    """Return what moving on in the schedule takes, seconds per step."""
    began = time.perf_counter()
    for _ in range(_SWITCHES):
        freezing.advance()
        freezing.begin_step()
    return (time.perf_counter() - began) / _SWITCHES


BENCHMARK = Benchmark(
    "freeze", "Does gradient freezing cost what its schedule promises, and no more?", measure, rounds=7, place=2
)
