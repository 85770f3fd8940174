"""The ranks that train together: how a process joins them, what they agree on, and how it leaves.

    with joined("auto") as device:      # nothing happens when WORLD_SIZE is absent or 1
        ...                             # every rank does the same; rank 0 records and decides

Gradients travel in the default process group with the device's own backend; what the host has to agree on (stop now,
the metric is 0.97) travels in a *control group* on the CPU (gloo), so that it never waits for the device.

A rank that dies must not leave the others waiting, and a collective alone tells little: gloo reports a closed
connection to whoever talked to the dead rank and nothing to the rest. So every rank has a *heartbeat*: a thread with
its own connection to the store counts upwards there twice a second, and leaves the exit reason there. A rank whose
collective fails looks whose heartbeat has stopped, and says so (`RankFailure`).
"""

from __future__ import annotations

import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from workbench.core import devices
from workbench.core.arguments import seconds_from
from workbench.core.rank_environment import RankEnvironment, rank_environment
from workbench.core.signals import Handler, handling_signals

T = TypeVar("T")

# Public in torch's documentation, but not for type checkers; absent where torch was built without distributed.
_TCP_STORE: Any = getattr(distributed, "TCPStore", None)
_PREFIX_STORE: Any = getattr(distributed, "PrefixStore", None)

TIMEOUT_VARIABLE = "WORKBENCH_RANKS_TIMEOUT"
_TIMEOUT_SECONDS = 600.0  # torch's own for nccl; the slowest single step of a rank has to fit
_BEAT_SECONDS = 0.5
_SILENCE_SECONDS = 3.0  # six beats; a thread may wait for the interpreter's lock, but not so long
_LAG_SECONDS = 2 * _BEAT_SECONDS  # a last beat may be seen so long after it was made
_DEAD_SECONDS = 60.0  # silence after which a rank counts as dead even though no collective has failed
_GRACE_SECONDS = 15.0  # for a rank to end by itself after another one failed
_CONTROL_TIMEOUT = datetime.timedelta(days=1)  # rank 0 may evaluate for hours; heartbeats tell whether it lives
_ENDED = b"ended:"
_CONSEQUENCE = "told: "  # begins the exit reason of a rank that another one's failure has ended


class RankFailure(ConnectionError):  # noqa: N818  # the failure of another process; an OSError, as lost connections are
    """Another rank has died, ended with an error, or does not answer.

    ``tells``: this rank should report it, the others keep silent; ``own``: it is this rank that failed, by the cause.
    """

    def __init__(self, sentence: str, *, tells: bool = True, own: bool = False) -> None:
        super().__init__(sentence)
        self.tells = tells
        self.own = own


def world_size() -> int:
    """Return how many ranks there are; 1 without a process group."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def rank() -> int:
    """Return this process's rank; 0 without a process group."""
    return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else 0


@contextlib.contextmanager
def joined(device: str | torch.device = "auto", *, timeout_seconds: float | None = None) -> Iterator[torch.device]:
    """Train together with the other ranks while the block runs, when torchrun or its like started this process.

    Without ``WORLD_SIZE``, with one rank, or inside somebody else's process group only the device is chosen. Blocks may
    be nested; the outer one counts. ``timeout_seconds`` is how long a collective may wait for the other ranks, by
    default ``WORKBENCH_RANKS_TIMEOUT``, or 600.

    Raises:
        ValueError: When the device is not present, or ranks are to share one accelerator.
        RankEnvironmentError: When the variables of torchrun are incomplete.
        RankFailure: When another rank has died, ended with an error, or does not answer in time.
    """
    here = rank_environment()
    if here is None or world_size() > 1:
        local = None if here is None else here.local_rank
        yield devices.select_device(device) if local is None else devices.rank_device(device, local)
        return
    session = _Joined.session = _Session(here, _timeout(timeout_seconds))
    try:
        with _signals_of_a_rank(session):
            try:
                chosen = devices.rank_device(device, here.local_rank)
                session.open(chosen)
                yield chosen
                # So that nobody's last message meets a closed door.
                distributed.barrier(group=session.control)
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
    """Wait for the other ranks; nothing to wait for when there are none."""
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
    """Return the mean over ranks of each number; as many numbers on every rank."""
    if world_size() == 1 or not values:
        return list(values)
    total = torch.tensor(values, dtype=torch.float64, device="cpu")
    distributed.all_reduce(total, group=_control())
    return [float(value) for value in total / world_size()]


