"""What grows: thousands of trials of a study that trains nothing, and a live panel that shows many steps.

    python studies/reliability/soak.py [trials|panel] [--count N]

The values at the end are compared with those after the first tenth: memory of the process, and seconds of the processor
for a trial (a busy machine stretches those of the clock). ``result/soak_<what>.json`` has them by twentieths, and
``result/soak.md`` the table.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import math
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from strikes import versions

from workbench.study import StudyFile, TuneProgress, tune
from workbench.study.run.job import UNMONITORED, Job, Monitor, SpeedJob, SpeedMeasured, Trained

RESULT = Path(__file__).resolve().parent / "result"
PARTS = 20
STUDY = """
[study]
task = "nothing"
budget_steps = 100
evaluate_every = 50
n_trials = {n_trials}
objective = "speed"

[sampler]
name = "random"

[pruner]
name = "none"

[space]
"boost.grad_freeze" = [true]
"grad_freeze.freeze_p" = {{ low = 0.4, high = 0.9 }}

[confirm]
enabled = false
"""


class Nothing:
    """Trains nothing and answers at once."""

    metric_name = "accuracy"
    higher_is_better = True
    data_hash = ""

    def environment(self) -> dict[str, Any]:
        """Return nothing: there is no task."""
        return {}

    def network_facts(self) -> None:
        """Return nothing: there is no network."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Answer."""
        if isinstance(job, SpeedJob):
            ratio = 1.0 - 0.5 * (1.0 - job.candidate[0].grad_freeze.freeze_p)
            return SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02)
        return Trained(0.9, ((50, 0.8), (100, 0.9)), 0.01, steps=100)


def soak_trials(count: int) -> list[dict[str, float]]:
    """Return processor milliseconds for a trial and memory, by twentieths of so many trials."""
    here, rows = psutil.Process(), list[dict[str, float]]()
    last = {"trials": 0, "cpu": 0.0}

    def on_progress(progress: TuneProgress) -> None:
        if progress.phase != "search" or progress.trials < last["trials"] + count / PARTS:
            return
        cpu = time.process_time()
        each = (cpu - last["cpu"]) / (progress.trials - last["trials"])
        gc.collect()
        rows.append({"count": progress.trials, "ms": 1e3 * each, "megabytes": here.memory_info().rss / 1e6})
        print(rows[-1], flush=True)
        last.update(trials=progress.trials, cpu=time.process_time())

    def make(file: StudyFile, directory: Path) -> Any:
        last.update(cpu=time.process_time())
        return Nothing()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "study.toml").write_text(STUDY.format(n_trials=count), encoding="utf-8")
        tune(folder, on_progress=on_progress, make_experimenter=make)
    return rows


def soak_panel(count: int) -> list[dict[str, float]]:
    """Return processor milliseconds for a step and memory, by twentieths of a run of so many steps in a live panel."""
    import torch
    from torch import nn

    from workbench import Task
    from workbench.panels import SharedConfig, TrainPanel

    torch.set_num_threads(1)
    reached = [0]
    batch = (torch.randn(4, 3), torch.randn(4, 1))

    def batches() -> Iterator[Any]:
        for number in itertools.count():
            reached[0] = number
            yield batch

    class Batches:
        def __iter__(self) -> Iterator[Any]:
            return batches()

    task = Task(
        name="nothing", model=lambda: nn.Linear(3, 1), loss=nn.MSELoss(), train=Batches(), evaluate=[batch],
        optimizer=lambda named: torch.optim.SGD(named, lr=1e-4, fused=True), metric="mse", data_hash="none",
    )  # fmt: skip
    here, rows, cpu, steps = psutil.Process(), list[dict[str, float]](), time.process_time(), 0
    with TrainPanel(task, SharedConfig(level="O0"), steps=count, device="cpu", out=None, measure=False) as panel:
        panel.start()
        while not panel.wait(0.2):
            if reached[0] >= steps + count / PARTS:
                each = (time.process_time() - cpu) / (reached[0] - steps)
                gc.collect()
                rows.append({"count": reached[0], "ms": 1e3 * each, "megabytes": here.memory_info().rss / 1e6})
                print(rows[-1], threading.active_count(), flush=True)
                cpu, steps = time.process_time(), reached[0]
        if panel.result is None:
            raise RuntimeError(f"the panel did not finish: {panel.error or panel.state}")
        gc.collect()
        rows.append({"count": count, "ms": math.nan, "megabytes": here.memory_info().rss / 1e6})
    return rows


def table() -> str:
    """Return the answers that ``result/`` has, as a table."""
    head = (
        "what",
        "measured",
        "memory at the end / after the first tenth (goal 0.9 to 1.1)",
        "processor time each, at the end / after the first tenth (goal 0.8 to 1.2)",
    )
    rows = [head, ("---",) * len(head)]
    kinds = {"trials": "trials of a study that trains nothing", "panel": "steps in a live Train panel"}
    for name, what in kinds.items():
        if not (path := RESULT / f"soak_{name}.json").exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        early, timed = found["rows"][PARTS // 10 - 1], [row for row in found["rows"] if row["ms"] is not None]
        memory = f"{found['memory_ratio']:.2f} ({early['megabytes']:.0f} to {found['rows'][-1]['megabytes']:.0f} MB)"
        time_ = f"{found['time_ratio']:.2f} ({early['ms']:.2f} to {timed[-1]['ms']:.2f} ms)"
        rows.append((what, f"{found['count']:,}", memory, time_))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["trials", "panel"])
    parser.add_argument("--count", type=int, help="5,000 trials, 1,000,000 steps by default")
    given = parser.parse_args()
    soak, usual = (soak_trials, 5_000) if given.what == "trials" else (soak_panel, 1_000_000)
    rows = soak(given.count or usual)
    early, timed = rows[PARTS // 10 - 1], [row for row in rows if math.isfinite(row["ms"])]
    answer = {
        "count": given.count or usual,
        "memory_ratio": rows[-1]["megabytes"] / early["megabytes"],
        "time_ratio": timed[-1]["ms"] / early["ms"],
        "rows": rows,
        "versions": versions(),
    }
    RESULT.mkdir(exist_ok=True)
    (RESULT / f"soak_{given.what}.json").write_text(json.dumps(answer, indent=1).replace("NaN", "null") + "\n")
    (RESULT / "soak.md").write_text(table(), encoding="utf-8")
    print({name: answer[name] for name in ("count", "memory_ratio", "time_ratio")})


if __name__ == "__main__":
    main()
