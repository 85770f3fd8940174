"""A study's exports in the words of other frameworks, from its storage to the terminal, the files and the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit import set_up_search
from workbench import api
from workbench.cli import app
from workbench.cli.study_commands import ScriptFormat
from workbench.integrations.scripts.writing import FRAMEWORKS


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = set_up_search.write(tmp_path_factory.mktemp("exported") / "made_up", n_trials=6, plain_runs=2)
    set_up_search.run(folder)
    return folder


def test_the_command_s_formats_are_the_frameworks() -> None:
    assert [str(one) for one in ScriptFormat] == list(FRAMEWORKS)


@pytest.mark.slow
def test_export_writes_what_is_asked_and_says_what_it_carries(study: Path, tmp_path: Path) -> None:
    command = ["export", str(study), "--out", str(tmp_path), "--as", "torch", "--as", "mindspore"]
    ended = CliRunner().invoke(app, command)
    assert ended.exit_code == 0, ended.output
    said = " ".join(ended.output.split())
    assert "(o1, torch): it needs nothing of workbench; fill in the section on your model and data" in said
    assert "torch carries optimizer.name" in said
    assert "(o1, mindspore): it needs your network and dataset in MindSpore" in said
    text = (tmp_path / "train_torch_o1.py").read_text()
    compile(text, "train_torch_o1.py", "exec")
    assert "BATCHES_TODAY = 200" in text
    assert " x as fast" in text, "the attribution's worth stands beside a line"
    assert "make_model" in (tmp_path / "train_mindspore_o1.py").read_text()
    assert not (tmp_path / "train_lightning_o1.py").exists()
    report = (tmp_path / "report.html").read_text()
    assert all(f"train_{name}_o1.py" in report for name in FRAMEWORKS)


@pytest.mark.slow
def test_a_script_trains_as_long_as_today_where_the_study_s_runs_were_shorter(tmp_path: Path) -> None:
    asked = "todays_steps = 1600\nattribution_share = 0.0"  # where the gain comes from is not
    folder = set_up_search.write(tmp_path / "shorter", set_up=asked, n_trials=3, plain_runs=0)
    set_up_search.run(folder)
    (script,) = (one for one in api.export(folder).scripts if one.framework == "torch")
    assert "BATCHES_TODAY = 1600 " in script.text
    assert "in runs of 200 batches where today's have 1600" in " ".join(script.text.split())


@pytest.mark.slow
def test_json_names_the_files_without_their_text(study: Path, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["export", str(study), "--out", str(tmp_path), "--as", "lightning", "--json"])
    answer = json.loads(ended.stdout)
    assert [(one["framework"], one["target"]) for one in answer["scripts"]] == [("lightning", "o1")]
    assert "text" not in answer["scripts"][0]
    assert answer["scripts"][0]["path"] == str(tmp_path / "train_lightning_o1.py")


@pytest.mark.slow
def test_a_format_of_no_framework_is_refused_before_anything_is_written(study: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no framework 'jax'; one of torch, transformers, lightning, mindspore"):
        api.export(study, tmp_path, formats=["jax"])
    assert not list(tmp_path.iterdir())
    ended = CliRunner().invoke(app, ["export", str(study), "--trials", "x.csv", "--as", "torch"])
    assert ended.exit_code == 2
