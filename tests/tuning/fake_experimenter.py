"""The shared fake with the methods of version 0.6, since `test_true_answer.py` imports only names that version has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.kit.fake_runner import (
    STUDY,
    FakeRunner,
    cost_of,
    make_fake,
    write_study,
)
from workbench.config import BoostConfig
from workbench.study.run.job import UNMONITORED, Job, Monitor, RunStep, Side, SpeedJob, SpeedMeasured, Trained, TrainJob

__all__ = [
    "STUDY",
    "FakeExperimenter",
    "cost_of",
    "make_fake",
    "write_study",
]


class FakeExperimenter(FakeRunner):
    """Calls `train` and `speed` with the arguments they had in version 0.6, for tests that override those."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        match job:
            case TrainJob():
                return self.train(
                    job.config,
                    job.level,
                    seed=job.seed,
                    steps=job.steps,
                    evaluate_every=job.evaluate_every,
                    run_id=job.run_id,
                    exponents_every=job.exponents_every,
                    on_evaluation=monitor.on_evaluation,
                    on_step=monitor.on_step,
                    stop=monitor.stop,
                )
            case SpeedJob():
                options = {"seed": job.seed, "rounds": job.rounds, "steps_per_block": job.steps_per_block}
                return self.speed(job.baseline, job.candidate, stop=monitor.stop, **options)
        return super().run(job, monitor)

    def train(
        self,
        config: BoostConfig,
        level: str,
        *,
        on_evaluation: Callable[[int, float], bool] | None = None,
        on_step: Callable[[RunStep], None] | None = None,
        stop: Callable[[], bool] | None = None,
        **options: Any,
    ) -> Trained:
        return self._train(TrainJob(config, level, **options), Monitor(on_evaluation, on_step, stop))

    def speed(
        self, baseline: Side, candidate: Side, *, stop: Callable[[], bool] | None = None, **options: Any
    ) -> SpeedMeasured:
        return self._speed(SpeedJob(baseline, candidate, **options))
