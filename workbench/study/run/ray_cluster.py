"""The Ray cluster a study runs on: found, asked for its room, left again.

Ray is imported here and only when a study asks for it. The driver, the process that ``workbench tune`` is, joins the
cluster on one of its machines; everything it starts there ends with it, which is Ray's own rule.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from workbench.study.errors import StudyError
from workbench.study.run.ray_resources import TrialResources

__all__ = ["joined_cluster", "n_places", "wait_for_room"]

WAIT_VARIABLE = "WORKBENCH_RAY_WAIT"
_WAIT_SECONDS = 30.0
_TELL_SECONDS = 5.0
_CONNECT_SECONDS = 5.0
_POLL_SECONDS = 0.5


@contextmanager
def joined_cluster(address: str | None) -> Iterator[Any]:
    """Join a Ray cluster while the block runs, and leave it at the end; one that was joined before is kept.

    Args:
        address: ``"auto"`` for the cluster of this machine, ``"host:port"`` of a head node, or None: what Ray finds by
            its own rule (``RAY_ADDRESS``, a running cluster), or else a small one on this machine for as long as the
            study runs.

    Yields:
        The module ``ray``.

    Raises:
        StudyError: When Ray is not installed, or no cluster answers.
    """
    ray = _import_ray()
    if ray.is_initialized():
        yield ray
        return
    _check_address(address)
    try:
        ray.init(
            address=address, log_to_driver=False, logging_level="ERROR", configure_logging=False, **_local(address)
        )
    except Exception as error:  # Ray raises one class per mistake, and plain Exception, too
        where = "on this machine" if address in {None, "auto"} else f"at {address}"
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise StudyError(
            f"no Ray cluster can be joined {where} ({reason}); `ray start --head` starts one, --address HOST:PORT "
            "names one, and one with token authentication needs RAY_AUTH_MODE=token here, too"
        ) from None
    try:
        yield ray
    finally:
        ray.shutdown()


def n_places(ray: Any, resources: TrialResources, ranks: int) -> int:
    """Return how many trials the cluster has room for as it is now; 0 when it has none.

    Args:
        ray: The module.
        resources: What one process of a trial needs.
        ranks: Processes of a trial.
    """
    return sum(resources.room(node) for node in _nodes(ray)) // ranks


def wait_for_room(
    ray: Any, resources: TrialResources, ranks: int, end_if_asked: Callable[[], None] = lambda: None
) -> None:
    """Wait until the cluster can hold one trial at all; one that is submitted already moves an autoscaler to help.

    Args:
        ray: The module.
        resources: What one process of a trial needs.
        ranks: Processes of a trial.
        end_if_asked: Called while waiting; may raise.

    Raises:
        StudyError: When it cannot after half a minute, or the seconds in ``WORKBENCH_RAY_WAIT``.
    """
    seconds = _wait_seconds()
    began = time.monotonic()
    told = False
    while n_places(ray, resources, ranks) < 1:
        end_if_asked()
        waited = time.monotonic() - began
        needs = f"{resources}" if ranks == 1 else f"{ranks} x ({resources})"
        if waited > seconds:
            raise StudyError(
                f"a trial needs {needs}, and no node of the Ray cluster has that ({_told_nodes(ray)}); ask for less "
                f"with --resources-per-trial, add nodes, or set {WAIT_VARIABLE} to the seconds that adding them takes"
            )
        if not told and waited > _TELL_SECONDS:
            told = True
            print(
                f"note: waiting up to {seconds:g} s for a node with {needs}; there is {_told_nodes(ray)}",
                file=sys.stderr,
                flush=True,
            )
        time.sleep(min(_POLL_SECONDS, max(seconds - waited, 0.05)))


def _import_ray() -> Any:
    # Since Ray 2.5x a task without accelerators no longer hides them, and says so at every start unless told.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        return importlib.import_module("ray")
    except ImportError:
        raise StudyError('--engine ray needs Ray; pip install "boost-workbench[cluster]"') from None


def _check_address(address: str | None) -> None:
    """Refuse an address that Ray would wait for in vain: its own client ends the whole process then."""
    if address in {None, "auto", "local"}:
        return
    if "://" in str(address):
        raise StudyError(
            f"--address must be auto or HOST:PORT, got {address}; run this command on a machine of the cluster"
        )
    host, colon, port = str(address).rpartition(":")
    if not colon or not host or not port.isdigit():
        raise StudyError(f"--address must be auto or HOST:PORT (Ray's port is 6379 unless set), got {address!r}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StudyError(
            f"no Ray cluster answers at {address} ({reason}); `ray start --head` starts one and prints its address"
        ) from None


def _local(address: str | None) -> dict[str, Any]:
    """Return what only a cluster that Ray starts itself may be told."""
    found = address not in {None, "local"} or os.environ.get("RAY_ADDRESS")
    return {} if found else {"include_dashboard": False}


def _wait_seconds() -> float:
    text = os.environ.get(WAIT_VARIABLE, "")
    try:
        seconds = float(text) if text else _WAIT_SECONDS
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < float("inf"):
        raise StudyError(f"{WAIT_VARIABLE} must be a number of seconds, 0 or more, got {text!r}")
    return seconds


def _nodes(ray: Any) -> list[dict[str, float]]:
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _told_nodes(ray: Any) -> str:
    nodes = _nodes(ray)
    shown = {
        name: amount
        for node in nodes
        for name, amount in node.items()
        if not name.startswith(("node:", "object_store_memory", "memory", "accelerator_type:"))
    }
    total = {name: sum(node.get(name, 0.0) for node in nodes) for name in sorted(shown)}
    has = ", ".join(f"{name}={amount:g}" for name, amount in total.items()) or "no resources"
    return f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'} with {has} in all"
