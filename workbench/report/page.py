"""How a report page is made: a template of this folder, filled with texts and figures.

An HTML page is one file: styles and plotly.js are inlined, nothing is fetched, and nothing but plotly.js and the
scripts of this folder runs. Of plotly.js it has the part for figures with two axes, packed: an eighth of the whole. Its
templates escape every text; what is HTML already is ``Markup``. Markdown takes texts as they are, but no tags.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import math
import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly import io as plotly_io

from workbench.core.text import format_interval, format_number, printable
from workbench.figures.labels import compact, counted, percent, superscripted
from workbench.figures.speed_accuracy import VERDICT_SYMBOLS
from workbench.figures.theme import FIGURE_CONFIG


def render(template: str, **values: Any) -> str:
    """Return a page: a template of this folder, filled with values."""
    return _templates().get_template(template).render(values)


def embed(figure: go.Figure, identifier: str) -> Markup:
    """Return a figure as HTML for a page that has plotly.js already; an empty one as its sentence.

    Its height is kept, its width follows the page; the identifier, its div's, is unique on the page.
    """
    if not figure.data:  # an empty state needs no script to be read
        reasons = " ".join(str(note.text) for note in figure.layout.annotations)
        return Markup('<p class="missing">{}</p>').format(html.unescape(f"{figure.layout.title.text} {reasons}"))
    height = int(figure.layout.height or 420)
    content: str = plotly_io.to_html(
        figure,
        config=dict(FIGURE_CONFIG),  # a copy: plotly takes keys out of the one it is given
        include_plotlyjs=False,
        include_mathjax=False,
        full_html=False,
        default_width="100%",
        default_height=f"{height}px",
        div_id=identifier,
    )
    # The box holds the place while scripts load, so that the page does not jump.
    return Markup(f'<figure class="plot" style="min-height:{height}px">{content}</figure>')


@functools.cache
def packed_plotly() -> str:
    """Return plotly.js for figures with two axes, gzip in base64; unpack_plotly.js brings it to life."""
    # npm pack plotly.js-cartesian-dist-min@VERSION, and `gzip -9n` of its one script; the version is that in plotly.
    packed = resources.files("workbench.report") / "plotly-cartesian.min.js.gz"
    return base64.b64encode(packed.read_bytes()).decode()


@functools.cache
def _templates() -> jinja2.Environment:
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("workbench.report", "."),
        autoescape=lambda name: str(name).endswith(".html.j2"),
        undefined=jinja2.StrictUndefined,
        finalize=_typeset,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {"compact": compact, "counted": counted, "percent": percent}
    templates.filters["pretty_json"] = functools.partial(json.dumps, indent=2, ensure_ascii=False, default=str)
    templates.filters |= {"number": format_number, "drawn": _drawn, "power": lambda value: f"2^{math.log2(value):g}"}
    templates.tests |= {"finite": math.isfinite, "within": within}
    templates.globals |= {
        "ratio": format_interval,
        "packed_plotly": packed_plotly,
        "verdict_symbols": VERDICT_SYMBOLS,
    }
    return templates


@jinja2.pass_eval_context
def _typeset(context: jinja2.nodes.EvalContext, value: object) -> object:
    """Write powers as powers and keep numbers with their signs; HTML and code, which is escaped already, stay."""
    if isinstance(value, Markup):
        return value
    if not context.autoescape:
        return _in_markdown(value)
    return re.sub(r"(?<=\d) (?=[%×])", "\u00a0", superscripted(str(value)))


def _in_markdown(value: object) -> object:
    """Return a text of which Markdown makes no HTML: a viewer would show, or run, what a file's author put there."""
    return printable(value.replace("<", "&lt;")) if isinstance(value, str) else value


def within(policy: Mapping[str, Any]) -> bool:
    """Return whether a loss-scale policy that was trained overflowed as often as its predicted range says."""
    return bool(policy["overflows_low"] <= policy["observed"] <= policy["overflows_high"])


def _drawn(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
