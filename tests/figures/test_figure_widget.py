"""Plotly's widget is imported without a parser that takes seconds to build, and nothing is missing for it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from workbench.figures.figure_widget import _addresses_read_later

pytestmark = pytest.mark.skipif(find_spec("rfc3987_syntax") is None, reason="there is no parser of addresses")


def test_figures_import_nothing_heavy_and_the_parser_of_addresses_is_built_when_one_is_checked(tmp_path: Path) -> None:
    # A parser that is built at once stands in for the real one, whose function has this name and these arguments.
    parser = find_spec("rfc3987_syntax")
    assert parser is not None
    assert parser.origin is not None
    files = Path(parser.origin).parent.glob("*.py")
    assert any("def is_valid_syntax(term: str, value: str)" in file.read_text(encoding="utf-8") for file in files)
    stand_in = "def is_valid_syntax(term, value): return term == 'iri' and ':' in value"
    (tmp_path / "rfc3987_syntax.py").write_text(stand_in)
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
        assert sys.modules["rfc3987_syntax"].__file__, "the parser itself is there from now on"
    """
    found_first = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": found_first}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, env=environment)


def test_a_parser_that_is_there_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ModuleType("rfc3987_syntax")
    monkeypatch.setitem(sys.modules, "rfc3987_syntax", before)
    with _addresses_read_later():
        assert sys.modules["rfc3987_syntax"] is before
    assert sys.modules["rfc3987_syntax"] is before
