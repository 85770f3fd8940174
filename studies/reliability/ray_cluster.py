"""A Ray cluster of one's own: one node with two CPUs and one "slot", in a folder and on ports of its own."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

PATIENCE = "240"  # a busy machine is no fault of the code

ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": PATIENCE,
    "RAY_worker_register_timeout_seconds": PATIENCE,
    "RAY_agent_register_timeout_ms": PATIENCE + "000",
}


def environment() -> dict[str, str]:
    """What the cluster and everybody who joins it has to be told."""
    return {**ENVIRONMENT, "RAY_AUTH_TOKEN": secrets.token_hex(32)}


@contextlib.contextmanager
def cluster() -> Iterator[str]:
    """Start a cluster with this process's environment, yield its address, end it."""
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        port, agent = free_ports(2)
        options = {
            "node-ip-address": "127.0.0.1",
            "port": port,
            "num-cpus": 2,
            "resources": '{"slot": 1}',
            "include-dashboard": "false",
            "temp-dir": folder,
            "object-store-memory": 80_000_000,
            "runtime-env-agent-port": agent,
        }
        command = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
        command += [f"--{name}={value}" for name, value in options.items()]
        up = threading.Event()
        threading.Thread(target=tell_ports, args=(folder, up), daemon=True).start()
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "COLUMNS": "200"}
        )
        try:
            assert process.stdout is not None
            told = []
            for line in process.stdout:
                told.append(line)
                if "Ray runtime started" in line:
                    break
            else:
                raise AssertionError("Ray did not start:\n" + "".join(told))
            yield f"127.0.0.1:{port}"
        finally:
            up.set()
            process.terminate()
            process.communicate(timeout=60)


def tell_ports(folder: str, up: threading.Event) -> None:
    """Say for Ray's agents that they serve nothing, which is what they say without the dashboard, but in time.

    The raylet aborts when they have not said it 15 s after it began, and on a busy machine they take longer to import.
    """
    while not up.wait(0.05):
        for found in Path(folder).glob("session_*/gcs_server_port_*"):
            node = found.name.rpartition("_")[2]
            for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port"):
                path = found.parent / f"{name}_{node}"
                if not path.exists():
                    path.write_text("-1", encoding="utf-8")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody uses now."""
    with contextlib.ExitStack() as sockets:
        opened = [sockets.enter_context(socket.socket()) for _ in range(count)]
        for one in opened:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in opened]
