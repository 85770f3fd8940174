"""Give `workbench tune` twenty random time limits on five tasks, and see how long it takes.

python studies/time_limits/run.py [--limits 20] [--seed 0] [--out studies/time_limits/result]
"""

from __future__ import annotations

import argparse
import math
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from workbench.config import BoostConfig
from workbench.tasks import load_task
from workbench.training.evaluation import evaluate
from workbench.training.setup import prepare

HERE = Path(__file__).resolve().parent
SHORTEST, LONGEST = 8.0, 45.0
SHARE_OVER = 0.05

STUDY = """
[study]
task = "{task}"
device = "cpu"
threads = 1
budget_steps = {steps}
n_trials = 12
[space]
level = ["O1", "O2"]
"boost.less_bn" = [false, true]
"boost.grad_freeze" = [false, true]
"grad_freeze.freeze_p" = {{ low = 0.3, high = 0.9 }}
[allowed_drop]
o1 = {drop}
o2 = {drop}
[confirm]
seeds_min = 3
seeds_max = 6
"""
REPLAY = "[loss_scale_replay]\nsteps = 400\n"
FREEZING = "[freezing_limit]\nrounds = 30\n"

TASKS = {
    "digits-lenet": ("digits-lenet", STUDY.format(task="digits-lenet", steps=150, drop=0.05) + FREEZING),
    "topics-gpt": ("topics-gpt", STUDY.format(task="topics-gpt", steps=40, drop=0.2)),
}
for own, steps in (("quick", 200), ("slow_float16", 40), ("slow_evaluation", 60)):
    name = f"{HERE / 'tasks.py'}:{own}"
    TASKS[own] = name, STUDY.format(task=name, steps=steps, drop=0.05) + (REPLAY if own == "slow_float16" else "")


def evaluation_seconds(task_name: str) -> float:
    """Return what one evaluation takes, the first left out."""
    torch.set_num_threads(1)
    task, device = load_task(task_name), torch.device("cpu")
    boosted = prepare(task, BoostConfig(), level="O0", seed=0, device=device, steps=10).boosted
    seconds = 0.0
    for _ in range(2):
        began = time.monotonic()
        evaluate(task, boosted.model, device, boosted.precision, 0)
        seconds = time.monotonic() - began
    return seconds


def tune(folder: Path, limit: float) -> tuple[float, int, str]:
    """Run the command; return its seconds, its exit code and the last that it says of its end."""
    began = time.monotonic()
    command = [sys.executable, "-m", "workbench", "tune", str(folder), "--timeout", f"{limit:.2f}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.monotonic() - began
    told = [line for line in (done.stdout + done.stderr).splitlines() if "time limit" in line or "with all" in line]
    return taken, done.returncode, told[-1].strip() if told else ""


def main() -> None:
    """Run all of it and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limits", type=int, default=20, help="How many.")
    parser.add_argument("--seed", type=int, default=0, help="Of the limits.")
    parser.add_argument("--out", type=Path, default=HERE / "result", help="Folder of the table.")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    rows = [("task", "limit (s)", "taken (s)", "one evaluation (s)", "exceeded", "exit", "how it ended")]
    exceeded = 0
    evaluations = {name: evaluation_seconds(task) for name, (task, _) in TASKS.items()}
    with tempfile.TemporaryDirectory() as temporary:
        for number in range(options.limits):
            name = list(TASKS)[number % len(TASKS)]
            folder = Path(temporary) / name  # the next limit of a task goes on where the last one ended
            folder.mkdir(exist_ok=True)
            (folder / "study.toml").write_text(TASKS[name][1], encoding="utf-8")
            limit = math.exp(draw.uniform(math.log(SHORTEST), math.log(LONGEST)))
            taken, code, told = tune(folder, limit)
            over = taken > limit * (1.0 + SHARE_OVER) + evaluations[name]
            exceeded += over
            shown = (f"{limit:.1f}", f"{taken:.1f}", f"{evaluations[name]:.2f}", "yes" if over else "no", str(code))
            rows.append((name, *shown, told.replace(temporary, "").replace("|", "/")))
            print(*rows[-1], sep="  ", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "| --- " * len(rows[0]) + "|")
    (options.out / "limits.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{exceeded} of {options.limits} limits were exceeded by more than 5 % and one evaluation")
    sys.exit(1 if exceeded else 0)


if __name__ == "__main__":
    main()
