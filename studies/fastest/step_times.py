"""Which settings make a step faster on an accelerator, and by how much, each beside the task as given?

    python -m studies.fastest.step_times --out studies/fastest/result/step_times [--tasks small large] [--rounds 7]

`small` are two of the built-in tasks, whose steps are many short kernels; `large` the shape of ResNet-50 and of the
smallest GPT-2 on noise, whose steps are long ones. All settings of a network take turns in one process; a ratio is the
median over rounds, with an interval from a bootstrap. What fails is named with what it said.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from studies.bench.nets import RESNET_50, Text
from workbench.config import BoostConfig
from workbench.core import devices
from workbench.runs import collect_environment
from workbench.tasks import Task, load_task
from workbench.training.speed import TimedSide, bootstrap_median_interval, take_turns

AS_GIVEN = {"amp.level": "O0"}
_BFLOAT16 = {"amp.level": "O2", "amp.dtype": "bfloat16"}
_FLOAT16 = {"amp.level": "O2", "loss_scale.kind": "dynamic"}

SETTINGS: dict[str, tuple[dict[str, Any], str]] = {
    "as given, float32": (AS_GIVEN, "O0"),
    "TF32 products": ({**AS_GIVEN, "runtime.matmul_precision": "high"}, "O0"),
    "float32, CUDA graph": ({**AS_GIVEN, "runtime.cuda_graph": True}, "O0"),
    "bfloat16": (_BFLOAT16, "O0"),
    "float16, dynamic scale": (_FLOAT16, "O0"),
    "bfloat16, cuDNN benchmark": ({**_BFLOAT16, "runtime.cudnn_benchmark": True}, "O0"),
    "bfloat16, channels_last": ({**_BFLOAT16, "runtime.memory_format": "channels_last"}, "O0"),
    "bfloat16, CUDA graph": ({**_BFLOAT16, "runtime.cuda_graph": True}, "O0"),
    "float16, dynamic scale, CUDA graph": ({**_FLOAT16, "runtime.cuda_graph": True}, "O0"),
    "bfloat16, compiled": ({**_BFLOAT16, "runtime.compile": "default"}, "O0"),
    "bfloat16, compiled, CUDA graph": (
        {**_BFLOAT16, "runtime.compile": "default", "runtime.cuda_graph": True},
        "O0",
    ),
    "bfloat16, compiled, reduce-overhead": ({**_BFLOAT16, "runtime.compile": "reduce-overhead"}, "O0"),
    "float16, dynamic scale, compiled": ({**_FLOAT16, "runtime.compile": "default"}, "O0"),
    "bfloat16, O1": (_BFLOAT16, "O1"),
}
"""By name: values that are set, and the level."""


def tasks(kinds: Sequence[str]) -> list[Task]:
    """Return the networks of these kinds, ``small`` or ``large``."""
    found = [load_task("digits-resnet"), load_task("topics-gpt")] if "small" in kinds else []
    return [*found, *([RESNET_50.task(), Text().task()] if "large" in kinds else [])]


def measure(
    task: Task, device: torch.device, rounds: int, *, named: Sequence[str] = (), seconds: float = math.inf
) -> list[dict[str, Any]]:
    """Return a row for each setting, or those named: ratio to the task as given, its interval, ms, seconds until timed.

    Settings that have not begun to warm up after so many ``seconds`` are not tried.
    """
    rows, sides = [], list[TimedSide]()
    ends = time.perf_counter() + seconds
    for name, (values, level) in SETTINGS.items():
        if named and name not in named:
            continue
        row: dict[str, Any] = {"task": task.name, "setting": name}
        began = time.perf_counter()
        if began > ends:
            rows.append({**row, "failed": "not tried, no time was left"})
            continue
        try:
            config = BoostConfig().with_values(values)
            side = TimedSide(task, config, level, device=device, seed=0, at_least=2, before_window=None)
            side.warm_up()
        except Exception as error:  # a compiler may fail in any way, and the others go on
            rows.append({**row, "failed": f"{type(error).__name__}: {error}"[:500]})
            continue
        row["first_seconds"] = round(time.perf_counter() - began, 1)
        row["in_effect"] = "" if side.boosted.plan is None else side.boosted.plan.summary()
        sides.append(side)
        rows.append(row)
        print(f"{task.name}, {name}: ready after {row['first_seconds']} s", file=sys.stderr, flush=True)
    timed = [row for row in rows if "failed" not in row]
    turns = take_turns([side.block for side in sides])
    times = np.array([next(turns) for _ in range(rounds)])
    for number, row in enumerate(timed):
        ratios = times[:, number] / times[:, 0]
        low, high = bootstrap_median_interval(ratios)
        row |= {"ms": 1e3 * float(np.median(times[:, number])), "ratio": float(np.median(ratios))}
        row |= {"low": low, "high": high}
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table in Markdown; factors are times faster than as given."""
    lines = ["| network | setting | ms per step | times faster | until timed |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        if "failed" in row:
            lines.append(f"| {row['task']} | {row['setting']} | {row['failed'].splitlines()[0]} | | |")
            continue
        faster = f"{1 / row['ratio']:.2f} x ({1 / row['high']:.2f} to {1 / row['low']:.2f})"
        lines.append(
            f"| {row['task']} | {row['setting']} | {row['ms']:.3g} | {faster} | {row['first_seconds']:.1f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is asked for and write `step_times.json` and `step_times.md`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tasks", nargs="+", default=["small", "large"], choices=["small", "large"])
    parser.add_argument("--settings", nargs="*", default=[], choices=list(SETTINGS), metavar="NAME")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=math.inf, help="for a network, until no setting is begun")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result") / "step_times")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    device = devices.select_device(given.device)
    given.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    for task in tasks(given.tasks):
        rows += measure(task, device, given.rounds, named=given.settings, seconds=given.seconds)
        gc.collect()
        answer = {"environment": collect_environment(device=devices.hardware_summary()), "rows": rows}
        (given.out / "step_times.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
        (given.out / "step_times.md").write_text(table(rows), encoding="utf-8")
        print(table(rows[-len(SETTINGS) :]), flush=True)


if __name__ == "__main__":
    main()
