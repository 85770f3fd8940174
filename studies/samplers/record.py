"""Train random configurations of ``study.toml`` over several seeds and keep what they did in ``result/recorded.json``.

    python studies/samplers/record.py --trials 100 --seeds 3

A recording that was stopped goes on where it was; a larger number extends it. Row 0 is O0, with more seeds than the
others, since everything is scored against it.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.config import ConfigError
from workbench.study.ask.plans import explicit_config
from workbench.study.ask.search_space import all_off, suggest
from workbench.study.ask.study_file import StudyFile, read_study
from workbench.study.run.experimenter import TaskExperimenter
from workbench.study.run.job import SpeedJob, TrainJob, plain

HERE = Path(__file__).parent
BASELINE_SEEDS = 12


class RandomDraws:
    """Draws every value evenly over its range: one row of the recording.

    Args:
        rng: Where the numbers come from.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        """Draw one of the choices."""
        return choices[int(self._rng.integers(len(choices)))]

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """Draw a number."""
        if log:
            return float(np.exp(self._rng.uniform(np.log(low), np.log(high))))
        return float(self._rng.uniform(low, high))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        """Draw a whole number."""
        return int(self._rng.integers(low, high + 1))


def main() -> None:
    """Record what is still missing."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--trials", type=int, default=100, help="rows without O0's")
    arguments.add_argument("--first", type=int, default=0, help="row to begin with, where several record at once")
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--out", type=Path, default=HERE / "result")
    given = arguments.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # what a candidate drops is said once per candidate
    file = read_study(HERE)
    trains = TaskExperimenter(file.study.task, file.study.device, given.out / "runs", file.study.threads)
    path = given.out / "recorded.json"
    content = json.loads(path.read_text()) if path.exists() else {"rows": []}
    content["environment"] = plain(trains.environment())
    rows = {row["number"]: row for row in content["rows"]}
    for number in range(given.first, given.trials + 1):
        row = rows.setdefault(number, _drawn(file, number))
        seeds = BASELINE_SEEDS if number == 0 else given.seeds
        if len(row["curves"]) >= seeds:
            continue
        _fill(row, file, trains, seeds)
        given.out.mkdir(parents=True, exist_ok=True)
        content["rows"] = [rows[key] for key in sorted(rows)]
        path.write_text(_text(content))
        print(
            f"{number} of {given.trials}: {row['summary']}, ratio {row['ratio']:.2f}, {row['curves'][0][-1]}",
            flush=True,
        )


def _drawn(file: StudyFile, number: int) -> dict[str, Any]:
    """Return an empty row: trial ``number`` of the random search."""
    if number == 0:
        config = all_off(file.base_config()).to_dict()
        return {"number": 0, "parameters": {}, "config": config, "level": "O0", "curves": []}
    for attempt in range(1000):
        draws = RandomDraws(np.random.default_rng([20, number, attempt]))
        try:
            drawn = suggest(draws, file.dimensions, file.base_config(), file.plans)
        except ConfigError:
            continue
        return {
            "number": number,
            "parameters": dict(drawn.parameters),
            "config": drawn.config.to_dict(),
            "level": drawn.level,
            "curves": [],
        }
    raise RuntimeError("study.toml refuses everything that is drawn")


def _fill(row: dict[str, Any], file: StudyFile, trains: TaskExperimenter, seeds: int) -> None:
    base = file.base_config()
    plan = file.plans.resolve(type(base).from_dict(row["config"]), row["level"])
    config = explicit_config(plan)
    row["summary"] = plan.summary()
    if "ratio" not in row:
        row["ratio"] = 1.0
        if row["level"] != "O0":
            rounds, steps_per_block = file.speed.rounds, file.speed.steps_per_block
            row["ratio"] = trains.run(
                SpeedJob((all_off(base), "O0"), (config, row["level"]), 0, rounds, steps_per_block)
            ).ratio
    for seed in range(len(row["curves"]), seeds):
        trained = trains.run(TrainJob(config, row["level"], seed, file.study.budget_steps, file.evaluate_every))
        row["curves"].append([None if trained.diverged else round(metric, 5) for _, metric in trained.curve])
        row["steps"] = [step for step, _ in trained.curve] if not trained.diverged else row.get("steps")


def _text(content: dict[str, Any]) -> str:
    """Return the file's text: one row a line, so that an extended recording differs by lines."""
    rows = ",\n".join(json.dumps(row) for row in content["rows"])
    return f'{{"environment": {json.dumps(content["environment"])},\n"rows": [\n{rows}\n]}}\n'


if __name__ == "__main__":
    main()
