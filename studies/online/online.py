"""Does online training survive what happens to a service: drift, poisoned records, kill -9, half an hour?

    python studies/online/online.py serve FOLDER --minutes 30     # trains, is killed now and then, goes on
    python studies/online/online.py check FOLDER                  # trains the same stream without a break and compares
    python studies/online/online.py report FOLDER                 # figures for result/

``serve`` starts this file again as a worker that trains `clicks` at the pace records arrive, and kills it with -9 at
random moments. ``check`` trains the batches the survivor saw in one go, at full speed: equal weights mean that no
record was left out and none was used twice.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch
from torch import nn

from workbench.mindspore.callbacks import Callback, RunContext
from workbench.online import (
    OnlineCheckpoints,
    OnlineSummary,
    PageHinkley,
    Prequential,
    SnapshotPublisher,
)
from workbench.rec import RecModel
from workbench.runs import RunRecorder, collect_environment, read_run
from workbench.tasks.click_law import ClickLaw
from workbench.tasks.clicks import (
    BATCH_SIZE,
    ClickModel,
    click_stream,
    row_wise_adam,
)

SEED, POISON, MISSHAPEN = 0, 0.01, 0.001
BATCHES_PER_SECOND = 100.0
SECONDS_BETWEEN_KILLS = (60.0, 240.0)
RUN = "online"


class UntilTime(Callback):
    """Asks for the end once the clock says so."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline

    def step_end(self, run_context: RunContext) -> None:
        """Look at the clock."""
        if time.time() >= self._deadline:
            run_context.request_stop()


class UntilStep(Callback):
    """Asks for the end after so many steps."""

    def __init__(self, n_steps: int) -> None:
        self._n_steps = n_steps

    def step_end(self, run_context: RunContext) -> None:
        """Look at the number of the step."""
        if run_context.original_args().cur_step_num >= self._n_steps:
            run_context.request_stop()


def stream(start: int, batches_per_second: float | None = None) -> Iterator[Any]:
    """Return the poisoned click stream from a batch on, at a pace; None is as fast as it can be read."""
    due = time.monotonic()
    for batch in click_stream(SEED, start=start, poison=POISON, misshapen=MISSHAPEN):
        if batches_per_second is not None:
            due = max(due + 1.0 / batches_per_second, time.monotonic() - 1.0)  # a late stream catches up one second
            time.sleep(max(0.0, due - time.monotonic()))
        yield batch


def train(folder: Path, until: Callback, batches_per_second: float | None) -> OnlineSummary:
    """Train in a folder from where an earlier process stopped; telemetry, checkpoints and snapshots lie in it."""
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    network = ClickModel()
    model = RecModel(network, nn.BCEWithLogitsLoss(), row_wise_adam(network.named_parameters()))
    checkpoints = OnlineCheckpoints(folder / "checkpoints", every_steps=1000)
    run = folder / "runs" / RUN
    if run.exists():
        recorder = RunRecorder.reopen(run, next_step=checkpoints.newest_step())
    else:
        recorder = RunRecorder.create(folder / "runs", {}, {"task": "clicks", "seed": SEED}, run_id=RUN)
    with recorder:
        summary = model.online_train(
            lambda start: stream(start, batches_per_second),
            until,
            prequential=Prequential(),
            drift=PageHinkley(),
            checkpoints=checkpoints,
            resume=True,
            publisher=SnapshotPublisher(folder / "serving", every_seconds=10),
            recorder=recorder,
        )
        recorder.finish({"metric": summary.auc})
    end = {"weights": digest(network), "summary": asdict(summary)}
    (folder / "end.json").write_text(json.dumps(end, indent=1))
    return summary


def digest(network: nn.Module) -> str:
    """Return a hash of everything the network holds, bit for bit."""
    hashed = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        hashed.update(name.encode() + value.contiguous().numpy().tobytes())
    return hashed.hexdigest()


def serve(folder: Path, minutes: float) -> None:
    """Keep a worker alive for some minutes, kill it at random moments, and note its memory."""
    folder.mkdir(parents=True)
    deadline = time.time() + 60 * minutes
    draws = random.Random(SEED)
    kills: list[float] = []
    memory: list[tuple[float, int, int]] = []
    began = time.time()
    while not (folder / "end.json").exists():
        command = [sys.executable, __file__, "work", str(folder), "--until", str(deadline)]
        with subprocess.Popen(command) as worker:
            dies = time.time() + draws.uniform(*SECONDS_BETWEEN_KILLS)
            seen = psutil.Process(worker.pid)
            while worker.poll() is None:
                time.sleep(1.0)
                if time.time() >= dies and dies < deadline - 30:
                    worker.send_signal(signal.SIGKILL)
                    worker.wait()
                    kills.append(time.time() - began)
                    break
                try:
                    memory.append((time.time() - began, len(kills), seen.memory_info().rss))
                except psutil.NoSuchProcess:
                    break
        if worker.returncode not in (0, -signal.SIGKILL):
            raise SystemExit(f"the worker ended with code {worker.returncode}")
    (folder / "kills.json").write_text(json.dumps(kills))
    pd.DataFrame(memory, columns=["seconds", "kills_before", "rss_bytes"]).to_csv(folder / "memory.csv", index=False)


