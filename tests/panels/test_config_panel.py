from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ipywidgets as widgets
import pytest

from tests.panels.looking import everything, html_in, missing, text_in
from workbench.config import SWITCHES, BoostConfig, NetworkFacts, describe_parameters
from workbench.methods.registry import METHODS
from workbench.panels.config_panel import ConfigPanel, card_html, owner_note
from workbench.panels.controls import named
from workbench.panels.shared_config import SharedConfig

PATHS = [path for path in describe_parameters() if path.removeprefix("boost.") not in SWITCHES]

THORS = ("damping", "damping_decay", "frequency", "factor_decay", "trace_threshold", "kl_clip")
OF_ONE_OPTIMIZER = (*THORS, "aux_lr", "ns_steps", "warmup_steps")


@pytest.fixture
def panel() -> Iterator[ConfigPanel]:
    with ConfigPanel() as made:
        yield made


@pytest.fixture(scope="module")
def lasting() -> Iterator[ConfigPanel]:
    """Return a panel for tests that set it back themselves: its sections are filled once."""
    with ConfigPanel() as made:
        yield made


def box(panel: ConfigPanel, path: str) -> Any:
    return next(w for w in everything(panel.control(path).widget) if isinstance(w, (widgets.Text, widgets.Dropdown)))


def test_presets_stand_first_then_switches_then_everything_else_folded(panel: ConfigPanel) -> None:
    kinds = [type(widget).__name__ for widget in everything(panel.controls)]
    order = [kind for kind in kinds if kind in ("ToggleButtons", "Checkbox", "Accordion")]
    assert order == ["ToggleButtons", *["Checkbox"] * 6, "Accordion"]
    assert panel.sections.selected_index is None
    own = (
        *("Mode", "Several ranks (common)", "LessBN", "Gradient freezing", "Gradient accumulation", "DimReduce"),
        *("Loss scale", "Mixed precision (amp)", "Optimizer", "Weight snapshots", "Compatibility with MindSpore"),
    )
    titles = panel.sections.titles
    assert titles[: len(own)] == own
    assert {"Schedule", "Batch"} <= set(titles[len(own) :]), "the name of the method, not of the key"
    assert all(title[0].isupper() for title in titles)


def test_the_optimizer_that_is_chosen_decides_which_of_its_parameters_can_be_set(panel: ConfigPanel) -> None:
    name, damping, eps = (panel.control(f"optimizer.{name}") for name in ("name", "damping", "eps"))
    assert not damping.disabled
    assert "only thor has it: choose it as the optimizer" in text_in(damping.widget)
    box(panel, "optimizer.name").value = "AdamW"
    assert (name.value, damping.disabled, eps.disabled) == ("AdamW", True, False)
    assert "not in effect: AdamW has no such parameter; only thor has it" in text_in(damping.widget)
    box(panel, "optimizer.name").value = "thor"
    assert (damping.disabled, eps.disabled) == (False, True)
    assert "only thor has it" not in text_in(damping.widget)
    assert "steps" in text_in(panel.control("optimizer.frequency").widget), "its unit stands beside it"
    box(panel, "optimizer.damping").value = "-1"
    assert "optimizer.damping must be greater than 0, got -1" in text_in(damping.widget)


def test_what_cannot_act_on_the_network_is_off_and_says_why(panel: ConfigPanel) -> None:
    panel.shared.learn(NetworkFacts(0, 0, 3, 3, 0, 3))
    assert missing(panel, "nothing switched on", "level O1 is equal to O0 here") == []
    assert (panel.switches["less_bn"].value, panel.switches["less_bn"].disabled) == (False, True)
    assert "this network has no BatchNorm" in text_in(panel.controls)
    groups = panel.control("grad_freeze.param_groups")
    assert groups.reason == ""  # setting it is how freezing comes into effect
    panel.shared.change({"grad_freeze.param_groups": 3})
    assert panel.switches["grad_freeze"].value
    assert "freezing (frozen steps: 30 %)" in text_in(panel)


