"""How much other work keeps this machine busy: meanwhile a step on the CPU may take many times as long."""

from __future__ import annotations

import os
import time

import psutil

from workbench.core.processor import allowed_cores, usable_cores

_KINDS = ("user", "nice", "system", "irq", "softirq", "steal")
_BUSY_CORES = 0.5
_TOO_SHORT = 0.3  # seconds; the system counts in hundredths


class OtherWork:
    """Counts the cores that processes other than this one and its children keep busy from now on.

    Only cores that this process may use count, and other machines on the same host where the system reports them
    (steal time).
    """

    def __init__(self) -> None:
        self._busy, self._began = _others_seconds(), time.perf_counter()

    def cores(self) -> float:
        """Return how many cores other work kept busy on average."""
        return max(_others_seconds() - self._busy, 0.0) / max(time.perf_counter() - self._began, 1e-9)

    def idle_cores(self) -> float:
        """Return how many cores it left on average, of those that this process may use."""
        return max(min(float(usable_cores()), len(allowed_cores()) - self.cores()), 0.0)

    def sentence(self, threads: int | None = None) -> str:
        """Return a sentence if that was much; empty if not, or if there was no time to see it.

        ``threads`` are those of a run, where they are not the environment's.
        """
        taken = usable_cores() - self.idle_cores()  # not what a container's neighbours do on cores of their own
        if time.perf_counter() - self._began < _TOO_SHORT or taken < _BUSY_CORES:
            return ""
        is_one = os.environ.get("OMP_NUM_THREADS") == "1" if threads is None else threads == 1
        several = ", with several threads many times as long (OMP_NUM_THREADS=1, set before Python starts, avoids that)"
        return (
            f"Other work keeps {taken:.1f} of {usable_cores()} cores busy: steps on the CPU take longer meanwhile"
            f"{'' if is_one else several}, and what is measured holds for a busy machine"
        )


def other_work_now() -> OtherWork:
    """Watch for a third of a second and return what was seen."""
    other = OtherWork()
    time.sleep(_TOO_SHORT)
    return other


def _others_seconds() -> float:
    """Return the seconds of processor time since boot that neither this process nor its children used."""
    allowed = allowed_cores()
    cores = [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in allowed]
    busy: float = sum(getattr(times, kind, 0.0) for times in cores for kind in _KINDS)
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        try:
            own = process.cpu_times()
        except psutil.NoSuchProcess:  # ended and waited for meanwhile: its parent has its time
            continue
        busy -= own.user + own.system + getattr(own, "children_user", 0.0) + getattr(own, "children_system", 0.0)
    return busy
