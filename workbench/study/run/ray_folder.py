"""A study's folder as a node of a Ray cluster sees it.

Usually all machines share the folder, which a secret word in a marker tells, and a worker writes runs where the driver
reads them. Else it gets a folder of its own with the study's Python files, and sends each recorded run back.
"""

from __future__ import annotations

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from workbench.core.files import free_path, write_text_atomically

_MARKER = ".ray-driver"
_LARGEST_RUN_BYTES = 64 * 1024**2
_LARGEST_CODE_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class SentFolder:
    """A study's folder on its way to the nodes: its path, the word in its marker, its Python files."""

    path: Path
    token: str
    code: Mapping[str, bytes]

    def here(self) -> tuple[Path, bool]:
        """Return where this machine keeps the study's runs, and whether the driver sees that folder."""
        # Else no such folder is here, or another machine's of the same name.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if (self.path / _MARKER).read_text(encoding="utf-8") == self.token:
                return self.path, True
        own = Path(tempfile.mkdtemp(prefix="workbench-study-"))
        _write(own, self.code)
        return own, False


@contextlib.contextmanager
def sent(directory: Path) -> Iterator[SentFolder]:
    """Mark a study's folder while the block runs; Python files of more than 8 MiB in all stay behind."""
    token, path = secrets.token_hex(16), directory.resolve()
    write_text_atomically(path / _MARKER, token)
    try:
        yield SentFolder(path, token, _read(path, "*.py", _LARGEST_CODE_BYTES) or {})
    finally:
        (path / _MARKER).unlink(missing_ok=True)


def pack_run(folder: Path, path: str) -> dict[str, bytes] | None:
    """Return the files of a recorded run, named relative to a folder; None when it is larger than 64 MiB."""
    return _read(folder / path, "**/*", _LARGEST_RUN_BYTES)


def unpack_run(directory: Path, path: str, packed: Mapping[str, bytes]) -> str:
    """Write a packed run into the study's folder; return its name there, with a number when its own is taken."""
    folder = free_path(directory / path)
    _write(folder, packed)
    return folder.relative_to(directory).as_posix()


def _read(folder: Path, pattern: str, most: int) -> dict[str, bytes] | None:
    files = [path for path in folder.glob(pattern) if path.is_file()]
    if sum(path.stat().st_size for path in files) > most:
        return None
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _write(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
