"""Search the problems with every sampler at equal budget, many times over, and write the table.

    python studies/samplers/compare.py            # what is still missing of result/runs.csv, then the tables
    python studies/samplers/compare.py --repeats 5 --out small --samplers tpe random

One process a core may work on different ``--samplers`` at the same time, each with its own ``--out``.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState
from problems import Bowl, Problem, Recorded, Ripples, Seen
from report import write_report

from workbench.config import ConfigError
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.sample.grid import GridSampler, grid_points
from workbench.study.sample.sampling import PerTrialSampler, make_sampler

HERE = Path(__file__).parent
BUDGET = 30
"""Different plans of one search, O0 included: as many as our studies have."""

ARMS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "qmc": ("qmc", {}),
    "grid": ("grid", {"points": 2}),
    "tpe": ("tpe", {}),
    "tpe_one_by_one": ("tpe", {"multivariate": False, "group": False}),
    "nsga2": ("nsga2", {}),
    "nsga3": ("nsga3", {}),
    "cmaes": ("cmaes", {}),
    "gp": ("gp", {}),
}
FIELDS = ("problem", "sampler", "repeat", "drawn", "cpu_seconds", "best")
CANDIDATES = 2
"""Best trials that are confirmed, as by default."""

_DRAWS_PER_TRIAL = 4


def main() -> None:
    """Run what is missing."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=24)
    arguments.add_argument("--first", type=int, default=0, help="repeat to begin with, where several run at once")
    arguments.add_argument("--samplers", nargs="*", default=list(ARMS), choices=list(ARMS))
    arguments.add_argument("--problems", nargs="*", help="names, or none for all")
    arguments.add_argument("--out", type=Path, default=HERE / "result")
    given = arguments.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    file = read_study(HERE)
    recorded = Recorded(file.searched, HERE / "result" / "recorded.json", file.study.budget_steps)
    problems: list[Problem] = [recorded, Bowl(file.searched), Ripples(file.searched)]
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "runs.csv"
    done = _done(path)
    with path.open("a", newline="") as handle:
        writer = csv.writer(handle)
        if not done:
            writer.writerow(FIELDS)
        for repeat in range(given.first, given.repeats):
            for problem in problems:
                for arm in given.samplers:
                    wanted = not given.problems or problem.name in given.problems
                    if not wanted or (problem.name, arm, repeat) in done:
                        continue
                    writer.writerow((problem.name, arm, repeat, *run(file, problem, arm, repeat)))
                    handle.flush()
        print("searches done", flush=True)
    write_report(given.out, recorded)


def run(file: StudyFile, problem: Problem, arm: str, repeat: int) -> tuple[int, float, str]:
    """Search once.

    Args:
        file: The study whose space is searched.
        problem: What is minimised.
        arm: Key of `ARMS`.
        repeat: Number of the search; its seed.

    Returns:
        Trials drawn (repeats of equal plans among them), processor seconds of drawing them, and the course of the best:
        ``trial:value`` at every counted trial where it changed. The best is the true value of what a study that ended
        there would take, which is what a confirmation leaves it: of the two smallest observed values among those
        observed within the constraint the one that really is smaller, as far as they really keep the constraint; O0,
        with 1, if that leaves nothing.
    """
    space = file.searched
    rng = np.random.default_rng([7, repeat, *map(ord, arm)])
    study = optuna.create_study(sampler=_sampler(file, arm, repeat))
    study.enqueue_trial({})
    baseline = study.ask()
    baseline.set_constraint("metric_deficit", -0.01)
    study.tell(baseline, 1.0)
    seen: dict[str, Seen] = {}
    contenders: list[tuple[float, Seen]] = []  # observed value and the truth
    course = [(1, 1.0)]
    counted, drawn, spent = 1, 0, 0.0
    while counted < BUDGET and drawn < _DRAWS_PER_TRIAL * BUDGET:
        drawn += 1
        began = time.process_time()
        trial = study.ask()
        try:
            suggestion = space.suggest(trial)
            key = space.plans.resolve(suggestion.config, suggestion.level).key()
        except ConfigError:
            study.tell(trial, state=TrialState.FAIL)
            continue
        spent += time.process_time() - began
        is_new = key not in seen
        if is_new:
            seen[key] = problem.observe(suggestion.parameters, rng)
        trial.set_constraint("metric_deficit", seen[key].constraint)
        study.tell(trial, seen[key].value)
        if not is_new:
            continue
        counted += 1
        if seen[key].constraint <= 0.0 and seen[key].value < 1.0:
            contenders.append((seen[key].value, problem.truth(suggestion.parameters)))
            contenders = sorted(contenders, key=lambda one: one[0])[:CANDIDATES]
        best = min([1.0, *(true.value for _, true in contenders if true.constraint <= 0.0)])
        if best != course[-1][1]:
            course.append((counted, best))
    return drawn, round(spent, 3), " ".join(f"{trial}:{value:.5g}" for trial, value in course)


_GRID: list[list[dict[str, Any]]] = []


def _sampler(file: StudyFile, arm: str, repeat: int) -> BaseSampler:
    name, options = ARMS[arm]
    if name == "grid":  # found once: it takes seconds
        if not _GRID:
            _GRID.append(grid_points(file.searched, options["points"]))
        make: Callable[[int], BaseSampler] = lambda seed: GridSampler(  # noqa: E731
            file.searched, _GRID[0], seed=seed, study_seed=repeat
        )
        return PerTrialSampler(make, repeat)
    return make_sampler(name, options, space=file.searched, seed=repeat, n_trials=BUDGET)


def _done(path: Path) -> set[tuple[str, str, int]]:
    """Return what is there."""
    if not path.exists():
        return set()
    with path.open(newline="") as handle:
        return {(row["problem"], row["sampler"], int(row["repeat"])) for row in csv.DictReader(handle)}


if __name__ == "__main__":
    main()
