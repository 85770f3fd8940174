"""How soon is a recorded run of a million steps on show, and how soon are 50 policies replayed on it?

The run is generated once in a temporary folder. Libraries are loaded and the file is in the system's cache, as for
somebody who has worked in this notebook for a minute.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from workbench import api
from workbench.bench import Benchmark, Finding, Request, interleaved, median_of, timed
from workbench.figures import loss_scale_figure
from workbench.panels import LossScalePanel
from workbench.runs import read_run
from workbench.runs.replayed_run import ReplayedRun, policy_grid, usual_windows

from .kernel_messages import speak_as_in_a_kernel
from .recorded import record_run

_GOAL_SECONDS = 1.0
_LONGEST_SECONDS = 300.0


def measure(request: Request, *, steps: int = 1_000_000) -> list[Finding]:
    """Measure reading, drawing and replay of a run of so many steps, each in every round."""
    with tempfile.TemporaryDirectory() as folder:
        path = record_run(Path(folder), steps)
        replayed = ReplayedRun(read_run(path))
        inits = [2.0**power for power in (8, 12, 16, 20, 24)]
        policies = policy_grid(inits, [2.0, 4.0], usual_windows(replayed.n_windows))

        def read_and_draw() -> None:
            run = read_run(path, most_histograms=0)
            loss_scale_figure(run.steps, run.events)

        sides = [
            timed(lambda: read_run(path)),
            timed(read_and_draw),
            lambda: _until_panel_shows(path),
            timed(lambda: replayed.judge(policies)),
            timed(lambda: api.replay(path, policies)),
        ]
        rows = list(zip(*interleaved(sides, request.rounds), strict=True))
    told = f"{steps:,} steps"
    named = f"{len(policies)} policies, {told}"
    texts = [
        ("read the run with every histogram", None, told),
        ("read it without, make its loss-scale figure", _GOAL_SECONDS, f"{told}; as the panel does"),
        ("from LossScalePanel(run) to its first figure", _GOAL_SECONDS, f"{told}; drawing by the browser not included"),
        ("replay as the panel does, the run being open", _GOAL_SECONDS, named),
        ("workbench replay: read, replay with ranges", None, named),
    ]
    return [
        Finding(what, "s", median_of(times), goal, note) for (what, goal, note), times in zip(texts, rows, strict=True)
    ]


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
    "How soon is a recorded run of a million steps on show, and 50 policies replayed on it?",
    measure,
    rounds=7,
    place=21,
    group="panels",
    shown=("read it without", "from LossScalePanel(run)", "replay as the panel does"),
)