def test_a_configuration_that_was_found_on_another_task_says_so_until_it_is_edited(panel: ConfigPanel) -> None:
    remark = "found on the task theirs: what it gains and costs on mine was not measured"
    panel.shared.learn(NetworkFacts(4, 4, 8, 4, 4, 4), "mine")
    for found_on, is_foreign in (("theirs", True), ("mine", False), (None, False)):
        provenance = {"task": "their_task.py:task", "environment": {"task": found_on} if found_on else "by hand"}
        panel.shared.set(BoostConfig.from_dict({"schedule": {"length": 0.5}, "provenance": provenance}), "O1")
        assert (remark in text_in(panel)) is is_foreign
    panel.shared.set(BoostConfig.from_dict({"provenance": {"environment": {"task": "theirs"}}}), "O1")
    assert remark in text_in(panel)
    panel.shared.learn(NetworkFacts(4, 4, 8, 4, 4, 4), "theirs")
    assert "found on the task" not in text_in(panel)
    panel.shared.learn(NetworkFacts(4, 4, 8, 4, 4, 4), "mine")
    panel.shared.change({"schedule.length": 0.7})
    assert "found on the task" not in text_in(panel)


def test_switches_left_to_the_level_are_named(panel: ConfigPanel) -> None:
    panel.shared.set(BoostConfig.from_dict({"boost": {"mode": "manual", "less_bn": True}}))
    assert "switches that are not named take the default of level O1: grad_freeze on; adasum" in text_in(panel)
    panel.switches["less_bn"].value = False  # by hand every switch is set
    assert "are not named" not in text_in(panel)


def test_a_preset_sets_the_level_and_takes_back_a_switch_turned_by_hand_which_makes_the_mode_manual(
    panel: ConfigPanel,
) -> None:
    assert panel.preset.buttons.value == "O1"
    assert "LessBN + freezing (frozen steps: 30 %)" in text_in(panel)
    panel.preset.buttons.value = "O0"
    assert (panel.level, panel.config) == ("O0", BoostConfig())
    assert "nothing switched on" in text_in(panel)
    assert not any(switch.value for switch in panel.switches.values())
    panel.preset.buttons.value = "O1"
    panel.switches["grad_freeze"].value = False
    asked = panel.config.boost
    assert (asked.mode, asked.less_bn, asked.grad_freeze) == ("manual", True, False)
    assert panel.preset.buttons.value is None
    assert "own switches (mode manual)" in text_in(panel)
    assert panel.config.resolve("O0").in_effect() == ("less_bn",)
    panel.preset.buttons.value = "O1"
    assert panel.config == BoostConfig()
    assert panel.switches["grad_freeze"].value


def test_what_is_excluded_is_disabled_and_says_why(panel: ConfigPanel) -> None:
    panel.preset.buttons.value = "O2"
    assert (panel.switches["adasum"].value, panel.switches["adasum"].disabled) == (False, True)
    assert "grad_freeze is asked for; switch grad_freeze off to use it" in text_in(panel.controls)
    panel.switches["grad_freeze"].value = False
    assert "there is 1 rank" in text_in(panel.controls)
    panel.ranks.value = 16
    assert (panel.switches["adasum"].value, panel.switches["adasum"].disabled) == (True, False)
    freeze = panel.control("grad_freeze.freeze_p")
    assert freeze.reason == "not in effect: Gradient freezing is off"
    panel.switches["grad_freeze"].value = True
    assert freeze.reason == ""


def test_a_switch_that_waits_for_a_parameter_can_be_used_once_it_is_set(panel: ConfigPanel) -> None:
    switch = panel.switches["grad_accumulation"]
    assert switch.disabled
    steps = panel.control("grad_accumulation.grad_accumulation_step")
    assert not steps.disabled
    box(panel, "grad_accumulation.grad_accumulation_step").value = "4"
    assert not switch.disabled
    switch.value = True
    assert "accumulation over 4" in text_in(panel.plots)


