"""The first stage: what changes a run's time and not its question (compiler, memory format, number format).

What the study names is timed beside the baseline, with the loader's batches and with four of them at once, since
layout and precision interact with the batch. The fastest whose losses and gradient are the baseline's within rounding
(`workbench.training.agreement`) becomes the ground that every later plan starts from.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import optuna

from workbench.config import SWITCHES, BoostConfig, ConfigError
from workbench.study.ask.study_file import StudyFile
from workbench.study.errors import OutOfTimeError
from workbench.study.run.job import AgreementJob
from workbench.study.run.runner import Experimenter
from workbench.study.set_up.total_time import StepTimes

_CHOICE = "runtime_choice"
_BATCH_FACTORS = (1.0, 4.0)
_SHARE = 0.2  # of the time, after which nothing more is timed
_FIRST = ("runtime.threads", "runtime.data")
_LAST = ("runtime.cuda_graph", "runtime.matmul_precision", "runtime.cudnn_benchmark")


def ground_of(base: BoostConfig, attributes: Mapping[str, Any]) -> BoostConfig:
    """Return what every plan of a search starts from: no method but those it names, and the runtime that was chosen."""
    switches: dict[str, Any] = {f"boost.{name}": False for name in SWITCHES}
    chosen = attributes.get(_CHOICE, {}).get("values", {})
    return base.with_values({"boost.mode": "manual", **switches, **chosen})


def times_per_sample(attributes: Mapping[str, Any]) -> Mapping[float, float]:
    """Return a sample's share of a step in the chosen runtime, relative to today's, by batch factor; may be empty."""
    found = attributes.get(_CHOICE, {"values": {}, "measured": []})
    measured = (row["ratios"] for row in found["measured"] if row["values"] == found["values"] and row["ratios"])
    return dict(zip(_BATCH_FACTORS, next(measured, ()), strict=False))


def choose_runtime(
    study: optuna.Study,
    file: StudyFile,
    experimenter: Experimenter,
    times: StepTimes,
    on_note: Callable[[str], None] = lambda _: None,
    *,
    limit: float | None = None,
) -> None:
    """Time the combinations of the study's runtime choices and keep the fastest, with what was measured.

    Threads and the way to read data hardly depend on the others, so each is chosen by itself, first; CUDA graphs, TF32
    and cuDNN's benchmark add to what the others leave, so each is chosen last. Of a time ``limit``, seconds, a share
    is taken: what would begin later is left out. A choice that the study already has is not made again.
    """
    from workbench.core import devices

    if _CHOICE in study.user_attrs:
        return
    base = file.base_config().with_values({"boost.mode": "disable_all"})
    device = devices.select_device(file.study.device)
    no_instructions = (
        "" if devices.has_fast_bfloat16(device) else f"this {device.type} has no instructions for bfloat16"
    )
    choices, chosen = file.set_up.runtime, dict[str, Any]()
    rows: list[dict[str, Any]] = []
    first, last = ([[path] for path in some if path in choices] for some in (_FIRST, _LAST))
    end = math.inf if limit is None else time.monotonic() + _SHARE * limit
    for paths in [*first, [path for path in choices if path not in (*_FIRST, *_LAST)], *last]:
        products = itertools.product(*(choices[path] for path in paths))
        combined = (dict(zip(paths, values, strict=True)) for values in products)
        # Values as given add nothing to what was chosen so far, which is always timed.
        others = [chosen | values for values in combined if base.with_values(values) != base]
        tried: list[dict[str, Any]] = [{"values": values, "ratios": []} for values in [chosen, *others]]
        for row in tried:
            config = base.with_values(row["values"])
            is_bfloat16 = config.effective_amp_level(device.type) != "O0" and config.amp.dtype == "bfloat16"
            row["message"] = no_instructions if is_bfloat16 else ""  # then it need not be timed
            if time.monotonic() > end and row["values"] != chosen:
                row["message"] = "no time was left to measure it"
            if row["message"]:
                continue
            try:
                for factor in _BATCH_FACTORS:
                    plan = file.plans.resolve(base.with_values({**row["values"], "batch.factor": factor}), "O0")
                    row["ratios"].append(times.measured(plan).ratio / factor)
            except OutOfTimeError:
                raise
            except (ConfigError, RuntimeError, ValueError, TypeError) as error:  # a compiler that fails ends nothing
                row["message"], row["ratios"] = f"{type(error).__name__}: {error}", []
        for row in sorted((row for row in tried if row["ratios"]), key=lambda row: math.prod(row["ratios"])):
            candidate = base.with_values(row["values"])
            if candidate != base:  # which agrees with itself
                job = AgreementJob((base, "O0"), (candidate, "O0"), file.study.seed)
                row["message"] = experimenter.run(job).why_not
            if not row["message"]:
                chosen = row["values"]
                break
        rows += tried
    study.set_user_attr(_CHOICE, {"values": chosen, "measured": rows})
    for row in rows:
        if row["message"]:
            values = ", ".join(f"{path} = {value}" for path, value in row["values"].items()) or "nothing"
            on_note(f"Left out: {values}, because {row['message']}.")
