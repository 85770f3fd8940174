"""A small study with every part a report can show, and with names that try to break it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.config import BoostConfig
from workbench.core.records import CandidateRecord, Choice, GainPart, StudyResult, TrialRecord, TunedPlain, Verdict
from workbench.report.sources import FreezingSchedule, Recording, Sources

HOSTILE = '</script><script>alert("x")</script><img src="https://example.org/x.png">'


def candidate(verdict: Verdict = Verdict.CONFIRMED, **changed: Any) -> CandidateRecord:
    """Return a candidate for O1 that is 1.42 times as fast as O0."""
    values: dict[str, Any] = {
        "label": "trial 1", "trial_number": 1, "target": "o1", "summary": "freezing (frozen steps: 30 %)", "config": {},
        "speedup": 1.42, "speedup_low": 1.38, "speedup_high": 1.47, "drop": 0.001, "drop_bound": 0.004,
        "allowed_drop": 0.005, "n_seeds": 6, "verdict": verdict, "sentence": "At most 0.4 points.",
    }  # fmt: skip
    return CandidateRecord(**(values | changed))


def trials(n: int = 12) -> list[TrialRecord]:
    """Return O0 and faster trials that lose a little more each; one is pruned, one failed."""
    made = [
        TrialRecord(
            number=i, state="complete", level="O1" if i else "O0", metric=0.97 - 0.001 * i, value=200.0 - i,
            parameters={"grad_freeze.freeze_p": 0.05 * i, "boost.less_bn": i % 2 == 0} if i else {},
            summary=HOSTILE if i == 2 else "freezing", relative_step_time=1 - 0.02 * i, feasible=i < 8, seconds=3.0,
            curve=((10, 0.5), (20, 0.97 - 0.001 * i)),
        )
        for i in range(n)
    ]  # fmt: skip
    made.append(TrialRecord(number=n, state="pruned", metric=0.4, value=300.0, relative_step_time=0.9))
    made.append(TrialRecord(number=n + 1, state="failed", message="the loss became NaN at step 31"))
    return made


def recorded_steps(n: int = 60) -> pd.DataFrame:
    """Return a float16 recording whose first five steps overflow."""
    step = np.arange(n)
    scale = 2.0 ** np.maximum(20 - step, 15)
    cell = [{"group": "head", "lowest": -20, "counts": [1, 5, 9, 2], "zeros": 0, "nonfinite": 0}]
    return pd.DataFrame(
        {
            "step": step,
            "loss": np.exp(-step / 20),
            "loss_scale": scale,
            "loss_scale_after": np.where(step < 5, scale / 2, scale),
            "overflow": step < 5,
            "skipped": step < 5,
            "accumulated": 1,
            "grad_exponents": [cell if i % 10 == 0 else [] for i in range(n)],
        }
    )


def full_study() -> StudyResult:
    """Return a study with every part."""
    first, second = candidate(), candidate(Verdict.UNDECIDED, label="trial 4", target="o2", speedup=1.5)
    return StudyResult(
        name=f"Quickstart {HOSTILE}",
        directory=Path("studies/quickstart"),
        task="digits-resnet",
        metric_name="accuracy",
        higher_is_better=True,
        objective="speed",
        n_trials=14,
        allowed_drops={"o1": 0.005, "o2": 0.03},
        trials=trials(),
        candidates=[first, second, candidate(Verdict.REFUTED, label="trial 9", target="o2", speedup=1.9)],
        importance={"grad_freeze.freeze_p": 0.7, HOSTILE: 0.3},
        exported={target: Path(f"boost_config.{target}.json") for target in ("o1", "o2")},
        choices={
            "o1": Choice("o1", first, "trial 1 (freezing). At most 0.4 points."),
            "o2": Choice("o2", second, "trial 4 (freezing). Undecided."),
        },
        environment={"device": {"cpu": "two cores", "accelerator": HOSTILE}, "versions": {"torch": "2.13.0"}},
        messages=["Measured beside other work.", HOSTILE],
    )


PARTS = (
    GainPart("schedule x 0.5", 2.0, 1.8, 2.2, 1.9),
    GainPart("batch x 4", 1.25, note="Its runs do not bound the factor."),
    GainPart("LessBN", 0.8, 0.7, 0.9),
)


def fastest_study(**changed: Any) -> StudyResult:
    """Return a study of the fastest set-up: twice as fast as given, tuned plain a quarter faster than given."""
    taken = candidate(
        label="trial 7", trial_number=7, summary="AdamW, batch x 4", speedup=2.0, speedup_low=1.8, speedup_high=2.25,
        sentence="Confirmed.", config={"batch": {"factor": 4}},
    )  # fmt: skip
    trials_ = [
        TrialRecord(0, "complete", summary="nothing", value=1.0, metric=0.98, metric_deficit=0.0, feasible=True,
                    relative_step_time=1.0, relative_low=1.0, relative_high=1.0, curve=((180, 0.98),)),
        TrialRecord(7, "complete", "O1", {"schedule.length": 0.5}, {}, "AdamW, batch x 4", 0.5, 0.979, 0.001,
                    relative_step_time=0.5, relative_low=0.48, relative_high=0.52, feasible=True,
                    curve=((180, 0.979),)),
    ]  # fmt: skip
    values: dict[str, Any] = {
        "name": "fastest", "directory": Path("fastest"), "task": "digits-resnet", "metric_name": "accuracy",
        "higher_is_better": True, "objective": "time_to_quality", "n_trials": 2, "trials": trials_,
        "candidates": [taken], "exported": {"o1": Path("boost_config.o1.json")},
        "choices": {"o1": Choice("o1", taken, "trial 7 (AdamW, batch x 4). Confirmed.")},
        "allowed_drops": {"o1": 0.005}, "attribution": {"o1": PARTS},
        "tuned_plain": {"o1": TunedPlain("length 0.8", {}, 0.7, 1.6, 1.5, 1.7, 0.002, 14)},
        "left_out": ("torch.compile: it does not pay for itself within the time.",),
    }  # fmt: skip
    return StudyResult(**(values | changed))


def full_sources() -> Sources:
    """Return what lies in the files of that study."""
    values = {"boost.mode": "manual", "boost.grad_freeze": True, "grad_freeze.freeze_p": 0.3}
    config = BoostConfig().with_values(values | {"provenance": {"note": HOSTILE}})
    recording = Recording(
        steps=recorded_steps(),
        events=pd.DataFrame({"step": [0], "kind": ["overflow"], "subject": [HOSTILE], "value": [1.0], "message": [""]}),
        replayed=pd.DataFrame(
            {"policy": ["recorded", HOSTILE], "wasted_share": [0.08, 0.01], "underflow_share": [0.0, 0.001],
             "recorded": [True, False]}
        ),
        traces={HOSTILE: np.full(60, 2.0**15)},
        chosen=HOSTILE,
        note="Assumes the same trajectory.",
    )  # fmt: skip
    freezing = FreezingSchedule("boost_config.o1.json", [0, 1, 0, 2] * 10, 3)
    return Sources({"o1": config, "o2": config}, recording, freezing)
