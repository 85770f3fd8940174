"""One bit of a file turns: what is read is what was written, or a sentence says that it is damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.kit.fake_runner import make_fake, write_study
from tests.kit.runs import without_checksums
from tests.kit.set_up_search import run, write
from tests.kit.surface_runner import SurfaceRunner
from tests.reliability.flipped_bits import KEPT, flip, flip_and_read, make_run
from workbench.cli import main
from workbench.runs import read_run
from workbench.study import tune
from workbench.study.errors import StudyFailedError

MANY = (pytest.mark.long, pytest.mark.timeout(1200))


@pytest.mark.parametrize("n_flips", [30, pytest.param(1000, marks=MANY)])
@pytest.mark.parametrize("name", KEPT)
def test_no_flipped_bit_is_read_as_something_else(name: str, n_flips: int) -> None:
    assert flip_and_read(name, n_flips, seed=0) == []


@pytest.mark.parametrize("n_flips", [10, pytest.param(200, marks=MANY)])
def test_no_flipped_bit_of_a_study_is_called_a_bug(
    n_flips: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    write(folder, plain_runs=0)
    run(folder, SurfaceRunner(folder), trials=2)
    path, rng, told = folder / "study.db", np.random.default_rng(2), list[str]()
    whole = path.read_bytes()
    for _ in range(n_flips):
        for left in folder.glob("study.db*"):
            left.unlink()
        path.write_bytes(whole)
        flip(path, rng)
        with pytest.raises(SystemExit):
            main(["status", str(folder)])
        said = capsys.readouterr().err
        told += [said] * ("bug" in said or "Traceback" in said)
    assert not told


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_study(tmp_path_factory.mktemp("finished") / "s")
    tune(directory, trials=2, make_experimenter=make_fake)
    return directory


@pytest.mark.parametrize(("at", "length"), [(0, 1), (4096, 32_768)], ids=["its first byte", "32 kB of it"])
def test_a_study_whose_file_is_spoilt_begins_again_when_told_so(
    finished: Path, tmp_path: Path, at: int, length: int
) -> None:
    directory = shutil.copytree(finished, tmp_path / "s")
    for left in ("study.db-wal", "study.db-shm", "status.json"):
        (directory / left).unlink(missing_ok=True)
    content = bytearray((directory / "study.db").read_bytes())
    content[at : at + length] = bytes(one ^ 0xFF for one in content[at : at + length])
    (directory / "study.db").write_bytes(content)
    with pytest.raises(StudyFailedError, match=r"database is damaged .*--fresh"):
        tune(directory, make_experimenter=make_fake)
    assert tune(directory, trials=1, make_experimenter=make_fake, fresh=True).counts.n_finished == 1
    (archived,) = (directory / "archive").iterdir()
    assert (archived / "study.db").read_bytes() == bytes(content)


def test_a_run_of_an_earlier_version_is_read_without_checksums(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert read_run(tmp_path / "one").summary["recorded"]["files"].keys() >= {"steps.parquet", "config.json"}
    without_checksums(tmp_path / "one")
    assert read_run(tmp_path / "one").finished