def check(folder: Path) -> bool:
    """Train the same batches without a break; return whether the weights have the same bits."""
    end = json.loads((folder / "end.json").read_text())
    again = folder / "without_a_break"
    train(again, UntilStep(len(read_run(folder / "runs" / RUN).steps)), None)
    same = json.loads((again / "end.json").read_text())["weights"] == end["weights"]
    (folder / "check.json").write_text(json.dumps({"same_bits": same}))
    return same


def report(folder: Path) -> dict[str, Any]:
    """Return what the run shows: gaps, memory, AUC around each drift, records rejected."""
    end = json.loads((folder / "end.json").read_text())
    kills = json.loads((folder / "kills.json").read_text())
    memory = pd.read_csv(folder / "memory.csv")
    run = read_run(folder / "runs" / RUN)
    steps = run.steps
    numbers = steps["step"].to_numpy()
    return {
        "minutes": round(float(memory["seconds"].iloc[-1]) / 60, 1),
        "kills": len(kills),
        "steps": len(steps),
        "steps_missing_or_repeated": int(np.sum(np.diff(numbers) != 1) + (numbers[0] != 0)),
        "same_weights_as_without_a_break": _checked(folder),
        "memory_growth_bytes_per_minute": _growth(memory),
        "memory_bytes_at_most": int(memory["rss_bytes"].max()),
        **_around_drifts(steps),
        "drifts_told": int((run.events["kind"] == "drift").sum()),
        "rejected_records": int(steps["online.rejected"].dropna().iloc[-1]),
        "records": end["summary"]["n_records"] + end["summary"]["n_rejected"],
        "summary": end["summary"],
    }


def save(answer: dict[str, Any]) -> None:
    """Keep an answer in result/ with the machine it was found on, and print it."""
    folder = Path(__file__).parent / "result"
    folder.mkdir(exist_ok=True)
    text = json.dumps({**answer, "environment": collect_environment(seed=SEED, task="clicks")}, indent=1, default=str)
    (folder / "answer.json").write_text(text + "\n")
    print(text)


def _checked(folder: Path) -> bool | None:
    path = folder / "check.json"
    return json.loads(path.read_text())["same_bits"] if path.exists() else None


def _growth(memory: pd.DataFrame) -> float:
    """Return the median slope of a worker's memory, bytes per minute, without its first minute and last seconds."""
    slopes = []
    for _, part in memory[memory["rss_bytes"] > 0].groupby("kills_before"):  # 0: it has just ended
        seconds = part["seconds"]
        settled = part[(seconds > seconds.iloc[0] + 60) & (seconds < seconds.iloc[-1] - 10)]
        if len(settled) >= 20:
            slopes.append(np.polyfit(settled["seconds"] / 60, settled["rss_bytes"], 1)[0])
    return float(np.median(slopes))


def _around_drifts(steps: pd.DataFrame) -> dict[str, Any]:
    """Return the AUC just before an abrupt drift, at its lowest, and just before the next; medians over drifts."""
    known = steps[["step", "online.auc"]].dropna()
    period = (ClickLaw(SEED).drift_every or 0) // BATCH_SIZE
    rows = []
    for at in range(period, int(known["step"].max()) - period, period):
        before = known[known["step"].between(at - 200, at)]["online.auc"].mean()
        after = known[known["step"].between(at, at + period - 1)]["online.auc"]
        rows.append((before, after.min(), after.iloc[-20:].mean()))
    before, lowest, later = (np.array(column) for column in zip(*rows, strict=True))
    return {
        "drifts": len(rows),
        "auc_before": round(float(np.median(before)), 4),
        "auc_lowest_after": round(float(np.median(lowest)), 4),
        "auc_before_the_next": round(float(np.median(later)), 4),
        "drifts_recovered_from_half_the_fall": int(np.sum(later >= (before + lowest) / 2)),
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["serve", "work", "check", "report"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--until", type=float, help="end of a worker, seconds since 1970")
    given = parser.parse_args()
    actions: dict[str, Callable[[], object]] = {
        "serve": lambda: serve(given.folder, given.minutes),
        "work": lambda: train(given.folder, UntilTime(given.until), BATCHES_PER_SECOND),
        "check": lambda: print("same bits" if check(given.folder) else "the weights differ"),
        "report": lambda: save(report(given.folder)),
    }
    actions[given.what]()


if __name__ == "__main__":
    main()
