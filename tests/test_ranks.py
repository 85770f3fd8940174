"""Ranks that meet, agree, die and leave. Each rank is a process of its own, started as torchrun starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.kit.processes import forkserver, free_port
from tests.ranks import Ranks
from workbench.core import devices
from workbench.core import distributed as ranks
from workbench.core.rank_environment import RankEnvironment

ROOT = Path(__file__).parents[1]

HEAD = """\
import os, signal, sys, time
import torch
from torch import distributed
from workbench.core import distributed as ranks

def train(steps=40, seconds=0.02):
    for step in range(steps):
        distributed.all_reduce(torch.ones(100))
        time.sleep(seconds)
        yield step

def told(error):
    if error.tells:
        print(error, file=sys.stderr)
    sys.exit(1)
"""

TOLD = """
try:
    with ranks.joined("cpu"):
        {work}
except ranks.RankFailure as error:
    told(error)
"""
DIES = TOLD.format(
    work="""for step in train():
            if step == 20 and ranks.rank() == {who}:
                os.kill(os.getpid(), signal.SIGKILL)"""
)


def started(script: str, n_ranks: int, **variables: str) -> list[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    environment |= {"WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    environment |= {"PYTHONPATH": str(ROOT), "TORCH_CPP_LOG_LEVEL": "FATAL"} | variables
    command = [sys.executable, "-c", HEAD + script]
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return [
        subprocess.Popen(command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(n_ranks)
    ]


def forked(script: str, n_ranks: int, folder: Path) -> tuple[list[int | None], list[str]]:
    """Return codes and words of ranks that fork from one process with torch; for how they exit it is no example."""
    place = {"WORLD_SIZE": str(n_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    files = [folder / f"rank-{rank}" for rank in range(n_ranks)]
    processes = [
        forkserver().Process(target=_forked, args=(script, place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, file))
        for rank, file in enumerate(files)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    return [process.exitcode for process in processes], [file.read_text() for file in files]


def _forked(script: str, place: dict[str, str], file: Path) -> None:
    os.environ.update(place)
    # Not the file descriptor: torch writes to that, and is told not to only before it is imported.
    with file.open("w") as said, redirect_stderr(said):
        exec(HEAD + script, {"__name__": "__main__"})


def ended(processes: list[subprocess.Popen[str]]) -> tuple[list[int], list[str], list[str]]:
    told = [process.communicate(timeout=120) for process in processes]
    return [process.returncode for process in processes], [out for out, _ in told], [err for _, err in told]


# -- agreeing ---------------------------------------------------------------------------------------------------------


def _agree() -> list[object]:
    rank = ranks.rank()
    votes = ranks.StepVotes()
    wishes = [votes.exchange(rank == 1 and step == 2, step == 0) for step in range(5)]
    last = votes.settle()
    ranks.barrier()
    return [
        ranks.world_size(),
        wishes,
        last,
        ranks.broadcast_object({"from": rank}),
        ranks.mean_over_ranks([1.0 + rank, float("nan") if rank else 0.0]),
        ranks.mean_over_ranks([]),
    ]


def test_ranks_agree_on_votes_values_and_means(pair: Ranks) -> None:
    for size, wishes, last, said, means, none in pair.run(_agree):
        assert size == 2
        assert wishes == [(False, False), (False, True), (False, False), (True, False), (False, False)], "a step late"
        assert last == (False, False)
        assert said == {"from": 0}
        assert means[0] == 1.5
        assert means[1] != means[1], "NaN on one rank is NaN for all"
        assert none == []


def _device_in_a_group_of_the_users() -> str:
    with ranks.joined("cpu") as device:
        return f"{device} {ranks.world_size()}"


def test_a_process_group_of_the_users_is_used_as_it_is(pair: Ranks) -> None:
    assert pair.run(_device_in_a_group_of_the_users) == ["cpu 2", "cpu 2"]
    assert pair.run(_device_in_a_group_of_the_users) == ["cpu 2", "cpu 2"], "and left alone"


def test_alone_everything_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks.joined("cpu") as device:
        assert device == torch.device("cpu")
        assert (ranks.world_size(), ranks.rank()) == (1, 0)
        ranks.barrier()
        ranks.together(ValueError("alone"))
        said = object()
        assert ranks.broadcast_object(said) is said
        assert ranks.mean_over_ranks([1.0]) == [1.0]
    error = RuntimeError("gloo says something")
    assert ranks.explained(error) is error
    assert not torch.distributed.is_initialized()


def test_a_timeout_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    for text in ("soon", "0", "nan"):
        monkeypatch.setenv("WORKBENCH_RANKS_TIMEOUT", text)
        refused = pytest.raises(ValueError, match=f"RANKS_TIMEOUT must be a number of seconds above 0, got '{text}'")
        with refused, ranks.joined("cpu"):
            pass


def test_the_backend_is_the_devices() -> None:
    assert devices.collective_backend("cpu") == "gloo"
    assert devices.collective_backend("cuda:1") == "nccl"


# -- leaving ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "served", [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.slow)]
)
def test_ranks_leave_without_a_word_and_meet_again(served: bool) -> None:
    script = """
for _ in range(3):
    with ranks.joined("cpu") as device:
        for step in train(5): pass
        print(ranks.rank(), ranks.world_size(), device, distributed.get_backend())
        print(ranks.broadcast_object(10 + ranks.rank()), ranks.mean_over_ranks([ranks.rank()]))
    assert not distributed.is_initialized()
