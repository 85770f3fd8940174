"""Kill at random, count, and compare with what nobody disturbed.

    python studies/reliability/campaign.py [sqlite|jobs|postgresql|...|all|table] --kills 100 --seed 0

Each setting writes ``result/<setting>.json`` and ``result/kills/<setting>.csv``; from all that are there the command
writes ``result/kills.md``. The exit code is 1 when something was lost, doubled, left, failed wrongly or different.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from killed_runs import kill_runs
from killed_studies import kill_studies
from ledger import Findings
from strikes import Strikes, versions

RESULT = Path(__file__).resolve().parent / "result"
SETTINGS = {
    "sqlite": "`tune`, one process, SQLite",
    "jobs": "`tune --jobs 2`, SQLite",
    "postgresql": "two `worker`, PostgreSQL",
    "ray": "`tune --engine ray`, two places",
    "online": "`RecModel.online_train`",
    "train": "`train --checkpoint-every --resume`",
    "ranks": "the same over two gloo ranks",
}
RUNS = ("online", "train", "ranks")
HARM = {
    "lost": "lost",
    "doubled": "doubled",
    "left": "left unfinished",
    "failed_wrongly": "failed wrongly",
    "different": "different from the undisturbed",
}
COUNTED = ("finished", *HARM, "compared")


def run_setting(setting: str, kills: int, seed: int, folder: Path) -> dict[str, Any]:
    """Kill in a setting, keep its answer in ``result/``, anew after each study or run, and return it."""
    strikes = Strikes(setting, seed, RESULT / "kills" / f"{setting}.csv")
    kill: Callable[..., Iterator[Findings]] = kill_runs if setting in RUNS else kill_studies
    found, began, answer = Findings(), time.monotonic(), dict[str, Any]()
    for one in kill(setting, folder, kills, seed, strikes):
        found.add(one)
        answer = {
            "setting": setting,
            "seed": seed,
            "kills": strikes.count,
            "of": dict(strikes.of),
            "real": strikes.real,
            "inside": found.inside,
            **{name: getattr(found, name) for name in COUNTED},
            "sentences": [sentence[:600] for sentence in found.sentences],
            "minutes": (time.monotonic() - began) / 60.0,
            "versions": versions(),
        }
        (RESULT / f"{setting}.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
        print(setting, strikes.count, "kills:", {name: answer[name] for name in COUNTED}, flush=True)
        print(*("    " + sentence[:600] for sentence in one.sentences), sep="\n", flush=True)
    return answer


def table() -> str:
    """Return the answers that ``result/`` has, as a table."""
    head = ("what runs", "kills", "of them inside", "finished", *HARM.values(), "compared")
    rows = []
    for setting, what in SETTINGS.items():
        path = RESULT / f"{setting}.json"
        if not path.exists():
            rows.append([what, "not run", *[""] * (len(head) - 2)])
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        victims = ", ".join(f"{count} {victim}" for victim, count in found["of"].items())
        kills = f"{found['kills']} ({victims}; {found['real']} of processes as a shell starts them)"
        unit, whole = ("steps", "runs") if setting in RUNS else ("trials", "trials")
        counts = [str(found[name]) for name in HARM]
        rows.append(
            [what, kills, str(found["inside"]), f"{found['finished']} {unit}", *counts, f"{found['compared']} {whole}"]
        )
    lines = ["| " + " | ".join(row) + " |" for row in [list(head), ["---"] * len(head), *rows]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", nargs="?", default="all", choices=[*SETTINGS, "all", "table"])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="where the studies are kept; by default they are thrown away")
    given = parser.parse_args()
    os.environ.setdefault("WORKBENCH_GRACE_SECONDS", "20")
    with tempfile.TemporaryDirectory(prefix="reliability-") as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        chosen = list(SETTINGS) if given.setting == "all" else [one for one in SETTINGS if one == given.setting]
        answers = [run_setting(one, given.kills, given.seed, folder) for one in chosen]
    (RESULT / "kills.md").write_text(table(), encoding="utf-8")
    sys.exit(any(answer[name] for answer in answers for name in HARM))


if __name__ == "__main__":
    main()
