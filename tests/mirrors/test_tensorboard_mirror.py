"""What a mirror to TensorBoard holds, read back with TensorBoard's own reader."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from tests.mirrors.fake_mirror import ENVIRONMENT, STEPS, SUMMARY, record_run
from workbench.cli import main
from workbench.runs.mirrors import MirrorError, MirrorFailedError, TensorBoardMirror, mirror_runs
from workbench.runs.mirrors.selection import SCALARS

pytestmark = pytest.mark.optional
pytest.importorskip("tensorboard", reason='tensorboard is not installed; pip install "boost-workbench[mirrors]"')


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    accumulator.Reload()
    return accumulator


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mirrored")
    mirror_runs(record_run(folder / "runs"), [TensorBoardMirror(folder / "logs")])
    return folder / "logs"


def test_curves_read_back_with_steps_and_times(logs: Path) -> None:
    found = read(logs / "run")
    assert set(SCALARS.values()) - {"loss_scale/underflow_share", "gradient/largest"} <= set(found.Tags()["scalars"])
    losses = found.Scalars("training/loss")
    assert [event.step for event in losses] == list(range(STEPS))
    assert [event.value for event in losses] == pytest.approx([2.0 / (i + 1) for i in range(STEPS)])
    assert losses[30].wall_time - losses[0].wall_time == pytest.approx(3.0)
    evaluated = found.Scalars("evaluation/accuracy")
    assert [(e.step, e.value) for e in evaluated] == [(19, 0.75), (39, 0.875)]
    assert found.Scalars("loss_scale/overflows")[-1].value == 4.0
    assert found.Scalars("summary/metric")[0].value == SUMMARY["metric"]
    assert found.SummaryMetadata("time/step_ms").summary_description.endswith("Unit: ms.")


def test_events_and_the_summary_are_texts(logs: Path) -> None:
    found = read(logs / "run")
    (overflow,) = found.Tensors("events/overflow")
    assert (overflow.step, overflow.tensor_proto.string_val[0]) == (9, b"step 9: head overflowed at 1024")
    assert b"| in_effect | freezing" in found.Tensors("about/summary")[0].tensor_proto.string_val[0]
    assert b"| seed | 3 |" in found.Tensors("about/environment")[0].tensor_proto.string_val[0]


def test_hyperparameters_are_those_in_effect(logs: Path) -> None:
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    contents = read(logs / "run").summary_metadata
    sessions = [
        HParamsPluginData.FromString(one.plugin_data.content)
        for one in contents.values()
        if one.plugin_data.plugin_name == "hparams"
    ]
    started = next(one.session_start_info for one in sessions if one.HasField("session_start_info"))
    assert started.hparams["grad_freeze.freeze_p"].number_value == 0.7
    assert started.hparams["boost.grad_freeze"].bool_value is True
    assert started.hparams["level"].string_value == ENVIRONMENT["level"]
    assert "dim_reduce.rho" not in started.hparams
    assert any(one.HasField("session_end_info") for one in sessions)


def test_a_whole_run_is_left_alone_and_half_a_one_replaced(tmp_path: Path) -> None:
    path, mirror = record_run(tmp_path / "runs", finished=False), TensorBoardMirror(tmp_path / "logs")
    for _ in range(2):
        assert mirror_runs(path, [mirror])[path]
        assert len(list((tmp_path / "logs" / "run").glob("events.out.tfevents.*"))) == 1
    assert len(read(tmp_path / "logs" / "run").Scalars("training/loss")) == STEPS


def test_files_of_others_and_runs_of_the_same_name_are_not_touched(logs: Path, tmp_path: Path) -> None:
    again = record_run(tmp_path / "others", "run")
    with pytest.raises(MirrorError, match="another run of the same name"):
        mirror_runs(again, [TensorBoardMirror(logs)])
    (tmp_path / "theirs" / "run").mkdir(parents=True)
    (tmp_path / "theirs" / "run" / "events.out.tfevents.1.x").write_bytes(b"theirs")
    with pytest.raises(MirrorError, match="event files of another program"):
        mirror_runs(again, [TensorBoardMirror(tmp_path / "theirs")])
    assert (tmp_path / "theirs" / "run" / "events.out.tfevents.1.x").read_bytes() == b"theirs"


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MirrorError, match="cannot be written"):
        mirror_runs(record_run(tmp_path / "runs"), [TensorBoardMirror(tmp_path / "file")])


@pytest.mark.parametrize(("records", "error"), [(1, MirrorError), (20, MirrorFailedError)])
def test_a_full_disk_is_said_in_a_sentence(
    records: int, error: type[Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, written = RecordWriter.write, []

    def full(self: Any, data: bytes) -> None:
        written.append(data)
        if len(written) > records:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(self, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    mirror = TensorBoardMirror(tmp_path / "logs")
    path = record_run(tmp_path / "runs")
    with pytest.raises(error, match="No space left"):
        mirror_runs(path, [mirror])
    monkeypatch.undo()
    assert mirror_runs(path, [mirror])[path]
    assert len(read(tmp_path / "logs" / "run").Scalars("training/loss")) == STEPS


def test_the_command_sends_a_folder_and_says_what_was_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = record_run(tmp_path / "runs")
    to = f"tensorboard={tmp_path / 'logs'}"
    for told in ("sent to TensorBoard in", "was there already"):
        with pytest.raises(SystemExit) as ended:
            main(["runs", "mirror", str(tmp_path / "runs"), "--to", to])
        assert ended.value.code == 0
        assert f"{path}: {told}" in capsys.readouterr().out
