"""A run directory from anywhere: read, listed, replayed and continued, or refused in one sentence."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tests.kit.runs import without_checksums
from tests.reliability.guarded import FUZZ, result_or_sentence
from tests.reliability.mutations import json_texts, mutated, odd_values
from tests.telemetry.run_samples import some_steps
from workbench.api import replay
from workbench.config import BoostConfig
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.runs import Run, RunError, RunRecorder, list_runs, prune_runs, read_run

STEPS = [
    StepRecord(
        **{
            **{name: getattr(step, name) for name in StepRecord.__slots__ if name != "columns"},
            "grad_amax": math.nan if step.overflow else 0.01,
            "group_scales": (1.0, 2.0) if step.step % 2 else (),
            "grad_exponents": (ExponentCounts("all", -12, (1, 2, 3), 4, 0),) if step.step % 3 == 0 else (),
        },
        columns={"time.forward": 0.5, "amp.float16_grad_amax": 0.01} if step.step % 2 else {},
    )
    for step in some_steps(0, 12)
]
EVENTS = [Event(3, EventKind.OVERFLOW, "layer1", 1.0, "overflow"), Event(11, EventKind.EVALUATION, "accuracy", 0.9, "")]

TABLE_FILES = ("steps.parquet", "events.parquet", "steps.jsonl")
NOTES = ("environment.json", "config.json", "summary.json", "writer.lock")


def record(root: Path, *, finish: bool) -> Path:
    recorder = RunRecorder.create(root, BoostConfig().to_dict(), {"task": "t", "level": "O1", "seed": 1}, "run")
    recorder.write(STEPS)
    for event in EVENTS:
        recorder.emit(event)
    if finish:
        recorder.finish({"metric": 0.9, "metric_name": "accuracy", "state": "finished"})
        without_checksums(recorder.path)
    recorder.close()
    return recorder.path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("finished"), finish=True)


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("killed"), finish=False)


def use(run: Run) -> None:
    """Do with a run what panels, commands and notebooks do."""
    repr(run)
    run._repr_html_()
    run.step_records()
    result_or_sentence(run.event_records, RunError)
    result_or_sentence(lambda: replay(run, window=[5], init=[1024.0]), ValueError)


def read_and_use(path: Path) -> Any:
    run = result_or_sentence(lambda: read_run(path), RunError)
    if isinstance(run, Run):
        result_or_sentence(lambda: use(run), RunError)
    listed = list_runs(path.parent)
    assert len(listed) <= 1
    prune_runs(path.parent, keep=0, dry_run=True)
    return run


def copied(source: Path, target: Path, **changed: bytes) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    for name, content in changed.items():
        (target / name.replace("__", ".")).write_bytes(content)
    return target


@FUZZ
@given(data=st.data())
def test_a_run_with_a_damaged_file_is_read_or_refused(
    data: st.DataObject, finished: Path, killed: Path, tmp_path: Path
) -> None:
    source = data.draw(st.sampled_from([finished, killed]))
    path = copied(source, tmp_path / "runs" / "run")
    name = data.draw(st.sampled_from(sorted(file.name for file in source.iterdir())))
    (path / name).write_bytes(data.draw(mutated((source / name).read_bytes())))
    read_and_use(path)


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("name", ["steps.jsonl", "events.jsonl"])
def test_lines_with_odd_values_are_read_or_refused(
    name: str, data: st.DataObject, killed: Path, tmp_path: Path
) -> None:
    lines = (killed / name).read_text().splitlines()
    for at in data.draw(st.lists(st.integers(0, len(lines) - 1), min_size=1, max_size=2, unique=True)):
        row = json.loads(lines[at])
        if data.draw(st.booleans()):
            keys = st.sampled_from([*StepRecord.__slots__, *row, "a.b", "dim_reduce.rho", "kind", "message", "value"])
            row[data.draw(keys)] = data.draw(odd_values)
            lines[at] = json.dumps(row)
        else:
            lines[at] = data.draw(json_texts(row))
    text = "\n".join([*lines, ""]).encode("utf-8", "surrogatepass")
    path = copied(killed, tmp_path / "runs" / "run", **{name.replace(".", "__"): text})
    read_and_use(path)
    recorder = result_or_sentence(
        lambda: RunRecorder.reopen(path, next_step=data.draw(st.sampled_from([None, 5]))), RunError
    )
    if isinstance(recorder, RunRecorder):
        result_or_sentence(lambda: recorder.finish({}), RunError)
        recorder.close()


@FUZZ
@given(data=st.data())
@pytest.mark.parametrize("name", NOTES)
def test_notes_with_odd_values_are_read_or_refused(
    name: str, data: st.DataObject, finished: Path, tmp_path: Path
) -> None:
    valid = (
        {"host": __import__("platform").node(), "pid": 1, "began": 0.0}
        if name == "writer.lock"
        else json.loads((finished / name).read_bytes())
    )
    text = data.draw(json_texts(valid)).encode("utf-8", "surrogatepass")
    read_and_use(copied(finished, tmp_path / "runs" / "run", **{name.replace(".", "__"): text}))


def retyped(table: pa.Table, name: str, values: list[Any], kind: pa.DataType) -> pa.Table:
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(values, kind))


HISTOGRAM: dict[str, Any] = {"group": "", "lowest": 0, "counts": [1], "zeros": 0, "nonfinite": 0}


def with_histograms(table: pa.Table, *each: dict[str, Any] | None) -> pa.Table:
    """Return a table each of whose rows has these histograms of gradients."""
    return retyped(table, "grad_exponents", [list(each)] * len(table), table.schema.field("grad_exponents").type)


TABLES: dict[str, Callable[[pa.Table], pa.Table]] = {
    "nothing there": lambda t: retyped(t, "step", [None] * len(t), pa.int64()),
    "no truth": lambda t: retyped(t, "overflow", [None] * len(t), pa.bool_()),
    "empty lists": lambda t: retyped(t, "group_scales", [None] * len(t), pa.list_(pa.float64())),
    "lists of nothing": lambda t: retyped(t, "group_scales", [[None]] * len(t), pa.list_(pa.float64())),
    "a column of text": lambda t: t.append_column("a.b", pa.array(["x"] * len(t))),
    "a column of lists": lambda t: t.append_column("a.b", pa.array([[1]] * len(t))),
    "no method's column": lambda t: t.append_column("stranger", pa.array([1.0] * len(t))),
    "a column twice": lambda t: t.append_column("loss", pa.array([1.0] * len(t))),
    "no rows": lambda t: t.slice(0, 0),
    "pandas' own notes": lambda t: t.replace_schema_metadata({b"pandas": b'{"index_columns": [[], {}], "columns": 3}'}),
    "no columns": lambda t: t.select([]),
    "histograms of nothing": lambda t: with_histograms(t, None),
    "histograms without counts": lambda t: with_histograms(t, dict.fromkeys(HISTOGRAM)),
    "histograms far apart": lambda t: with_histograms(
        t, *({**HISTOGRAM, "lowest": at} for at in (-(2**31), 2**31 - 1))
    ),
    "negative counts": lambda t: with_histograms(t, {**HISTOGRAM, "counts": [-5], "zeros": -1}),
    "steps that go back": lambda t: retyped(t, "step", list(range(len(t), 0, -1)), pa.int64()),
    "steps far away": lambda t: retyped(t, "step", [2**62] * len(t), pa.int64()),
    "scales of nothing": lambda t: retyped(t, "loss_scale", [0.0] * len(t), pa.float64()),
    "scales below nothing": lambda t: retyped(t, "loss_scale", [-1.0] * len(t), pa.float64()),
    "infinite gradients": lambda t: retyped(t, "grad_amax", [math.inf] * len(t), pa.float64()),
    "negative gradients": lambda t: retyped(t, "grad_amax", [-1.0] * len(t), pa.float64()),
}


@pytest.mark.parametrize("kind", list(TABLES))
def test_a_table_of_another_shape_is_read_or_refused(kind: str, finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path / "runs" / "run")
    parquet.write_table(TABLES[kind](parquet.ParquetFile(path / "steps.parquet").read()), path / "steps.parquet")
    read_and_use(path)


def test_a_small_table_that_unpacks_into_more_than_the_memory_is_refused_unread(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = copied(finished, tmp_path / "runs" / "run")
    rows = parquet.ParquetFile(path / "steps.parquet").read().take(pa.array([0] * 20_000))
    parquet.write_table(rows, path / "steps.parquet", compression="zstd")
    assert len(read_run(path).steps) == 20_000
    assert (path / "steps.parquet").stat().st_size < 100_000
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=1_000_000))
    told = result_or_sentence(lambda: read_run(path), RunError)
    assert "needs at least" in told


@pytest.mark.parametrize("name", [*TABLE_FILES, *NOTES])
@pytest.mark.parametrize("kind", ["folder", "loop", "broken link"])
def test_what_is_no_file_is_refused(name: str, kind: str, finished: Path, tmp_path: Path) -> None:
    path = copied(finished, tmp_path / "runs" / "run")
    (path / name).unlink(missing_ok=True)
    if kind == "folder":
        (path / name).mkdir()
    else:
        (path / name).symlink_to(name if kind == "loop" else "nowhere")
    read_and_use(path)


@pytest.mark.parametrize("name", ["lr=0.1", "a=b=c"])
def test_the_name_of_a_folder_adds_no_column(name: str, finished: Path, tmp_path: Path) -> None:
    run = read_run(copied(finished, tmp_path / name / "run"))
    assert list(run.steps.columns) == list(read_run(finished).steps.columns)
