"""What `workbench view` shows of a folder: a study's report, a run, or a list of both.

Pages are those of ``report``. A page is made again only when its files have changed, and less often the longer that
takes: a study of thousands of trials takes seconds to read.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import threading
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote

from workbench.core.records import StudyResult
from workbench.report import folder_page_html, overlay_html, read_sources, run_report_html, study_report_html
from workbench.report.page import RunChoice, Served
from workbench.report.run_report import MOST_HISTOGRAMS
from workbench.report.trial_data import reference_of

_DEPTH = 3  # of studies below a folder
_MOST_RUNS = 200  # that are listed
_MOST_OVERLAID = 12  # more lines than that cannot be told apart
_WIDEST = 1 << 20  # steps that a loss is averaged over
_QUIET_SECONDS = 180.0  # without a change, after which a study or run counts as left alone
_CLOSING = 5.0  # seconds after its report in which a study still closes its database
_PAUSE = 3.0  # a page rests this many times as long as it took to make


class ViewError(ValueError):
    """There is nothing to show; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class _Page:
    signature: str  # of the files it was made from
    version: str
    html: str
    rests_until: float  # time.monotonic() before which it is not made again


class Pages:
    """Pages of a folder (a study, a run, or one that holds some) and of everything below it, and of nothing else.

    ``storage`` is the Optuna storage URL of the study in ``root``; None reads the SQLite file beside it. Where there is
    no such folder, it is a ViewError.
    """

    def __init__(self, root: str | Path, *, storage: str | None = None) -> None:
        asked = Path(root)
        if asked.name == "study.toml" and asked.is_file():
            asked = asked.parent
        if not asked.is_dir():
            why = "it is a file" if asked.exists() else "there is no such folder"
            raise ViewError(f"{root}: {why}; name a study, a run directory, or a folder that holds some")
        self.root, self.storage = asked.resolve(), storage
        if storage is not None and not _is_study(self.root):
            raise ViewError(f"--storage goes with a study, and {root} has no study.toml")
        self._made: dict[Path, _Page] = {}
        self._lock = threading.Lock()  # Optuna's verbosity and the warnings filter belong to one thread at a time

    def answer(self, path: str, query: Mapping[str, Sequence[str]]) -> tuple[HTTPStatus, str]:
        """Return the page of a folder below the root, or a sentence if there is none or something on it is wrong."""
        folder = self._below_root(path)
        if folder is None:
            return HTTPStatus.NOT_FOUND, "there is no such folder here"
        asked = {name: values[-1] for name, values in query.items()}
        part = asked.get("part")
        try:
            with self._lock:
                if part == "overlay":
                    return HTTPStatus.OK, self._overlay(query.get("run", ()), asked)
                page = self._page(folder)
        except (ValueError, RuntimeError, OSError) as error:  # ours are sentences, and name the file
            return HTTPStatus.UNPROCESSABLE_ENTITY, str(error)
        if part != "main":
            return HTTPStatus.OK, page.html
        if asked.get("known") == page.version:
            return HTTPStatus.NO_CONTENT, ""
        begin, end = page.html.index("<main"), page.html.rindex("</main>") + len("</main>")
        return HTTPStatus.OK, page.html[begin:end]

    def _below_root(self, path: str) -> Path | None:
        """Return the folder that a path names; None if there is none, or if it is outside, even by a link."""
        if "\0" in path:
            return None
        folder = (self.root / path).resolve()
        return folder if folder.is_relative_to(self.root) and folder.is_dir() else None

    def _page(self, folder: Path) -> _Page:
        known, now = self._made.get(folder), time.monotonic()
        if known is not None and now < known.rests_until:
            return known
        kind = _StudyPage if _is_study(folder) else _RunPage if _is_run(folder) else _FolderPage
        made_by = kind(self, folder)
        signature = made_by.signature()
        if known is not None and known.signature == signature:
            return known
        version = hashlib.sha256(signature.encode()).hexdigest()[:16]
        text = made_by.html(version)
        took = time.monotonic() - now
        self._made[folder] = _Page(signature, version, text, time.monotonic() + _PAUSE * took)
        return self._made[folder]

    def _overlay(self, paths: Sequence[str], asked: Mapping[str, str]) -> str:
        if len(paths) > _MOST_OVERLAID:
            raise ViewError(f"{len(paths)} runs are chosen, and at most {_MOST_OVERLAID} are drawn; leave some out")
        chosen: dict[str, Path] = {}
        for path in paths:
            label, _, place = path.rpartition("//")  # no path has two slashes in a row
            folder = self._below_root(place)
            if folder is None or not _is_run(folder):
                raise ViewError(f"{place}: there is no such run here any more")
            chosen[label or folder.name] = folder
        window = asked.get("window", "1")
        if not window.isdecimal():
            raise ViewError(f"`window` must be a whole number of steps, got {window!r}")
        return str(overlay_html(chosen, window=min(max(1, int(window)), _WIDEST), x=asked.get("x", "step")))

    def up_from(self, folder: Path) -> tuple[str, str] | None:
        """Return the address and name of a folder's parent; None for the root."""
        return None if folder == self.root else ("../", folder.parent.name)

    def choice(self, folder: Path, name: str, more: str, address: str, *, chosen: bool) -> RunChoice:
        """Return a run to be laid over others; its path carries the name that its curves will have."""
        label = f"{name} · {more}" if more else name
        return RunChoice(f"{name}//{folder.relative_to(self.root).as_posix()}", label, address, chosen)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes the page of one folder; its ``signature`` changes when the page would."""

    _pages: Pages
    _folder: Path


class _StudyPage(_Maker):
    @property
    def _storage(self) -> str | None:
        return self._pages.storage if self._folder == self._pages.root else None

    @property
    def _command(self) -> str:
        return f"`workbench tune {shlex.quote(str(self._folder))}`"

    def signature(self) -> str:
        """Return what changes when the study does; for a database elsewhere, only the time."""
        names = ("study.toml", "study.db", "study.db-wal", "status.json")
        files = [self._folder / name for name in names]
        result = self._folder / "result"
        files += sorted(result.iterdir()) if result.is_dir() else []
        elsewhere = "" if self._storage is None else f"{time.time() // 5}"
        return f"{_stamps(files)} {elsewhere} {_is_quiet(files)} {self._phase()}"

    def _phase(self) -> str:
        """Return what a process is doing for the study; empty where none is at work, or that is not known here."""
        from workbench.study.store.status_file import phase_now

        return phase_now(self._folder) if self._storage is None else ""

    def html(self, version: str) -> str:
        from workbench.study import StudyError, read_result

        served = Served(version, up=self._pages.up_from(self._folder))
        if self._storage is None and not (self._folder / "study.db").exists():
            return self._without_database(served)
        try:
            answer = read_result(self._folder, storage=self._storage)
        except StudyError as error:
            return folder_page_html(self._folder.name, note=str(error), served=served)
        state, is_live = self._state(answer)
        runs = [self._choice(trial, answer) for trial in answer.trials if trial.run_path]
        known = [one for one in runs if one is not None]
        served = replace(served, state=state, is_live=is_live, runs=known[:_MOST_RUNS])
        return study_report_html(answer, read_sources(answer), served=served)

    def _without_database(self, served: Served) -> str:
        """Return the report beside a study whose database is elsewhere, or that the study has not begun."""
        report = self._folder / "result" / "report.html"
        if report.is_file():
            return report.read_text(encoding="utf-8")
        note = f"This study has not begun. {self._command} begins it, and this page follows."
        return folder_page_html(self._folder.name, note=note, served=served)

    def _choice(self, trial: Any, answer: StudyResult) -> RunChoice | None:
        folder = self._pages._below_root(str((self._folder / trial.run_path).absolute()))
        if folder is None:
            return None
        more = trial.summary if trial.number else ""
        chosen = trial.number in {0, reference_of(answer)}
        return self._pages.choice(folder, trial.label, more, f"{quote(trial.run_path)}/", chosen=chosen)

    def _state(self, answer: StudyResult) -> tuple[str, bool]:
        running = answer.counts.others.get("running", 0)
        done, more = answer.progress, self._command
        parts = [self._phase(), done, f"{running} running" if running else ""]
        live = f"Live: {', '.join(filter(None, parts))}. This page follows."
        if self._phase():
            return live, True
        if answer.is_over:
            return f"This study has ended; {done}.", False
        changed = _changed([self._folder / name for name in ("study.db", "study.db-wal")])
        written = _changed([self._folder / "result" / "report.html"])  # the last thing that a command does
        if self._storage is None and answer.exported and not running and changed < written + _CLOSING:
            return f"This study has its answer; {done}. {more} searches further.", False
        if self._storage is None and time.time() - changed > _QUIET_SECONDS:
            since = time.strftime("%Y-%m-%d %H:%M", time.localtime(changed))
            return f"No work on this study since {since}; {done}. {more} continues it.", False
        return live, True


class _RunPage(_Maker):
    def signature(self) -> str:
        files = sorted(self._folder.iterdir())
        return f"{_stamps(files)} {_is_quiet(files)}"

    def html(self, version: str) -> str:
        from workbench.runs import read_run

        run = read_run(self._folder, most_histograms=MOST_HISTOGRAMS)
        is_live = not run.finished and not _is_quiet(list(self._folder.iterdir()))
        state = "This run has ended." if run.finished else "This run was ended before its time."
        state = f"Live: {len(run.steps)} steps so far. This page follows." if is_live else state
        served = Served(version, state, is_live, self._pages.up_from(self._folder))
        return run_report_html(run, served=served)


class _FolderPage(_Maker):
    def signature(self) -> str:
        """Return what changes when a study or a run comes or ends."""
        from workbench.runs import find_runs

        studies = [path / "study.toml" for path in _studies_below(self._folder, _DEPTH)]
        answers = [path.parent / "result" for path in studies]
        runs = [path / name for path in find_runs(self._folder) for name in ("steps.jsonl", "summary.json")]
        return _stamps([*studies, *answers, *runs])

    def html(self, version: str) -> str:
        from workbench.runs import list_runs

        frame = list_runs(self._folder)
        rows: list[dict[str, Any]] = [
            {**{str(name): value for name, value in row.items()}, "address": f"{quote(row['run'])}/"}
            for row in frame.head(_MOST_RUNS).to_dict("records")
        ]
        first = next((row["run"] for row in rows if row["level"] == "O0"), None)
        newest = rows[0]["run"] if rows else None
        choice, chosen = self._pages.choice, {first, newest}
        runs = [
            choice(self._folder / row["run"], row["run"], _run_facts(row), row["address"], chosen=row["run"] in chosen)
            for row in rows
        ]
        studies = [_listed(path, self._folder) for path in _studies_below(self._folder, _DEPTH)]
        served = Served(version, up=self._pages.up_from(self._folder), runs=runs)
        return folder_page_html(self._folder.name, studies=studies, runs=rows, n_runs=len(frame), served=served)


def _is_study(folder: Path) -> bool:
    return (folder / "study.toml").is_file()


def _is_run(folder: Path) -> bool:
    return (folder / "environment.json").is_file() and (folder / "config.json").is_file()


def _stamps(files: Sequence[Path]) -> str:
    """Return a text that changes when one of these files does, comes or goes."""
    return " ".join(f"{path.name}:{found.st_mtime_ns}:{found.st_size}" for path, found in _there(files))


def _changed(files: Sequence[Path]) -> float:
    """Return when the newest of these files changed, in seconds since the epoch; 0 where there is none."""
    return max((found.st_mtime for _, found in _there(files)), default=0.0)


def _there(files: Sequence[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield those of these files that are there, with what the system knows of each."""
    for path in files:
        try:
            found = path.stat()
        except OSError:  # there is none, or it went in this moment
            continue
        yield path, found


