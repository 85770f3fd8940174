"""What a trial costs everybody but the node that trains it: measured by running the search with nothing to train.

    python studies/cluster_limits/simulate.py [--postgres-bin DIR]

The search is the real one (sampler, objective, pruner, storage with its marks and heartbeats); only the experimenter
answers at once. Costs are counted in CPU seconds, statements and bytes, which other work on the machine does not change
as it changes seconds of the clock. ``calculate.py`` turns them into limits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import multiprocessing
import platform
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import optuna
import psutil
from sqlalchemy import Engine, event
from sqlalchemy.engine import Connection

from workbench.config import BoostConfig
from workbench.core.files import write_text_atomically
from workbench.study import StudyFile, parse_study
from workbench.study.run.job import UNMONITORED, Job, Monitor, RunStep, SpeedJob, SpeedMeasured, Trained, TrainJob
from workbench.study.run.progress import StudyWatch
from workbench.study.run.searching import Search
from workbench.study.store import storage as kept

RESULT = Path(__file__).parent / "result"

STUDY = """
[study]
task = "simulated"
budget_steps = 1000
evaluate_every = 100
n_trials = 1000000

[allowed_drop]
o1 = 0.02
o2 = 0.05

[space]
level = ["O1", "O2"]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [true]
"grad_freeze.freeze_p" = { low = 0.3, high = 0.9 }
"grad_freeze.param_groups" = { low = 2, high = 20 }
"loss_scale.window" = { low = 10, high = 2000, log = true }
"""


class AtOnce:
    """An experimenter that trains nothing and answers at once, the same for the same configuration."""

    metric_name = "accuracy"
    higher_is_better = True
    data_hash = ""

    def environment(self) -> dict[str, Any]:
        """Return nothing: there is no task."""
        return {}

    def network_facts(self) -> None:
        """Return nothing: there is no network."""

    def run(self, job: Job[Any], monitor: Monitor = UNMONITORED) -> Any:
        """Return the ratio that freezing would have, or a curve whose end depends on the configuration."""
        if isinstance(job, SpeedJob):
            ratio = 1.0 - 0.5 * (1.0 - job.candidate[0].grad_freeze.freeze_p)
            return SpeedMeasured(ratio, ratio * 0.98, ratio * 1.02)
        assert isinstance(job, TrainJob)  # this study asks for no more
        final = 0.9 - 0.02 * (1.0 - job.config.grad_freeze.freeze_p)
        curve: list[tuple[int, float]] = []
        for step in range(job.evaluate_every, job.steps + 1, job.evaluate_every):
            curve.append((step, final * (1.0 - math.exp(-6.0 * step / job.steps))))
            if monitor.on_step is not None:
                monitor.on_step(RunStep(step, job.steps, curve[-1][1]))
            if monitor.on_evaluation is not None and monitor.on_evaluation(*curve[-1]) and step < job.steps:
                return Trained(math.nan, tuple(curve), 60.0, message="ended early")
        return Trained(final, tuple(curve), 60.0, steps=job.steps)


def study_file() -> StudyFile:
    """Return the simulated study."""
    return parse_study(STUDY, default_name="cluster_limits")


@contextlib.contextmanager
def searching(url: str, folder: Path, n_trials: int) -> Iterator[tuple[Search, optuna.Study, Any]]:
    """Open the study and its search, as a driver or a worker has them."""
    file, experimenter = study_file(), AtOnce()
    with kept.quiet_optuna():
        database = kept.open_storage(url)
        study = kept.open_study(database, file, experimenter)
        watch = StudyWatch(study, file, n_trials, None, None)
        allowed = file.allowed_drops(experimenter.metric_name)
        study.set_user_attr("allowed_drops", allowed)
        where = (file, folder, database, study, experimenter)
        search = Search(*where, n_trials=n_trials, deadline=None, watch=watch)
        yield search, study, database


def run_trials(url: str, folder: Path, total: int) -> None:
    """Run trials until the study has so many."""
    with searching(url, folder, total) as (search, _, _):
        search.run_baseline()
        search.run()


@contextlib.contextmanager
def counting() -> Iterator[Counter[str]]:
    """Count what is sent to databases: statements by their first word, and commits."""
    counts: Counter[str] = Counter()

    def executed(_: Connection, __: Any, statement: str, *rest: Any) -> None:
        counts[statement.split(None, 1)[0].upper()] += 1

    def committed(_: Connection) -> None:
        counts["COMMIT"] += 1

    event.listen(Engine, "before_cursor_execute", executed)
    event.listen(Engine, "commit", committed)
    try:
        yield counts
    finally:
        event.remove(Engine, "before_cursor_execute", executed)
        event.remove(Engine, "commit", committed)


def statements_per_trial(folder: Path, trials: int = 8) -> dict[str, float]:
    """Return statements, commits and bytes of one trial on SQLite, and those of one heartbeat."""
    url = f"sqlite:///{folder / 'statements.db'}"
    run_trials(url, folder, 5)
    before = (folder / "statements.db").stat().st_size
    with counting() as counts:
        run_trials(url, folder, 5 + trials)
    told = {f"{word.lower()}s": count / trials for word, count in sorted(counts.items())}
    told["database_bytes"] = ((folder / "statements.db").stat().st_size - before) / trials
    with searching(url, folder, 1) as (_, study, database):
        trial = study.ask()
        with counting() as counts:
            for _ in range(10):
                database.beat(trial._trial_id)
        began = time.process_time()
        for _ in range(50):
            database.beat(trial._trial_id)
        told["heartbeat_cpu_ms"] = 1e3 * (time.process_time() - began) / 50
        told["heartbeat_commits"] = counts["COMMIT"] / 10
    return told


def growth(folder: Path, stored_trials: Sequence[int], repeats: int = 5) -> list[dict[str, float]]:
    """Return the driver's CPU time of one trial (ask, draw, report, tell) at growing numbers of stored trials."""
    rows = []
    url = f"sqlite:///{folder / 'growth.db'}"
    run_trials(url, folder, min(stored_trials))
    for stored in stored_trials:
        with searching(url, folder, 10**6) as (search, study, _):
            _fill(study, stored)
            search._run_one()  # reads what is stored; a driver that runs has read it before
            began, wall = time.process_time(), time.perf_counter()
            for _ in range(repeats):
                search._run_one()
            cpu = (time.process_time() - began) / repeats
            rows.append(
                {"stored": stored, "cpu_ms": 1e3 * cpu, "wall_ms": 1e3 * (time.perf_counter() - wall) / repeats}
            )
        print(f"{stored} stored trials: {rows[-1]['cpu_ms']:.0f} ms of CPU per trial", flush=True)
    return rows