@pytest.mark.parametrize("path", PATHS)
def test_every_parameter_has_a_control_that_changes_the_configuration(lasting: ConfigPanel, path: str) -> None:
    panel = lasting
    panel.shared.set(BoostConfig())
    info = panel.control(path).info
    others = [choice for choice in info.choices if choice != info.default]
    value = others[0] if others else {"int": 7, "float": 0.25, "str": "folder", "list": [0.5, 0.25]}[info.kind]
    narrow = {"common.gradient_split_groups": [3, 7], "loss_scale.factor": 4.0}
    value = narrow.get(path, 2.0**20 if path in {"loss_scale.init", "loss_scale.maximum"} else value)
    entry = box(panel, path)
    if isinstance(entry, widgets.Dropdown):
        entry.value = named(info, value)
    else:
        entry.value = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    now = panel.config.leaves()[path]
    assert (list(now) if isinstance(now, tuple) else now) == value
    assert list(panel.config.diff(BoostConfig())) == [path]
    assert panel.control(path).problem == ""
    assert path in text_in(panel.plots), "the difference from the default is listed"
    assert path != "loss_scale.init" or "2²⁰2¹⁶" in text_in(panel.plots), "powers of two as such"
    assert path in panel._repr_mimebundle_()["text/html"].replace("<wbr>", ""), "a saved notebook has it, too"


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        ("grad_freeze.freeze_p", "1.2", "`grad_freeze.freeze_p` must lie in [0, 1), got 1.2"),
        ("grad_freeze.freeze_p", "much", '`grad_freeze.freeze_p` must be a finite number in [0, 1), got "much"'),
        ("grad_freeze.freeze_p", "nan", "`grad_freeze.freeze_p` must be a finite number in [0, 1), got NaN"),
        ("loss_scale.window", "2.5", "`loss_scale.window` must be a whole number at least 1, got 2.5"),
        ("loss_scale.init", "0.5", "`loss_scale.init` must be at least `loss_scale.minimum` (1.0), got 0.5"),
        ("optimizer.betas", "0.9", "`optimizer.betas` must be a list of two numbers, each in [0, 1), got [0.9]"),
    ],
)
def test_a_refused_value_says_so_beside_the_field_and_changes_nothing(
    panel: ConfigPanel, path: str, text: str, sentence: str
) -> None:
    before = panel.config
    entry = box(panel, path)
    entry.value = text
    assert panel.control(path).problem == sentence
    assert sentence.replace("`", "") in text_in(panel.control(path).widget)
    assert panel.config is before
    assert entry.value == text, "what was typed stays, to be mended"
    panel.switches["less_bn"].value = False
    assert panel.control(path).problem == sentence, "another change does not hide it"
    panel.preset.buttons.value = "O0"
    legal = {"grad_freeze.freeze_p": "0.5", "loss_scale.window": "100", "loss_scale.init": "8"}
    entry.value = legal.get(path, "0.5, 0.6")
    assert panel.control(path).problem == ""
    assert list(panel.config.diff(BoostConfig())) == [path]


def test_the_json_is_live_checked_while_typed_taken_when_it_is_left_and_bad_json_is_told_and_left_alone(
    panel: ConfigPanel,
) -> None:
    assert json.loads(panel.json.value) == BoostConfig().to_dict()
    panel.json.draft = '{"grad_freeze": {"freeze_p": 1.2}}'
    assert "grad_freeze.freeze_p must lie in [0, 1), got 1.2" in text_in(panel)
    panel.json.draft = '{"grad_freeze": {"freeze_p": 0.25}}'
    assert "must lie" not in text_in(panel)
    assert panel.config == BoostConfig()
    panel.json.value = '{"grad_freeze": {"freeze_p": 0.25}}'
    assert (panel.config.grad_freeze.freeze_p, panel.shared.is_edited) == (0.25, True)
    assert len(json.loads(panel.json.value)) > 5, "the whole configuration is shown"
    box(panel, "grad_freeze.freeze_p").value = "0.5"
    assert json.loads(panel.json.value)["grad_freeze"]["freeze_p"] == 0.5
    before = panel.config
    for bad, told in (
        ('{"grad_freeze": {"freez_p": 1}}', 'unknown key "freez_p" in section "grad_freeze"; did you mean "freeze_p"?'),
        ('{"grad_freeze": ', "boost_config.json: ends too early, it looks half-written"),
        ("[1, 2]", "boost_config.json: must hold an object of sections, got [1, 2]"),
    ):
        panel.json.value = bad
        assert told in text_in(panel.plots)
        assert panel.config is before
        assert panel.json.value == bad
    panel.preset.buttons.value = "O0"
    assert json.loads(panel.json.value) == before.to_dict()
    assert "half-written" not in text_in(panel.plots)


