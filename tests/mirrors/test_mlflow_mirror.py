"""What a mirror to MLflow holds, read back with MLflow's own client, from a SQLite store without any network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.mirrors.fake_mirror import STEPS, SUMMARY, record_run
from workbench.runs.mirrors import MirrorError, MlflowMirror, mirror_runs

pytestmark = [
    pytest.mark.optional,
    pytest.mark.slow,  # MLflow takes seconds to load and to make its tables
    pytest.mark.filterwarnings("ignore"),  # what its own modules warn of meanwhile
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with a store that two tests read; MLflow's usage telemetry is off, as a user may set it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("DO_NOT_TRACK", "true")
        pytest.importorskip("mlflow", reason='mlflow is not installed; pip install "boost-workbench[mirrors]"')
        folder = tmp_path_factory.mktemp("mlflow")
        study = folder / "tiny"
        record_run(study / "runs", "trial_0001")
        record_run(study / "runs", "trial_0002", finished=False)
        (study / "study.toml").touch()
        mirror_runs(study, [MlflowMirror(uri(folder))])
        yield folder


def uri(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def client(folder: Path) -> Any:
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri(folder))


def runs(folder: Path) -> dict[str, Any]:
    found = client(folder)
    experiment = found.get_experiment_by_name("tiny")
    return {run.info.run_name: run for run in found.search_runs([experiment.experiment_id])}


def test_a_run_reads_back_with_parameters_tags_metrics_and_artifacts(store: Path) -> None:
    run = runs(store)["trial_0001"]
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time == 1000 * SUMMARY["seconds"]
    assert run.data.params["grad_freeze.freeze_p"] == "0.7"
    assert "dim_reduce.rho" not in run.data.params
    assert run.data.tags["in_effect"] == SUMMARY["in_effect"]
    assert run.data.tags["task"] == "wine"
    assert run.data.metrics["summary/metric"] == SUMMARY["metric"]
    losses = client(store).get_metric_history(run.info.run_id, "training/loss")
    assert [(one.step, one.value) for one in losses] == [(i, pytest.approx(2.0 / (i + 1))) for i in range(STEPS)]
    accuracies = client(store).get_metric_history(run.info.run_id, "evaluation/accuracy")
    assert [(one.step, one.value) for one in accuracies] == [(19, 0.75), (39, 0.875)]
    names = {one.path for one in client(store).list_artifacts(run.info.run_id)}
    assert names == {"boost_config.json", "environment.json", "events.txt", "summary.json"}
    kept = Path(client(store).download_artifacts(run.info.run_id, "boost_config.json"))
    assert json.loads(kept.read_text(encoding="utf-8"))["grad_freeze"]["freeze_p"] == 0.7
    assert (store / "mlartifacts").is_dir()


def test_a_whole_run_is_left_alone_and_half_a_one_replaced(store: Path) -> None:
    before = {name: run.info.run_id for name, run in runs(store).items()}
    assert runs(store)["trial_0002"].info.status == "KILLED"
    sent = mirror_runs(store / "tiny", [MlflowMirror(uri(store))])
    assert [bool(places) for places in sent.values()] == [False, True]
    after = {name: run.info.run_id for name, run in runs(store).items()}
    assert after["trial_0001"] == before["trial_0001"]
    assert after["trial_0002"] != before["trial_0002"]
    assert len(after) == 2


def test_a_store_that_cannot_be_opened_is_said_without_its_password(store: Path) -> None:
    run = store / "tiny" / "runs" / "trial_0001"
    with pytest.raises(MirrorError, match="cannot be opened") as raised:
        mirror_runs(run, [MlflowMirror("nonsense://me:secret@nowhere/x")])
    assert "secret" not in str(raised.value)
