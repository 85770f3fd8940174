"""Experimenters in processes of their own, each with its accelerator or its share of the cores.

Processes, not threads: training in threads shares one interpreter lock and one set of random states. They are forked
from a fresh process that has loaded torch and nothing else (a fork of one that has used an accelerator may not use it),
and end by themselves when the process that asked for them is gone. Two that both let torch take all cores slow each
other down by more than half, and the speed they measure is then mostly noise.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from workbench.core.error_place import keep_origin
from workbench.core.process_identity import has_ended, identity, machine
from workbench.study.ask.study_file import read_study
from workbench.study.errors import StudyStoppedError
from workbench.study.run.experimenter import MakeExperimenter, experimenter_for
from workbench.study.run.job import UNMONITORED, Job, Monitor, OutcomeT, RunStep, TrainJob, compiles
from workbench.study.run.places import SECONDS_TO_END, Place, search_at
from workbench.study.run.room import AnyRoom, Room
from workbench.study.run.runner import Experimenter, LostTrialError, StuckError, end_if_asked
from workbench.study.run.searching import Search
from workbench.study.run.silence import Silence

if TYPE_CHECKING:
    import torch

_POLL_SECONDS = 0.05
_LOOK_SECONDS = 0.25  # after the parent
_STEP_SECONDS = 0.1  # between two steps that are reported
_TRIES = 3
_NO_STEP = "no step ended after it was asked to stop"
_warned_of: dict[Any, Any] = {}  # as a module's ``__warningregistry__``
_PRELOADED = ("torch._dynamo", "workbench.training.run")  # else seconds for each process; optimizers need dynamo


class ProcessCrew:
    """Processes of this machine for the runs of a study; they begin with the first run and end with the block.

    As many train side by side as there is ``room`` for. Where a search has room for more than there is for runs of the
    task as given, it has processes of its own meanwhile. A process alone is this one, which trains ``here``.
    """

    def __init__(
        self, room: Room | AnyRoom, directory: Path, make: MakeExperimenter | None, here: Experimenter
    ) -> None:
        self._room, self._here, self._asked = room, here, (directory, make)
        # It begins and ends them, one after the other: an exception, as Ctrl-C is one, would leave half a process.
        self._thread = ThreadPoolExecutor(1, "crew", _keep_ctrl_c_out)
        self._groups = dict[int, _Group]()  # by size; of one at a time the processes live

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._group_of(0)
        self._thread.shutdown()

    @property
    def experimenter(self) -> Experimenter:
        """What trains alone."""
        return self

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job in the first process, or here."""
        trainers = self.trainers()
        return (trainers[0] if trainers else self._here).run(job, monitor)

    def trainers(self) -> Sequence[Experimenter]:
        """Return those that train side by side as `experimenter` does alone; none where it is the only one."""
        return self._group_of(self._room.alike()).processes

    def search(self, search: Search, on_poll: Callable[[], None]) -> None:
        """Go on with a search in all processes that there is room for, as `search_at` does."""
        group = self._group_of(self._room.in_search())
        if group.processes:
            search_at([Place(one, one.close) for one in group.processes], search, on_poll)
        self.trainers()  # what only a search has room for ends

    def _group_of(self, n_processes: int) -> _Group:
        """Return so many processes, none for one; those of another group end."""
        size = n_processes if n_processes > 1 else 0
        for other in self._groups:
            if other != size:
                self._groups[other].end()
        if size not in self._groups:
            if size:
                self._thread.submit(bool).result()  # start it: shutdown() misses one interrupted in its start
            self._groups[size] = _Group(size, self._asked, self._thread)
        return self._groups[size]


class _Group:
    """Processes that begin together; ``thread`` begins and ends them."""

    def __init__(self, n_processes: int, asked: tuple[Any, ...], thread: ThreadPoolExecutor) -> None:
        asked = (*asked, n_processes, {"machine": machine(), **identity(os.getpid())})
        self.processes = [ProcessTrainer((place, *asked), self._wait_until_loaded) for place in range(n_processes)]
        self._thread, self._loading, self._have_loaded = thread, threading.Lock(), False

    def _wait_until_loaded(self, stop: Callable[[], bool] | None) -> None:
        """Begin all processes and wait for them, once: what is timed while others load would be false."""
        with self._loading:
            if self._have_loaded:
                return
            begun = [self._thread.submit(one.begin) for one in self.processes]
            while not all(one.done() for one in begun) or any(one.is_loading() for one in self.processes):
                end_if_asked(stop)
                time.sleep(_POLL_SECONDS)
            for one in begun:
                one.result()
            self._have_loaded = True

    def end(self) -> None:
        """End the processes; the next job of one begins them again."""
        if self.processes:
            self._thread.submit(lambda: _end([one.process for one in self.processes if one.process])).result()
        self._have_loaded = False


