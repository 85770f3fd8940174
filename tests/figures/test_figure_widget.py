"""Plotly's widget is imported without a parser that takes seconds to build, and nothing is missing for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from importlib.util import find_spec
from types import ModuleType

import pytest

from workbench.figures.figure_widget import _addresses_read_later

pytestmark = pytest.mark.skipif(find_spec("rfc3987_syntax") is None, reason="there is no parser of addresses")


def test_figures_import_nothing_heavy_and_the_parser_of_addresses_is_built_when_one_is_checked() -> None:
    program = """
        import sys
        import workbench.figures, workbench.report
        heavy = {"torch", "optuna", "ipywidgets", "anywidget", "workbench.study", "workbench.training"}
        assert not heavy & set(sys.modules)
        import workbench.figures.live
        assert "anywidget" in sys.modules, "widgets are imported by live figures alone"
        assert "torch" not in sys.modules
        from workbench.figures.figure_widget import FigureWidget
        from jsonschema import FormatChecker
        FigureWidget(data=[{"y": [1, 2]}])
        assert "jsonschema" in sys.modules, "plotly has not asked for it: this file can go"
        assert "rfc3987_syntax" not in sys.modules
        checker = FormatChecker(["iri"])
        assert checker.conforms("http://a.example/käse", "iri")
        assert not checker.conforms("no address", "iri")
        from rfc3987_syntax import make_syntax_validator
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)


def test_a_parser_that_is_there_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ModuleType("rfc3987_syntax")
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", before)
    with _addresses_read_later():
        assert sys.modules["rfc3987_syntax"] is before
    assert sys.modules["rfc3987_syntax"] is before
