"""Run whole studies of `digits-resnet` on the surface, on a clock that jobs move, and say what they export.

    python -m studies.search_surface.simulate after --studies 30 [--minutes 4] [--allowed-drop 0.01]

A study takes some seconds instead of minutes, so a change of the search can be judged by thirty of them. Jobs take what
they take on one core without instructions for bfloat16. What the search itself computes takes a usual time, whatever
else this machine does meanwhile, so that a study's answer depends on its seed alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
import tempfile
import time
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from studies.search_surface.surface import FOLDER, Surface
from workbench.config import BoostConfig, NetworkFacts
from workbench.core import devices
from workbench.study import TuneProgress, tune
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import (
    UNMONITORED,
    Agreement,
    Job,
    Monitor,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)

STARTING, _BUILDING = 10.0, 0.5  # seconds of a command, and of a run beside its steps
_LOOKED = 0.004  # seconds from one look at the clock to the next, without jobs: a study then computes for 8 s in all
_STEPS_AT_ONCE = 10  # of a run, between two looks at whether it shall end
_TIMING, _TIMED = 0.4, 0.83  # seconds of a ratio of step times: what begins it, and per step relative to today's
_COMMON, _OWN = 0.003, 0.005  # standard deviations of a seed's luck: shared by all plans, and of a plan like today's


class SurfaceClock:
    """Stands in for ``time.monotonic``: jobs move it by what they would have taken, looks at it by a little."""

    def __init__(self) -> None:
        self.passed = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        self.passed += _LOOKED
        return self.passed


class SurfaceTrainer:
    """Runs a study's jobs on the surface."""

    def __init__(
        self, directory: Path, surface: Surface, clock: SurfaceClock, facts: NetworkFacts | None, seed: int
    ) -> None:
        self.directory, self.surface, self.clock, self.facts, self.seed = directory, surface, clock, facts, seed
        self.metric_name, self.higher_is_better, self.data_hash = "accuracy", True, "surface"

    def environment(self) -> dict[str, Any]:
        """Return nothing: results of a surface are not told from others by their machine."""
        return {}

    def network_facts(self) -> NetworkFacts | None:
        """Return what the real network has."""
        return self.facts

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Run a job: it takes its time at once."""
        if isinstance(job, TrainJob):
            trained, steps = self._trained(job), 0
            self.clock.passed += _BUILDING
            while steps < job.steps and not (monitor.stop is not None and monitor.stop()):
                steps = min(steps + _STEPS_AT_ONCE, job.steps)
                self.clock.passed += trained.seconds * _STEPS_AT_ONCE / job.steps
            return replace(trained, steps=steps, seconds=trained.seconds * steps / job.steps)
        if isinstance(job, SpeedJob):
            ratio = self.surface.step_ratio(job.candidate[0])
            self.clock.passed += _TIMING + _TIMED * (1.0 + ratio)
            ratio *= math.exp(0.03 * self._luck(job.candidate[0]).normal())
            return SpeedMeasured(ratio, 0.96 * ratio, 1.04 * ratio, 1e3 * self.surface.given_step, 0.0)
        return Agreement("")

    def _trained(self, job: TrainJob) -> Trained:
        mean, own = self.surface.metric(job.config), self._luck(job.config, job.seed)
        shared = np.random.default_rng([self.seed, job.seed]).normal(0.0, _COMMON)
        harder = math.sqrt(max(1.0 - mean, 0.005) / (1.0 - self.surface.given_metric))
        metric = mean + shared + _OWN * harder * own.normal()
        whole = job.steps * self.surface.given_step
        seconds = whole * self.surface.time(job.config) * math.exp(0.05 * own.normal())
        return Trained(metric, ((job.steps, metric),), seconds)

    def _luck(self, config: BoostConfig, *numbers: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, *numbers, zlib.crc32(repr(config).encode())])


@contextlib.contextmanager
def surface_clock() -> Iterator[SurfaceClock]:
    """Let time go by a clock of its own, and no processor have instructions for bfloat16."""
    clock = SurfaceClock()
    slow = mock.patch.object(devices, "has_fast_bfloat16", return_value=False)
    with mock.patch.object(time, "monotonic", clock), slow:
        yield clock


def network_facts() -> NetworkFacts | None:
    """Return what the real network has."""
    with tempfile.TemporaryDirectory() as scratch:
        return TaskExperimenter("digits-resnet", "cpu", Path(scratch), 1).network_facts()


def write_study(folder: Path, source: Path, seed: int, minutes: float, allowed: float) -> None:
    """Write a study like another one, with a seed, a time limit and an allowed drop of its own."""
    text = (source / "study.toml").read_text(encoding="utf-8")
    for key, value in (("seed", seed), ("timeout_seconds", 60.0 * minutes), ("o1", allowed)):
        text = re.sub(rf"(?m)^{key} = [^#\n]*", f"{key} = {value} ", text)
    folder.mkdir()
    (folder / "study.toml").write_text(text, encoding="utf-8")


def study(
    surface: Surface,
    facts: NetworkFacts | None,
    seed: int,
    minutes: float,
    allowed: float,
    source: Path = FOLDER / "study",
) -> dict[str, Any]:
    """Run one study; return its verdict, the true time and drop of what it exports and of tuned plain, and its stages.

    ``stages`` are the seconds from the command's start to the end of each.
    """
    stages: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch, surface_clock() as clock:
        folder = Path(scratch) / "study"
        write_study(folder, source, seed, minutes, allowed)
        began = clock.passed
        clock.passed += STARTING

        def watch(progress: TuneProgress) -> None:
            stages[progress.phase] = round(clock.passed - began, 1)

        trainer = SurfaceTrainer(folder, surface, clock, facts, seed)
        result = tune(folder, make_experimenter=lambda *_: trainer, began=began, on_progress=watch)
    taken, plain = result.choices["o1"].candidate, result.tuned_plain.get("o1")
    found: dict[str, Any] = {"seed": seed, "verdict": "O0" if taken is None else str(taken.verdict)}
    for name, config in (("", taken and taken.config), ("plain_", plain and plain.config)):
        time_ratio, drop = true_time_and_drop(surface, config)
        found |= {f"{name}time": time_ratio, f"{name}drop": drop}
    tested = [[str(one.verdict), one.n_seeds, round(one.speedup, 2), one.sentence] for one in result.candidates]
    return {**found, "summary": "" if taken is None else taken.summary, "stages": stages, "tested": tested}


def true_time_and_drop(surface: Surface, config: Mapping[str, Any] | None) -> tuple[float, float]:
    """Return a configuration's time relative to today's and what it loses, on average; None is the task as given."""
    if not config:
        return 1.0, 0.0
    known = BoostConfig.from_dict(dict(config))
    return surface.time(known), surface.given_metric - surface.metric(known)


def told(rows: Sequence[dict[str, Any]], allowed: float) -> str:
    """Return a line of a table: what loses more than allowed counts as no gain."""

    def times(name: str) -> np.ndarray:
        return np.array([row[f"{name}time"] if row[f"{name}drop"] <= allowed else 1.0 for row in rows])

    ours, plain = (np.exp(-np.log(times(name)).mean()) for name in ("", "plain_"))
    confirmed = [row for row in rows if row["verdict"] == "confirmed"]
    wrong = sum(row["drop"] > allowed for row in confirmed)
    least = 1.0 / np.quantile(times(""), 0.75)
    return f"{ours:.2f} x | {least:.2f} x | {len(confirmed)} of {len(rows)}, {wrong} wrongly | {plain:.2f} x"


def main() -> None:
    """Run the studies, keep each in `result/NAME.jsonl` and print what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--studies", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--allowed-drop", type=float, default=0.01)
    parser.add_argument("--study", type=Path, default=FOLDER / "study", help="folder of the study that is simulated")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    surface, facts, rows = Surface(), network_facts(), []
    with (FOLDER / "result" / f"{given.name}.jsonl").open("w", encoding="utf-8") as file:
        for seed in range(given.studies):
            rows.append(study(surface, facts, seed, given.minutes, given.allowed_drop, given.study))
            file.write(json.dumps(rows[-1]) + "\n")
            file.flush()
    print("| search | times as fast | lower quarter | confirmed | tuned plain |\n| --- | --- | --- | --- | --- |")
    print(f"| {given.name} | {told(rows, given.allowed_drop)} |")


if __name__ == "__main__":
    main()
