"""Recording: blocks, kills, crashes while finishing, full disks, resuming, threads."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.telemetry.run_samples import comparable, events, some_steps, steps
from workbench.core.records import Event, EventKind, EventSink, StepRecord
from workbench.runs import RunError, RunRecorder, TelemetryError, new_run_id, read_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recorder(tmp_path: Path) -> RunRecorder:
    return RunRecorder.create(tmp_path, {"boost": {"mode": "auto"}}, {"task": "toy", "level": "O2"}, "one")


def start(folder: str) -> RunRecorder:
    return RunRecorder.create(folder, {}, {})


# A run whose first column appears late, one that is empty, one with extreme numbers.
LATE = [StepRecord(0, 0.0, 1.0, 2.0), StepRecord(1, 0.1, 1.0, math.inf, columns={"dim_reduce.rho": -0.0})]


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(blocks=st.lists(st.tuples(st.lists(steps, max_size=4), st.lists(events, max_size=3)), max_size=3))
@example(blocks=[])
@example(blocks=[(LATE, [Event(0, EventKind.DIVERGED, value=-math.inf)])])
@example(blocks=[([StepRecord(0, 0.0, 1.0, 2.0, loss_scale=2**60)], [])])
def test_every_record_reads_back_from_a_running_and_from_a_finished_run(
    blocks: list[tuple[list[StepRecord], list[Event]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder, start(folder) as recorder:
        for block_steps, block_events in blocks:
            recorder.write(block_steps, block_events)
        all_steps = [record for block, _ in blocks for record in block]
        all_events = [event for _, block in blocks for event in block]
        running = read_run(recorder.path)
        recorder.finish({})
        finished = read_run(recorder.path)
    for run in (running, finished):
        if any(isinstance(record.loss_scale, int) for record in all_steps):
            assert run.steps["loss_scale"].tolist() == [float(record.loss_scale) for record in all_steps]
            continue
        assert comparable(run.step_records()) == comparable(all_steps)
        assert comparable(run.event_records()) == comparable(all_events)
    # The list columns were compared as records above; pandas takes two tuples with a NaN for different.
    lists = ["group_scales", "grad_exponents"]
    pd.testing.assert_frame_equal(
        running.steps.drop(columns=lists), finished.steps.drop(columns=lists), check_exact=True
    )
    pd.testing.assert_frame_equal(running.events, finished.events, check_exact=True)


def test_emitted_events_come_before_those_of_the_block(recorder: RunRecorder) -> None:
    assert isinstance(recorder, EventSink)
    recorder.emit(Event(1, EventKind.LINE_SEARCH_FAILED))
    assert read_run(recorder.path).events.empty
    recorder.write(some_steps(0, 2), [Event(0, EventKind.SCALE_UP)])
    assert read_run(recorder.path).events["kind"].tolist() == ["line_search_failed", "scale_up"]


def test_closing_keeps_events_still_waiting(recorder: RunRecorder) -> None:
    recorder.emit(Event(1, EventKind.STOPPED))
    recorder.close()
    recorder.close()
    run = read_run(recorder.path)
    assert run.events["kind"].tolist() == ["stopped"]
    assert not run.finished


def test_a_finished_run_consists_of_exactly_these_files(recorder: RunRecorder) -> None:
    recorder.write(some_steps(0, 5))
    recorder.emit(Event(4, EventKind.STOPPED))
    recorder.finish({"metric": 0.5})
    names = sorted(entry.name for entry in recorder.path.iterdir())
    assert names == ["config.json", "environment.json", "events.parquet", "steps.parquet", "summary.json"]
    run = read_run(recorder.path)
    assert run.finished
    assert run.config == {"boost": {"mode": "auto"}}
    assert run.summary["metric"] == 0.5
    assert (run.summary["recorded"]["steps"], run.summary["recorded"]["overflow_steps"]) == (5, 1)
    assert len(run.events) == 1


def test_nothing_can_be_recorded_after_the_end(recorder: RunRecorder) -> None:
    recorder.finish({})
    with pytest.raises(TelemetryError, match="is finished; nothing more can be recorded"):
        recorder.write(some_steps(0, 1))
    with pytest.raises(TelemetryError, match="is finished"):
        recorder.emit(Event(0, EventKind.STOPPED))
    with pytest.raises(TelemetryError, match="is finished"):
        recorder.finish({})


def test_a_run_killed_at_any_byte_can_be_continued(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {})
    recorder.write(some_steps(0, 1))
    kept = (recorder.path / "steps.jsonl").stat().st_size
    torn = StepRecord(1, 0.5, 1.0, 0.25)
    recorder.write([torn])
    recorder.close()
    content = (recorder.path / "steps.jsonl").read_bytes()
    for size in [*range(kept, len(content), 5), len(content) - 1]:
        (recorder.path / "steps.jsonl").write_bytes(content[:size])
        assert len(read_run(recorder.path).steps) == 1
        with RunRecorder.reopen(recorder.path) as resumed:
            assert resumed.n_steps == 1
            resumed.write([torn, *some_steps(2, 1)])
        assert comparable(read_run(recorder.path).step_records()) == comparable(
            [*some_steps(0, 1), torn, *some_steps(2, 1)]
        )


KILLED_WRITER = """
import sys, time
from tests.telemetry.run_samples import some_steps
from workbench.runs import RunRecorder

