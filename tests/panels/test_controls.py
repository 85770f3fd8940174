from __future__ import annotations

import math
from typing import Any

import ipywidgets as widgets
import pytest

from tests.panels.looking import everything, html_in, one_of
from workbench.config import BoostConfig, ConfigError, ParameterInfo, describe_parameters
from workbench.panels.controls import ParameterControl, count_control, number_text, parsed

PARAMETERS = describe_parameters()


@pytest.mark.parametrize("info", [i for i in PARAMETERS.values() if i.low is not None], ids=lambda info: info.path)
def test_the_slider_covers_the_search_range_and_what_it_gives_is_legal(info: ParameterInfo) -> None:
    control = ParameterControl(info)
    assert info.low is not None
    assert info.high is not None
    slider = next(entry for entry in everything(control.widget) if hasattr(entry, "max"))
    base = BoostConfig.from_dict({"loss_scale": {"minimum": 2.0**-10}})
    for share in (1.0, 0.0, 0.31):
        if isinstance(slider, widgets.FloatLogSlider):
            slider.value = 2 ** (slider.min + share * (slider.max - slider.min))
        else:
            slider.value = slider.min + type(slider.min)(share * (slider.max - slider.min))
        value = control.value
        assert isinstance(value, int if info.kind == "int" else float)
        assert info.low * 0.99 <= value <= info.high * 1.01
        assert base.with_values({info.path: value}).leaves()[info.path] == value
    slider.value = 2**slider.max if isinstance(slider, widgets.FloatLogSlider) else slider.max
    assert control.value == pytest.approx(info.high, rel=5e-3)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("12", "int", 12),
        (" 1e3 ", "int", 1000),
        ("2^16", "float", 65536.0),
        ("2**-3", "float", 0.125),
        ("2^4", "int", 16),
        ("3", "float", 3.0),
        ("0.9, 0.99", "list", [0.9, 0.99]),
        ("[3, 7]", "list", [3, 7]),
        ("1.5", "int", 1.5),
        ("many", "int", "many"),
        ("", "int", ""),
        ("9^999", "float", "9^999"),
        ("1" * 400, "float", int("1" * 400)),
        ("a b", "str", "a b"),
    ],
)
def test_text_becomes_the_number_a_person_means(text: str, kind: str, value: Any) -> None:
    assert parsed(text, kind, optional=False) == value
    assert type(parsed(text, kind, optional=False)) is type(value)
    assert parsed("  ", kind, optional=True) is None


@pytest.mark.parametrize("text", ["many", "", "1.5", "0", "nan", "inf", "1" * 400])
def test_what_is_no_legal_number_reaches_the_rule_and_is_refused_in_its_words(text: str) -> None:
    control = ParameterControl(PARAMETERS["loss_scale.window"])
    seen: list[Any] = []
    control.observe(lambda changed: seen.append(changed.value))
    one_of(control.widget, widgets.Text).value = "7"
    one_of(control.widget, widgets.Text).value = text
    with pytest.raises(ConfigError, match=r"`loss_scale\.window` must") as refused:
        BoostConfig().with_values({"loss_scale.window": seen[-1]})
    control.refuse(str(refused.value))
    assert control.problem in html_in(control.widget).replace("<code>", "`").replace("</code>", "`")
    assert one_of(control.widget, widgets.Text).value[:10] == text[:10], "what was typed stays, to be mended"
    control.set(7)
    assert control.problem == ""
    assert "must" not in html_in(control.widget)


def test_a_control_is_disabled_with_a_reason_that_is_shown() -> None:
    control = ParameterControl(PARAMETERS["grad_freeze.freeze_p"])
    inputs = [one for one in everything(control.widget) if isinstance(one, (widgets.Text, widgets.FloatSlider))]
    for reason in ("gradient freezing is off", ""):
        control.disable(reason)
        assert {control.disabled, *(one.disabled for one in inputs)} == {bool(reason)}
        assert ("gradient freezing is off" in html_in(control.widget)) is bool(reason)
    assert not any(getattr(entry, "disabled", False) for entry in everything(control.widget))


