"""The study's folder as a worker on another machine sees it.

Usually all machines share it, and a worker writes runs where the driver reads them. A marker in the folder tells: the
driver writes a word there that nobody else knows, and a worker that finds it is at the same place. A worker that does
not gets a folder of its own with the study's Python files, and sends each recorded run back with its result.
"""

from __future__ import annotations

import contextlib
import io
import secrets
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from workbench.config import BoostConfig
from workbench.core.files import write_text_atomically

__all__ = ["check_snapshots", "marked", "pack_run", "python_files", "study_folder_here", "unpack_run"]

_MARKER = ".ray-driver"
_LARGEST_RUN_BYTES = 64 * 1024**2
_LARGEST_CODE_BYTES = 8 * 1024**2


@contextlib.contextmanager
def marked(directory: Path) -> Iterator[str]:
    """Mark a study's folder while the block runs.

    Args:
        directory: Folder of the study.

    Yields:
        The word in the marker.
    """
    token = secrets.token_hex(16)
    write_text_atomically(directory / _MARKER, token)
    try:
        yield token
    finally:
        (directory / _MARKER).unlink(missing_ok=True)


def python_files(directory: Path) -> dict[str, bytes]:
    """Return name -> content of the Python files beside a study file, as long as they are few."""
    found: dict[str, bytes] = {}
    for path in sorted(directory.glob("*.py")):
        content = path.read_bytes()
        if sum(map(len, found.values())) + len(content) <= _LARGEST_CODE_BYTES:
            found[path.name] = content
    return found


def study_folder_here(directory: Path, token: str, code: Mapping[str, bytes]) -> tuple[Path, bool]:
    """Return where this machine keeps the study's runs, and whether the driver sees that folder.

    Args:
        directory: Folder of the study on the driver's machine.
        token: The word in its marker.
        code: Python files of the study.
    """
    try:
        if (directory / _MARKER).read_text(encoding="utf-8") == token:
            return directory, True
    except (OSError, UnicodeDecodeError):
        pass  # no such folder here, or another machine's of the same name
    own = Path(tempfile.mkdtemp(prefix="workbench-study-"))
    for name, content in code.items():
        (own / name).write_bytes(content)
    return own, False


def check_snapshots(configs: Sequence[BoostConfig], shared: bool) -> None:
    """Refuse a configuration whose weight snapshots lie in a folder this machine does not have.

    Args:
        configs: What a job trains.
        shared: Whether the study's folder is shared.

    Raises:
        ValueError: When they are out of reach.
    """
    if shared:
        return
    for config in configs:
        folder = config.dim_reduce.weight_load_dir
        if config.snapshots.count or (folder and not Path(folder).exists()):
            raise ValueError(
                "dim_reduce reads weight snapshots from the study's folder, which this node does not see; put the "
                "study into a folder that all nodes share"
            )


def pack_run(folder: Path, path: str) -> bytes | None:
    """Return a recorded run as bytes; None when it is larger than 64 MiB.

    Args:
        folder: This machine's folder of the study.
        path: Run directory, relative to it.
    """
    files = [file for file in sorted((folder / path).rglob("*")) if file.is_file()]
    if sum(file.stat().st_size for file in files) > _LARGEST_RUN_BYTES:
        return None
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        for file in files:
            archive.add(file, arcname=file.relative_to(folder / path).as_posix(), recursive=False)
    return buffer.getvalue()


def unpack_run(directory: Path, path: str, packed: bytes) -> str:
    """Write a run that a worker sent into the study's folder.

    Args:
        directory: Folder of the study.
        path: Run directory, relative to it, as the worker called it.
        packed: What ``pack_run`` gave.

    Returns:
        The run directory's name here: its own, or one with a number when that is taken.
    """
    asked = PurePosixPath(path)
    names = (asked, *(asked.with_name(f"{asked.name}.{attempt}") for attempt in range(2, 10_000)))
    free = next(name for name in names if not (directory / name).exists())
    target = directory / free
    target.mkdir(parents=True)
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        archive.extractall(target, filter="data")  # Python refuses links and paths that lead outside
    return free.as_posix()
