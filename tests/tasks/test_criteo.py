"""The reader of Criteo's form: what it understands, what it turns away, and where it goes on."""

from __future__ import annotations

import gzip
import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from workbench.tasks import TaskError, load_task
from workbench.tasks.click_law import FIELD_SHIFT
from workbench.tasks.criteo import EMPTY_CATEGORY, CriteoReader, parse_lines

CELL = st.binary(max_size=6).filter(lambda cell: not set(cell) & set(b"\t\n\r"))
COUNT = st.one_of(st.just(None), st.integers(-3, 10**9))
CATEGORY = st.one_of(st.just(None), st.integers(0, 2**32 - 1))
RECORD = st.tuples(
    st.integers(0, 1), st.lists(COUNT, min_size=13, max_size=13), st.lists(CATEGORY, min_size=26, max_size=26)
)


def line_of(record: Any) -> bytes:
    label, counts, categories = record
    cells = [str(label), *("" if c is None else str(c) for c in counts)]
    cells += ["" if c is None else f"{c:08x}" for c in categories]
    return "\t".join(cells).encode() + b"\n"


def plain(number: int) -> bytes:
    return line_of((number % 2, [number] * 13, [number] * 26))


LOG: list[Path] = []


@pytest.fixture(autouse=True, scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> None:
    LOG[:] = [tmp_path_factory.mktemp("criteo") / "log"]


def reader_of(content: bytes, **options: Any) -> CriteoReader:
    LOG[0].write_bytes(content)
    return CriteoReader(LOG[0], **options)


@settings(deadline=None, max_examples=20)
@given(records=st.lists(RECORD, max_size=4))
def test_records_are_read_as_they_were_written(records: list[Any]) -> None:
    ids, numbers, labels, bad = parse_lines([line_of(record) for record in records])
    assert not bad
    for row, (label, counts, categories) in enumerate(records):
        assert labels[row] == label
        for value, count in zip(numbers[row].tolist(), counts, strict=True):
            count = count or 0
            assert value == pytest.approx(math.log1p(count) if count > 0 else count, rel=1e-6)
        expected = [(EMPTY_CATEGORY if c is None else c) + (k << FIELD_SHIFT) for k, c in enumerate(categories)]
        assert ids[row].tolist() == expected


@settings(deadline=None, max_examples=25)
@given(
    lines=st.lists(
        st.one_of(
            RECORD.map(line_of), st.binary(max_size=60), st.lists(CELL, min_size=40, max_size=40).map(b"\t".join)
        ),
        max_size=6,
    ),
    size=st.integers(1, 3),
)
@example(lines=[b"1\t" + b"\t" * 38], size=1)
@example(lines=[b"1\t1_0" + b"\t" * 38], size=1)
@example(lines=[b"1\t" + b"9" * 30 + b"\t" * 38], size=1)
@example(lines=[b"1" + b"\t" * 14 + b" ff" + b"\t" * 25], size=1)
def test_no_line_whatever_is_fatal_and_none_is_lost(lines: list[bytes], size: int) -> None:
    content = b"\n".join(lines)
    n_lines = len(io.BytesIO(content).readlines())
    reader = reader_of(content, batch_size=size)
    batches = list(reader)
    assert sum(len(labels) for _, labels in batches) + reader.n_rejected == n_lines
    for (ids, numbers), labels in batches:
        assert len(labels) <= size
        assert bool(numbers.isfinite().all())
        assert bool(((labels == 0) | (labels == 1)).all())
        assert torch.equal(ids >> FIELD_SHIFT, torch.arange(26).expand_as(ids))


@settings(deadline=None, max_examples=30)
@given(good=st.lists(st.booleans(), max_size=12), size=st.integers(1, 4))
def test_reading_goes_on_after_any_batch(good: list[bool], size: int) -> None:
    content = b"".join(plain(i) if ok else b"junk\n" for i, ok in enumerate(good))
    whole = list(reader_of(content, batch_size=size).numbered_batches())
    for k, (line, _) in enumerate(whole):
        rest = list(reader_of(content, batch_size=size).numbered_batches(line))
        assert [n for n, _ in rest] == [n for n, _ in whole[k + 1 :]]
        for (_, ((ids, _), _)), (_, ((others, _), _)) in zip(rest, whole[k + 1 :], strict=True):
            assert torch.equal(ids, others)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "not 40 columns, got 1"),
        (plain(1).replace(b"1", b"2", 1), "a label that is neither 0 nor 1, got b'2'"),
        (plain(1).replace(b"1\t1\t", b"1\t1.5\t", 1), "no whole number, got b'1.5'"),
        (plain(1).replace(b"00000001", b"0000000g", 1), "no category of up to 8 hexadecimal digits, got b'0000000g'"),
        (plain(1).replace(b"00000001", b"000000001", 1), "no category of up to 8 hexadecimal"),
        (b"1" * 10_000, "longer than 4096 bytes"),
    ],
    ids=["empty", "label", "number", "category", "long category", "long line"],
)
def test_a_rejected_line_is_told_with_its_number_and_reason(line: bytes, reason: str) -> None:
    content = plain(0) + line.rstrip(b"\n") + b"\n" + plain(2)
    reader = reader_of(content, batch_size=5)
    (((ids, _), _),) = reader
    assert ids[:, 0].tolist() == [0, 2]
    assert reader.n_rejected == 1
    with pytest.raises(TaskError, match=re.escape(f"the last one line 1: {reason}")):
        list(reader_of(content, limit=0))


def test_too_many_rejected_lines_stop_the_reading() -> None:
    with pytest.raises(
        TaskError, match="more than 2 lines are no records of Criteo's form, the last one line 2: not 40"
    ):
        list(reader_of(b"a\nb\nc\nd\n", limit=2))
    assert reader_of(b"a\nb\n", limit=None).n_rejected == 0


def test_a_folder_is_read_in_the_order_of_names_and_unpacked(tmp_path: Path) -> None:
    (tmp_path / "day_1.gz").write_bytes(gzip.compress(plain(2) + plain(3)))
    (tmp_path / "day_0").write_bytes(plain(0) + plain(1))
    (tmp_path / ".hidden").write_bytes(b"x")
    reader = CriteoReader(tmp_path, batch_size=3)
    for _ in range(2):
        assert [ids[:, 0].tolist() for (ids, _), _ in reader] == [[0, 1, 2], [3]]
    assert [ids[:, 0].tolist() for (ids, _), _ in reader.batches(1, 3)] == [[1, 2]]


def test_a_damaged_archive_says_which(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(plain(0) * 50)[:-20])
    with pytest.raises(TaskError, match=r"log\.gz cannot be read"):
        list(CriteoReader(tmp_path / "log.gz"))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("criteo:", "task criteo: needs the place of its data"),
        ("criteo:no/such/file", "a click log must be a file or a folder of files, and no/such/file is not there"),
    ],
)
def test_a_place_without_data_says_so(spec: str, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        load_task(spec)


def test_the_task_of_a_log_keeps_its_first_lines_for_evaluation(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_bytes(b"".join(map(plain, range(100))))
    task = load_task("criteo:log.txt", folder=tmp_path)
    assert load_task(task.spec).data_hash == task.data_hash
    kept = torch.cat([ids[:, 0] for (ids, _), _ in task.evaluation_batches(0)])
    assert kept.tolist() == list(range(20))
    stream = task.batches(0)
    trained = torch.cat([next(stream)[0][0][:, 0] for _ in range(4)])
    assert trained.tolist() == [*range(20, 100), *range(20, 100)]
