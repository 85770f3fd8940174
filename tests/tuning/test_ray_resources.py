"""Resources of a trial as they are written for Ray, and what is said when they are wrong; no Ray is started here."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.fake_runner import make_fake, write_study
from workbench.study import RayEngine, StudyError, tune
from workbench.study.run.ray_engine import joined_cluster
from workbench.study.run.ray_resources import parse_resources
from workbench.study.run.ray_worker import read_files, sent, write_run


@pytest.mark.parametrize(
    ("text", "amounts"),
    [
        ("GPU=1", {"CPU": 1.0, "GPU": 1.0}),
        ("CPU=2", {"CPU": 2.0}),
        ("CPU=2, GPU=0.5", {"CPU": 2.0, "GPU": 0.5}),
        ("NPU=1", {"CPU": 1.0, "NPU": 1.0}),
        ("CPU=0.5,a100-80G=1", {"CPU": 0.5, "a100-80G": 1.0}),
    ],
    ids=["gpu", "cpu", "fraction", "npu", "custom"],
)
def test_resources_are_read(text: str, amounts: dict[str, float]) -> None:
    assert parse_resources(text).amounts == amounts


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names nothing"),
        ("GPU", "is not NAME=AMOUNT"),
        ("1=GPU", "is not NAME=AMOUNT"),
        ("gpu=1", "did you mean GPU=1?"),
        ("GPU=", "a number of at least"),
        ("GPU=0", "a number of at least"),
        ("GPU=nan", "a number of at least"),
        ("GPU=inf", "a number of at least"),
        ("GPU=-1", "a number of at least"),
        ("GPU=1.5", "whole number"),
        ("GPU=1,GPU=1", "names GPU twice"),
    ],
)
def test_wrong_resources_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(StudyError, match="--resources-per-trial") as caught:
        parse_resources(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_resources_are_asked_for_in_rays_words() -> None:
    options = parse_resources("CPU=2,GPU=0.5,memory=1000,NPU=1").options
    assert options == {"num_cpus": 2.0, "num_gpus": 0.5, "memory": 1000, "resources": {"NPU": 1.0}}
    options = parse_resources("CPU=1").options
    assert options == {"num_cpus": 1.0, "num_gpus": 0.0, "memory": None, "resources": {}}


@pytest.mark.parametrize(
    ("text", "room"), [("CPU=1", 8), ("CPU=3", 2), ("GPU=0.5", 4), ("GPU=1", 2), ("GPU=4", 0), ("NPU=1", 0)]
)
def test_a_node_has_room_for_what_its_scarcest_resource_allows(text: str, room: int) -> None:
    assert parse_resources(text).room({"CPU": 8.0, "GPU": 2.0}) == room


def test_without_ray_the_sentence_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(StudyError, match=r'pip install "boost-workbench\[cluster\]"'):
        tune(write_study(tmp_path / "s"), make_experimenter=make_fake, ray=RayEngine())


def test_a_folder_is_shared_when_its_marker_says_so(tmp_path: Path) -> None:
    (tmp_path / "task.py").write_text("a = 1\n", encoding="utf-8")
    with sent(tmp_path) as folder:
        assert folder.here() == (tmp_path, True)
        other, shared = replace(folder, token="another word").here()
    assert not shared
    assert (other / "task.py").read_text(encoding="utf-8") == "a = 1\n"
    assert [path.name for path in tmp_path.iterdir()] == ["task.py"], "the marker stayed"


def test_a_run_comes_back_as_it_was_under_a_name_that_is_free(tmp_path: Path) -> None:
    run = tmp_path / "there" / "runs" / "trial_0001"
    (run / "deeper").mkdir(parents=True)
    (run / "summary.json").write_text("{}", encoding="utf-8")
    (run / "deeper" / "values").write_bytes(bytes(range(256)))
    assert read_files(run, "**/*", 257) is None, "too large to be sent"
    files = read_files(run, "**/*", 258)
    assert files
    here = tmp_path / "here"
    assert write_run(here, "runs/trial_0001", files) == "runs/trial_0001"
    assert write_run(here, "runs/trial_0001", files) == "runs/trial_0001.2"
    for name in ("trial_0001", "trial_0001.2"):
        assert (here / "runs" / name / "deeper" / "values").read_bytes() == bytes(range(256))


def test_a_cluster_of_one_machine_is_asked_to_listen_on_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # put back after the test
        monkeypatch.delenv(name)
    asked: dict[str, object] = {}

    def init(**options: object) -> None:
        asked.update(options, elsewhere=os.environ.get("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"))

    ray = SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with joined_cluster(None):
        pass
    assert asked["elsewhere"] == "0", "as Ray does on other systems than Linux: its processes listen on 127.0.0.1"
    assert asked["include_dashboard"] is False


@pytest.mark.parametrize("address", ["local", "auto"])
def test_a_cluster_that_cannot_be_joined_here_is_one_sentence(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise RuntimeError("the node timed out.\nmore")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False, init=init))
    with (
        pytest.raises(StudyError, match=r"can be joined on this machine \(the node timed out\); "),
        joined_cluster(address),
    ):
        pass
