"""Whole-file replacement: all of the new content or all of the old."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from workbench.core.files import DiskFullError, replacing, write_bytes_atomically, write_text_atomically


def test_text_is_written_as_utf8_with_its_own_line_ends(tmp_path: Path) -> None:
    write_text_atomically(tmp_path / "a.txt", "Größe\n秒\r\n")
    assert (tmp_path / "a.txt").read_bytes() == "Größe\n秒\r\n".encode()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a file that is there already."""
    path = tmp_path / "a.txt"
    path.write_text("old, and longer than what is new")
    return path


def assert_left(old: Path) -> None:
    """Find the file as it was, and nothing beside it."""
    assert old.read_text() == "old, and longer than what is new"
    assert [entry.name for entry in old.parent.iterdir()] == [old.name]


def test_an_existing_file_is_replaced_keeps_its_permissions_and_no_temporary_file_stays(old: Path) -> None:
    old.chmod(0o640)
    write_bytes_atomically(old, b"new")
    assert old.read_bytes() == b"new"
    assert stat.S_IMODE(old.stat().st_mode) == 0o640
    assert [entry.name for entry in old.parent.iterdir()] == [old.name]


def test_the_temporary_path_lies_in_the_same_folder_and_keeps_the_suffix(tmp_path: Path) -> None:
    with replacing(tmp_path / "steps.parquet") as temporary:
        assert temporary.parent == tmp_path.resolve()
        assert temporary.suffix == ".parquet"
        temporary.write_bytes(b"x")
    assert (tmp_path / "steps.parquet").read_bytes() == b"x"


def test_an_error_in_the_block_leaves_the_old_file_and_nothing_else(old: Path) -> None:
    def interrupted_write() -> None:
        with replacing(old) as temporary:
            temporary.write_text("half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted_write()
    assert_left(old)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT], ids=["disk", "quota"])
def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(
    old: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_room(self: Path, data: bytes) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_bytes", no_room)
    with pytest.raises(DiskFullError, match=r"^no space left to write .*a\.txt; free some space") as caught:
        write_text_atomically(old, "new")
    assert caught.value.errno == code
    assert_left(old)


def test_a_failing_rename_leaves_the_old_file(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: object, target: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError):
        write_text_atomically(old, "new")
    assert_left(old)


def test_new_files_follow_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o022)
    try:
        write_text_atomically(tmp_path / "b.txt", "new")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "b.txt").stat().st_mode) == 0o644


def test_a_link_stays_a_link_and_its_target_is_replaced(old: Path) -> None:
    link = old.with_name("link.txt")
    link.symlink_to(old.name)
    write_text_atomically(link, "new")
    assert link.is_symlink()
    assert old.read_text() == "new"


def test_a_missing_folder_is_an_ordinary_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_text_atomically(tmp_path / "missing" / "a.txt", "new")


def test_what_a_killed_writer_left_is_removed_by_the_next_one_and_nothing_else(tmp_path: Path) -> None:
    names = {".status.0123456789ab.tmp.json": 3600, ".status.ba9876543210.tmp.json": 5}
    names |= {".other.0123456789ab.tmp.json": 3600, ".status.0123456789ab.tmp.txt": 3600, "status.tmp.json": 3600}
    for name, seconds in names.items():
        (tmp_path / name).write_text("half")
        then = (tmp_path / name).stat().st_mtime - seconds
        os.utime(tmp_path / name, (then, then))
    write_text_atomically(tmp_path / "status.json", "{}")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {*names, "status.json"} - {".status.0123456789ab.tmp.json"}


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        write_text_atomically(tmp_path / "none" / "a.json", "{}")
    assert raised.value.filename == str(tmp_path / "none" / "a.json")
