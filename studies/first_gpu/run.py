"""Run the ten experiments of the first hour on a GPU, in their order, and write what each printed.

python studies/first_gpu/run.py [--device cuda] [--only 3 4] [--out studies/first_gpu/result]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = "tests/accelerator"
CHECK, PYTEST = ("-m", "studies.first_gpu.checks"), ("-m", "pytest", "-n", "0", "-q", "-m", "accelerator")
BENCH = ("-m", "workbench", "bench")
Command = tuple[dict[str, str], tuple[str, ...]]


def experiments(device: str) -> dict[int, tuple[str, list[Command]]]:
    """Return the experiments: number -> what it asks, and its commands, each with what it adds to the environment."""
    on = ("--device", device)
    return {
        1: ("which operators refuse which formats", [({}, (*CHECK, "operators", device))]),
        2: ("the tests of accelerators", [({}, (*PYTEST, TESTS))]),
        3: (
            "equal scales, skips and weights under GradScaler",
            [({}, (*CHECK, "parity", device)), ({}, (*CHECK, "half_norms", device))],
        ),
        4: ("no wait in a step", [({}, (*BENCH, "host_waits", *on)), ({}, (*CHECK, "no_waits", device))]),
        5: (
            "no race while parameters are offloaded",
            [
                ({"TORCH_CUDA_SANITIZER": "1"}, (*PYTEST, "-k", "offload", f"{TESTS}/test_optimizers.py")),
                ({}, (*CHECK, "late_copies", device)),
                ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, (*CHECK, "late_copies", device)),
            ],
        ),
        6: (
            "a step in a CUDA graph, and a rate that changes between replays",
            [({}, (*BENCH, "captured_step", *on)), ({}, (*PYTEST, "-k", "replay or graph", TESTS))],
        ),
        7: ("large networks under levels and exports", [({}, (*BENCH, "large_levels", *on, "--rounds", "5"))]),
        8: ("Adam on the host beside Adam on the device", [({}, (*BENCH, "offload", *on, "--rounds", "3"))]),
        9: (
            "THOR's refresh with both linear algebra libraries, and what a trace costs",
            [
                ({}, (*BENCH, "thor", *on)),
                ({"TORCH_LINALG_PREFER_MAGMA": "1"}, (*BENCH, "thor", *on)),
                ({}, (*CHECK, "recording", device)),
            ],
        ),
        10: (
            "torch.compile, reading earlier losses; one rank under the device's collectives, and its failure",
            [({}, (*CHECK, name, device)) for name in ("compiled", "one_rank", "exit_after_error")],
        ),
    }


def main() -> int:
    """Run what is asked for; return 1 when a command failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of experiments; all without it")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("result"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    lines = ["| experiment | command | exit | seconds |", "| --- | --- | --- | --- |"]
    failed = False
    for number, (question, commands) in experiments(given.device).items():
        if given.only and number not in given.only:
            continue
        with (given.out / f"{number:02d}.txt").open("w", encoding="utf-8") as file:
            for added, command in commands:
                named = " ".join([*(f"{key}={value}" for key, value in added.items()), "python", *command])
                print(f"$ {named}", file=file, flush=True)
                began = time.monotonic()
                fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONUNBUFFERED": "1"}
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=ROOT,
                    env={**os.environ, **fixed, **added},
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    check=False,
                )
                failed |= done.returncode != 0
                lines.append(
                    f"| {number}: {question} | `{named}` | {done.returncode} | {time.monotonic() - began:.0f} |"
                )
                print(lines[-1], flush=True)
    (given.out / "experiments.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
