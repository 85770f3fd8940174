"""Plotly's widget is imported without a parser that takes seconds to build, and nothing is missing for it."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("rfc3987_syntax")


def test_the_parser_of_addresses_is_built_when_one_is_checked() -> None:
    program = """
        import sys
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


def test_a_parser_that_is_there_is_left() -> None:
    program = """
        import sys
        import rfc3987_syntax as before
        import workbench.figures.figure_widget
        assert sys.modules["rfc3987_syntax"] is before
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
