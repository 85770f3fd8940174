"""A Ray cluster of one node in a process of its own: prints its address, ends with its standard input."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ray


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


if __name__ == "__main__":
    started = threading.Event()
    threading.Thread(target=tell_ports, args=(sys.argv[1], started), daemon=True).start()
    ray.init(
        num_cpus=2,
        resources={"slot": 1},
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=80_000_000,
        _temp_dir=sys.argv[1],
    )
    started.set()
    print(ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.read()
    ray.shutdown()