def _is_quiet(files: Sequence[Path]) -> bool:
    return time.time() - _changed(files) >= _QUIET_SECONDS


def _studies_below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the studies of a folder, sorted by path; those inside another study and behind links are left out."""
    try:
        entries = sorted(path for path in folder.iterdir() if path.is_dir() and not path.is_symlink())
    except OSError:  # not ours to read
        return
    for path in entries:
        if path.name.startswith("."):
            continue
        if _is_study(path):
            yield path
        elif depth > 1 and not _is_run(path):
            yield from _studies_below(path, depth - 1)


def _listed(path: Path, folder: Path) -> dict[str, Any]:
    """Return a study's entry in a list, from its file alone: reading its trials takes seconds."""
    place = path.relative_to(folder).as_posix()
    has_answer = any((path / "result").glob("boost_config.*.json"))
    state = "has its answer" if has_answer else "begun" if (path / "study.db").exists() else "not begun"
    row = {"name": place, "address": f"{quote(place)}/", "state": state, "task": "", "trials": "", "objective": ""}
    try:
        section = tomllib.loads((path / "study.toml").read_text(encoding="utf-8")).get("study", {})
    except (OSError, ValueError):  # its own page says what is wrong with it
        return row
    asked = {"task": "task", "trials": "n_trials", "objective": "objective"}
    return row | {name: section.get(key, "") for name, key in asked.items()}


def _run_facts(row: Mapping[str, Any]) -> str:
    parts = (row["task"], row["level"], f"{row['steps']} steps", "" if row["finished"] else "not finished")
    return " · ".join(part for part in parts if part)