def test_save_and_load_go_through_a_file_and_where_that_cannot_be_say_so(panel: ConfigPanel, tmp_path: Path) -> None:
    panel.path.value = str(tmp_path / "nowhere" / "mine.json")
    panel.save_button.click()
    assert "cannot be written (No such file or directory)" in text_in(panel.plots)
    panel.load_button.click()
    assert "there is no such file" in text_in(panel.plots)
    assert panel.config == BoostConfig()
    panel.path.value = str(tmp_path / "mine.json")
    box(panel, "grad_freeze.freeze_p").value = "0.5"
    panel.save_button.click()
    saved = panel.config
    assert BoostConfig.from_json(tmp_path / "mine.json") == saved
    assert f"wrote {tmp_path / 'mine.json'}" in text_in(panel.plots)
    box(panel, "grad_freeze.freeze_p").value = "0.1"
    panel.load_button.click()
    assert (panel.config, box(panel, "grad_freeze.freeze_p").value) == (saved, "0.5")


def uploaded(content: bytes, name: str = "dropped.json") -> tuple[dict[str, Any], ...]:
    return ({"name": name, "type": "application/json", "size": len(content), "content": memoryview(content)},)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\xff\xfe", "dropped.json: is not UTF-8 text (byte 0)"),
        (b"{}}", "dropped.json: is not valid JSON"),
        (b'{"boost": {"less_bn": 3}}', "boost.less_bn must be true or false, got 3"),
        (b"", "dropped.json: is empty"),
    ],
)
def test_an_invalid_uploaded_file_is_a_sentence_and_changes_nothing_and_a_good_one_is_taken(
    panel: ConfigPanel, content: bytes, told: str
) -> None:
    panel._take_upload(uploaded(content))
    assert told in text_in(panel.plots)
    assert panel.config == BoostConfig()
    panel._take_upload(uploaded(b'{"boost": {"mode": "manual", "less_bn": true}}'))
    assert panel.switches["less_bn"].value
    assert "took dropped.json" in text_in(panel.plots)


def test_a_change_elsewhere_is_shown_here() -> None:
    shared = SharedConfig(level="O0")
    with ConfigPanel(shared) as panel:
        entry = box(panel, "grad_freeze.freeze_p")
        shared.set(BoostConfig.from_dict({"grad_freeze": {"freeze_p": 0.5}}), "O1")
        assert (entry.value, panel.preset.buttons.value) == ("0.5", "O1")
        assert panel.switches["grad_freeze"].value
    shared.set(BoostConfig(), "O2")
    assert panel.preset.buttons.value == "O1", "a closed panel no longer listens"


def test_a_configuration_that_cannot_be_resolved_is_told_and_can_be_mended(panel: ConfigPanel) -> None:
    assert "or switch boost.dim_reduce off" not in text_in(panel.controls)  # beneath a switch that is off
    panel.shared.change({"boost.mode": "enable_all"})
    assert "dim_reduce needs a source for its subspace" in text_in(panel.plots)
    box(panel, "dim_reduce.weight_load_dir").value = "snapshots"
    assert "DimReduce (32 components)" in text_in(panel.plots)
    box(panel, "dim_reduce.weight_load_dir").value = ""
    panel.preset.buttons.value = "O1"
    assert "LessBN + freezing" in text_in(panel.plots)


@pytest.mark.parametrize("name", [method.name for method in METHODS])
def test_the_cards_are_the_help(lasting: ConfigPanel, name: str) -> None:
    assert "<strong>What it does.</strong>" in card_html(name)
    section = next(method.section for method in METHODS if method.name == name)
    lasting.sections.selected_index = list(lasting._paths).index(section)
    assert card_html(name) in html_in(lasting.sections)


@pytest.mark.parametrize(
    ("values", "names"),
    [({}, OF_ONE_OPTIMIZER), ({"lr": 0.1}, OF_ONE_OPTIMIZER), ({"name": "AdamW"}, ()), ({"name": "thor"}, ())],
    ids=["no section", "no name", "AdamW", "thor"],
)
def test_without_a_name_parameters_of_one_optimizer_say_whose_they_are(
    values: dict[str, Any], names: tuple[str, ...]
) -> None:
    plan = BoostConfig.from_dict({"optimizer": values} if values else {}).resolve("O0")
    said = {path: owner_note(plan, path) for path in describe_parameters()}
    assert {path for path, note in said.items() if note} == {f"optimizer.{name}" for name in names}
    told = "only thor has it: choose it as the optimizer, unless the task already uses it"
    assert said["optimizer.damping"] == (told if names else "")