"""
    store, meeting = ranks.serve_store() if served else (None, {})
    codes, outs, errs = ended(started(script, 2, **meeting))
    del store
    assert codes == [0, 0], errs
    assert outs == [f"{rank} 2 cpu gloo\n10 [0.5]\n" * 3 for rank in range(2)]
    assert errs == ["", ""]


@pytest.mark.parametrize("who", [pytest.param(0, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.long)])
def test_a_rank_that_dies_ends_the_others_with_a_sentence_naming_it(who: int, tmp_path: Path) -> None:
    codes, errs = forked(DIES.format(who=who), 3, tmp_path)
    survivors = [rank for rank in range(3) if rank != who]
    assert [codes[rank] for rank in survivors] == [1, 1]
    assert codes[who] == -signal.SIGKILL
    assert errs[survivors[0]].strip() == f"rank {who} of 3 has died"
    assert errs[survivors[1]] == "", "one of them says it"


@pytest.mark.slow
def test_an_error_of_one_rank_reaches_the_others(tmp_path: Path) -> None:
    script = """
try:
    with ranks.joined("cpu"):
        for step in train():
            if step == 10 and ranks.rank() == 1:
                raise ZeroDivisionError("the third batch is empty")
except ranks.RankFailure as error:
    told(error)
except ZeroDivisionError:
    sys.exit(3)
"""
    codes, errs = forked(script, 3, tmp_path)
    assert codes == [1, 3, 1]
    assert errs[0].strip() == "rank 1 of 3 ended with an error: ZeroDivisionError: the third batch is empty"
    assert errs[1:] == ["", ""]


@pytest.mark.long
def test_work_that_fails_alike_on_all_ranks_is_no_failure_of_a_rank() -> None:
    script = """
def work(fails):
    try:
        for step in train(3):
            if fails: raise ValueError("no such layer")
    except ValueError as error:
        ranks.together(error)
        return "failed"
    ranks.together(None)
    return "done"

with ranks.joined("cpu"):
    print([work(False), work(True), work(False)])
"""
    codes, outs, errs = ended(started(script, 2))
    assert codes == [0, 0], errs
    assert outs == ["['done', 'failed', 'done']\n"] * 2


@pytest.mark.long
def test_work_that_fails_on_one_rank_alone_ends_all() -> None:
    work = """try:
            for step in train():
                if step == 3 and ranks.rank() == 1: raise ValueError("out of memory")
        except ValueError as error:
            ranks.together(error)"""
    codes, _, errs = ended(started(TOLD.format(work=work), 2))
    assert codes == [1, 1]
    assert errs == ["rank 1 of 2 ended with an error: ValueError: out of memory\n", ""]


@pytest.mark.long
def test_a_rank_that_does_not_answer_is_told_from_one_that_died() -> None:
    work = """for step in train():
            if step == 5 and ranks.rank() == 1: time.sleep(20)"""
    codes, _, errs = ended(started(TOLD.format(work=work), 2, WORKBENCH_RANKS_TIMEOUT="5"))
    assert codes == [1, 1]
    assert errs[0].startswith("all 2 ranks are alive, but one does not answer within 5 seconds"), errs[0]


class Beats:
    """A store in which the other rank beats at each look but one, that after which all were suspended."""

    def __init__(self) -> None:
        self.now, self.looks, self.failure = 0.0, 0, b""

    def add(self, key: str, amount: int) -> None: ...

    def compare_set(self, key: str, before: str, after: str) -> None:
        self.failure = after.encode()

    def multi_get(self, keys: list[str]) -> list[bytes]:
        self.looks += 1
        self.now += 500.0 if self.looks == 4 else 1.0
        beats = min(self.looks, 9) - (self.looks == 4)
        return [b"%d" % self.looks, b"%d" % beats, self.failure]


@pytest.mark.parametrize(("patience", "looks"), [(60.0, 71)])
def test_time_in_which_all_were_suspended_is_no_silence(
    patience: float, looks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Beats()
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: store.now))
    monkeypatch.setattr(ranks, "_BEAT_SECONDS", 0.0)
    beating = ranks._Heartbeat(store, RankEnvironment(0, 2, 0, "localhost", 1, False, 0), patience)
    assert "rank 1 of 2" in beating._first_failure()  # which goes on, and dies after nine looks
    assert store.looks == looks


@pytest.mark.long
def test_a_rank_that_never_comes_is_waited_for_no_longer_than_the_timeout() -> None:
    processes = started(TOLD.format(work="pass"), 3, WORKBENCH_RANKS_TIMEOUT="10")
    processes[1].kill()
    codes, _, errs = ended(processes)
    assert codes == [1, -signal.SIGKILL, 1]
    assert errs == ["rank 1 of 3 has not come\n", "", ""]


@pytest.mark.long
@pytest.mark.parametrize("who", [0, 1])
def test_under_torchrun_the_sentence_stands_above_torchruns_own_table(who: int, tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text(HEAD + DIES.format(who=who))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1
    lines = run.stderr.splitlines()
    assert lines.count(f"rank {who} of 3 has died") == 1
    assert lines.index(f"rank {who} of 3 has died") < next(i for i, line in enumerate(lines) if "FAILED" in line)


@pytest.mark.long
def test_thirty_exits_of_two_ranks_are_clean() -> None:
    script = "with ranks.joined('cpu'):\n    for step in train(10, 0.0): pass"
    for _ in range(15):
        codes, _, errs = ended(started(script, 2))
        assert codes == [0, 0], errs
        assert not any(re.search("terminate|abort", err) for err in errs)
