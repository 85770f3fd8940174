from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.panels.looking import LONG, ended, html_in, missing, text_in
from workbench.config import BoostConfig
from workbench.panels.export_panel import ExportPanel, exported_files
from workbench.panels.panel import PanelState
from workbench.panels.shared_config import SharedConfig

PROVENANCE: dict[str, Any] = {
    "verdict": "confirmed",
    "sentence": "Confirmed: the accuracy drop is at most 0.009.",
    "study": "mine",
    "task": "digits-resnet",
    "speedup": [1.104, 1.095, 1.141],
    "drop_bound": 0.009463389,
    "environment": {"device": {"cpu": "AMD EPYC", "torch": "2.13.0"}},
}
O1 = BoostConfig.from_dict(
    {"boost": {"mode": "manual", "less_bn": True, "grad_freeze": False}, "provenance": PROVENANCE}
)
O2 = BoostConfig.from_dict({"boost": {"mode": "disable_all"}, "provenance": {"verdict": "O0", "sentence": "O0 it is."}})


@pytest.fixture
def study(tmp_path: Path) -> Path:
    folder = tmp_path / "study"
    (folder / "result").mkdir(parents=True)
    (folder / "study.toml").write_text("")
    O1.save(folder / "result" / "boost_config.o1.json")
    O2.save(folder / "result" / "boost_config.o2.json")
    return folder


@pytest.fixture
def panel(study: Path, tmp_path: Path, keep: Callable[[ExportPanel], ExportPanel]) -> ExportPanel:
    return keep(ExportPanel(study, folder=tmp_path / "out"))


def test_a_study_shows_both_exports_with_verdict_and_provenance(panel: ExportPanel) -> None:
    assert (panel.choice.options, panel.choice.value) == (("this configuration", "o1", "o2"), "o1")
    told = ("Confirmed: the accuracy drop is at most 0.009.", "1.104 x (95 % interval 1.095 to 1.141)", "0.009463")
    ignored = "ignores loss_scale, amp, snapshots, compatibility, provenance"
    answers = ("boost.less_bn", "o1 and o2 are a study's answers")
    assert missing(panel, *told, "AMD EPYCPyTorch2.13.0", ignored, *answers) == []
    assert "<th></th>" not in html_in(panel), "a table without titles has no head"
    assert json.loads(panel.json.value) == O1.to_dict()
    panel.choice.value = "o2"
    assert "O0 it is." in text_in(panel)
    assert (panel.name.value, panel.config) == ("boost_config.o2.json", O2)
    panel.name.value = "best.json"
    panel.choice.value = "o1"
    assert panel.name.value == "best.json", "a name of the user's own stays"


def test_what_is_saved_is_the_file_on_show_and_another_that_is_there_is_replaced_only_when_asked_for(
    panel: ExportPanel, tmp_path: Path
) -> None:
    assert panel.state is PanelState.IDLE
    panel.save_button.click()
    path = tmp_path / "out" / "boost_config.o1.json"
    assert (panel.state, panel.saved) == (PanelState.DONE, path)
    assert path.read_text() == panel.json.value + "\n"
    assert BoostConfig.from_json(path) == O1
    assert "reads back as this configuration" in text_in(panel)
    assert [entry.name for entry in path.parent.iterdir()] == ["boost_config.o1.json"]  # nothing half-written

    path.write_text("{}")
    panel.save_button.click()
    assert panel.state is PanelState.FAILED
    assert "is there already and differs" in text_in(panel)
    assert path.read_text() == "{}"
    panel.replace.value = True
    panel.save_button.click()
    assert panel.state is PanelState.DONE
    assert BoostConfig.from_json(path) == O1
    panel.replace.value = False
    panel.save_button.click()  # the same again
    assert panel.state is PanelState.DONE


def test_the_shared_configuration_is_shown_as_it_changes(tmp_path: Path) -> None:
    shared = SharedConfig()
    with ExportPanel(shared, folder=tmp_path) as panel:
        assert panel.choice.options == ("this configuration",)
        assert missing(panel, "so it has no verdict", "nothing") == []
        shared.change({"grad_freeze.freeze_p": 0.5}, "O2")
        assert json.loads(panel.json.value)["grad_freeze"]["freeze_p"] == 0.5
        told = ("grad_freeze.freeze_p0.50.7", 'Pass boost_level="O2"', "In effect at O2: LessBN + freezing")
        assert missing(panel, *told) == []
        panel.name.value = "mine.json"
        panel.save_button.click()
        assert BoostConfig.from_json(tmp_path / "mine.json") == shared.config


