"""The ranks that train together: how a process joins them, what they agree on, and how it leaves.

    with joined("auto") as device:      # nothing happens when WORLD_SIZE is absent or 1
        ...                             # every rank does the same; rank 0 records and decides

Gradients travel in the default process group with the device's own backend; what the host has to agree on (stop now,
the metric is 0.97) travels in a *control group* on the CPU (gloo), so that it never waits for the device.

A rank that dies must not leave the others waiting, and a collective alone says little: gloo reports a closed
connection to the ranks that talked to the dead one and nothing to the rest. So every rank has a *heartbeat*: a thread
that counts upwards in the store twice a second and reads what the others have counted. The first rank that fails, or
sees another one's heartbeat stopped, writes there what happened; failures it causes come later and are ignored.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from workbench.core import devices
from workbench.core.arguments import seconds_from
from workbench.core.rank_environment import RankEnvironment, rank_environment
from workbench.core.signals import Handler, handling_signals
from workbench.core.text import first_line

T = TypeVar("T")

# Public in torch's documentation, but not for type checkers; absent where torch was built without distributed.
_TCP_STORE: Any = getattr(distributed, "TCPStore", None)
_PREFIX_STORE: Any = getattr(distributed, "PrefixStore", None)

TIMEOUT_VARIABLE = "WORKBENCH_RANKS_TIMEOUT"
_TIMEOUT_SECONDS = 600.0  # torch's own for nccl; the slowest single step of a rank has to fit
_BEAT_SECONDS = 0.5
_SILENCE_SECONDS = 3.0  # six beats; a thread may wait for the interpreter's lock, but not so long
# From a death until it is known: the last beat is seen, and its end noticed, a beat late; others leave as quickly.
_NOTICE_SECONDS = _SILENCE_SECONDS + 4 * _BEAT_SECONDS
_DEAD_SECONDS = 60.0  # silence after which a rank counts as dead even though no collective has failed
_GRACE_SECONDS = 15.0  # for a rank to end by itself after another one failed
_CONTROL_TIMEOUT = datetime.timedelta(days=1)  # rank 0 may evaluate for hours; heartbeats tell whether it lives


class RankFailure(ConnectionError):  # noqa: N818  # the failure of another process; an OSError, as lost connections are
    """Another rank has died, ended with an error, or does not answer; ``tells``: this rank is the one to report it."""

    def __init__(self, sentence: str, *, tells: bool = True) -> None:
        super().__init__(sentence)
        self.tells = tells


def world_size() -> int:
    """Return how many ranks there are; 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@contextlib.contextmanager
def joined(device: str | torch.device = "auto") -> Iterator[torch.device]:
    """Train together with the other ranks while the block runs, when torchrun or its like started this process.

    Without ``WORLD_SIZE``, with one rank, or inside somebody else's process group only the device is chosen. Blocks may
    be nested; the outer one counts. A collective may wait for the other ranks for ``WORKBENCH_RANKS_TIMEOUT`` seconds,
    by default 600.

    Raises:
        ValueError: When the device is not present, or ranks are to share one accelerator.
        RankEnvironmentError: When the variables of torchrun are incomplete.
        RankFailure: When another rank has died, ended with an error, or does not answer in time.
    """
    here = rank_environment()
    if here is None or world_size() > 1:
        local = None if here is None else here.local_rank
        chosen = devices.select_device(device) if local is None else devices.rank_device(device, local)
        with devices.as_current(chosen):
            yield chosen
        return
    session = _Joined.session = _Session(here, seconds_from(TIMEOUT_VARIABLE, _TIMEOUT_SECONDS))
    try:
        with _signals_of_a_rank(session):
            try:
                chosen = devices.rank_device(device, here.local_rank)
                session.open(chosen)
                yield chosen
                # So that no last message meets a closed store.
                barrier()
            except BaseException as raised:
                error = explained(raised)
                session.ending = True
                session.close(error)
                if error is raised:
                    raise
                raise error from raised
            session.close(None)
    finally:
        _Joined.session = None