class ProcessTrainer:
    """Runs jobs in a process of its own, which is replaced if it dies or gets nowhere.

    ``wait``, called before each job with what may end the waiting, returns when there is room for it.
    """

    def __init__(self, asked: tuple[Any, ...], wait: Callable[[Callable[[], bool] | None], None]) -> None:
        self._asked, self._wait = asked, wait
        if sys.platform == "linux":
            self._context = multiprocessing.get_context("forkserver")
            self._context.set_forkserver_preload(list(_PRELOADED))
        else:  # Windows cannot fork, and on macOS what has loaded the system's libraries should not
            self._context = multiprocessing.get_context("spawn")
        self.process: BaseProcess | None = None
        self._silence = Silence()

    def begin(self) -> BaseProcess:
        """Return the process, another one if there is none that lives."""
        if self.process is None or not self.process.is_alive():
            self._connection, theirs = self._context.Pipe()
            # Not events: their locks outlive a command that is killed, and a process that is killed may hold one.
            self._stop, self._loaded = (self._context.RawValue(ctypes.c_bool, False) for _ in range(2))
            self._n_asked = self._context.RawValue(ctypes.c_longlong, 0)
            as_here = (dict(os.environ), multiprocessing.get_start_method())
            asked = (theirs, self._stop, self._n_asked, self._loaded, *as_here, *self._asked)
            process = self._context.Process(target=_serve, args=asked)
            process.start()
            theirs.close()
            self.process = process
        return self.process

    def is_loading(self) -> bool:
        """Return whether the process lives and has not loaded its task yet."""
        return self.process is not None and self.process.is_alive() and not self._loaded.value

    def run(self, job: Job[OutcomeT], monitor: Monitor = UNMONITORED) -> OutcomeT:
        """Run a job there, in a new process if one dies under it; about ten of its steps a second are reported."""
        # By step. The same seed gives the same curve: no evaluation is asked about twice.
        answers: dict[int, bool] = {}
        for _ in range(_TRIES):
            end_if_asked(monitor.stop)
            self._wait(monitor.stop)
            process = self.begin()
            try:
                outcome = self._outcome(job, monitor, answers)
            except (EOFError, ConnectionError):
                process.join()
                continue
            except BaseException:  # of a monitor
                self.close()
                raise
            if isinstance(outcome, Exception):
                raise outcome
            done: OutcomeT = outcome
            return done
        end_if_asked(monitor.stop)
        raise LostTrialError(
            f"{_TRIES} processes died during one run, the last by {_how_it_ended(process.exitcode or 0)}; start fewer "
            "(--jobs; in the Tune tab: Workers), or look at what they print"
        )

    def close(self) -> None:
        """End the process; the next job begins another."""
        if self.process is not None:
            _end([self.process])

    def _outcome(self, job: Job[Any], monitor: Monitor, answers: dict[int, bool]) -> Any:
        """Let the process run a job; return its outcome or what it raised."""
        self._stop.value = False
        self._connection.send((job, monitor.on_evaluation is not None))
        self._silence.begin()
        while True:
            if monitor.stop is not None and monitor.stop():
                self._stop.value = True
                if self.is_loading():  # it cannot stop before, and has nothing to lose
                    self.close()
            if self.is_loading():
                self._silence.begin()
            self._silence.hear(self._n_asked.value)
            stopping = self._stop.value
            if (stopping or not compiles(job)) and self._silence.is_too_long(stopping=stopping):
                self.close()
                if stopping and (compiles(job) or not self._silence.longest):
                    return StudyStoppedError(_NO_STEP)
                return StuckError(self._silence.sentence())
            if not self._connection.poll(_POLL_SECONDS):
                continue
            match self._connection.recv():
                case _Warned() as warned:
                    warned.show()
                case RunStep() as step:
                    if monitor.on_step is not None:
                        monitor.on_step(step)
                case (step, metric):
                    assert monitor.on_evaluation is not None
                    if step not in answers:
                        answers[step] = monitor.on_evaluation(step, metric)
                    self._connection.send(answers[step])
                case outcome:
                    if not isinstance(outcome, Exception):
                        self._silence.end(trained=isinstance(job, TrainJob))
                    return outcome
            self._silence.go_on()


@dataclass(frozen=True, slots=True)
class _Warned:
    """A warning on its way from one process to the other."""

    message: str
    category: type[Warning]
    filename: str
    lineno: int

    def show(self) -> None:
        """Warn here, once for all processes."""
        warnings.warn_explicit(self.message, self.category, self.filename, self.lineno, registry=_warned_of)