class StepVotes:
    """What ranks wish at a step, known to all of them one step later: the exchange runs beside the next step."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, distributed.Work | None] | None = None

    def exchange(self, *wishes: bool) -> tuple[bool, ...]:
        """Send this step's wishes, as many on every rank, and return whether any rank had each at the step before."""
        before = self.settle()
        sent = torch.tensor(wishes, dtype=torch.int32, device="cpu")
        work = distributed.all_reduce(sent, distributed.ReduceOp.MAX, group=_control(), async_op=True)
        self._pending = sent, work
        return before or (False,) * len(wishes)

    def settle(self) -> tuple[bool, ...]:
        """Wait for the exchange under way and return what it says; empty when there is none."""
        if self._pending is None:
            return ()
        (wishes, work), self._pending = self._pending, None
        if work is not None:
            work.wait()
        return tuple(bool(wish) for wish in wishes.tolist())


def together(failed: BaseException | None) -> None:
    """End a piece of work that every rank does, so that one that failed alike on all ranks is no failure of a rank.

    A rank that failed waits for the others, who reach the same point by the same failure or by success. One that does
    not come within some seconds waits in a collective for this one, which only leaving, by a `RankFailure`, can wake.
    """
    session = _Joined.session
    if session is None:
        return
    here, came = session.here, session.count_out()
    until = time.monotonic() + _GRACE_SECONDS
    while failed is not None and came() < here.world_size:
        if time.monotonic() > until:
            sentence = f"rank {here.rank} of {here.world_size} failed alone: {_said(failed)}"
            raise RankFailure(sentence, tells=here.rank == 0, own=True) from failed
        time.sleep(0.05)


def explained(error: BaseException) -> BaseException:
    """Return the failure of a rank that is behind an error, or the error itself; takes up to four seconds.

    Only errors of communication, and the signal by which torchrun ends the ranks that are left, are looked into.
    """
    if isinstance(error, RankFailure) or not (_is_communication(error) or isinstance(error, _Terminated)):
        return error
    session = _Joined.session
    if session is None:
        return error
    session.ending = True  # torchrun's SIGTERM may come while this looks around
    failure = session.heartbeat.diagnose()
    if failure is not None:
        return failure
    if isinstance(error, _Terminated):
        return error
    first_line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return RankFailure(
        f"all {session.here.world_size} ranks are alive, but one does not answer within {session.timeout:g} seconds "
        f"(rank {session.here.rank} waited: {first_line}); set {TIMEOUT_VARIABLE} to more seconds when steps take so "
        "long",
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
        self.here = here
        self.timeout = timeout
        self.control: distributed.ProcessGroup | None = None
        self.ending = False
        self._hosts = here.rank == 0 and not here.store_is_served
        self._works, self._backend = 0, ""
        self._shared, own = (
            _PREFIX_STORE(f"workbench/{here.attempt}", self._connect(is_master=hosts)) for hosts in (self._hosts, False)
        )
        self.heartbeat = _Heartbeat(own, here, min(timeout, _DEAD_SECONDS))
        self.heartbeat.start()

    def open(self, device: torch.device) -> None:
        """Make both process groups."""
        self._backend = devices.collective_backend(device)
        distributed.init_process_group(
            self._backend,
            store=_PREFIX_STORE("default", self._shared),
            rank=self.here.rank,
            world_size=self.here.world_size,
            timeout=datetime.timedelta(seconds=self.timeout),
            device_id=None if device.type == "cpu" else device,
        )
        self.control = distributed.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)

    def count_out(self) -> Callable[[], int]:
        """Count this rank out of the current piece of work; return a function that tells how many ranks are."""
        key = f"work/{self._works}"
        self._works += 1
        self._shared.add(key, 1)
        return lambda: int(self._shared.add(key, 0))

    def close(self, error: BaseException | None) -> None:
        """Leave: note how, close connections, and keep the store while others need it."""
        if distributed.is_initialized() and (error is None or self._backend == "gloo"):
            # Closed connections wake ranks that wait for this one. nccl's would wait for its own collectives first.
            with contextlib.suppress(RuntimeError):
                distributed.destroy_process_group()
        self.heartbeat.leave("" if error is None else _said(error))
        if self._hosts:
            self.heartbeat.wait_for_others(_SILENCE_SECONDS + _LAG_SECONDS)

    def _connect(self, *, is_master: bool) -> Any:
        here, timeout = self.here, datetime.timedelta(seconds=self.timeout)
        try:
            return _TCP_STORE(here.host, here.port, is_master=is_master, timeout=timeout, wait_for_workers=False)
        except (distributed.DistError, RuntimeError) as error:
            raise RankFailure(
                f"rank {here.rank} of {here.world_size} cannot meet the others at {here.host}:{here.port} "
                f"({str(error).strip().splitlines()[0]})"
            ) from error


