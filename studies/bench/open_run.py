"""How soon is a recorded run of a million steps on show, in how much memory, and 50 policies replayed on it?

The run is generated once in a temporary folder. Libraries are loaded and the file is in the system's cache, as for
somebody who has worked in this notebook for a minute. Memory is what a process that has drawn a run of 1,000 steps
takes more at its peak when it reads and draws the long one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from workbench import api
from workbench.bench import Benchmark, Finding, Request, interleaved, median_of, timed
from workbench.figures import loss_scale_figure
from workbench.figures.loss_scale import LOSS_SCALE_COLUMNS
from workbench.panels import LossScalePanel
from workbench.runs import read_run
from workbench.runs.replayed_run import ReplayedRun, policy_grid, usual_windows

from .kernel_messages import speak_as_in_a_kernel
from .recorded import record_run

_GOAL_SECONDS = 1.0
_GOAL_MEMORY = 3.0  # times the file
_LONGEST_SECONDS = 300.0
_MEMORY = "import sys; from studies.bench.open_run import print_memory; print_memory(sys.argv[1], sys.argv[2])"


def measure(request: Request, *, steps: int = 1_000_000) -> list[Finding]:
    """Measure reading, drawing and replay of a run of so many steps, each in every round."""
    with tempfile.TemporaryDirectory() as folder:
        path, short = record_run(Path(folder), steps), record_run(Path(folder), 1000)
        file_bytes = (path / "steps.parquet").stat().st_size
        replayed = ReplayedRun(read_run(path))
        inits = [2.0**power for power in (8, 12, 16, 20, 24)]
        policies = policy_grid(inits, [2.0, 4.0], usual_windows(replayed.n_windows))

        sides = [
            timed(lambda: read_run(path)),
            timed(lambda: _read_and_draw(path)),
            lambda: _memory_of_drawing(path, short) / file_bytes,
            lambda: _until_panel_shows(path),
            timed(lambda: replayed.judge(policies)),
            timed(lambda: api.replay(path, policies)),
        ]
        rows = list(zip(*interleaved(sides, request.rounds), strict=True))
    told = f"{steps:,} steps"
    named = f"{len(policies)} policies, {told}"
    texts = [
        ("read the run with every histogram", None, told),
        ("read it without, make its loss-scale figure", _GOAL_SECONDS, f"{told}; the columns drawn, as the panel does"),
        ("memory of that / the file", _GOAL_MEMORY, f"{told} in {file_bytes / 1e6:.0f} MB"),
        ("from LossScalePanel(run) to its first figure", _GOAL_SECONDS, f"{told}; drawing by the browser not included"),
        ("replay as the panel does, the run being open", _GOAL_SECONDS, named),
        ("workbench replay: read, replay with ranges", None, named),
    ]
    return [
        Finding(what, "x" if what.startswith("memory") else "s", median_of(values), goal, note)
        for (what, goal, note), values in zip(texts, rows, strict=True)
    ]


def print_memory(path: str, short: str) -> None:
    """Print the bytes by which this process grows at its peak when it reads and draws a run after a short one."""
    _read_and_draw(Path(short))
    before = _peak_bytes()
    _read_and_draw(Path(path))
    print(_peak_bytes() - before)


def _peak_bytes() -> int:
    """Return the most memory this program has held, by Linux; ``getrusage`` counts that of the process it began as."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    if found is None:
        raise RuntimeError("this system does not count the most memory a process has held")
    return 1024 * int(found[1])


def _memory_of_drawing(path: Path, short: Path) -> float:
    command = [sys.executable, "-c", _MEMORY, str(path), str(short)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _read_and_draw(path: Path) -> None:
    run = read_run(path, columns=LOSS_SCALE_COLUMNS)
    loss_scale_figure(run.steps, run.events)


def _until_panel_shows(path: Path) -> float:
    """Return the time until a panel on a run has a figure to show, seconds."""
    began = time.perf_counter()
    with LossScalePanel(path) as panel:
        speak_as_in_a_kernel(panel.widget)
        while panel.trace.figure is None:  # made with its first numbers
            if time.perf_counter() - began > _LONGEST_SECONDS or panel.error is not None:
                raise RuntimeError(f"the panel did not show {path}: {panel.error or panel.state}")
            time.sleep(0.002)
        return time.perf_counter() - began


BENCHMARK = Benchmark(
    "open_run",
    "How soon is a recorded run of a million steps on show, in how much memory, and 50 policies replayed on it?",
    measure,
    rounds=7,
    place=21,
    group="panels",
    shown=("read it without", "memory of that", "from LossScalePanel(run)", "replay as the panel does"),
)
