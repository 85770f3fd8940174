"""``workbench init`` and ``lab`` write what comes with the package, and overwrite nothing."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from workbench.cli import templates
from workbench.cli.failures import sentence_of
from workbench.cli.templates import copy_templates, template_files
from workbench.study import read_study


def test_every_study_that_is_written_is_a_valid_study(tmp_path: Path) -> None:
    written, kept = copy_templates(tmp_path / "new" / "folder")
    assert kept == []
    studies = [path for path in written if path.name == "study.toml"]
    assert studies
    assert all(path.with_name("README.md").is_file() for path in studies)
    assert {read_study(path).study.name for path in studies} == {path.parent.name for path in studies}


def test_only_the_notebooks_are_written_where_only_they_are_wanted(tmp_path: Path) -> None:
    everything = {relative for _, relative in template_files()}
    written, _ = copy_templates(tmp_path, folder="notebooks")
    notebooks = {path.relative_to(tmp_path) for path in written}
    assert notebooks == {relative for relative in everything if relative.suffix == ".ipynb"}
    assert Path("notebooks/04_dim_reduce.ipynb") in notebooks
    assert [path.name for path in tmp_path.iterdir()] == ["notebooks"]


def test_a_second_time_keeps_what_was_edited_and_restores_what_is_gone(tmp_path: Path) -> None:
    written, _ = copy_templates(tmp_path)
    edited, gone = written[0], written[1]
    edited.write_text("mine now")
    gone.unlink()
    again, kept = copy_templates(tmp_path)
    assert edited.read_text() == "mine now"
    assert again == [gone]
    assert sorted([*again, *kept]) == sorted(written)


def test_a_wheel_carries_its_templates_beside_the_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = tmp_path / "packaged_templates"
    (packaged / "studies" / "one").mkdir(parents=True)
    (packaged / "studies" / "one" / "study.toml").write_text("[study]\n")
    (packaged / "studies" / "one" / "study.db").write_text("never shipped")
    (packaged / "studies" / "one" / "result").mkdir()
    monkeypatch.setattr(templates, "_PACKAGED", packaged)
    assert [str(relative) for _, relative in template_files()] == ["studies/one/study.toml"]
    written, _ = copy_templates(tmp_path / "out")
    assert written == [tmp_path / "out" / "studies" / "one" / "study.toml"]
    assert written[0].read_text() == "[study]\n"


def test_the_wheel_is_told_to_carry_what_init_writes() -> None:
    root = Path(templates.__file__).parents[2]
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    for _, relative in template_files():
        assert any(relative.match(pattern) for pattern in build["include"]), relative
        assert build["sources"][relative.parts[0]] == f"workbench/packaged_templates/{relative.parts[0]}"


def test_an_installation_without_templates_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_CHECKOUT", tmp_path)
    with pytest.raises(RuntimeError, match="carries no notebooks and studies; install") as caught:
        copy_templates(tmp_path / "out")
    with pytest.raises(RuntimeError, match="carries no notebooks; install"):
        copy_templates(tmp_path / "out", folder="notebooks")
    assert sentence_of(caught.value) == str(caught.value)  # no "unexpected error"
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder_to_write_into(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="name a folder"):
        copy_templates(tmp_path / "file")