def _keep_ctrl_c_out() -> None:
    """Keep Ctrl-C from this thread, and so from the fork server that it starts, which would end in its imports."""
    if sys.platform == "linux":
        resource_tracker.ensure_running()  # whose start lets it through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _end(processes: Sequence[BaseProcess]) -> None:
    """End processes; one that does not end in time is killed."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + SECONDS_TO_END
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0.0))
        if process.is_alive():
            process.kill()
            process.join()


def _how_it_ended(code: int) -> str:
    """Return what an exit code says: that of a process which a signal has ended is negative."""
    if code > 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


# -- in the process ---------------------------------------------------------------------------------------------------


def _serve(
    connection: Connection,
    stop: ctypes.c_bool,
    n_asked: ctypes.c_longlong,
    loaded: ctypes.c_bool,
    environment: Mapping[str, str],
    start_method: str,
    place: int,
    directory: Path,
    make: MakeExperimenter | None,
    n_places: int,
    asker: Mapping[str, Any],
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C goes to all; who started us ends us
    signal.signal(signal.SIGTERM, _end_at_once)
    threading.Thread(target=_end_with, args=(asker,), name="parent watch", daemon=True).start()
    os.environ.clear()  # it is that of the fork server, from when that was started
    os.environ.update(environment)
    # Else a fork server would start a loader's workers, each of which would import torch again in every epoch.
    multiprocessing.set_start_method(start_method, force=True)
    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than this share has cores
    reported_at = 0.0

    def show_warning(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any
    ) -> None:
        if threading.current_thread() is threading.main_thread():  # which alone speaks
            with contextlib.suppress(OSError):
                known = category if category.__module__ == "builtins" else UserWarning
                connection.send(_Warned(str(message), known, filename, lineno))

    warnings.showwarning = show_warning

    def on_step(step: RunStep) -> None:
        nonlocal reported_at
        if time.monotonic() - reported_at >= _STEP_SECONDS:
            reported_at = time.monotonic()
            connection.send(step)

    def stops() -> bool:
        n_asked.value += 1
        return stop.value

    def on_evaluation(step: int, metric: float) -> bool:
        connection.send((step, metric))
        return bool(connection.recv())

    experimenter: Experimenter | Exception
    try:
        file = read_study(directory)
        device = take_device(place, n_places, file.study.device, trains=make is None)
        experimenter = experimenter_for(file, directory, make, device)
    except Exception as error:  # the answer to every job
        experimenter = _portable(error)
    loaded.value = True
    with contextlib.suppress(EOFError, ConnectionError):  # who asked is gone
        while True:
            job, evaluates = connection.recv()
            outcome: Any = experimenter
            if not isinstance(experimenter, Exception):
                monitor = Monitor(on_evaluation if evaluates else None, on_step, stops)
                try:
                    outcome = experimenter.run(job, monitor)
                except Exception as error:
                    outcome = _portable(error)
            connection.send(outcome)


def _portable(error: Exception) -> Exception:
    """Return an error that can be pickled: of a user's class, and of what arguments cannot be sent, only the text."""
    is_known = type(error).__module__.partition(".")[0] in {"builtins", "torch", "workbench"}
    if is_known:
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # its arguments may be anything, too
            is_known = False
    known = error if is_known else RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    keep_origin(known)
    return known


def _end_with(asker: Mapping[str, Any]) -> None:
    """End this process, whatever it is doing, once the one that asked for it is gone.

    That is not its parent, and ``multiprocessing.parent_process().join()`` would wait for whatever has inherited the
    asker's end of their pipe.
    """
    while not has_ended(asker):
        time.sleep(_LOOK_SECONDS)
    _end_children()
    os._exit(1)


def _end_at_once(number: int, _: object) -> None:
    """End this process by a signal, as it would end by itself, and with it what reads for it."""
    _end_children()
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _end_children() -> None:
    """End a loader's workers: by themselves they would seconds later, with a word on the asker's temporary folder."""
    for child in multiprocessing.active_children():
        child.kill()


def core_share(cores: Sequence[int], index: int, n_workers: int) -> list[int]:
    """Return the cores of one worker: neighbours, each in one share; if workers outnumber cores, some share one.

    Example:
        >>> [core_share([0, 1, 2, 3, 4], index, 2) for index in range(2)]
        [[0, 1], [2, 3, 4]]
        >>> [core_share([0, 1], index, 3) for index in range(3)]
        [[0], [1], [0]]
    """
    ordered = sorted(cores)
    if n_workers >= len(ordered):
        return [ordered[index % len(ordered)]]
    return ordered[index * len(ordered) // n_workers : (index + 1) * len(ordered) // n_workers]


def take_device(index: int, n_workers: int, device: str, *, trains: bool = True) -> torch.device | None:
    """Take a worker's accelerator, or pin it to its share of the cores; call it before torch computes anything.

    Returns the device to train on; None leaves it to the study. A stand-in that does not train needs no torch.
    """
    everything = os.sched_getaffinity(0) if device in {"auto", "cpu"} and hasattr(os, "sched_setaffinity") else set()
    share = core_share(list(everything), index, n_workers) if everything else []
    if share:
        os.sched_setaffinity(0, share)
    if not trains:
        return None
    from workbench.core import devices

    hardware = devices.hardware_summary()
    if hardware["accelerator_count"] and device != "cpu":
        if everything:
            os.sched_setaffinity(0, everything)  # its loaders and copies may run anywhere
        named = ":" in device
        return None if named else devices.rank_device(device, index % hardware["accelerator_count"])
    if share:
        devices.use_threads(min(hardware["torch_threads"], len(share)))
    return None
