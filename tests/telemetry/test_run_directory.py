"""Reading, listing and pruning run directories."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.telemetry.run_samples import some_steps
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.runs import RunError, RunRecorder, TelemetryError, list_runs, prune_runs, read_run
from workbench.runs.schema import EVENT_COLUMNS
from workbench.runs.writer_lock import LOCK_NAME

DAY = 86_400.0


def make_run(root: Path, name: str, *, n_steps: int = 4, finish: bool = True, age_days: float = 1.0) -> Path:
    """Write a run and make it look as if it was written some days ago."""
    recorder = RunRecorder.create(root, {}, {"task": "toy", "level": "O1"}, name)
    environment = json.loads((recorder.path / "environment.json").read_text())
    environment["started"] = pd.Timestamp(time.time() - age_days * DAY, unit="s", tz="UTC").isoformat()
    (recorder.path / "environment.json").write_text(json.dumps(environment))
    recorder.write(some_steps(0, n_steps))
    if finish:
        recorder.finish({"metric": 0.25, "metric_name": "accuracy"})
    recorder.close()
    age(age_days, recorder.path)
    return recorder.path


def age(days: float, *folders: Path) -> None:
    """Make folders and their files look as if they were written some days ago."""
    then = time.time() - days * DAY
    for path in [entry for folder in folders for entry in (*folder.iterdir(), folder)]:
        os.utime(path, (then, then))


def names(paths: list[Path]) -> list[str]:
    return [path.name for path in paths]


# Reading


def test_column_types_do_not_depend_on_the_content(tmp_path: Path) -> None:
    empty = read_run(make_run(tmp_path, "empty", n_steps=0))
    full = read_run(make_run(tmp_path, "full"))
    running = read_run(make_run(tmp_path, "running", n_steps=0, finish=False))
    types = full.steps.dtypes.drop("time.forward")
    pd.testing.assert_series_equal(empty.steps.dtypes, types)
    pd.testing.assert_series_equal(running.steps.dtypes, types)
    pd.testing.assert_series_equal(empty.events.dtypes, running.events.dtypes)
    assert types["step"] == np.int64
    assert types["overflow"] == np.bool_
    assert types["loss"] == np.float64
    assert empty.events.dtypes["kind"] == pd.Series(["a"]).dtype


def test_what_appears_late_is_nan_or_empty_before_and_lists_come_back_as_tuples(tmp_path: Path) -> None:
    late = {
        "group_scales": (2.0, 8.0),
        "grad_exponents": (ExponentCounts("all", -24, (5, 0, 7), zeros=2, nonfinite=1),),
    }
    recorder = RunRecorder.create(tmp_path, {}, {})
    recorder.write([StepRecord(0, 0.0, 1.0, 1.0)])
    recorder.write([StepRecord(1, 0.1, 1.0, 1.0, columns={"dim_reduce.rho": 0.5}, **late)])
    recorder.finish({})
    steps = read_run(recorder.path).steps
    assert steps["dim_reduce.rho"].dtype == np.float64
    np.testing.assert_array_equal(steps["dim_reduce.rho"], [np.nan, 0.5])
    assert steps["group_scales"].tolist() == [(), (2.0, 8.0)]
    stored = {"group": "all", "lowest": -24, "counts": [5, 0, 7], "zeros": 2, "nonfinite": 1}
    assert steps["grad_exponents"].tolist() == [(), (stored,)]


def test_parquet_files_carry_explicit_types_and_units(tmp_path: Path) -> None:
    schema = pq.read_schema(make_run(tmp_path, "run") / "steps.parquet")
    assert schema.field("group_scales").type == pa.list_(pa.float64())
    histogram = [field.name for field in schema.field("grad_exponents").type.value_type]
    assert histogram == ["group", "lowest", "counts", "zeros", "nonfinite"]
    assert schema.field("time.forward").type == pa.float64()
    assert schema.field("step_ms").metadata[b"unit"] == b"ms"
    assert schema.metadata[b"workbench_schema_version"] == b"1"


def test_a_run_knows_its_duration_and_overflows(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, "run", n_steps=8))
    assert run.name == "run"
    assert run.duration == 3.5 + 0.25  # the last step began at 3.5 s and took 250 ms
    assert run.overflow_steps.tolist() == [3, 7]
    assert read_run(make_run(tmp_path, "empty", n_steps=0)).duration == 0.0


def test_a_run_prints_in_one_line_and_shows_without_scripts_whatever_its_task_is_called(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path, "run"))
    assert repr(run) == "<Run run: toy O1, 4 steps, 1 overflows, 1.8 s, finished>"
    page = run._repr_html_()
    assert "var(--jp-" in page
    assert "<script" not in page
    assert "0.25 accuracy" in page
    recorder = RunRecorder.create(tmp_path, {}, {"task": "<script>alert(1)</script>"})
    recorder.close()
    assert "<script>" not in read_run(recorder.path)._repr_html_()


@pytest.mark.slow
def test_100_000_steps_are_read_whole(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {})
    for first in range(0, 100_000, 10_000):
        recorder.write(some_steps(first, 10_000))
    recorder.finish({})
    began = time.process_time()  # others may have the processor meanwhile
    steps = read_run(recorder.path).steps
    seconds = time.process_time() - began
    assert steps["step"].tolist() == list(range(100_000))
    assert int(steps["overflow"].sum()) == 25_000
    assert np.isinf(steps["grad_norm"]).sum() == 25_000
    assert seconds < 2.0  # about 0.05 s on two idle cores; only a reading in the wrong shape is this slow


def test_what_is_no_run_is_refused_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is not a run directory: there is no such folder"):
        read_run(tmp_path / "missing")
    with pytest.raises(RunError, match="is not a run directory: it is a file"):
        read_run(tmp_path / "file")
    with pytest.raises(RunError, match=r"is not a run directory: it has no environment\.json"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "environment.json", "summary.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe{}"], ids=["torn", "list", "no_utf8"])
def test_damaged_json_is_refused_in_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    path = make_run(tmp_path, "run")
    (path / name).write_bytes(content)
    with pytest.raises(RunError, match=rf"{name}: (not valid JSON .* damaged|must hold a JSON object, got list)"):
        read_run(path)
    assert len(list_runs(tmp_path)) == 1


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet at all"], ids=["empty", "torn", "text"])
def test_a_broken_parquet_file_is_refused_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    path = make_run(tmp_path, "run")
    (path / "steps.parquet").write_bytes(content)
    with pytest.raises(RunError, match=r"steps\.parquet: not a readable Parquet file"):
        read_run(path)


def test_parquet_columns_are_checked(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    table = pq.read_table(path / "steps.parquet")
    pq.write_table(table.drop_columns(["loss"]), path / "steps.parquet")
    with pytest.raises(RunError, match="column `loss` must have type double, got no such column"):
        read_run(path)
    pq.write_table(table.set_column(0, "step", table["loss"]), path / "steps.parquet")
    with pytest.raises(RunError, match="column `step` must have type int64, got double"):
        read_run(path)


def test_lost_steps_of_a_finished_run_are_not_read_as_none(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    (path / "steps.parquet").unlink()
    with pytest.raises(RunError, match=r"it has neither steps\.jsonl nor steps\.parquet"):
        read_run(path)


@pytest.mark.parametrize(
    "line", [b'{"step":"three"}\n', b'{"step":1,"rho":2.0}\n', b'{"step":1,"time.x":"slow"}\n', b'{"step":1e300}\n']
)
def test_a_line_with_a_wrong_column_is_refused(tmp_path: Path, line: bytes) -> None:
    path = make_run(tmp_path, "run", finish=False)
    (path / "steps.jsonl").write_bytes(line)
    with pytest.raises(RunError, match=r"steps\.jsonl: (column|unknown column) `"):
        read_run(path)


@pytest.mark.parametrize("version", [2, None, "1"])
def test_a_run_of_a_newer_version_is_refused(tmp_path: Path, version: object) -> None:
    path = make_run(tmp_path, "run")
    environment = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps({**environment, "schema_version": version}))
    with pytest.raises(RunError, match=r"`schema_version` in environment\.json must be at most 1"):
        read_run(path)


def test_an_unknown_kind_of_event_is_text_in_the_table_and_an_error_in_the_records(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run", finish=False)
    (path / "events.jsonl").write_bytes(b'{"step":1,"kind":"eclipse"}\n')
    run = read_run(path)
    assert run.events["kind"].tolist() == ["eclipse"]
    with pytest.raises(RunError, match="unknown kind of event"):
        run.event_records()


# Listing


def test_the_list_shows_every_run_the_newest_first(tmp_path: Path) -> None:
    empty = list_runs(tmp_path)
    assert len(empty) == 0
    make_run(tmp_path / "study", "old", age_days=3.0)
    make_run(tmp_path / "study", "new", age_days=1.0)
    make_run(tmp_path, "killed", age_days=2.0, n_steps=8, finish=False)
    (tmp_path / "notes").mkdir()
    runs = list_runs(tmp_path)
    assert runs["run"].tolist() == ["study/new", "killed", "study/old"]
    assert runs["steps"].tolist() == [4, 8, 4]
    assert runs["overflows"].tolist() == [1, 2, 1]
    assert runs["finished"].tolist() == [True, False, True]
    np.testing.assert_array_equal(runs["final_metric"], [0.25, np.nan, 0.25])
    assert runs["task"].tolist() == ["toy"] * 3
    assert runs["level"].tolist() == ["O1"] * 3
    on_disk = sum(path.stat().st_size for path in (tmp_path / "killed").iterdir())
    assert runs["size_bytes"].tolist()[1] == on_disk
    ages = [(pd.Timestamp.now(tz="UTC") - started).total_seconds() / DAY for started in runs["started"]]
    np.testing.assert_allclose(ages, [1.0, 2.0, 3.0], atol=0.01)
    pd.testing.assert_series_equal(empty.dtypes, runs.dtypes)
    with pytest.raises(RunError, match="is not a folder of runs: there is no such folder"):
        list_runs(tmp_path / "missing")


# Pruning


def test_the_newest_runs_are_kept(tmp_path: Path) -> None:
    for number in range(5):
        make_run(tmp_path, f"run{number}", age_days=5.0 - number)
    assert names(prune_runs(tmp_path, keep=2, dry_run=True)) == ["run0", "run1", "run2"]
    assert len(list_runs(tmp_path)) == 5
    assert names(prune_runs(tmp_path, keep=2)) == ["run0", "run1", "run2"]
    assert list_runs(tmp_path)["run"].tolist() == ["run4", "run3"]
    assert prune_runs(tmp_path, keep=2) == []


def test_only_runs_older_than_the_limit_go(tmp_path: Path) -> None:
    for number in range(4):
        make_run(tmp_path, f"run{number}", age_days=4.5 - number)
    assert names(prune_runs(tmp_path, older_than_days=2.0, dry_run=True)) == ["run0", "run1", "run2"]
    assert names(prune_runs(tmp_path, keep=3, older_than_days=2.0)) == ["run0"]


def test_a_run_being_written_stays(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {}, "running")
    age(3.0, recorder.path)
    assert prune_runs(tmp_path, keep=0) == []
    recorder.close()
    assert prune_runs(tmp_path, keep=0) == []  # closed a moment ago and not finished: it may be about to be reopened
    age(3.0, recorder.path)
    assert names(prune_runs(tmp_path, keep=0)) == ["running"]


@pytest.mark.parametrize(
    ("owner", "age_days", "goes"),
    [
        ({"host": os.uname().nodename, "pid": 2**22 + 1, "began": 0.0}, 0.5, True),
        ({"host": os.uname().nodename, "pid": os.getpid(), "began": 1.0}, 0.5, True),
        ({"host": "elsewhere", "pid": 1, "began": 0.0}, 0.5, False),
        ({"host": "elsewhere", "pid": 1, "began": 0.0}, 1.5, True),
        ("half a lock", 0.001, False),
        ("half a lock", 0.5, True),
    ],
    ids=["dead_process", "number_used_again", "other_host", "silent_other_host", "fresh_half_lock", "old_half_lock"],
)
def test_a_lock_protects_as_long_as_its_writer_may_live(
    tmp_path: Path, owner: object, age_days: float, goes: bool
) -> None:
    path = make_run(tmp_path, "run", finish=False, age_days=age_days)
    (path / LOCK_NAME).write_text(owner if isinstance(owner, str) else json.dumps(owner))
    age(age_days, path)
    assert names(prune_runs(tmp_path, keep=0)) == (["run"] if goes else [])
    assert path.exists() != goes


def test_a_run_of_a_host_that_may_be_gone_can_be_continued_after_ten_minutes(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run", finish=False)
    (path / LOCK_NAME).write_text(json.dumps({"host": "elsewhere", "pid": 7, "began": 0.0}))
    age(5 / 1440, path)
    with pytest.raises(
        TelemetryError, match=r"another process \(7 on elsewhere\); stop that one first, or remove .*lock"
    ):
        RunRecorder.reopen(path)
    age(11 / 1440, path)
    RunRecorder.reopen(path).close()


def test_only_folders_that_are_clearly_runs_go(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "environment.json").write_text('{"name": "conda"}')
    (foreign / "config.json").write_text("{}")
    (foreign / "steps.jsonl").write_text("")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "weights.bin").write_bytes(b"x")
    unreadable = make_run(tmp_path, "unreadable")
    (unreadable / "environment.json").write_text("{")
    make_run(tmp_path, "run")
    age(3.0, foreign, unreadable)
    assert names(prune_runs(tmp_path, keep=0)) == ["run"]
    assert foreign.exists()
    assert unreadable.exists()
    assert (tmp_path / "data" / "weights.bin").exists()


def test_links_and_what_lies_behind_them_stay(tmp_path: Path) -> None:
    outside = make_run(tmp_path / "elsewhere", "run", age_days=9.0)
    root = tmp_path / "runs"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "study").symlink_to(outside.parent)
    assert len(list_runs(root)) == 0
    assert prune_runs(root, keep=0) == []
    assert outside.exists()


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({}, "give `keep`, `older_than_days` or both"),
        ({"keep": -1}, "`keep` must be at least 0, got -1"),
        ({"older_than_days": float("nan")}, "`older_than_days` must be at least 0 and finite, got nan"),
        ({"older_than_days": -1.0}, "`older_than_days` must be at least 0"),
    ],
    ids=["none", "negative", "nan", "negative_days"],
)
def test_rules_out_of_range_remove_nothing(tmp_path: Path, rules: dict[str, float], message: str) -> None:
    make_run(tmp_path, "run")
    with pytest.raises(ValueError, match=message):
        prune_runs(tmp_path, **rules)  # type: ignore[arg-type]
    assert len(list_runs(tmp_path)) == 1


def test_events_of_a_block_are_read_with_their_numbers(tmp_path: Path) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {})
    event = Event(7, EventKind.OVERFLOW, "conv1, fc", 512.0, "two layers overflowed")
    recorder.write((), [event])
    recorder.finish({})
    assert read_run(recorder.path).event_records() == [event]


@pytest.mark.parametrize(("finish", "most"), [(True, 3), (True, 0), (False, 3)])
def test_histograms_can_be_thinned_while_reading(tmp_path: Path, finish: bool, most: int) -> None:
    recorder = RunRecorder.create(tmp_path, {}, {"task": "toy"}, "run")
    counted = (ExponentCounts("net", -3, (1, 2), 0, 0),)
    recorder.write([StepRecord(step, 0.1 * step, 1.0, 1.0, grad_exponents=counted) for step in range(9)])
    if finish:
        recorder.finish({})
    recorder.close()
    whole, thinned = read_run(recorder.path), read_run(recorder.path, most_histograms=most)
    kept = [step for step, histograms in enumerate(thinned.steps["grad_exponents"]) if histograms]
    assert kept == ([0, 4, 8] if most else [])
    assert all(thinned.steps["grad_exponents"][step] == whole.steps["grad_exponents"][step] for step in kept)
    others = [name for name in whole.steps if name != "grad_exponents"]
    pd.testing.assert_frame_equal(thinned.steps[others], whole.steps[others])


@pytest.mark.parametrize("finish", [True, False])
def test_columns_can_be_chosen_while_reading(tmp_path: Path, finish: bool) -> None:
    path = make_run(tmp_path, "run", finish=finish)
    whole = read_run(path).steps
    some = ["loss", "time.forward", "group_scales", "grad_exponents", "overflow"]
    assert set(some) < set(whole.columns)
    chosen = read_run(path, columns=[*some, "thor.damping"]).steps  # of a method that was not in use
    pd.testing.assert_frame_equal(chosen, whole[[name for name in whole if name in some]])
    assert read_run(path, columns=()).steps.shape[1] == 0


def test_a_column_that_is_not_asked_for_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, asked, read = make_run(tmp_path, "run"), list[str](), pq.ParquetFile.read

    def watched(file: pq.ParquetFile, columns: list[str]) -> pa.Table:
        asked.extend(columns)
        return read(file, columns=columns)

    monkeypatch.setattr(pq.ParquetFile, "read", watched)
    read_run(path, columns=("seconds", "loss"))
    assert [name for name in asked if name not in EVENT_COLUMNS] == ["seconds", "loss"]


def test_what_no_step_has_is_not_read(tmp_path: Path) -> None:
    path = make_run(tmp_path, "run")
    with pytest.raises(ValueError, match=r"`columns` must name columns of steps \(step, .*, got 'losses'"):
        read_run(path, columns=["losses"])
    with pytest.raises(ValueError, match="`most_histograms` must be at least 0"):
        read_run(path, most_histograms=-1)


def test_what_is_read_can_be_written_to(tmp_path: Path) -> None:
    steps = read_run(make_run(tmp_path, "run")).steps
    for name in steps.select_dtypes("number"):
        steps.loc[0, name] = 3
        assert steps[name][0] == 3
