"""Two thousand trials in one process: what is kept of a trial stays small, and nothing else grows."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import psutil
import pytest

from tests.kit.fake_runner import STUDY, make_fake, write_study
from workbench.study import TuneProgress, read_result, tune

N_TRIALS = 2000
# A trial that is kept in memory: its configuration, curve and drawn values, as Optuna holds them, and its record.
BYTES_OF_A_TRIAL = 40_000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_thousand_trials_leave_memory_threads_and_files_as_they_were(tmp_path: Path) -> None:
    text = STUDY.replace("n_trials = 10", f"n_trials = {N_TRIALS}").replace("seeds_max = 6", "seeds_max = 3")
    head, _, rest = text.partition("[space]")
    space = "[space]\n'boost.grad_freeze' = [true]\n'grad_freeze.freeze_p' = { low = 0.4, high = 0.9 }\n"  # no repeats
    text = f"{head}{space}\n[confirm]{rest.partition('[confirm]')[2]}"
    directory = write_study(tmp_path / "s", text + "\n[sampler]\nname = 'random'\n")
    here = psutil.Process()
    seen: dict[int, tuple[int, int, int]] = {}

    def on_progress(progress: TuneProgress) -> None:
        if progress.phase == "search" and progress.trials % 250 == 0 and progress.trials not in seen:
            gc.collect()
            seen[progress.trials] = (here.memory_info().rss, threading.active_count(), here.num_fds())

    result = tune(directory, on_progress=on_progress, make_experimenter=make_fake)
    finished = [trial for trial in result.trials if trial.state in {"complete", "pruned"}]
    assert len(finished) >= N_TRIALS
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))
    (memory_early, *_), (memory_late, *_) = seen[500], seen[max(seen)]
    grown = (memory_late - memory_early) / (max(seen) - 500)
    print(f"{len(result.trials)} trials, {result.seconds:.0f} s, {grown:.0f} bytes of memory per trial: {seen}")
    assert grown < BYTES_OF_A_TRIAL
    assert len({threads for _, threads, _ in seen.values()}) == 1
    files = [files for *_, files in seen.values()]
    assert max(files) <= files[0] + 1
    assert len(read_result(directory).trials) == len(result.trials)
