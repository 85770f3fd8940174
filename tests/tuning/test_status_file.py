"""``status.json``: what a study keeps for those who only look, and when it is not to be believed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import optuna
import pytest

from tests.kit.fake_runner import STUDY, make_fake, making, tuned, write_study
from workbench.core.checksums import SEAL, sealed
from workbench.core.process_identity import identity, machine
from workbench.study import StudyFile, StudyStoppedError, join_study, read_result, tune
from workbench.study.answer import status_keeper
from workbench.study.answer.status_keeper import StatusKeeper
from workbench.study.run.job import Job
from workbench.study.store.status_file import STATUS_NAME, KeptStatus, phase_now, read_status
from workbench.study.store.storage import default_storage, find_study, open_storage

SHORT = STUDY.replace("n_trials = 10", "n_trials = 3").replace("candidates = 2", "candidates = 1")
SEARCH = SHORT.replace("[confirm]", "[confirm]\nenabled = false")


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a study that ran to its end."""
    directory = write_study(tmp_path_factory.mktemp("ended") / "study", SHORT)
    tuned(directory)
    return directory


@pytest.fixture
def study(ended: Path) -> Iterator[Path]:
    """Return the same folder, whose kept state is put back as it was."""
    kept = {path: path.read_bytes() for path in (ended / STATUS_NAME, ended / "study.toml")}
    yield ended
    for path, content in kept.items():
        path.write_bytes(content)


def known_of(study: Path) -> KeptStatus:
    """Return what is kept of a study, which is to be believed."""
    found = read_status(study)
    assert found is not None
    return found


def state_of(content: bytes) -> dict[str, Any]:
    """Return what a status file says of the moment it was written, without the checksum of that."""
    state: dict[str, Any] = json.loads(content)["state"]
    return {name: value for name, value in state.items() if name != SEAL}


def with_state(content: bytes, state: dict[str, Any]) -> bytes:
    """Return a status file with another such state."""
    return content[: content.rindex(b',\n"state": ')] + b',\n"state": ' + json.dumps(state).encode() + b"}\n"


def test_a_finished_study_is_read_back_whole(study: Path) -> None:
    known = known_of(study)
    assert known.process is None
    assert known.age_seconds < 600.0
    assert repr(known.result) == repr(read_result(study))  # NaN equals nothing
    assert known.result.exports == read_result(study).exports


def test_damage_and_other_forms_are_not_believed(study: Path) -> None:
    path = study / STATUS_NAME
    content = path.read_bytes()
    middle = content.index(b"complete")
    for damaged in (b"", content[:-20], content[:middle] + b"C" + content[middle + 1 :], b"[]", b"{}", b"\xff"):
        path.write_bytes(damaged)
        assert read_status(study) is None, damaged[:40]
    stored = state_of(content)
    for other in (stored, sealed({**stored, "version": "0.1"}), sealed({**stored, "crc32 of kept": 1})):
        path.write_bytes(with_state(content, other))
        assert read_status(study) is None
    nobody = b'{"name": "x"}'
    state = sealed({**stored, "crc32 of kept": zlib.crc32(nobody)})
    path.write_bytes(with_state(b'{"kept": ' + nobody + b',\n"state": {}}\n', state))
    assert read_status(study) is None
    path.unlink()
    assert read_status(study) is None
    path.write_bytes(content)
    assert read_status(study) is not None


def test_what_changes_afterwards_counts(study: Path) -> None:
    file = study / "study.toml"
    file.write_text(file.read_text() + "\n# seen\n")
    assert read_status(study) is None
    file.write_text(file.read_text().removesuffix("\n# seen\n"))
    assert read_status(study) is not None
    more = study / "result" / "boost_config.other.json"
    more.write_text("{}")
    assert read_status(study) is None
    more.unlink()
    assert read_status(study) is not None
    assert read_status(study / "study.toml") is None  # sentences name the folder as it was given


