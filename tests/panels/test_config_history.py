from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.panels.looking import text_in
from workbench.config import BoostConfig, ConfigError
from workbench.panels import shared_config
from workbench.panels.config_history import NamedConfigs, Taking, UndoButtons
from workbench.panels.panel import Panel
from workbench.panels.shared_config import SharedConfig

SLOW = {"grad_freeze.freeze_p": 0.5}
OTHER = BoostConfig.from_dict({"loss_scale": {"window": 500}})


FREEZE_P = BoostConfig().grad_freeze.freeze_p


def freeze_p(shared: SharedConfig) -> float:
    return shared.config.grad_freeze.freeze_p


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a clock that a test sets."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(shared_config, "time", clock)
    return clock


def test_every_change_is_taken_back_and_made_again_in_order() -> None:
    shared, seen = SharedConfig(), list[tuple[float, str]]()
    states = [shared.both()]
    for act in (
        lambda: shared.change(SLOW),
        lambda: shared.change({}, "O2"),
        lambda: shared.set(OTHER),
        lambda: shared.change({"amp.level": "O2", "loss_scale.window": 20}),
    ):
        act()
        states.append(shared.both())
    shared.observe(lambda config, level: seen.append((config.grad_freeze.freeze_p, level)))
    assert shared.undoes() == ["loss_scale.window", "amp.level"]
    for state in reversed(states[:-1]):
        shared.undo()
        assert shared.both() == state
    shared.undo()
    assert (shared.both(), shared.undoes(), len(seen)) == (states[0], [], 4), "observers hear of each, and of no more"
    assert shared.redoes() == ["grad_freeze.freeze_p"]
    for state in states[1:]:
        shared.redo()
        assert shared.both() == state
    assert shared.redoes() == []


def test_a_new_edit_ends_what_could_be_made_again() -> None:
    shared = SharedConfig()
    shared.change(SLOW)
    shared.undo()
    shared.change({"dim_reduce.rho": 0.3})
    shared.redo()
    assert (freeze_p(shared), shared.config.dim_reduce.rho) == (FREEZE_P, 0.3)


def test_a_dragged_slider_is_one_edit_and_a_pause_begins_another(clock: SimpleNamespace) -> None:
    shared = SharedConfig()
    for moment, value in enumerate((0.1, 0.2, 0.3)):
        clock.now = moment
        shared.change({"grad_freeze.freeze_p": value})
    clock.now = 60.0
    shared.change({"grad_freeze.freeze_p": 0.6})
    shared.change({"dim_reduce.rho": 0.3})  # at once, but another value
    assert [shared.undo() or freeze_p(shared) for _ in range(3)] == [0.6, 0.3, FREEZE_P]


@pytest.mark.parametrize("before", [{}, {"loss_scale.window": 20}])
def test_a_slider_that_is_dragged_back_and_away_again_is_undone(clock: SimpleNamespace, before: dict[str, Any]) -> None:
    shared = SharedConfig()
    shared.change(before)
    began = shared.both()
    for value in (0.6, FREEZE_P, 0.5, 0.4):
        clock.now += 0.1
        shared.change({"grad_freeze.freeze_p": value})
    assert shared.undoes() == ["grad_freeze.freeze_p"]
    shared.undo()
    assert shared.both() == began


def test_a_slider_that_is_dragged_back_leaves_nothing_to_undo(clock: SimpleNamespace) -> None:
    shared = SharedConfig()
    shared.change(SLOW)
    shared.change({"grad_freeze.freeze_p": FREEZE_P})
    assert shared.undoes() == []


def test_what_was_edited_by_hand_is_told_from_what_can_be_had_again() -> None:
    shared = SharedConfig()
    assert not shared.is_edited
    for act, is_edited in (
        (lambda: shared.set(OTHER, "O2"), False),  # it was taken whole
        (lambda: shared.change(SLOW), True),
        (lambda: shared.keep("mine"), False),  # it has a name
        (lambda: shared.forget("mine"), True),
        (shared.undo, False),
        (lambda: shared.set(BoostConfig.from_dict({"amp": {"level": "O3"}}), edited=True), True),
    ):
        act()
        assert shared.is_edited is is_edited


def test_undo_and_redo_say_what_they_set_and_rest_where_there_is_nothing(keep: Callable[[Any], Any]) -> None:
    shared, panel = SharedConfig(), keep(Panel("p"))
    buttons = UndoButtons(panel, shared)
    assert (buttons.undo.disabled, buttons.redo.disabled) == (True, True)
    shared.change(SLOW)
    assert (buttons.undo.disabled, buttons.undo.tooltip) == (False, "Undo the change of grad_freeze.freeze_p")
    buttons.undo.click()
    assert freeze_p(shared) == FREEZE_P
    assert (buttons.undo.disabled, buttons.redo.disabled) == (True, False)
    buttons.redo.click()
    assert freeze_p(shared) == 0.5


def test_configurations_kept_by_name_stand_side_by_side(keep: Callable[[Any], Any]) -> None:
    shared, panel = SharedConfig(), keep(Panel("p"))
    named = NamedConfigs(panel, shared)
    panel.controls.children = (named.widget,)
    named.keep_button.click()
    assert "name the configuration" in text_in(panel)
    for name, value in (("careful", 0.9), ("fast", 0.3)):
        shared.change({"grad_freeze.freeze_p": value})
        named.name.value = name
        named.keep_button.click()
    assert (named.choice.options, named.choice.value) == (("careful", "fast"), "fast")
    shared.change({"dim_reduce.rho": 0.3})
    assert "Parameternowcarefulfastgrad_freeze.freeze_p0.30.90.3dim_reduce.rho0.30.550.55" in text_in(panel)

    named.choice.value = "careful"
    named.use_button.click()
    assert freeze_p(shared) == 0.3, "an edit is not replaced without a question"
    named.taking.replace_button.click()
    assert freeze_p(shared) == 0.9
    named.choice.value = "fast"
    named.use_button.click()
    assert freeze_p(shared) == 0.3, "nothing was edited, so nothing is asked"
    named.forget_button.click()
    assert list(shared.kept) == ["careful"]


@pytest.mark.parametrize(("answer", "kept"), [("replace", []), ("keep", ["edits 1"]), ("leave", [])])
def test_edits_are_replaced_only_when_the_answer_says_so(
    keep: Callable[[Any], Any], answer: str, kept: list[str]
) -> None:
    shared, panel, done = SharedConfig(), keep(Panel("p")), list[str]()
    taking = Taking(panel, shared)
    panel.controls.children = (taking.widget,)
    shared.change(SLOW)
    edited = shared.both()
    taking.take(OTHER, "O2", "trial 3", lambda: done.append("taken"))
    assert (shared.both(), done, taking.widget.is_present) == (edited, [], True)
    assert "Trial 3 would replace your edits of the configuration (3 values differ)." in text_in(panel)
    getattr(taking, f"{answer}_button").click()
    assert not taking.widget.is_present
    assert (shared.both() == (OTHER, "O2"), bool(done)) == ((answer != "leave"),) * 2
    assert list(shared.kept) == kept
    if kept:
        assert shared.kept["edits 1"] == edited


def test_a_name_must_not_be_empty() -> None:
    with pytest.raises(ConfigError, match="name the configuration"):
        SharedConfig().keep("  ")
