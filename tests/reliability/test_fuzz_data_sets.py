"""Criteo's logs and CIFAR-10's batches from anywhere: records or one sentence; nothing a pickle names is built."""

from __future__ import annotations

import gzip
import pickle
import pickletools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.reliability.guarded import FUZZ, bounded_memory, no_foreign_code, result_or_sentence
from tests.reliability.mutations import mutated
from workbench.tasks import TaskError
from workbench.tasks.cifar10 import read_batch
from workbench.tasks.criteo import CriteoReader, criteo_task

LINE = b"1\t" + b"\t".join(b"%d" % n for n in range(13)) + b"\t" + b"\t".join(b"%08x" % n for n in range(26)) + b"\n"
LOG = b"".join(LINE.replace(b"1\t", b"%d\t" % (n % 2), 1) for n in range(9))


@FUZZ
@given(content=mutated(LOG))
@example(content=b"")
@example(content=b"\n" * 5000)
@example(content=b"1" * 10_000 + b"\n" + LOG)
def test_a_damaged_log_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.tsv"
    path.write_bytes(content)
    reader = CriteoReader(path, 4, limit=50)
    n_read = result_or_sentence(lambda: sum(len(labels) for _, labels in reader), TaskError)
    if isinstance(n_read, int):
        lines = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
        assert n_read + reader.n_rejected == lines
    result_or_sentence(lambda: criteo_task(str(path)), TaskError)


@FUZZ
@given(content=mutated(gzip.compress(LOG, mtime=0)))
def test_a_damaged_archive_of_a_log_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "log.tsv.gz"
    path.write_bytes(content)
    result_or_sentence(lambda: sum(len(labels) for _, labels in CriteoReader(path, 4, limit=50)), TaskError)


def test_a_log_of_one_endless_line_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "log.tsv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(b"\t" * (1 << 20))
    with bounded_memory(32 << 20):
        assert list(CriteoReader(path)) == []


def batch(protocol: int = 2, n: int = 3) -> bytes:
    content = {
        b"batch_label": b"training batch 1 of 5",
        b"labels": [k % 10 for k in range(n)],
        b"data": np.arange(n * 3072, dtype=np.uint64).astype(np.uint8).reshape(n, 3072),
        b"filenames": [b"a_s_%06d.png" % k for k in range(n)],
    }
    return pickle.dumps(content, protocol=protocol)


class Calls:
    """Something whose pickle calls a function."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def pickle_of(*lines: bytes) -> bytes:
    return b"\x80\x02" + b"".join(lines) + b"."


def nested_tuples(depth: int, *, shared: bool) -> bytes:
    """A tuple in a tuple ...: a key of it takes 2 ** depth steps to hash where it is shared, a deep stack where not."""
    one = b"q\x01h\x01\x86" if shared else b"\x85"
    return pickle_of(b"}", b"N\x85", one * depth, b"K\x01s")


EVIL = {
    "os.system": pickle.dumps({b"data": Calls(__import__("os").system, "true")}),
    "eval": pickle.dumps({b"data": Calls(eval, "1"), b"labels": []}),
    "getattr": pickle.dumps(Calls(getattr, "a", "b")),
    "importlib": pickle.dumps(Calls(__import__("importlib").import_module, "this")),
    "nested name": b"\x80\x04\x95\x1f\x00\x00\x00\x00\x00\x00\x00\x8c\x05numpy\x8c\x0cndarray.view\x93.",
    "numpy.load": pickle.dumps(Calls(np.load, "/etc/passwd", None, True)),
    "numpy.save": b"cnumpy\nsave\n(S'x'\ntR.",
    "_codecs.encode of hex": pickle_of(b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x03\x00\x00\x00hex\x86R"),
    "instance": b"(S'x'\nios\nsystem\n.",
    "object": b"(cos\nsystem\nS'true'\no.",
    "newobj": pickle_of(b"cos\nsystem\n)\x81"),
    "newobj_ex": b"\x80\x04cos\nsystem\n)}\x92.",
    "persistent": b"Pname\n.",
    "extension": pickle_of(b"\x82\x01"),
    "array of a million million": pickle_of(b"cnumpy\nndarray\n\x8a\x06\x00\x00\x00\x00\x00\x01\x85R"),
    "memo far away": pickle_of(b"Nr\xff\xff\xff\x7f"),
    "text of 2**62 bytes": b"\x80\x04\x8e" + (2**62).to_bytes(8, "little") + b"x.",
    "long of 2**31 bytes": pickle_of(b"\x8b\xff\xff\xff\x7f"),
    "frame of 2**60 bytes": b"\x80\x04\x95" + (2**60).to_bytes(8, "little") + b"N.",
    "shared tuples": nested_tuples(60, shared=True),
    "deep tuples": nested_tuples(20_000, shared=False),
    "deep lists": b"]" * 20_000 + b"a" * 19_999 + b".",
    "list in itself": pickle_of(b"]q\x01h\x01a"),
    "build on a class": pickle_of(b"cnumpy\nndarray\n}X\x01\x00\x00\x00aK\x01sb"),
    "nothing": b"",
    "stop": b".",
    "no stop": b"N",
    "empty stack": b"0.",
    "number of 5000 digits": b"I" + b"9" * 5000 + b"\n.",
}


@pytest.mark.parametrize("protocol", range(6))
def test_a_batch_is_read_whatever_protocol_wrote_it(protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(batch(protocol))
    with no_foreign_code():
        images, labels = read_batch(path)
    assert images.flatten().tolist() == [k % 256 for k in range(3 * 3072)]
    assert labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", list(EVIL))
def test_a_crafted_pickle_is_refused_and_builds_nothing(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(EVIL[kind])
    told = result_or_sentence(lambda: read_batch(path), TaskError)
    assert isinstance(told, str)
    assert str(path) in told


@FUZZ
@given(
    content=mutated([batch(0, 1), batch(2, 1), batch(4, 1), batch(5, 1), *(x for x in EVIL.values() if len(x) < 1000)])
)
@example(content=b"(c\xa9\\\xf4U*\xa5/\xcd\xb2\xc7=O\xcd\xb2\xc7=O\no.")  # once a warning of Python's
def test_a_damaged_batch_is_read_or_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(content)
    found = result_or_sentence(lambda: read_batch(path), TaskError)
    if not isinstance(found, str):
        images, labels = found
        assert images.shape == (len(labels), 3, 32, 32)


_CODES = [code.code.encode("latin-1") for code in pickletools.opcodes]


@FUZZ
@given(
    pieces=st.lists(
        st.sampled_from(_CODES) | st.sampled_from([b"\x01", b"numpy\nndarray\n", b"\x01\x00\x00\x00a", b"1\n"]),
        max_size=40,
    )
)
def test_any_string_of_opcodes_is_read_or_refused(pieces: list[bytes], tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(b"".join(pieces) + b".")
    assert isinstance(result_or_sentence(lambda: read_batch(path), TaskError), str)