def _fill(study: optuna.Study, stored: int) -> None:
    """Add finished trials, copies of those that ran with another value each, until there are so many."""
    done = [one for one in study.get_trials() if one.state.is_finished() and not one.user_attrs.get("baseline")]
    missing = stored - len(study.get_trials(deepcopy=False))
    copies = []
    for i in range(max(missing, 0)):
        template = done[i % len(done)]
        value = 0.3 + 0.6 * ((i * 0.6180339887) % 1.0)
        copies.append(
            optuna.trial.create_trial(
                state=template.state,
                params={**template.params, "grad_freeze.freeze_p": value},
                distributions=template.distributions,
                values=template.values,
                user_attrs={**template.user_attrs, "plan_key": f"copy {i}"},
                system_attrs=template.system_attrs,
                intermediate_values=template.intermediate_values,
            )
        )
    study.add_trials(copies)


def _worker(url: str, folder: Path, total: int, told: Any) -> None:
    before = time.process_time()
    run_trials(url, folder, total)
    told.put(time.process_time() - before)


def crowd(url: str, folder: Path, workers: int, trials: int, server: psutil.Process | None) -> dict[str, float]:
    """Let several processes run trials of one study on one database and return what a trial cost whom."""
    run_trials(url, folder, 1)
    context = multiprocessing.get_context("spawn")
    told = context.Queue()
    before, wall = _cpu_of(server), time.perf_counter()
    processes = [context.Process(target=_worker, args=(url, folder, 1 + trials, told)) for _ in range(workers)]
    seen = before
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes):
        processes[0].join(0.2)
        seen = max(seen, _cpu_of(server))  # a connection's process takes its count along when it ends
    seconds = time.perf_counter() - wall
    with kept.quiet_optuna():
        study = optuna.load_study(study_name="cluster_limits", storage=kept.open_storage(url))
        finished = [one for one in study.get_trials(deepcopy=False) if "trained" in one.user_attrs]
    numbers = [one.number for one in finished]
    assert len(numbers) == len(set(numbers))
    clients = sum(told.get() for _ in processes)
    return {
        "workers": workers,
        "trials": len(finished) - 1,
        "client_cpu_ms": 1e3 * clients / (len(finished) - 1),
        "server_cpu_ms": 1e3 * (seen - before) / (len(finished) - 1),
        "wall_seconds": seconds,
    }