class _Heartbeat(threading.Thread):
    """Writes this rank's heartbeat, over a connection of its own as others block while they wait, and reads all."""

    def __init__(self, store: Any, here: RankEnvironment, dead_seconds: float) -> None:
        super().__init__(name="rank heartbeat", daemon=True)
        self._store, self._here, self._dead_seconds = store, here, dead_seconds
        self._leaving = threading.Event()
        self._exit_reason = ""
        now = time.monotonic()
        self._seen: dict[int, tuple[bytes, float]] = dict.fromkeys(range(here.world_size), (b"", now))
        self._complete = False
        self._store_lost: float | None = None

    def run(self) -> None:
        """Beat until the rank leaves or the store is gone."""
        beats = 0
        while not self._leaving.wait(_BEAT_SECONDS if beats else 0.0):
            beats += 1
            if not self._exchange(str(beats).encode()):
                break
            self._end_if_others_failed_long_ago()
        while not self._leaving.wait(_BEAT_SECONDS):  # the store is gone: so is whoever served it
            self._end_if_others_failed_long_ago()
        self._exchange(_ENDED + self._exit_reason.encode())

    def leave(self, exit_reason: str) -> None:
        """End the heartbeat with the exit reason, which is empty for success."""
        self._exit_reason = exit_reason
        self._leaving.set()
        self.join(_SILENCE_SECONDS)

    def wait_for_others(self, seconds: float) -> None:
        """Wait until the others have left, at most so long: with this process the store goes."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and self._exchange(None):
            if all(words.startswith(_ENDED) for words, _ in self._others().values()):
                return
            time.sleep(0.05)

    def diagnose(self) -> RankFailure | None:
        """Find out, within some seconds, which rank has failed; None when all are alive."""
        asked = time.monotonic()
        while time.monotonic() - asked < _LAG_SECONDS + _SILENCE_SECONDS:
            if self._exit_reasons_of_others() or self._store_lost is not None:
                return self._failure(asked - _DEAD_SECONDS)
            time.sleep(0.05)
        return self._failure(asked + _LAG_SECONDS)

    def _exchange(self, words: bytes | None) -> bool:
        """Write this rank's words, listen to the others; return whether the store still answers."""
        here = self._here
        try:
            if words is not None:
                self._store.set(f"rank/{here.rank}", words)
            others = list(range(here.world_size))
            if not self._complete:  # asking for a key that is not there would wait for it
                others = [other for other in others if self._store.check([f"rank/{other}"])]
                self._complete = len(others) == here.world_size
            now = time.monotonic()
            for other, heard in zip(others, self._store.multi_get([f"rank/{other}" for other in others]), strict=True):
                if heard != self._seen[other][0]:
                    self._seen[other] = heard, now
        except (distributed.DistError, RuntimeError):
            self._store_lost = self._store_lost or time.monotonic()
            return False
        return True

    def _exit_reasons_of_others(self) -> dict[int, str]:
        return {
            other: words.removeprefix(_ENDED).decode(errors="replace")
            for other, (words, _) in self._others().items()
            if words.startswith(_ENDED) and words != _ENDED
        }

    def _others(self) -> dict[int, tuple[bytes, float]]:
        """Return what each other rank wrote last, and when that was seen."""
        return {other: seen for other, seen in self._seen.items() if other != self._here.rank}

    def _failure(self, since: float) -> RankFailure | None:
        """Return who has failed: who left an exit reason, or has been silent since a moment."""
        here, n = self._here, self._here.world_size
        ended = self._exit_reasons_of_others()
        others = self._others().items()
        silent = [other for other, (words, at) in others if at < since and not words.startswith(_ENDED)]
        # A rank that another one's failure has ended is no cause, and was left to say what the cause is.
        causes = {other: words for other, words in ended.items() if not words.startswith(_CONSEQUENCE)}
        first = next(other for other in range(n) if other not in causes and other not in silent)
        tells = here.rank == first
        if self._store_lost is not None:
            if here.store_is_served:
                return RankFailure(f"the process that started rank {here.rank} of {n} is gone", tells=tells)
            if 0 not in ended:
                return RankFailure(f"rank 0 of {n} has died", tells=here.rank == 1)
        missing = [other for other in silent if not self._seen[other][0]]
        if missing or silent:
            who = " and ".join(f"rank {other}" for other in missing or silent)
            verb, fate = "has" if len(missing or silent) == 1 else "have", "not come" if missing else "died"
            return RankFailure(f"{who} of {n} {verb} {fate}", tells=tells)
        for other, words in causes.items():
            told = f"rank {other} of {n} ended with an error: {words}"
            return RankFailure(told, tells=tells and 0 not in causes)  # rank 0 says its own errors
        for words in ended.values():
            return RankFailure(words.removeprefix(_CONSEQUENCE), tells=False)
        return None

    def _end_if_others_failed_long_ago(self) -> None:
        """End the process when another rank has failed long ago and the main thread still waits for it."""
        now = time.monotonic()
        left = [at for words, at in self._seen.values() if words.startswith(_ENDED) and words != _ENDED]
        left += [self._store_lost] if self._store_lost is not None else []
        living = [at for words, at in self._others().values() if not words.startswith(_ENDED)]
        silent = self._complete and any(now - at > self._dead_seconds for at in living)
        if not silent and not any(now - at > _GRACE_SECONDS for at in left):
            return
        failure = self._failure(now - self._dead_seconds)
        if failure is not None:
            if failure.tells:
                print(f"workbench: {failure}", file=sys.stderr, flush=True)
            os._exit(1)  # the main thread waits below Python, where no exception reaches it


