"""A disk that is full: a small file system of its own where one may be mounted, else a limit on the size of files."""

from __future__ import annotations

import resource
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["FullDisk", "LimitedFiles", "SmallDisk", "disk_of"]


@dataclass
class SmallDisk:
    """A file system in memory, with a file that fills it."""

    path: Path

    def leave(self, free_bytes: int) -> None:
        """Make it full but for so much."""
        self.empty()
        with (self.path / "filler").open("wb", buffering=0) as filler:
            filler.write(b"\0" * max(shutil.disk_usage(self.path).free - free_bytes, 0))

    def empty(self) -> None:
        """Make room again."""
        (self.path / "filler").unlink(missing_ok=True)


@dataclass
class LimitedFiles:
    """A folder like any other; but no file of this process may become larger than so much."""

    path: Path

    def leave(self, free_bytes: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (free_bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def empty(self) -> None:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


FullDisk = SmallDisk | LimitedFiles


def disk_of(kind: str, folder: Path) -> Iterator[FullDisk]:
    """Yield a disk of a kind, ``"disk"`` or ``"limit"``, or ``"any"`` that the machine has; skip where it has none."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)]
    may = kind != "limit" and shutil.which("mount") is not None
    if may and subprocess.run(command, capture_output=True, check=False).returncode == 0:
        yield SmallDisk(folder)
        subprocess.run(["umount", "-l", str(folder)], check=True)
        return
    if kind == "disk":
        pytest.skip("no file system can be mounted here; run as root on a machine of your own")
    limited = LimitedFiles(folder)
    yield limited
    limited.empty()
