"""Runs that are killed and go on from their checkpoints: online training, ``workbench train``, the same over two ranks.

What is counted are recorded steps: *lost* ones are missing from the record, *doubled* ones are in it twice. *Left* is a
run that does not end, or one beside it that was begun instead of going on. A run is *different* when a loss, another
recorded column that no clock decides, an evaluation or a weight at its end is not, bit for bit, that of a run of the
same seed that nobody disturbed.
"""

from __future__ import annotations

import itertools
import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from ledger import Findings
from processes import Command, wait_until
from strikes import Strike, Strikes

from workbench.runs import Run, find_runs, read_run
from workbench.training.checkpoint import read_checkpoint
from workbench.training.checkpoint_folder import CheckpointFolder

HERE = Path(__file__).resolve().parent
STEPS, KILLS_OF_A_RUN = 180, 6
SET_UP = {
    "boost": {"mode": "manual", "less_bn": False, "grad_freeze": False, "grad_accumulation": True},
    "grad_accumulation": {"grad_accumulation_step": 2},
    "loss_scale": {"kind": "dynamic", "init": 16.0, "window": 5},
    "optimizer": {"name": "AdamW", "lr": 0.01},
    "schedule": {"shape": "cosine", "warmup": 0.1},
    "regularization": {"weight_average": "ema", "decay": 0.9},
}
"""Everything at once that has a state of its own."""

_OF_A_CLOCK = ("seconds", "recorded", "crc32")
_COLUMNS = ("loss", "loss_scale", "overflow", "grad_norm", "learning_rate", "accumulated")


def kill_runs(setting: str, folder: Path, kills: int, seed: int, strikes: Strikes) -> Iterator[Findings]:
    """Yield what each run of a setting has come to, until there have been so many kills."""
    for here in itertools.count(seed):
        if strikes.count >= kills:
            return
        sides = []
        for name in ("undisturbed", "killed"):
            where = folder / f"{setting}-{here}" / name
            shutil.rmtree(where, ignore_errors=True)
            where.mkdir(parents=True)
            shutil.copy(HERE / "task.py", where)
            (where / "set_up.json").write_text(json.dumps(SET_UP))
            sides.append(where)
        undisturbed, killed = sides
        for one in _begin(setting, undisturbed, here, real=False):
            if one.wait() != 0:
                raise RuntimeError(f"the undisturbed run failed: {one.said()}")
        found = _kill_run(setting, killed, here, min(KILLS_OF_A_RUN, kills - strikes.count), strikes)
        _judge(found, setting, killed, undisturbed)
        yield found


def _kill_run(setting: str, folder: Path, seed: int, kills: int, strikes: Strikes) -> Findings:
    found = Findings()
    while True:
        processes = _begin(setting, folder, seed, real=strikes.draw_real())
        draw, before = strikes.draw, _newest_step(folder)
        if found.kills < kills:
            seconds = draw.uniform(0.0, 2.0)
            if draw.random() < 0.75:  # once it goes on: a checkpoint later than the last
                wait_until(lambda was=before, all_=processes: _over(all_) or _newest_step(folder) > was)  # type: ignore[misc]
            wait_until(lambda all_=processes: _over(all_), seconds)  # type: ignore[misc]
            if not _over(processes):
                victims = processes if draw.random() < 0.25 else [draw.choice(processes)]
                for one in victims:
                    one.kill()
                found.kills += 1
                step = _newest_step(folder)
                found.inside += step > 0
                what = "process" if len(processes) == 1 else f"{len(victims)} of {len(processes)} ranks"
                strikes.note(Strike(what, processes[0].real, [step] if step else [], f"{setting}-{seed}"))
                for one in processes:  # the other rank ends by itself; one that waits for it to come, torchrun ends
                    if not wait_until(lambda this=one: this.code is not None, 20.0):  # type: ignore[misc]
                        one.kill()
                if any(path.exists() for path in _ends(folder)):  # it had done everything
                    return found
                continue
        codes = [one.wait() for one in processes]
        if any(codes):
            raise RuntimeError(f"a run that nobody killed ended with exit codes {codes}: {processes[0].said()}")
        return found


