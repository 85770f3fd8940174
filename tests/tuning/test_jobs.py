"""Jobs and their outcomes: what is stored of them, and that they travel."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import pytest

from tests.kit.fake_runner import LIMIT
from workbench.config import BoostConfig
from workbench.study.run.job import (
    FreezingLimitJob,
    Job,
    PolicyOutcome,
    Replayed,
    ReplayJob,
    SpeedJob,
    SpeedMeasured,
    Trained,
    TrainJob,
)

SIDE = (BoostConfig.from_dict({"boost": {"mode": "manual", "grad_freeze": True}}), "O1")
BASELINE = (BoostConfig(), "O0")
JOBS: list[Job[Any]] = [
    TrainJob(*SIDE, seed=3, steps=20, evaluate_every=10, run_id="trial_0001", exponents_every=5),
    SpeedJob(BASELINE, SIDE, seed=3, rounds=4, steps_per_block=2),
    ReplayJob("runs/one", ({"init": 65536.0, "factor": 2.0, "window": 20},)),
    FreezingLimitJob(SIDE, seed=3, rounds=4, steps_per_block=2),
]
# As version 0.6 has written them into the attributes of trials.
STORED_RUN = {
    "metric": None,
    "curve": [[10, 0.5], [20, None]],
    "seconds": 1.5,
    "diverged": True,
    "message": "step 20: the loss is NaN",
    "path": "runs/trial_0001",
    "overflows": 2,
    "steps": 20,
}
STORED_SPEED = {"ratio": 0.5, "low": 0.4, "high": None}


def test_what_is_stored_is_read_and_written_as_it_always_was() -> None:
    run, speed = Trained.from_json(STORED_RUN), SpeedMeasured.from_json(STORED_SPEED)
    assert (run.curve[0], speed.ratio, speed.low) == ((10, 0.5), 0.5, 0.4)
    assert all(math.isnan(value) for value in (run.metric, run.curve[1][1], speed.high))
    assert list(run.to_json().items()) == list(STORED_RUN.items())
    assert list(speed.to_json().items()) == list(STORED_SPEED.items())
    older = {name: value for name, value in STORED_RUN.items() if name not in {"overflows", "steps"}}
    assert (Trained.from_json(older).overflows, Trained.from_json(older).steps) == (0, 0)


@pytest.mark.parametrize(
    "outcome",
    [
        Trained(math.inf, ((1, math.nan),), 1.0),
        SpeedMeasured(1.0, 0.5, math.inf),
        Replayed((PolicyOutcome(1.0, 2.0, 10, 1.0, math.nan, math.nan, 0.0, math.nan, 1.0),)),
        LIMIT,
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_every_outcome_is_strict_json_and_travels(outcome: Any) -> None:
    text = json.dumps(outcome.to_json(), allow_nan=False)
    assert json.loads(text) == json.loads(json.dumps(pickle.loads(pickle.dumps(outcome)).to_json(), allow_nan=False))


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.kind)
def test_every_job_travels(job: Job[Any]) -> None:
    assert pickle.loads(pickle.dumps(job)) == job