def test_a_database_that_is_newer_is_read(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", SEARCH)
    tuned(directory)
    assert read_status(directory) is not None
    storage = open_storage(default_storage(directory))
    find_study(storage, "study").enqueue_trial({"level": "O1"})
    storage.engine.dispose()
    assert read_status(directory) is None
    assert "waiting" in read_result(directory).counts.others


@pytest.mark.parametrize("way", ["tune", "worker"])
def test_who_works_is_known_while_trials_run(tmp_path: Path, way: str) -> None:
    directory = write_study(tmp_path / "study", SEARCH)
    seen: list[tuple[int | None, dict[str, int]]] = []

    def watch(_: Job[Any]) -> None:
        known = read_status(directory)
        seen.append((None, {}) if known is None else (known.process, dict(known.result.counts.others)))

    run: Any = tune if way == "tune" else join_study
    run(directory, make_experimenter=making(before=watch))
    assert seen[0] == (os.getpid(), {"running": 1})
    known = known_of(directory)
    assert known.process is None
    assert known.result.counts.n_finished == 3


def test_the_phase_of_the_work_is_known_while_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_keeper, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(status_keeper, "_SHARE", math.inf)
    seen: list[tuple[str, str]] = []
    watching = making(before=lambda _: seen.append((known_of(tmp_path).phase, phase_now(tmp_path))))
    tuned(tmp_path, SHORT, make_experimenter=watching)
    assert list(dict.fromkeys(seen)) == [("search", "search"), ("confirm", "confirm")]
    assert known_of(tmp_path).phase == phase_now(tmp_path) == ""


def test_a_study_that_was_stopped_leaves_its_last_state(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", SEARCH)
    finished: list[int] = []
    with pytest.raises(StudyStoppedError):
        tune(
            directory,
            make_experimenter=make_fake,
            on_progress=lambda progress: finished.append(progress.trials),
            stop=lambda: bool(finished) and finished[-1] >= 2,
        )
    known = known_of(directory)
    assert known.process is None
    assert known.result.counts == read_result(directory).counts
    assert known.result.counts.n_finished == 2


def test_the_state_of_a_killed_process_holds_as_long_as_its_database(study: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    path = study / STATUS_NAME
    content = path.read_bytes()
    stored = {**state_of(content), "process": {"pid": ended.pid, "started": 1, "machine": machine()}}
    path.write_bytes(with_state(content, sealed(stored)))
    assert known_of(study).process is None
    newer = {**stored, "database": {"study.db": [1, 2]}}
    path.write_bytes(with_state(content, sealed(newer)))
    assert read_status(study) is None
    elsewhere = {"machine": "another", **identity(os.getpid())}  # which cannot be seen from here
    path.write_bytes(with_state(content, sealed({**newer, "process": elsewhere})))
    assert read_status(study) is None


def test_it_is_written_once_a_second_and_in_a_hundredth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now, written, cost = [100.0], [0], [0.0]

    def write(*_: Any, **__: Any) -> None:
        written[0] += 1
        now[0] += cost[0]

    monkeypatch.setattr(status_keeper.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(status_keeper, "stamp_of", lambda study: {})
    monkeypatch.setattr(status_keeper, "standing_result", lambda *_: None)
    monkeypatch.setattr(status_keeper, "write_status", write)
    keeper = StatusKeeper("study", cast(optuna.Study, None), cast(StudyFile, None))

    def writes_within(seconds: float) -> int:
        before, end = written[0], now[0] + seconds
        while now[0] < end:
            keeper.refresh("search")
            now[0] += 0.25
        return written[0] - before

    assert writes_within(10.0) == 10
    cost[0] = 0.5  # of thousands of trials
    assert writes_within(100.0) == 2


def test_a_state_that_cannot_be_written_ends_no_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    directory = write_study(tmp_path / "study", SEARCH)
    (directory / STATUS_NAME).mkdir()
    result = tuned(directory, trials=1)
    assert result.counts.n_finished == 1
    assert [one.message.startswith("status.json could not be written") for one in caplog.records] == [True]


def test_a_database_elsewhere_has_no_kept_state(tmp_path: Path) -> None:
    directory = write_study(tmp_path / "study", SEARCH)
    tuned(directory, trials=1, storage=f"sqlite:///{tmp_path / 'other.db'}")
    assert not (directory / STATUS_NAME).exists()