def test_reset_appears_with_a_difference_and_takes_it_back() -> None:
    control = ParameterControl(PARAMETERS["grad_freeze.freeze_p"])
    assert not any(isinstance(widget, widgets.Button) for widget in everything(control.widget))
    slider, before = one_of(control.widget, widgets.FloatSlider), control.widget.children
    slider.value = 0.5
    assert (control.value, one_of(control.widget, widgets.Text).value) == (0.5, "0.5")
    button = one_of(control.widget, widgets.Button)
    assert "wb-away" not in button._dom_classes
    assert control.widget.children == before, "what is made anew on the page loses the keyboard's focus"
    seen: list[Any] = []
    control.observe(lambda changed: seen.append(changed.value))
    button.click()
    assert (seen, slider.value) == ([0.7], 0.7)
    assert "wb-away" in one_of(control.widget, widgets.Button)._dom_classes
    control.set(0.6)
    assert "wb-away" not in button._dom_classes


def test_what_is_said_beneath_leaves_the_inputs_where_they_are() -> None:
    control = ParameterControl(PARAMETERS["grad_freeze.freeze_p"])
    before = control.widget.children
    control.note("frozen steps: 30 %")
    assert control.widget.children[: len(before)] == before
    control.note("")
    control.note("frozen steps: 40 %")
    assert "40 %" in html_in(control.widget)
    assert len(control.widget.children) == len(before) + 1


@pytest.mark.parametrize("path", ["grad_freeze.freeze_p", "amp.level", "optimizer.betas"])
def test_a_control_is_made_of_few_models(path: str) -> None:
    made = everything(ParameterControl(PARAMETERS[path]).widget)
    assert len(made) <= 5
    assert not any(widget.layout or getattr(widget, "style", None) for widget in made)


def test_a_choice_says_what_it_does_and_false_and_zero_are_different_ones() -> None:
    control = ParameterControl(PARAMETERS["amp.level"])
    one_of(control.widget, widgets.Dropdown).value = "O2: mixed, weights in float32"  # which has to be offered
    assert control.value == "O2"
    control = ParameterControl(PARAMETERS["grad_freeze.freeze_type"])
    control.set(0)
    assert one_of(control.widget, widgets.Dropdown).value == "front to back, in turn"
    assert (control.value, type(control.value)) == (0, int)
    switch = ParameterControl(PARAMETERS["boost.less_bn"])
    for value, shown in ((False, "no"), (None, "unset")):
        switch.set(value)
        assert one_of(switch.widget, widgets.Dropdown).value == shown


def test_a_slider_is_not_moved_beneath_a_finger() -> None:
    control = ParameterControl(PARAMETERS["grad_freeze.freeze_p"], 0.7)
    slider = one_of(control.widget, widgets.FloatSlider)
    slider.value = 0.7 - 0.01  # 0.69 but for its last digit, as the page counts
    assert control.value == 0.69
    assert slider.value == 0.7 - 0.01, "rounded, it would jump back to 0.69 in the page after the next move"
    heard: list[Any] = []
    control.observe(lambda changed: heard.append(changed.value))
    control.set(0.4)
    assert (slider.value, heard) == (0.4, []), "what a program sets is no news"


def test_a_value_outside_the_slider_stays_what_it_is_and_help_and_unit_stand_beside_it() -> None:
    control = ParameterControl(PARAMETERS["loss_scale.init"])
    control.set(2.0**100)
    assert (control.value, one_of(control.widget, widgets.FloatLogSlider).value) == (2.0**100, math.exp2(24))
    info = PARAMETERS["loss_scale.window"]
    control = ParameterControl(info)
    assert "steps" in html_in(control.widget)
    assert info.description in html_in(control.widget)
    assert info.rule in one_of(control.widget, widgets.FloatLogSlider).tooltip


def test_a_count_that_cannot_be_used_is_refused_as_soon_as_it_is_entered() -> None:
    control = count_control("steps", "Steps", "Batches to train on.", 300)
    one_of(control.widget, widgets.Text).value = "0.5"
    assert "must be a whole number, 1 or more, got 0.5" in html_in(control.widget)
    one_of(control.widget, widgets.Text).value = "20"
    assert "must be" not in html_in(control.widget)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((2.0**16, "2^16"), (2.0**24, "2^24"), (65535.0, "65535"), (128.0, "128"), (65536, "65536"), (0.1, "0.1")),
        *((1 / 3, "0.3333333333333333"), (1e-4, "0.0001"), (1e300, "1e+300"), (-0.0, "-0"), (12345678.9, "12345678.9")),
    ],
)
def test_a_number_is_written_as_a_person_does_and_read_again(value: float, text: str) -> None:
    assert number_text(value) == text
    assert parsed(text, "int" if isinstance(value, int) else "float", optional=False) == value