class _Joined:
    """What this process has joined: at most one session, or a default group that somebody else has made."""

    session: _Session | None = None
    beside: tuple[Any, distributed.ProcessGroup] | None = None  # that group, and our control group for its ranks


def _control() -> distributed.ProcessGroup:
    """Return the control group; beside a default group of somebody else's it is made when first needed."""
    if _Joined.session is not None and _Joined.session.control is not None:
        return _Joined.session.control
    world = distributed.group.WORLD
    if _Joined.beside is None or _Joined.beside[0] is not world:
        _Joined.beside = world, distributed.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
    return _Joined.beside[1]


def _timeout(given: float | None) -> float:
    if given is None:
        return seconds_from(TIMEOUT_VARIABLE, _TIMEOUT_SECONDS)
    if not 0 < given < float("inf"):
        raise ValueError(f"`timeout_seconds` must be above 0, got {given!r}")
    return given


def _said(error: BaseException) -> str:
    if isinstance(error, RankFailure):
        return _said(error.__cause__) if error.own and error.__cause__ is not None else f"{_CONSEQUENCE}{error}"
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
    """Let rank 0 alone decide on Ctrl-C, and turn SIGTERM into an exception, so that the run is recorded as ended."""

    def terminate(number: int, frame: FrameType | None) -> None:
        if not session.ending:
            session.ending = True
            raise _Terminated(128 + number)

    handlers: dict[signal.Signals, Handler] = {signal.SIGTERM: terminate}
    if session.here.rank != 0:
        handlers[signal.SIGINT] = signal.SIG_IGN
    return handling_signals(handlers)
