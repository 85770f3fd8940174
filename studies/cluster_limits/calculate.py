"""What limits a sweep over many nodes: arithmetic on what ``simulate.py`` has measured.

    python studies/cluster_limits/calculate.py [--nodes 1000]

Every figure of ``result/table.md`` is computed here; every cost in it was measured. A rate is what one core can do:
1 / (CPU seconds per trial). A limit is reached when the trials that end per second cost more than there is.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from workbench.core.files import write_text_atomically

RESULT = Path(__file__).parent / "result"
TRIAL_SECONDS = (60, 600, 3600)
GRACE_SECONDS, BEATS_PER_GRACE = 180.0, 6


def limits(measured: dict[str, Any], nodes: int, seconds: float) -> dict[str, float]:
    """Return what a sweep of so many nodes asks for per second, and the share of one core that it takes.

    Args:
        measured: What ``simulate.py`` wrote.
        nodes: Nodes, one trial on each at a time.
        seconds: Length of a trial.
    """
    rate = nodes / seconds
    beats = nodes * BEATS_PER_GRACE / GRACE_SECONDS
    per_trial = measured["per_trial"]
    slowest = _costliest(measured)["cpu_ms"] / 1e3
    server = max((row["server_cpu_ms"] for row in measured["postgresql"]), default=float("nan")) / 1e3
    driver = rate * slowest + beats * per_trial["heartbeat_cpu_ms"] / 1e3
    return {
        "trials_per_second": rate,
        "commits_per_second": rate * per_trial["commits"] + beats * per_trial["heartbeat_commits"],
        "driver_cores": driver,
        "server_cores": rate * server,
        "nodes_per_driver": nodes / driver,
        "database_gib_per_day": rate * 86400 * per_trial["database_bytes"] / 1024**3,
        "runs_gib_per_day": rate * 86400 * measured["run_directory"]["bytes"] / 1024**3,
    }


def _costliest(measured: dict[str, Any]) -> dict[str, float]:
    """Return what a trial costs one process that asks and tells, at most, beside how many stored trials.

    Crowds of several processes share their beginnings among few trials each, so theirs do not count here.
    """
    rows = list(measured.get("growth", []))
    rows += [{"stored": row["trials"], "cpu_ms": row["client_cpu_ms"]} for row in measured["postgresql"][:1]]
    return max(rows, key=lambda row: row["cpu_ms"])


def table(measured: dict[str, Any], nodes: int) -> str:
    """Return the limits as a Markdown table, a column per length of a trial."""
    columns = [limits(measured, nodes, seconds) for seconds in TRIAL_SECONDS]
    stored = _costliest(measured)["stored"]
    rows = {
        "trials that end per second": ("trials_per_second", "{:.2g}"),
        "commits per second, heartbeats included": ("commits_per_second", "{:.0f}"),
        f"cores of one driver, beside {stored:.0f} stored trials": ("driver_cores", "{:.2f}"),
        "cores of the PostgreSQL server": ("server_cores", "{:.2f}"),
        "nodes that one driver on one core feeds": ("nodes_per_driver", "{:.0f}"),
        "GiB per day in the database": ("database_gib_per_day", "{:.1f}"),
        "GiB per day of run directories": ("runs_gib_per_day", "{:.1f}"),
    }
    head = [f"trials of {seconds} s" for seconds in TRIAL_SECONDS]
    lines = [f"| {nodes} nodes (computed) | " + " | ".join(head) + " |", "| --- |" + " --- |" * len(head)]
    for name, (key, form) in rows.items():
        lines.append(f"| {name} | " + " | ".join(form.format(column[key]) for column in columns) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write ``result/table.md``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    asked = parser.parse_args()
    measured = json.loads((RESULT / "measured.json").read_text(encoding="utf-8"))
    text = table(measured, asked.nodes)
    write_text_atomically(RESULT / "table.md", text)
    print(text)


if __name__ == "__main__":
    main()