def _cpu_of(server: psutil.Process | None) -> float:
    if server is None:
        return 0.0
    total = 0.0
    for process in [server, *server.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system
    return total


@contextlib.contextmanager
def postgres(binaries: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Start a PostgreSQL of our own, as an unprivileged user when we are root; yield its URL and process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = Path(tempfile.mkdtemp(prefix="cluster-limits-postgres-"))
    password, user = secrets.token_hex(8), None
    (folder / "password").write_text(password, encoding="utf-8")
    if hasattr(psutil.Process(), "uids") and psutil.Process().uids().real == 0:
        user = "nobody"
        for path in (folder, folder / "password"):
            shutil.chown(path, user)
    data = folder / "data"
    make = ["initdb", "-D", data, "-U", "study", "--no-sync", "--auth=scram-sha-256", f"--pwfile={folder / 'password'}"]
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "max_connections=100"]
    subprocess.run([binaries / make[0], *make[1:]], user=user, check=True, stdout=subprocess.DEVNULL, cwd=folder)
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(
            [binaries / "postgres", "-D", data, "-p", str(port), *options],
            user=user,
            stdout=log,
            stderr=log,
            cwd=folder,
        )
    try:
        until = time.monotonic() + 120.0
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
                break
            if time.monotonic() > until:
                raise RuntimeError("PostgreSQL does not answer; its log is in " + str(folder))
            time.sleep(0.2)
        yield f"postgresql+psycopg://study:{password}@127.0.0.1:{port}/postgres", psutil.Process(server.pid)
    finally:
        server.send_signal(signal.SIGINT)  # without waiting for connections that we still have open
        server.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def run_bytes(folder: Path, steps: int = 200) -> dict[str, float]:
    """Return the size of a recorded run of a real, small task."""
    from workbench.core.devices import select_device
    from workbench.tasks import load_task
    from workbench.training.run import RunRequest, run_task

    cpu = select_device("cpu")
    done = run_task(load_task("digits-lenet"), RunRequest(BoostConfig(), steps=steps), device=cpu, out=folder)
    assert done.path is not None
    return {"steps": steps, "bytes": sum(path.stat().st_size for path in done.path.rglob("*") if path.is_file())}


def environment() -> dict[str, Any]:
    """Return hardware and versions."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")), ""
    )
    return {
        "cpu": model or platform.processor(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 1024**3, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "optuna": optuna.__version__,
        "load_average": [round(value, 1) for value in psutil.getloadavg()],
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> None:
    """Measure everything and write ``result/measured.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    parser.add_argument("--postgres-bin", type=Path, default=found[-1] if found else None)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--trials", type=int, default=24, help="trials of each crowd")
    parser.add_argument(
        "--stored", type=int, nargs="*", default=[30, 300, 1000], help="stored trials to measure beside"
    )
    asked = parser.parse_args()
    told: dict[str, Any] = {"environment": environment(), "command": " ".join(["python", *sys.argv])}

    def keep(part: str, value: Any) -> None:
        told[part] = value
        print(part, value, flush=True)
        write_text_atomically(RESULT / "measured.json", json.dumps(told, indent=2) + "\n")

    RESULT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keep("run_directory", run_bytes(folder))
        keep("per_trial", statements_per_trial(folder))
        keep("postgresql", [])
        for workers in asked.workers if asked.postgres_bin else []:
            with postgres(asked.postgres_bin) as (url, server):
                keep("postgresql", [*told["postgresql"], crowd(url, folder, workers, asked.trials, server)])
        keep("growth", growth(folder, asked.stored))
        keep("sqlite", [])
        for workers in asked.workers:
            url = f"sqlite:///{folder / f'crowd{workers}.db'}"
            keep("sqlite", [*told["sqlite"], crowd(url, folder, workers, asked.trials, None)])


if __name__ == "__main__":
    main()
