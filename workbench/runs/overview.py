"""Find, list and remove run directories, without loading steps or what reads them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench.runs import writer_lock
from workbench.runs.errors import RunError
from workbench.runs.json_lines import intact_size

_DEPTH = 4  # runs/<study>/<run id>, with room for one more level on either side


def find_runs(root: str | os.PathLike[str]) -> list[Path]:
    """Return the run directories below a folder, four levels deep, symbolic links left out, sorted by path.

    A RunError says that there is no such folder.
    """
    root = Path(root)
    if not root.is_dir():
        raise RunError(f"{root} is not a folder of runs: {why_no_folder(root)}")
    return sorted(_walk(root, _DEPTH))


def run_overviews(root: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Return the rows of `list_runs` as plain values."""
    rows = [_overview(Path(root), path) for path in find_runs(root)]
    return sorted(rows, key=lambda row: (row["started"], row["run"]), reverse=True)


def prune_runs(
    root: str | os.PathLike[str],
    *,
    keep: int | None = None,
    older_than_days: float | None = None,
    dry_run: bool = False,
) -> list[Path]:
    """Remove old runs, and only runs.

    A run goes when it is not among the ``keep`` newest below ``root`` and has not changed for ``older_than_days``; a
    rule left out lets every run go. Runs that are being written stay, and so do folders that are not clearly runs, and
    symbolic links. Return the run directories removed, or of a ``dry_run`` those that would be, the oldest first.

    Raises:
        ValueError: When neither rule is given, or one is out of range.
        RunError: When there is no such folder.
        OSError: When a run cannot be removed.
    """
    if keep is None and older_than_days is None:
        raise ValueError("give `keep`, `older_than_days` or both; without a rule every run would go")
    if keep is not None and not keep >= 0:
        raise ValueError(f"`keep` must be at least 0, got {keep}")
    if older_than_days is not None and not 0 <= older_than_days < math.inf:
        raise ValueError(f"`older_than_days` must be at least 0 and finite, got {older_than_days}")
    now = time.time()
    newest_first = sorted(find_runs(root), key=lambda path: (_started(path), path.name), reverse=True)
    chosen = [
        path
        for path in reversed(newest_first[keep or 0 :])
        if _is_certainly_run(path)
        and not writer_lock.being_written(path, finished=is_finished(path), now=now)
        and now - writer_lock.last_change(path) >= (older_than_days or 0.0) * 86_400.0
    ]
    if not dry_run:
        for path in chosen:
            shutil.rmtree(path)
    return chosen


def is_run(path: Path) -> bool:
    """Return whether a folder is a run directory, going on, killed or finished."""
    return (path / "environment.json").is_file()


def is_finished(run: Path) -> bool:
    """Return whether a run has come to its end; one that goes on or was killed has no summary."""
    return (run / "summary.json").exists()


def why_no_folder(path: Path) -> str:
    """Return, as a clause, why a path is not a folder."""
    return "it is a file" if path.exists() else "there is no such folder"


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    if is_run(folder) and (folder / "config.json").is_file():
        yield folder
        return
    if depth == 0:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:  # not ours to read, or gone meanwhile
        for entry in entries:
            if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                yield from _walk(Path(entry.path), depth - 1)


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file of a run directory; a RunError when there is none."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise RunError(f"{path.parent} is not a run directory: it has no {path.name}") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, RecursionError) as error:  # wrong JSON and wrong UTF-8 alike
        raise RunError(f"{path}: not valid JSON ({error}); the file was damaged after it was written") from error
    if not isinstance(values, dict):
        raise RunError(f"{path}: must hold a JSON object, got {type(values).__name__}")
    return values


def _read_json_or_nothing(path: Path) -> dict[str, Any]:
    try:
        return read_json(path)
    except RunError:
        return {}


def _overview(root: Path, path: Path) -> dict[str, Any]:
    environment = _read_json_or_nothing(path / "environment.json")
    summary = _read_json_or_nothing(path / "summary.json")
    recorded = summary.get("recorded")
    if isinstance(recorded, Mapping):
        steps, overflows = _count(recorded.get("steps")), _count(recorded.get("overflow_steps"))
    else:
        steps, overflows = _count_lines(path / "steps.jsonl")
    return {
        "run": text_of(path.relative_to(root).as_posix()),
        "started": datetime.fromtimestamp(_started(path), UTC),
        "task": text_of(environment.get("task")),
        "level": text_of(environment.get("level")),
        "steps": steps,
        "final_metric": metric_of(summary),
        "overflows": overflows,
        "size_bytes": _size(path),
        "finished": is_finished(path),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0


def text_of(value: Any) -> str:
    """Return text that can be shown and stored: a file's name or content may not be valid Unicode."""
    return str(value or "").encode("utf-8", "backslashreplace").decode()


def _size(folder: Path) -> int:
    total = 0
    for entry in folder.rglob("*"):
        with contextlib.suppress(OSError):  # gone in this moment: the run has just ended, or was pruned
            total += entry.lstat().st_size if entry.is_file() else 0
    return total


def _count_lines(path: Path) -> tuple[int, int]:
    """Return steps and overflows of a running run. A quote inside a name is escaped, so counting text is exact."""
    try:
        content = path.read_bytes()
    except OSError:
        return 0, 0
    end = intact_size(content)
    return content.count(b"\n", 0, end), content.count(b'"overflow":true', 0, end)


def _started(path: Path) -> float:
    """Return when a run began, in seconds since the epoch; the folder's time if that is not recorded."""
    try:
        started = datetime.fromisoformat(read_json(path / "environment.json")["started"])
        return (started if started.tzinfo else started.replace(tzinfo=UTC)).timestamp()
    except (RunError, KeyError, ValueError, TypeError, OverflowError):
        return path.stat().st_mtime


def _is_certainly_run(path: Path) -> bool:
    # environment.json is a common name; only our recorder puts a schema version and the folder's kind of files there.
    return "schema_version" in _read_json_or_nothing(path / "environment.json") and any(
        (path / name).is_file() for name in ("steps.jsonl", "steps.parquet")
    )


def metric_of(summary: Mapping[str, Any]) -> float:
    """Return the metric of a summary; NaN without one."""
    value = summary.get("metric")
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63) else math.nan
