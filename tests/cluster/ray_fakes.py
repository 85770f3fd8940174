"""Fakes that train in a Ray cluster: they note which process trained what, and some of them die."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.tuning.fake_experimenter import FakeExperimenter
from workbench.config import BoostConfig
from workbench.study.ask.study_file import StudyFile
from workbench.study.run.experimenter import SpeedMeasured, Trained

DIES_ONCE = "trial_0002"


class MortalExperimenter(FakeExperimenter):
    """Dies by kill -9 at the third evaluation of one trial, the first time."""

    def train(self, config: BoostConfig, level: str, *, run_id: str = "", **options: Any) -> Trained:
        self.log(f"process {os.getpid()}")
        before = sum(line.endswith(run_id) and line.startswith("train ") for line in self.lines())
        asked: Callable[[int, float], bool] | None = options.pop("on_evaluation", None)

        def on_evaluation(step: int, metric: float) -> bool:
            if step == 30 and run_id == DIES_ONCE and not before:
                os.kill(os.getpid(), signal.SIGKILL)
            return asked is not None and asked(step, metric)

        return super().train(config, level, run_id=run_id, on_evaluation=on_evaluation, **options)

    def lines(self) -> list[str]:
        log = self.directory / "calls.log"
        return log.read_text(encoding="utf-8").splitlines() if log.exists() else []


class TogetherExperimenter(FakeExperimenter):
    """Its metric is the mean over two ranks of what each rank has."""

    def train(self, config: BoostConfig, level: str, **options: Any) -> Trained:
        from workbench.core import distributed as ranks

        self.log(f"rank {ranks.rank()} of {ranks.world_size()}")
        self.log(f"sum {ranks.mean_over_ranks([float(ranks.rank())])[0] * ranks.world_size():g}")
        return super().train(config, level, **options)

    def speed(self, baseline: Any, candidate: Any, **options: Any) -> SpeedMeasured:
        from workbench.core import distributed as ranks

        ranks.barrier()
        return super().speed(baseline, candidate, **options)


def make_mortal(file: StudyFile, directory: Path) -> FakeExperimenter:
    return MortalExperimenter(directory)


def make_together(file: StudyFile, directory: Path) -> FakeExperimenter:
    return TogetherExperimenter(directory)


def make_very_slow_fake(file: StudyFile, directory: Path) -> FakeExperimenter:
    return FakeExperimenter(directory, seconds=0.02)
