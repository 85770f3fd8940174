"""JSON lines: every record survives, every torn tail is passed over."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.telemetry.run_samples import some_steps
from workbench.core.records import Event, EventKind, ExponentCounts, StepRecord
from workbench.runs.errors import RunError
from workbench.runs.json_lines import encode_events, encode_steps, intact_size, read_rows


def test_fields_at_their_default_are_left_out() -> None:
    line = encode_steps([StepRecord(3, 1.5, 20.0, 0.25)])
    assert line == b'{"step":3,"seconds":1.5,"step_ms":20.0,"loss":0.25}\n'


def test_numbers_are_written_as_they_are_and_nothing_else() -> None:
    assert encode_steps([]) == encode_events([]) == b""
    record = StepRecord(0, math.nan, 1.0, math.nan, loss_scale=math.nan, grad_norm=math.nan)
    row = json.loads(encode_steps([record]))
    assert list(row) == ["step", "seconds", "step_ms", "loss", "loss_scale"], "NaN where it is not the default"
    assert math.isnan(row["loss_scale"])
    loss: Any = np.float32(0.5)
    count: Any = np.int64(7)
    row = json.loads(encode_steps([StepRecord(0, 0.0, 1.0, loss, samples=count)]))
    assert (row["loss"], row["samples"]) == (0.5, 7)
    with pytest.raises(TypeError, match="must hold plain numbers and text, got complex"):
        encode_steps([StepRecord(0, 0.0, 1.0, 1j)])  # type: ignore[arg-type]


def test_text_that_is_no_utf8_is_made_storable() -> None:
    row = json.loads(encode_events([Event(0, EventKind.STOPPED, message="bad \udcff name\n")]))
    assert row["message"] == "bad ? name\n"
    row = json.loads(encode_steps([StepRecord(0, 0.0, 1.0, 1.0, grad_exponents=(ExponentCounts("\ud800", 0, (1,)),))]))
    assert row["grad_exponents"][0]["group"] == "?"


def test_rows_come_back_in_chunks(tmp_path: Path) -> None:
    (tmp_path / "steps.jsonl").write_bytes(encode_steps(some_steps(0, 7)))
    chunks = list(read_rows(tmp_path / "steps.jsonl", chunk=3))
    assert [[row["step"] for row in chunk] for chunk in chunks] == [[0, 1, 2], [3, 4, 5], [6]]


def test_a_hole_left_by_a_power_cut_ends_the_file(tmp_path: Path) -> None:
    good, lost = encode_steps(some_steps(0, 2)), encode_steps(some_steps(2, 2))
    content = good + b"\0" * 40 + lost[40:]
    (tmp_path / "steps.jsonl").write_bytes(content)
    assert intact_size(content) == len(good)
    assert sum(len(rows) for rows in read_rows(tmp_path / "steps.jsonl")) == 2


@pytest.mark.parametrize("damage", [b"{]\n", b"\n", b"17\n", b'{"step":1}{"step":2}\n', b"\xff\xfe\n"])
def test_a_damaged_whole_line_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_bytes(encode_steps(some_steps(0, 1)) + damage + encode_steps(some_steps(1, 1)))
    with pytest.raises(RunError, match=r"steps\.jsonl: line 2 is not a JSON object"):
        list(read_rows(path))