def _ends(folder: Path) -> list[Path]:
    return [folder / "end.json", *(one / "summary.json" for one in folder.glob("runs/*") if one.name != "online")]


def _over(processes: list[Command]) -> bool:
    return any(one.code is not None for one in processes)


def _begin(setting: str, folder: Path, seed: int, *, real: bool) -> list[Command]:
    log = folder.parent / f"{folder.name}.log"
    if setting == "online":
        words = [str(HERE / "online_run.py"), str(folder), str(2 * STEPS), str(seed)]
        return [Command(words, log, real=real)]
    words = ["workbench", "train", "--task", "task.py:task", "--config", "set_up.json", "--device", "cpu"]
    words += ["--steps", str(STEPS), "--evaluate-every", "40", "--seed", str(seed), "--out", "runs"]
    words += ["--checkpoint-every", "7", "--resume", "runs"]
    variables = {"RELIABILITY_BATCH_SECONDS": "0.02", "OMP_NUM_THREADS": "1"}
    if setting == "train":
        return [Command(words, log, real=real, folder=folder, variables=variables)]
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    ranks = [{**variables, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    return [Command(words, log, real=real, folder=folder, variables=rank) for rank in ranks]


def _newest_step(folder: Path, run: str = "*") -> int:
    found = [*folder.glob("checkpoints"), *folder.glob(f"runs/{run}/checkpoints")]
    return max((CheckpointFolder(one).newest_step() for one in found), default=0)


def _judge(found: Findings, setting: str, killed: Path, undisturbed: Path) -> None:
    """Compare a run with the undisturbed one and count."""
    (expected,) = (undisturbed / "runs").iterdir()
    runs = [read_run(one) for one in sorted(find_runs(killed / "runs"))]  # no folder that was made and no more
    # One that was killed before its first checkpoint stays to be looked at, and another is begun.
    left = [one for one in runs if not one.finished and _newest_step(killed, one.name)]
    found.left += len(left) + (not any(one.finished for one in runs))
    run, other = next((one for one in runs if one.finished), runs[0]), read_run(expected)
    steps = run.steps["step"].tolist()
    found.finished, found.compared = len(steps), 1
    found.lost = len(set(other.steps["step"].tolist()) - set(steps))
    found.doubled = len(steps) - len(set(steps))
    differs = _differences(run, other, killed, undisturbed, 2 if setting == "ranks" else 1)
    found.different = bool(differs)
    found.sentences += [f"{killed.parent.name}: {sentence}" for sentence in differs]


def _differences(run: Run, other: Run, killed: Path, undisturbed: Path, n_ranks: int) -> list[str]:
    differs = [
        f"{name} differs" for name in _COLUMNS if name in other.steps and not run.steps[name].equals(other.steps[name])
    ]
    ended = [{name: value for name, value in one.summary.items() if name not in _OF_A_CLOCK} for one in (run, other)]
    if ended[0] != ended[1]:
        differs.append(f"its end is {ended[0]}, undisturbed {ended[1]}")
    ends = [one / "end.json" for one in (killed, undisturbed)]
    if ends[1].exists():
        if ends[0].read_text() != ends[1].read_text():
            differs.append(f"{ends[0].read_text()}, undisturbed {ends[1].read_text()}")
        return differs
    for rank in range(n_ranks):
        weights = [_weights(one.path / "checkpoints" / (f"rank-{rank}" if rank else ".")) for one in (run, other)]
        differs += [
            f"rank {rank}: {key} differs" for key, value in weights[1].items() if not value.equal(weights[0][key])
        ]
    return differs


def _weights(folder: Path) -> dict[str, Any]:
    newest = CheckpointFolder(folder).newest()
    if newest is None:
        raise RuntimeError(f"{folder} has no checkpoint")
    return dict(read_checkpoint(newest, torch.device("cpu"))["boosted"]["model"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
