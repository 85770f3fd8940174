"""How much faster than O0 is a step of a boost level, and of what the studies have exported?

O1 with its defaults trains a ResNet-20 on made-up colour images. Exported configurations train the task of their
study, where their accuracy was confirmed; of those the fastest counts. What they cost in accuracy is the studies' to
say, and their sentence stands beside the number. Each kind of step that a freezing schedule has is timed beside O0's
and weighted as the schedule does (`workbench.training.speed`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from workbench.bench import Benchmark, Estimate, Finding, Request, fair_clock, interleaved, ratio_of
from workbench.config import BoostConfig
from workbench.tasks import Task, load_task
from workbench.training.speed import TimedSide

from .nets import image_task, noise, residual_net

_O1_GOAL, _EXPORTED_GOAL = 1 / 1.30, 1 / 1.60  # of O0's time
_PLAIN = BoostConfig.from_dict({"amp": {"level": "O0"}})
_O0, _O1 = (_PLAIN, "O0"), (_PLAIN, "O1")


@dataclass(frozen=True, slots=True)
class Exported:
    """A configuration that a study exported for a level, what is in effect, and what the study says of it."""

    study: str
    task: str
    config: BoostConfig
    level: str
    effect: str
    sentence: str


def exported_configs(studies: Path = Path("studies"), level: str = "O2") -> list[Exported]:
    """Return what the studies in a folder have exported for a level; it may be missing.

    Left out is what is O0 itself, what is the same as that of another study, and what trains a task that comes in a
    file beside the study.
    """
    found: dict[str, Exported] = {}
    for path in sorted(studies.glob(f"*/result/boost_config.{level.lower()}.json")):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        said = content.pop("provenance", {})
        if said.get("verdict") == "O0" or ":" in said.get("task", ":"):
            continue
        told = said.get("in_effect", ""), said.get("sentence", "")
        exported = Exported(path.parent.parent.name, said["task"], BoostConfig.from_json(path), level, *told)
        found.setdefault(json.dumps(content, sort_keys=True), exported)
    return list(found.values())


def measure(
    request: Request,
    *,
    widths: tuple[int, ...] = (16, 32, 64),
    n_blocks: int = 3,
    batch: int = 32,
    side: int = 32,
    steps: int = 10,
    studies: Path = Path("studies"),
) -> list[Finding]:
    """Measure steps of O1, of the other memory layout, and of exported configurations as multiples of O0's.

    A side does at least so many steps in a round; of the exported the fastest comes first and has the goal.
    """
    device = request.chosen_device()
    network = functools.partial(residual_net, widths, n_blocks)
    batches = noise((batch, 3, side, side), torch.device("cpu"), 4)
    task = image_task(network, batches)
    in_channels_last = image_task(functools.partial(_in_channels_last, network), batches)
    exported = exported_configs(studies)
    findings = []
    for threads in request.each_thread_count():

        def new_side(task: Task, config: BoostConfig, level: str) -> TimedSide:
            made = TimedSide(task, config, level, device=device, seed=0, at_least=steps, before_window=None)
            made.clock = fair_clock(device)
            return made

        others = [new_side(task, *_O1), new_side(in_channels_last, *_O0), new_side(in_channels_last, *_O1)]
        (o1, layout, both), note = _ratios(new_side(task, *_O0), others, request.rounds)
        findings.append(Finding(f"levels, {threads}: O1 / O0", "x", o1, _O1_GOAL, note))
        findings.append(Finding(f"levels, {threads}: O0 in channels_last / O0", "x", layout))
        findings.append(Finding(f"levels, {threads}: O1 in channels_last / O0", "x", both))
        candidates: list[tuple[Estimate, str, Exported]] = []
        for name in dict.fromkeys(one.task for one in exported):
            theirs = load_task(name)
            of_task = [one for one in exported if one.task == name]
            sides = [new_side(theirs, one.config, one.level) for one in of_task]
            ratios, note = _ratios(new_side(theirs, *_O0), sides, request.rounds)
            candidates += [(ratio, note, one) for ratio, one in zip(ratios, of_task, strict=True)]
        candidates.sort(key=lambda candidate: candidate[0].value)
        for number, (ratio, note, one) in enumerate(candidates):
            what = f"levels, {threads}: exported by {one.study} / O0"
            goal = _EXPORTED_GOAL if number == 0 else None
            told = f"{one.effect}, {one.task}, {note}. Its study: {one.sentence}"
            findings.append(Finding(what, "x", ratio, goal, told))
        if not candidates:
            what = f"levels, {threads}: exported / O0"
            findings.append(Finding(what, "x", None, _EXPORTED_GOAL, "no study has exported any", "absent"))
    return findings


def _ratios(base: TimedSide, sides: Sequence[TimedSide], rounds: int) -> tuple[list[Estimate], str]:
    """Return each side's step over the base's, and how long that takes."""
    times = list(zip(*interleaved([one.block for one in (base, *sides)], rounds), strict=True))
    note = f"{1e3 * float(np.median(times[0])):.0f} ms per step under O0"
    return [ratio_of(own, times[0]) for own in times[1:]], note


def _in_channels_last(network: Callable[[], nn.Module]) -> nn.Module:
    return network().to(memory_format=torch.channels_last)


BENCHMARK = Benchmark(
    "levels",
    "How much faster than O0 is a step of O1, and of what the studies have exported?",
    measure,
    rounds=9,
    place=1,
    shown=("levels, 1 thread: O1 / O0", "levels, 1 thread: exported by boost_levels / O0"),
)