def barrier() -> None:
    """Wait for the other ranks; returns at once when there are none."""
    if world_size() > 1:
        distributed.barrier(group=_control())


def broadcast_object(value: T) -> T:
    """Return rank 0's value, which must be picklable, on every rank."""
    if world_size() == 1:
        return value
    box = [value]  # rank 0's counts
    distributed.broadcast_object_list(box, src=0, group=_control(), device=torch.device("cpu"))
    return box[0]


def mean_over_ranks(values: Sequence[float]) -> list[float]:
    """Return the mean over ranks of each number; every rank must pass equally many."""
    if world_size() == 1 or not values:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device="cpu")
    distributed.all_reduce(total, group=_control())
    return [float(value) for value in total / world_size()]


class StepVotes:
    """What ranks ask for at a step, known to all one step later: the exchange overlaps the next step."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, distributed.Work | None] | None = None

    def exchange(self, *wishes: bool) -> tuple[bool, ...]:
        """Send this step's votes, equally many on every rank; return which of them any rank cast at the step before."""
        before = self.settle()
        sent = torch.tensor(wishes, dtype=torch.int32, device="cpu")
        work = distributed.all_reduce(sent, distributed.ReduceOp.MAX, group=_control(), async_op=True)
        self._pending = sent, work
        return before or (False,) * len(wishes)

    def settle(self) -> tuple[bool, ...]:
        """Wait for the exchange under way and return its votes; empty when there is none."""
        if self._pending is None:
            return ()
        (wishes, work), self._pending = self._pending, None
        if work is not None:
            work.wait()
        return tuple(bool(wish) for wish in wishes.tolist())


def together(failed: BaseException | None) -> None:
    """End a piece of work that every rank does, so that a failure common to all ranks is not a failure of one.

    A rank that failed waits for the others to reach the same point, by the same failure or by success. One that does
    not come within some seconds waits in a collective for this one; only leaving, by a `RankFailure`, can wake it.
    """
    session = _Joined.session
    if session is None:
        return
    session.works += 1
    all_came = session.all_come(f"work/{session.works}", 0.0 if failed is None else _GRACE_SECONDS)
    if failed is not None and not all_came:
        session.heartbeat.tell(failed)
        sentence = f"rank {session.here.rank} of {session.here.world_size} failed alone: {_said(failed)}"
        raise RankFailure(sentence, tells=session.here.rank == 0) from failed


def explained(error: BaseException) -> BaseException:
    """Return the failure of a rank that caused an error, or the error itself; takes up to five seconds.

    Only errors of communication, and the signal by which torchrun ends the remaining ranks, are looked into.
    """
    session = _Joined.session
    if session is None or not (_is_communication(error) or isinstance(error, _Terminated)):
        return error
    session.ending = True  # torchrun's SIGTERM may come while this waits
    failure = session.heartbeat.failure()
    if failure is not None or isinstance(error, _Terminated):
        return failure or error
    return RankFailure(
        f"all {session.here.world_size} ranks are alive, but one does not answer within {session.timeout:g} seconds "
        f"(rank {session.here.rank} waited: {first_line(error)}); set {TIMEOUT_VARIABLE} to more seconds when steps "
        "take so long",
        tells=session.here.rank == 0,
    )


def serve_store(host: str = "127.0.0.1") -> tuple[Any, dict[str, str]]:
    """Serve the store in which ranks meet, for a process that starts them; they reach this machine by ``host``.

    Returns it, to be kept until they have ended, and the environment variables that lead to it.
    """
    store = _TCP_STORE(host, 0, is_master=True, wait_for_workers=False)
    address = {"MASTER_ADDR": host, "MASTER_PORT": str(store.port)}
    return store, {**address, "TORCHELASTIC_USE_AGENT_STORE": "True"}


class _Terminated(SystemExit):
    """SIGTERM came."""


