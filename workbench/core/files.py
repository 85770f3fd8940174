"""Replace a file as a whole or not at all.

A reader must never see half a file, whatever happens to the process or the disk. So the new content goes to a temporary
file in the same folder, is flushed to the disk, and only then takes the name of the old one.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

DISK_FULL_CODES = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers that mean: nothing more fits, on the disk or in the user's quota."""

_ABANDONED_SECONDS = 60.0


class DiskFullError(OSError):
    """There is no room for the new content, and the old file is untouched; it has the system's ``errno``."""

    def __str__(self) -> str:
        return str(self.strerror)


def write_text_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write text as UTF-8, replacing the file in one move; line ends are written as they are."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write bytes, replacing the file in one move; see `write_text_atomically`."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path in the same folder; on leaving, it takes the place of ``path``.

    It keeps the suffix of ``path``, and the permissions of the file it replaces. When the block raises, it is removed
    and ``path`` is as it was. For a symbolic link, the file behind it is replaced.

    Raises:
        DiskFullError: When the disk or the quota is full; the old file is unchanged.
        OSError: When the folder is missing or not writable, or the block wrote no file.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(6)}.tmp{target.suffix}")
    try:
        # Created here rather than by tempfile, whose files are readable by their owner alone.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(target.stat().st_mode & 0o7777)
        _remove_abandoned(target, temporary)
        yield temporary
        _flush_to_disk(temporary)
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno in DISK_FULL_CODES:
            sentence = f"no space left to write {target}; free some space and try again (the old file is unchanged)"
            raise DiskFullError(error.errno, sentence, str(target)) from error
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # as the caller knows it
        raise
    # Makes the rename itself durable. Not every platform lets a folder be opened; the content is safe either way.
    with contextlib.suppress(OSError):
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _remove_abandoned(target: Path, temporary: Path) -> None:
    """Remove what killed processes have left of the same file: not written to for a minute."""
    names = re.compile(rf"\.{re.escape(target.stem)}\.[0-9a-f]{{12}}\.tmp{re.escape(target.suffix)}")
    with contextlib.suppress(OSError):
        now = temporary.stat().st_mtime  # by the clock of the file system, which may be another machine's
        for path in target.parent.iterdir():
            if names.fullmatch(path.name) and now - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink(missing_ok=True)


def free_path(path: Path) -> Path:
    """Return a path that does not exist yet: this one, or else its name with the first free number from 2 on."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in itertools.count(2))
    return next(one for one in itertools.chain([path], numbered) if not one.exists())


def _flush_to_disk(path: Path) -> None:
    # Without this, a power cut after the rename can leave an empty file under the new name.
    with path.open("rb+") as file:
        os.fsync(file.fileno())
