"""Compare the staged search with plain Optuna on the surface: both as `studies/plain_optuna` has them.

    python -m studies.search_surface.plain_optuna --searches 30 [--minutes 4] [--allowed-drop 0.01]

Both search the same study on the same clock, and both pay for the start of a command. What they hold after each eighth
of the budget is judged by the surface's own mean: what loses more than allowed counts as no gain.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import warnings
from pathlib import Path
from typing import Any

import optuna

from studies.plain_optuna.compare import OURS, PLAIN, SHARES, at, plain, staged, table
from studies.search_surface.simulate import (
    STARTING,
    SurfaceTrainer,
    network_facts,
    surface_clock,
    true_time_and_drop,
    write_study,
)
from studies.search_surface.surface import FOLDER, Surface
from workbench.config import NetworkFacts
from workbench.study import read_study


def search(
    method: str, surface: Surface, facts: NetworkFacts | None, seed: int, minutes: float, allowed: float
) -> list[tuple[float, float]]:
    """Return the true time and drop of what one search holds after each of `SHARES` of its time."""
    with tempfile.TemporaryDirectory() as scratch, surface_clock() as clock:
        folder = Path(scratch) / "study"
        write_study(folder, FOLDER / "study", seed, minutes, allowed)
        trainer = SurfaceTrainer(folder, surface, clock, facts, seed)
        began = clock.passed
        clock.passed += STARTING
        if method == OURS:
            held, _ = staged(folder, seed, minutes, Path(scratch) / "searched", lambda *_: trainer, began)
        else:
            held, _ = plain(read_study(folder).on_network(facts), seed, minutes, trainer, began)
    return [true_time_and_drop(surface, at(held, 60.0 * minutes * share)) for share in SHARES]


def main() -> None:
    """Search, and write what each search holds and what that comes to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--searches", type=int, default=30)
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--allowed-drop", type=float, default=0.01)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    surface, facts, allowed = Surface(), network_facts(), given.allowed_drop
    values: dict[str, list[list[float]]] = {OURS: [], PLAIN: []}
    failed, rows = dict.fromkeys(values, 0), list[dict[str, Any]]()
    for seed in range(given.searches):
        for method in values:
            found = search(method, surface, facts, seed, given.minutes, allowed)
            values[method].append([time if drop <= allowed else 1.0 for time, drop in found])
            failed[method] += found[-1][1] > allowed
            for share, (time, drop) in zip(SHARES, found, strict=True):
                rows.append(
                    {"search": method, "seed": seed, "share": share, "time": f"{time:.4f}", "drop": f"{drop:.5f}"}
                )
    name = FOLDER / "result" / f"plain_optuna_{allowed:g}"
    with Path(f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = table(values, failed)
    Path(f"{name}.md").write_text(text, encoding="utf-8")
    print(text, end="")


if __name__ == "__main__":
    main()