recorder = RunRecorder.create(sys.argv[1], {}, {}, "killed")
for block in range(10**6):
    recorder.write(some_steps(64 * block, 64))
    if block == 3:
        print("four blocks", flush=True)
"""


def test_a_process_killed_while_it_writes_leaves_a_run_that_reads_back_and_goes_on(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED_WRITER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    with writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "four blocks\n"
        with pytest.raises(TelemetryError, match="is being written by another process"):
            RunRecorder.reopen(tmp_path / "killed")
        writer.send_signal(signal.SIGKILL)
        # Dead, but its parent has not asked yet: the number is still taken, and must not keep the run locked.
        os.waitid(os.P_PID, writer.pid, os.WEXITED | os.WNOWAIT)
        RunRecorder.reopen(tmp_path / "killed").close()
    run = read_run(tmp_path / "killed")
    n_steps = len(run.steps)
    assert n_steps >= 4 * 64
    assert run.steps["step"].tolist() == list(range(n_steps))
    assert not run.finished
    with RunRecorder.reopen(tmp_path / "killed") as resumed:
        resumed.write(some_steps(n_steps, 3))
        resumed.finish({})
    assert comparable(read_run(tmp_path / "killed").step_records()) == comparable(some_steps(0, n_steps + 3))


def test_resuming_from_an_earlier_checkpoint_drops_the_steps_that_come_again(recorder: RunRecorder) -> None:
    recorder.write(some_steps(0, 8), [Event(step, EventKind.OVERFLOW) for step in (3, 7)])
    recorder.close()
    with RunRecorder.reopen(recorder.path, next_step=5) as resumed:
        assert resumed.n_steps == 5
        resumed.write(some_steps(5, 1))
        resumed.finish({})
    run = read_run(recorder.path)
    assert run.steps["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert run.events["step"].tolist() == [3]
    assert run.summary["recorded"]["overflow_steps"] == 1


def test_columns_recorded_before_a_kill_are_in_the_finished_run(recorder: RunRecorder) -> None:
    recorder.write([StepRecord(0, 0.0, 1.0, 1.0, columns={"thor.refreshed": 1.0})])
    recorder.close()
    with RunRecorder.reopen(recorder.path) as resumed:
        resumed.write([StepRecord(1, 1.0, 1.0, 1.0, columns={"online.auc": 0.75})])
        resumed.finish({})
    frame = read_run(recorder.path).steps
    np.testing.assert_array_equal(frame[["thor.refreshed", "online.auc"]], [[1.0, math.nan], [math.nan, 0.75]])


def test_reopening_refuses_what_is_no_killed_run(recorder: RunRecorder, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run directory: it has no environment"):
        RunRecorder.reopen(tmp_path)
    recorder.finish({})
    with pytest.raises(RunError, match="is finished; start a new run"):
        RunRecorder.reopen(recorder.path)


@pytest.mark.parametrize(
    ("place", "at", "finished"),
    [("replace", 0, False), ("replace", 1, False), ("replace", 2, False), ("unlink", 0, True), ("unlink", 1, True)],
)
def test_a_crash_while_finishing_loses_nothing(
    recorder: RunRecorder, monkeypatch: pytest.MonkeyPatch, place: str, at: int, finished: bool
) -> None:
    """While files get their names nothing is finished; once the summary has its own, old files only have to go."""
    recorder.write(some_steps(0, 6), [Event(3, EventKind.OVERFLOW)])
    before, done = read_run(recorder.path), list[object]()
    owner: Any = os if place == "replace" else Path
    act = getattr(owner, place)

    def crash(path: Any, *rest: Any, **named: Any) -> None:
        if place == "replace" or path.suffix == ".jsonl":
            if len(done) == at:
                raise KeyboardInterrupt if finished else OSError(errno.EIO, "device lost")
            done.append(path)
        act(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, crash)
        told = r"cannot finish the run .*one: device lost; everything"
        with pytest.raises(KeyboardInterrupt) if finished else pytest.raises(TelemetryError, match=told):
            recorder.finish({"metric": 1.0})
    after = read_run(recorder.path)
    assert after.finished is finished
    pd.testing.assert_frame_equal(after.steps, before.steps)
    pd.testing.assert_frame_equal(after.events, before.events)
    if not finished:
        recorder.finish({"metric": 1.0})
        assert read_run(recorder.path).finished


@pytest.mark.parametrize("room", [0, 1, 100, 700], ids=lambda room: f"room_for_{room}_bytes")
def test_a_full_disk_is_one_sentence_and_the_block_can_be_written_again(
    recorder: RunRecorder, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    recorder.write(some_steps(0, 3))
    recorder.emit(Event(4, EventKind.OVERFLOW))
    block = some_steps(3, 5)
    write, left = os.write, [room]

    def small_disk(descriptor: int, data: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = write(descriptor, data[: left[0]])
        left[0] -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", small_disk)
        with pytest.raises(
            TelemetryError,
            match=r"^cannot record to .*one: no space left on the disk \(free some and try again\); everything before",
        ):
            recorder.write(block, [Event(5, EventKind.SCALE_DOWN)])
    run = read_run(recorder.path)
    assert run.steps["step"].tolist() == [0, 1, 2]
    assert run.events.empty
    recorder.write(block, [Event(5, EventKind.SCALE_DOWN)])
    run = read_run(recorder.path)
    assert run.steps["step"].tolist() == list(range(8))
    assert run.events["kind"].tolist() == ["overflow", "scale_down"]


def test_a_run_deleted_while_it_is_written_is_not_half_brought_back(recorder: RunRecorder) -> None:
    recorder.write(some_steps(0, 1))
    (recorder.path / "steps.jsonl").unlink()
    with pytest.raises(TelemetryError, match="cannot record to"):
        recorder.write(some_steps(1, 1))
    assert not (recorder.path / "steps.jsonl").exists()


def test_events_emitted_from_other_threads_are_all_recorded(recorder: RunRecorder) -> None:
    def emit_many(worker: int) -> None:
        for number in range(200):
            recorder.emit(Event(1000 * worker + number, EventKind.SCALE_UP))

    threads = [threading.Thread(target=emit_many, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for block in range(50):
        recorder.write(some_steps(block, 1))
    for thread in threads:
        thread.join()
    recorder.finish({})
    recorded = read_run(recorder.path).events["step"].tolist()
    for worker in range(4):
        assert [step % 1000 for step in recorded if step // 1000 == worker] == list(range(200))
    assert len(recorded) == 4 * 200


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(200)]
    times = [run_id.rpartition("-")[0] for run_id in ids]
    assert times == sorted(times)
    assert len(set(ids)) == 200


def test_a_run_begins_in_a_folder_of_its_own(recorder: RunRecorder, tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="exists already; choose another `run_id`"):
        RunRecorder.create(recorder.path.parent, {}, {}, "one")
    (tmp_path / "file").write_text("")
    with pytest.raises(TelemetryError, match="cannot start the run"):
        RunRecorder.create(tmp_path / "file", {}, {})


@pytest.mark.parametrize("run_id", ["", "..", "a/b", ".hidden", "-x", "a b", "ü", "x" * 201])
def test_a_run_id_must_be_a_plain_folder_name(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(ValueError, match="`run_id` must be 1 to 200 letters"):
        RunRecorder.create(tmp_path, {}, {}, run_id)
    assert list(tmp_path.iterdir()) == []


def test_a_method_column_needs_a_namespace_and_nothing_is_written_without(recorder: RunRecorder) -> None:
    bad = StepRecord(1, 0.0, 1.0, 1.0, columns={"rho": 1.0})
    with pytest.raises(ValueError, match=r"must be named like `dim_reduce\.rho`, got 'rho'"):
        recorder.write([*some_steps(0, 1), bad])
    assert recorder.n_steps == 0
    assert read_run(recorder.path).steps.empty


def test_configs_hold_plain_values(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {"seed": np.int64(3), "out": Path("runs"), "inf": math.inf}, {})
    assert json.loads((recorder.path / "config.json").read_text()) == {"seed": 3, "out": "runs", "inf": math.inf}
    with pytest.raises(TypeError, match="`config` must hold plain values"):
        RunRecorder.create(tmp_path, {"model": object()}, {})
    with pytest.raises(TypeError, match="`summary` must hold plain values"):
        recorder.finish({"model": object()})
    recorder.finish({})