def test_what_cannot_be_written_is_a_sentence_and_the_panel_is_usable_again(panel: ExportPanel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name, folder, told in (
        ("null\0.json", "out", "cannot be written"),
        ("", "out", "name the file"),
        ("..", "out", "is a folder; name a file"),
        ("good.json", "file", "cannot be written"),
    ):
        panel.name.value, panel.folder.value = name, str(tmp_path / folder)
        panel.save_button.click()
        assert panel.state is PanelState.FAILED
        assert told in text_in(panel)
        assert "Traceback" not in text_in(panel)
    panel.folder.value = str(tmp_path / "out")
    panel.save_button.click()
    assert panel.state is PanelState.DONE


def test_a_configuration_that_cannot_be_used_as_it_is_can_be_saved_and_says_so(tmp_path: Path) -> None:
    shared = SharedConfig(BoostConfig.from_dict({"boost": {"mode": "manual", "dim_reduce": True}}))
    with ExportPanel(None, shared, folder=tmp_path) as panel:
        assert "can be written and read, but not used as it is" in text_in(panel)
        assert panel.save() == tmp_path / "boost_config.json"


def test_a_study_that_exported_nothing_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "study.toml").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "study.db").write_text("")
    with ExportPanel(tmp_path / "new") as panel:
        assert "o1 and o2" not in text_in(panel), "there are none"
        for folder, told, is_begun in (
            (tmp_path / "new", "has not been started; run workbench tune", False),
            (tmp_path / "run", "has exported nothing yet", True),
            ("~/run", "has exported nothing yet", True),
            (tmp_path, "is not a study: it has no study.toml", False),
            (tmp_path / "nowhere", "there is no such folder", False),
        ):
            panel.study.value = str(folder)
            assert told in text_in(panel)
            assert panel.export_button.disabled is not is_begun
        panel.study.value = ""
        assert "there is no such folder" not in text_in(panel)
        assert panel.config == BoostConfig()


def test_an_offered_study_waits_beside_the_configuration_on_show(study: Path, tmp_path: Path) -> None:
    with ExportPanel(folder=tmp_path / "out") as made:
        made.offer(tmp_path / "nothing exported")
        assert made.study.value == ""
        made.offer(study)
        assert made.study.value == str(study)
        choices = ("this configuration", "o1", "o2")
        assert (made.choice.options, made.choice.value) == (choices, choices[0])
        made.choice.value = "o2"
        made.offer(tmp_path)  # the study that is named stays, and what was chosen of it
        assert (made.study.value, made.choice.value) == (str(study), "o2")


def test_a_damaged_export_is_a_sentence_and_the_other_one_is_shown(study: Path) -> None:
    assert list(exported_files(study / "result")) == ["o1", "o2"], "the folder of the files themselves will do"
    assert exported_files(study / "nowhere") == {}
    (study / "result" / "boost_config.o1.json").write_text('{"boost": {"grad_freez": true}}')
    with ExportPanel(study) as panel:
        assert 'unknown key "grad_freez"' in text_in(panel)
        assert (panel.choice.options, panel.choice.value) == (("this configuration", "o2"), "o2")


def test_a_whole_study_is_exported_in_the_worker(
    panel: ExportPanel, study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (study / "study.db").write_text("")
    begun, go = threading.Event(), threading.Event()

    def export(where: str, out: Path, formats: list[str]) -> SimpleNamespace:
        assert formats == ["torch", "transformers", "lightning", "mindspore"]
        begun.set()
        assert go.wait(LONG)
        files = {t: out / f"boost_config.{t}.json" for t in ("o1", "o2")}
        script = SimpleNamespace(path=out / "train_torch_o1.py")
        return SimpleNamespace(exported=files, scripts=(script,))

    monkeypatch.setattr("workbench.api.export", export)
    panel.study.value = f"{study}/"
    for _ in range(2):
        panel.export_button.click()
        assert begun.wait(LONG)
        assert (panel.state, panel.save_button.disabled) == (PanelState.RUNNING, True)
        assert panel.save() is None  # one at a time
        go.set()
        assert "wrote boost_config.o1.json, boost_config.o2.json, train_torch_o1.py and the report" in ended(panel)
        assert panel.saved == tmp_path / "out" / "boost_config.o1.json"
        begun.clear()
        go.clear()


def test_a_study_whose_storage_is_broken_is_a_sentence(panel: ExportPanel, study: Path) -> None:
    (study / "study.db").write_text("no database")
    panel.study.value = f"{study}/"
    panel.export_button.click()
    ended(panel, PanelState.FAILED)
    assert panel.error is not None
    assert not panel.save_button.disabled


def test_files_for_other_frameworks_are_shown_and_copied_beside_the_configuration(
    study: Path, keep: Callable[[ExportPanel], ExportPanel]
) -> None:
    (study / "result" / "train_torch_o1.py").write_text("print('a loop')\n")
    panel = keep(ExportPanel(study))
    assert panel.format.options == ("boost_config.json", "torch")
    assert json.loads(panel.json.value) == O1.to_dict()
    panel.format.value = "torch"
    assert panel.json.value == "print('a loop')\n"
    panel.choice.value = "o2"
    assert panel.format.options == ("boost_config.json",)
    assert json.loads(panel.json.value) == O2.to_dict()


def test_a_file_that_differs_in_nothing_but_when_it_was_written_is_no_other_one(panel: ExportPanel) -> None:
    path = Path(panel.folder.value) / panel.name.value
    path.parent.mkdir()
    O1.with_values({"provenance": {**PROVENANCE, "written": "2026-11-28T14:05:15+00:00"}}).save(path)
    panel.save_button.click()
    assert f"wrote {path}" in ended(panel)
    O1.with_values({"provenance": {**PROVENANCE, "verdict": "refuted"}}).save(path)
    panel.save_button.click()
    assert "is there already and differs" in ended(panel, PanelState.FAILED)
