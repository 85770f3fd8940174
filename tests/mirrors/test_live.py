"""A run is mirrored while it goes on, and whatever happens to a mirror, the run goes on."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.experiments.small_tasks import small_task
from tests.kit.processes import wait_until
from tests.kit.runs import read_back
from tests.mirrors.fake_mirror import (
    CONFIG,
    ENVIRONMENT,
    SUMMARY,
    FakeMirror,
    events_of_a_run,
    steps_of_a_run,
    values_of,
)
from workbench.api import train
from workbench.cli import main
from workbench.config import BoostConfig
from workbench.core.records import EventKind
from workbench.runs.mirrors import LiveMirrors, MirrorError, MirrorWarning, mirrors_named
from workbench.training.checkpoint_folder import CheckpointFolder
from workbench.training.run import RunMonitor, RunRequest, RunResult, run_task


def begun(*mirrors: FakeMirror, wait_seconds: float = 30.0) -> LiveMirrors:
    live = LiveMirrors(mirrors, wait_seconds=wait_seconds)
    live.begin("run", CONFIG.to_dict(), ENVIRONMENT)
    return live


def mirroring() -> list[threading.Thread]:
    """Return the threads that feed mirrors."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("mirror to")]


def test_a_training_reaches_its_mirrors_from_its_first_step_to_its_summary(tmp_path: Path) -> None:
    mirror = FakeMirror()
    result = train(small_task(), steps=12, evaluate_every=6, out=tmp_path, device="cpu", mirrors=[mirror])
    recorded = read_back(result)
    assert values_of(mirror.points, "training/loss") == list(enumerate(recorded.steps["loss"].tolist()))
    evaluated = values_of(mirror.points, "evaluation/accuracy")
    assert [metric for _, metric in evaluated] == [metric for _, metric in result.curve]
    assert (mirror.runs[0].name, mirror.runs[0].environment) == (recorded.path.name, recorded.environment)
    assert [summary["metric"] for summary in mirror.summaries] == [result.metric]


def test_a_training_that_records_nothing_is_mirrored_all_the_same() -> None:
    mirror = FakeMirror()
    train(small_task(), steps=3, out=None, device="cpu", mirrors=[mirror])
    assert len(values_of(mirror.points, "training/loss")) == 3
    assert (mirror.runs[0].parameters["level"], mirror.summaries[0]["state"]) == ("O0", "finished")


def test_a_resumed_training_is_mirrored_from_its_first_step_and_is_complete_only_at_its_end(tmp_path: Path) -> None:
    mirror = FakeMirror()

    def trained(stop: Callable[[], bool] | None) -> RunResult:
        monitor = RunMonitor(stop=stop, mirrors=LiveMirrors([mirror]))
        kept = CheckpointFolder(tmp_path / "checkpoints")
        request = RunRequest(BoostConfig(), steps=12, run_id="run", evaluate_every=3)
        return run_task(small_task(), request, out=tmp_path, monitor=monitor, checkpoints=kept)

    asked = count(1)
    trained(lambda: next(asked) >= 5)
    assert not mirror.summaries[-1]["state"]  # it goes on
    mirror.points.clear()
    result = trained(None)
    assert [step for step, _ in values_of(mirror.points, "training/loss")] == list(range(12))
    assert [value for _, value in values_of(mirror.points, "evaluation/accuracy")] == [v for _, v in result.curve]
    assert mirror.summaries[-1]["state"] == "finished"


def test_a_training_that_an_error_ends_is_closed_in_its_mirrors() -> None:
    mirror = FakeMirror()
    with pytest.raises(ZeroDivisionError):
        train(small_task(fail_at=2), steps=5, out=None, device="cpu", mirrors=[mirror])
    assert mirror.summaries[0]["state"] == "interrupted"
    assert "the loss of the user's task failed" in mirror.summaries[0]["message"]


def test_a_mirror_that_fails_is_given_up_with_one_warning_and_without_its_password(tmp_path: Path) -> None:
    broken, sound = FakeMirror(fails_at=1), FakeMirror()
    with pytest.warns(MirrorWarning, match=r"a fake was stopped \(https://me:\*\*\*@mirror.example went") as warned:
        result = train(small_task(), steps=8, out=tmp_path, device="cpu", mirrors=[broken, sound], drain_seconds=0.0)
    assert (len(warned), result.steps) == (1, 8)
    assert read_back(result).finished
    assert sound.summaries[0]["steps"] == 8
    assert not broken.summaries


def test_a_mirror_that_hangs_holds_neither_the_run_nor_its_end() -> None:
    gate = threading.Event()
    live = begun(FakeMirror(gate=gate), wait_seconds=0.05)
    live.write(steps_of_a_run(), events_of_a_run())
    try:
        with pytest.warns(MirrorWarning, match="did not take the end of the run within 0.05 s"):
            live.finish(SUMMARY)
    finally:
        gate.set()
        wait_until(lambda: not mirroring())


def test_a_slow_mirror_gets_fewer_points_and_every_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workbench.runs.mirrors.live._MOST_WAITING", 100)
    gate = threading.Event()
    mirror = FakeMirror(gate=gate)
    live = begun(mirror)
    steps = steps_of_a_run(1000)
    for first in range(0, 1000, 50):
        live.write(steps[first : first + 50])
    gate.set()
    live.finish(SUMMARY)
    assert len(mirror.points) < 500
    assert mirror.points[-1].values["loss_scale/overflows"] == 100.0
    assert mirror.summaries == [SUMMARY]


def test_events_that_are_no_evaluation_arrive_as_they_are() -> None:
    mirror = FakeMirror()
    live = begun(mirror)
    live.write(steps_of_a_run(), events_of_a_run())
    live.finish(SUMMARY)
    assert [event.kind for event in mirror.events] == [EventKind.OVERFLOW]
    assert not mirroring()


@pytest.mark.parametrize(
    ("name", "library", "told"),
    [("tensorboard=logs", "tensorboard", "TensorBoard"), ("mlflow=sqlite:///x.db", "mlflow", "MLflow")],
)
def test_a_library_that_is_not_installed_is_said_before_anything_is_trained(
    name: str, library: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    for module in [name for name in sys.modules if name.partition(".")[0] == library]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MirrorError, match=rf'{told} needs.*: pip install "boost-workbench\[mirrors\]"'):
        train(small_task(), steps=2, out=tmp_path, device="cpu", mirrors=[name])
    assert not list(tmp_path.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["train", "--task", "digits-lenet", "--steps", "2", "--out", str(tmp_path), "--mirror", name])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert [line for line in err.splitlines() if "pip install" in line]
    assert "Traceback" not in err


@pytest.mark.parametrize("name", ["wandb", "tensorboard=", "mlflow=", "", "=x"])
def test_a_mirror_of_another_name_is_refused(name: str) -> None:
    with pytest.raises(MirrorError, match="a mirror must be"):
        mirrors_named([name])