class _Session:
    """One process's part in the ranks, from meeting to leaving."""

    def __init__(self, here: RankEnvironment, timeout: float) -> None:
        self.here, self.timeout = here, timeout
        self.works = 0  # pieces of work that ended, see `together`
        self.ending = False
        self._hosts = here.rank == 0 and not here.store_is_served
        _Joined.sessions += 1
        try:
            store = _TCP_STORE(
                here.host,
                here.port,
                is_master=self._hosts,
                timeout=datetime.timedelta(seconds=timeout),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (distributed.DistError, RuntimeError) as error:
            raise RankFailure(
                f"rank {here.rank} of {here.world_size} cannot meet the others at {here.host}:{here.port} "
                f"({first_line(error)})"
            ) from error
        # The store still has what earlier sessions wrote, and what earlier starts did where it is served.
        _Joined.store = store
        self.store = _PREFIX_STORE(f"workbench/{here.attempt}/{_Joined.sessions}", store)
        self.heartbeat = _Heartbeat(self.store.clone(), here, min(timeout, _DEAD_SECONDS))  # this one may block
        self.heartbeat.start()

    def open(self, device: torch.device) -> None:
        """Make both process groups."""
        distributed.init_process_group(
            devices.collective_backend(device),
            store=_PREFIX_STORE("default", self.store),
            rank=self.here.rank,
            world_size=self.here.world_size,
            timeout=datetime.timedelta(seconds=self.timeout),
            device_id=None if device.type == "cpu" else device,
        )
        _control()

    def all_come(self, point: str, seconds: float) -> bool:
        """Note that this rank has reached a point; return whether all have, waiting at most ``seconds`` for them."""
        until = time.monotonic() + seconds
        come = self.store.add(point, 1)
        while come < self.here.world_size and time.monotonic() < until:
            time.sleep(0.05)
            come = self.store.add(point, 0)
        return bool(come == self.here.world_size)

    def close(self, error: BaseException | None) -> None:
        """Leave: report why, close connections, and keep the store while others need it."""
        self.heartbeat.leave(error)
        if distributed.is_initialized() and (error is None or distributed.get_backend() == "gloo"):
            # A wrapper in a cycle of references would outlive its group and take it down while it holds Python's lock,
            # for which gloo's thread may wait.
            gc.collect()
            # Closed connections wake ranks that wait for this one. nccl's would wait for its own collectives first.
            with contextlib.suppress(RuntimeError):
                distributed.destroy_process_group()
            _control_group_of.cache_clear()
        with contextlib.suppress(distributed.DistError, RuntimeError):
            self.all_come("left", _NOTICE_SECONDS if self._hosts else 0.0)


class _Heartbeat(threading.Thread):
    """Counts upwards in the store, watches the others count, and knows the first failure of a rank.

    A failure is stored as the rank that is to report it (-1: it has reported itself) and the sentence.
    """

    def __init__(self, store: Any, here: RankEnvironment, patience: float) -> None:
        super().__init__(name="rank heartbeat", daemon=True)
        self._store, self._here, self._patience = store, here, patience
        self._asked = False
        self._failure: RankFailure | None = None
        self._noticed, self._leaving = threading.Event(), threading.Event()

    def run(self) -> None:
        """Beat until this rank leaves or one has failed; if the main thread then still waits, end the process."""
        here, n = self._here, self._here.world_size
        try:
            words = self._first_failure()
        except (distributed.DistError, RuntimeError):  # the store is gone, and so is the rank that served it
            words = f"1 rank 0 of {n} has died"
            if here.store_is_served:
                words = f"0 the process that started rank {here.rank} of {n} is gone"
        if not words:
            return
        teller, _, sentence = words.partition(" ")
        self._failure = RankFailure(sentence, tells=int(teller) == here.rank)
        self._noticed.set()
        if self._leaving.wait(_GRACE_SECONDS):
            return
        if self._failure.tells:
            print(f"workbench: {sentence}", file=sys.stderr, flush=True)
        os._exit(1)  # the main thread waits below Python, where no exception reaches it

    def failure(self) -> RankFailure | None:
        """Find out, within some seconds, which rank has failed; None when all are alive."""
        self._asked = True
        self._noticed.wait(_NOTICE_SECONDS)
        return self._failure

    def tell(self, error: BaseException) -> None:
        """Let the others know of this rank's failure, unless it is the consequence of a known one."""
        here = self._here
        words = f"{0 if here.rank else -1} rank {here.rank} of {here.world_size} ended with an error: {_said(error)}"
        with contextlib.suppress(distributed.DistError, RuntimeError):
            self._store.compare_set("failure", "", f"0 {error}" if isinstance(error, RankFailure) else words)

    def leave(self, error: BaseException | None) -> None:
        """End the heartbeat, and report an error."""
        if error is not None:
            self.tell(error)
        self._leaving.set()
        self.join(_SILENCE_SECONDS)

    def _first_failure(self) -> str:
        """Beat until a failure is stored, and return it; empty when this rank leaves first."""
        here, store, n = self._here, self._store, self._here.world_size
        keys = [f"beats/{rank}" for rank in range(n)]
        for key in keys:  # reading waits for a key that is not there
            store.add(key, 0)
        store.compare_set("failure", "", "")
        counted, quiet, looked = [b"0"] * n, [0.0] * n, time.monotonic()
        while True:
            store.add(keys[here.rank], 1)
            *beats, failure = store.multi_get([*keys, "failure"])
            if failure:
                return str(failure.decode())
            now = time.monotonic()
            # All may have been suspended, this one, too; half, since a beat may have been late before.
            passed, looked = min(now - looked, _SILENCE_SECONDS / 2), now
            quiet = [
                seconds + passed if beat == before else 0.0
                for beat, before, seconds in zip(beats, counted, quiet, strict=True)
            ]
            counted = beats
            silence = _SILENCE_SECONDS if self._asked else self._patience
            silent = [rank for rank, seconds in enumerate(quiet) if seconds > silence]
            missing = [rank for rank in silent if beats[rank] == b"0"]
            if silent and (self._asked or not missing):  # the timeout limits the wait for one that has not come
                teller = next(rank for rank in range(n) if rank not in silent)
                store.compare_set("failure", "", f"{teller} {_fate(missing or silent, n, come=not missing)}")
            elif self._leaving.wait(_BEAT_SECONDS):
                return ""


class _Joined:
    """What this process has joined."""

    session: _Session | None = None
    sessions = 0  # so far
    store: Any = None  # of the last session, kept: who goes on to the next one must not find it about to close


def _control() -> distributed.ProcessGroup:
    """Return the control group of the default group's ranks, which make it together when it is first needed."""
    return _control_group_of(distributed.group.WORLD)


@functools.lru_cache(maxsize=1)
def _control_group_of(world: Any) -> distributed.ProcessGroup:
    group: distributed.ProcessGroup = distributed.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
    return group


def _fate(silent: Sequence[int], n: int, *, come: bool) -> str:
    who = " and ".join(f"rank {rank}" for rank in silent)
    return f"{who} of {n} {'has' if len(silent) == 1 else 'have'} {'died' if come else 'not come'}"


def _said(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    if isinstance(error, _Terminated):
        return "terminated"
    if type(error).__module__.split(".")[0] == "workbench":
        return str(error)
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _is_communication(error: BaseException) -> bool:
    """Return whether an error comes from a collective; gloo's are plain RuntimeErrors that name its source files."""
    if isinstance(error, distributed.DistError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(word in text for word in ("gloo", "NCCL", "HCCL", "ProcessGroup"))


def _signals_of_a_rank(session: _Session) -> contextlib.AbstractContextManager[None]:
    """Let only rank 0 decide on Ctrl-C, and turn SIGTERM into an exception, so that the run is recorded as ended."""

    def terminate(number: int, frame: FrameType | None) -> None:
        if not session.ending:
            session.ending = True
            raise _Terminated(128 + number)

    handlers: dict[signal.Signals, Handler] = {signal.SIGTERM: terminate}
    if session.here.rank != 0:
        handlers[signal.SIGINT] = signal.SIG_IGN
    return handling_signals(handlers)
