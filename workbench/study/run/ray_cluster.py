"""A Ray cluster as the driver sees it: joining it, and waiting until it has room for a trial."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from workbench.core.arguments import seconds_from
from workbench.study.errors import StudyError
from workbench.study.run.ray_worker import RayStudy
from workbench.study.run.stopping import end_if_asked

_WAIT_VARIABLE = "WORKBENCH_RAY_WAIT"
_WAIT_SECONDS = 30.0
_POLL_SECONDS = 0.5
_NOTE_SECONDS = 5.0
_CONNECT_SECONDS = 5.0


@contextlib.contextmanager
def joined_cluster(address: str | None) -> Iterator[Any]:
    """Join a Ray cluster while the block runs, and leave it at the end; one that was joined before is kept.

    Without an address it is what Ray finds by its own rule, or else a small one on this machine, while the study runs.
    Yields the module ``ray``, which is imported only when a study asks for it.
    """
    # Since Ray 2.5x a task without accelerators no longer hides them, and says so at every start unless asked not to.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # A cluster that Ray starts itself listens on localhost, as elsewhere than on Linux; one that is joined is as it is.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        ray = importlib.import_module("ray")
    except ImportError:
        raise StudyError('--engine ray needs Ray; pip install "boost-workbench[cluster]"') from None
    if ray.is_initialized():
        yield ray
        return
    if address not in {None, "auto", "local"}:
        _check_address(str(address))
    # Only a cluster that Ray starts itself takes this.
    starts = address in {None, "local"} and not os.environ.get("RAY_ADDRESS")
    options = {"include_dashboard": False} if starts else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **options)
    except Exception as error:  # Ray raises one class per mistake, and plain Exception, too
        where = "on this machine" if address in {None, "auto"} else f"at {address}"
        reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
        raise StudyError(
            f"no Ray cluster can be joined {where} ({reason}); `ray start --head` starts one, --address HOST:PORT "
            "names one, and one with token authentication needs RAY_AUTH_MODE=token here, too"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address that Ray would wait for in vain, two minutes, and then end the whole process."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        raise StudyError(
            "--address must be auto or HOST:PORT (Ray's port is 6379 unless set), where this command runs on a machine "
            f"of the cluster, got {address!r}"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StudyError(
            f"no Ray cluster answers at {address} ({reason}); `ray start --head` starts one and prints its address"
        ) from None


def n_slots(ray: Any, study: RayStudy) -> int:
    """Return how many trials the cluster has room for as it is now; 0 when it has none."""
    return sum(study.resources.room(node["Resources"]) for node in ray.nodes() if node["Alive"]) // study.n_ranks


def wait_for_room(
    ray: Any, study: RayStudy, ready: Any, stop: Callable[[], bool] | None, deadline: float | None
) -> None:
    """Wait until the first slot is ready, unless after a while the cluster cannot hold a trial at all."""
    try:
        seconds = seconds_from(_WAIT_VARIABLE, _WAIT_SECONDS, or_zero=True)
    except ValueError as error:
        raise StudyError(str(error)) from None
    needs = f"{study.resources}" if study.n_ranks == 1 else f"{study.n_ranks} x ({study.resources})"
    began, noted = time.monotonic(), False
    while not ray.wait([ready], timeout=_POLL_SECONDS)[0]:
        end_if_asked(stop)
        if deadline is not None and time.monotonic() >= deadline:
            raise StudyError(
                "the time limit ended before the Ray cluster had room for a trial; give the command more time"
            )
        waited = time.monotonic() - began
        if waited > seconds and n_slots(ray, study) < 1:
            raise StudyError(
                f"a trial needs {needs}, and no node of the Ray cluster has that ({_summary(ray)}); ask for less "
                f"with --resources-per-trial, add nodes, or set {_WAIT_VARIABLE} to the seconds that adding them takes"
            )
        if not noted and waited > _NOTE_SECONDS:
            noted = True
            note = f"note: waiting for room in the Ray cluster: a trial needs {needs}; there is {_summary(ray)}"
            print(note, file=sys.stderr, flush=True)


def _summary(ray: Any) -> str:
    nodes, amounts = sum(node["Alive"] for node in ray.nodes()), sorted(ray.cluster_resources().items())
    other = ("node:", "object_store_memory", "memory", "accelerator_type:")
    has = ", ".join(f"{name}={amount:g}" for name, amount in amounts if not name.startswith(other))
    return f"{nodes} {'node' if nodes == 1 else 'nodes'} with {has or 'no resources'} in all"
