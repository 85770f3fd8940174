from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from workbench.panels import kit
from workbench.panels.style import STYLE

KINDS = [
    kind
    for name, kind in vars(kit).items()
    if name[0].isupper() and isinstance(kind, type) and issubclass(kind, kit._Placed)
]
PANELS = Path(kit.__file__).parent


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_placed_widget_is_one_model_and_has_its_classes(kind: type[Any]) -> None:
    widget = kind(css="wb-wide wb-auto")
    assert widget._dom_classes == ("wb-wide", "wb-auto")
    state = widget.get_state()
    assert state["layout"] is None
    original = kind.__mro__[2] if kind.__mro__[1].__name__ == "_Placed" else kind.__mro__[3]
    assert original.__module__.startswith("ipywidgets.")
    plain = original()
    for name in ("_model_name", "_view_name", "_model_module", "_view_module"):
        assert state[name] == plain.get_state()[name]
    widget.close()
    plain.close()


def test_what_is_not_present_takes_no_room() -> None:
    button = kit.Button(css="wb-auto")
    assert button.is_present
    button.present(False)
    assert not button.is_present
    button.present(False)
    button.present(True)
    assert button._dom_classes == ("wb-auto",)


def test_every_class_that_a_panel_gives_has_a_rule() -> None:
    given: set[str] = set()
    for file in PANELS.glob("*.py"):
        for classes in re.findall(r'css=f?"([^"{]+)', file.read_text(encoding="utf-8")):
            given.update(classes.split())
    assert {"wb-wide", "wb-row", "wb-panel"} <= given
    assert {name for name in given if f".{name}" not in STYLE} == set()
