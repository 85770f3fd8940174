"""A disk that fills up at any moment: one sentence, nothing half-written, and the same command goes on afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.kit.fake_runner import STUDY, make_fake, write_study
from tests.reliability.full_disk import FullDisk, disk_of
from tests.telemetry.run_samples import some_steps
from workbench.cli.failures import exit_code_of, sentence_of
from workbench.config import BoostConfig
from workbench.runs import RunRecorder, TelemetryError, list_runs, read_run
from workbench.study import export_study, read_result, tune

SMALL = (
    STUDY.replace("n_trials = 10", "n_trials = 3").replace("seeds_max = 6", "seeds_max = 3")
    + "\n[sampler]\nname = 'random'\n"
)
MOMENTS = [0, 60_000, 150_000, 190_000, 220_000, 260_000]


@pytest.fixture(params=["disk", "limit"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    yield from disk_of(request.param, tmp_path / "disk")


@pytest.fixture(params=["any", pytest.param("limit", marks=pytest.mark.long)])
def one_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FullDisk]:
    yield from disk_of(request.param, tmp_path / "disk")


def failure_of(act: Callable[[], Any]) -> BaseException | None:
    try:
        act()
    except Exception as error:  # whatever it is, it is looked at
        return error
    return None


def assert_told(error: BaseException) -> None:
    """The error is one sentence about the disk; a storage that cannot be opened at all counts as wrong input."""
    sentence = sentence_of(error)
    assert exit_code_of(error) == (2 if "cannot be opened" in sentence else 1), sentence
    assert "bug of the workbench" not in sentence, sentence
    assert any(word in sentence for word in ("space", "full", "too large", "disk")), sentence


def assert_nothing_half(folder: Path) -> None:
    for path in folder.rglob("*"):
        assert ".tmp" not in path.name, path
        if path.suffix == ".json":
            json.loads(path.read_bytes())


@pytest.mark.parametrize("free", [0, 30_000, 90_000, 200_000])
def test_a_run_keeps_what_fitted_and_can_be_continued(free: int, disk: FullDisk) -> None:
    disk.leave(free)
    n_written = 0
    recorders: list[RunRecorder] = []

    def record() -> None:
        nonlocal n_written
        recorders.append(RunRecorder.create(disk.path / "runs", {}, {}, "run"))
        for first in range(0, 4000, 100):
            recorders[0].write(some_steps(first, 100))
            n_written = first + 100
        recorders[0].finish({"metric": 1.0})

    error = failure_of(record)
    disk.empty()
    assert_nothing_half(disk.path)
    if recorders:
        recorder = recorders[0]
        assert len(read_run(recorder.path).steps) == n_written
        if error is not None:
            recorder.close()
            recorder = RunRecorder.reopen(recorder.path)
            recorder.write(some_steps(n_written, 100))
            recorder.finish({"metric": 1.0})
            assert len(read_run(recorder.path).steps) == n_written + 100
    if error is not None:
        assert isinstance(error, TelemetryError)
        assert_told(error)
    assert not list_runs(disk.path / "runs").empty if recorders else True


@pytest.mark.slow
def test_a_study_that_met_a_full_disk_goes_on(one_disk: FullDisk) -> None:
    directory = write_study(one_disk.path / "s", SMALL)
    n_failed = 0
    for moment in MOMENTS:
        one_disk.leave(moment)
        error = failure_of(lambda: tune(directory, make_experimenter=make_fake))
        one_disk.empty()
        assert_nothing_half(directory / "result")
        if error is not None:
            n_failed += 1
            assert_told(error)
    assert n_failed
    result = tune(directory, make_experimenter=make_fake)
    assert not [trial for trial in result.trials if trial.state not in ("complete", "pruned")]
    assert [trial.number for trial in result.trials] == list(range(len(result.trials)))
    for path in result.exported.values():
        BoostConfig.from_json(path)


@pytest.mark.slow
def test_an_export_leaves_the_former_files_or_new_ones(one_disk: FullDisk, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", SMALL)
    tune(directory, make_experimenter=make_fake)
    for free in (0, 5000):
        one_disk.leave(free)
        out = one_disk.path / f"out-{free}"
        error = failure_of(lambda out=out: export_study(directory, out))
        one_disk.empty()
        if error is not None:
            assert_told(error)
        for path in out.glob("*.json") if out.exists() else ():
            json.loads(path.read_bytes())
        assert not list(out.glob(".*")) if out.exists() else True
    assert export_study(directory, one_disk.path / "out-0").exported
    assert read_result(directory).trials


@pytest.mark.slow
def test_a_full_disk_of_runs_alone_fails_no_trial(
    one_disk: FullDisk, workbench: Command, study: Path, tmp_path: Path
) -> None:
    (study / "runs").symlink_to(one_disk.path)
    assert workbench("tune", study, "--trials", 1).code == 0
    one_disk.leave(0)
    outcome = workbench("tune", study)
    one_disk.empty()
    assert outcome.code == 1
    assert "space" in outcome.sentence or "too large" in outcome.sentence
    first, *others = read_result(study).trials
    assert first.state == "complete"
    assert {trial.state for trial in others} <= {"waiting"}, "the database had room, the run had none"
    assert workbench("tune", study).code == 0
    assert {trial.state for trial in read_result(study).trials} <= {"complete", "pruned"}


@pytest.mark.slow
def test_commands_on_a_full_disk_end_with_one_sentence(
    one_disk: FullDisk, workbench: Command, study: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = ("train", "--task", "wine.py", "--steps", 3000, "--device", "cpu", "--out", one_disk.path / "runs")
    one_disk.leave(60_000)
    outcome = workbench(*train)
    one_disk.empty()
    assert outcome.code == 1
    assert "space" in outcome.sentence or "too large" in outcome.sentence
    assert_nothing_half(one_disk.path)
    assert len(list_runs(one_disk.path / "runs")) == 1
    assert workbench(*train[:4], 20, *train[5:]).code == 0
    home = one_disk.path / "study"
    home.mkdir()
    (home / "study.toml").write_text(
        (study / "study.toml").read_text().replace('"../wine.py"', f'"{here / "wine.py"}"')
    )
    for free in (0, 220_000):
        one_disk.leave(free)
        outcome = workbench("tune", home)
        one_disk.empty()
        assert outcome.code in (0, 1)
        assert outcome.code == 0 or outcome.sentence
        assert_nothing_half(home / "result")
    assert workbench("tune", home).code == 0


@pytest.mark.parametrize(
    "occupied", ["runs", pytest.param("result", marks=pytest.mark.slow), pytest.param("out", marks=pytest.mark.slow)]
)
def test_a_file_in_the_place_of_a_folder_is_one_sentence(occupied: str, tmp_path: Path) -> None:
    directory = write_study(tmp_path / "s", SMALL)
    (directory / occupied).write_text("")
    if occupied == "runs":
        error = failure_of(lambda: RunRecorder.create(directory / "runs", {}, {}))
        assert isinstance(error, TelemetryError)
        assert "runs" in sentence_of(error)
        return
    error = failure_of(lambda: tune(directory, make_experimenter=make_fake))
    if occupied == "out":
        assert error is None
        error = failure_of(lambda: export_study(directory, directory / "out"))
    assert error is not None
    assert occupied in sentence_of(error)
    assert "bug of the workbench" not in sentence_of(error)
