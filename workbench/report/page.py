"""How a report page is made: from a template in this folder, filled with texts and figures.

An HTML page is one file: styles and plotly.js are inlined, nothing is fetched, and nothing but plotly.js and the
scripts of this folder runs. It has the part of plotly.js for figures with two axes, packed: an eighth of the whole. Its
templates escape every text; what is HTML already is ``Markup``. Markdown takes texts unchanged, but no tags.
"""

from __future__ import annotations

import base64
import functools
import gzip
import html
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape

from workbench.core.headline import parts_against_total, search_against_confirmation
from workbench.core.text import format_interval, format_number, printable
from workbench.figures import figure_text
from workbench.figures.labels import compact, counted, percent, superscripted
from workbench.figures.speed_accuracy import VERDICT_SYMBOLS
from workbench.figures.theme import FIGURE_CONFIG

_MOST_PLAIN = 40_000  # characters of data that stand on a page as they are


@dataclass(frozen=True, slots=True)
class RunChoice:
    """A run that may be laid over others."""

    path: str  # below the folder that is served, with slashes
    label: str
    address: str  # of its own page
    chosen: bool = False  # at first


@dataclass(frozen=True, slots=True)
class Served:
    """What a page knows of the server that shows it: `workbench view` follows work that goes on, a file does not."""

    version: str  # of the content: the page asks for another one
    state: str = ""  # whether the work goes on, a sentence
    is_live: bool = False  # it does
    up: tuple[str, str] | None = None  # address and name of the folder around it
    runs: Sequence[RunChoice] = ()  # that may be laid over each other


def render(template: str, **values: Any) -> str:
    """Return a page: a template in this folder, filled with values."""
    return _templates().get_template(template).render(values)


def embed(figure: go.Figure, identifier: str, *, of_trials: bool = False) -> Markup:
    """Return a figure as HTML for a page that already has plotly.js; an empty one as its sentence.

    Its height is kept, its width follows the page; ``identifier``, its element's id, must be unique on the page.
    Figures ``of_trials``, whose points name their trial in ``customdata[0]``, are linked with the table of trials.
    """
    if not figure.data:  # an empty state needs no script to be read
        reasons = " ".join(str(note.text) for note in figure.layout.annotations)
        return Markup('<p class="missing">{}</p>').format(html.unescape(f"{figure.layout.title.text} {reasons}"))
    height = int(figure.layout.height or 420)
    figure.update_layout(height=height)
    drawn = json.loads(figure.to_json()) | {"config": dict(FIGURE_CONFIG)}
    words = figure_text(figure).replace("\n", ". ")
    # The box holds the place while scripts load, so that the page does not jump.
    return Markup(
        '<figure class="plot" id="{}"{} style="min-height:{}px">'
        '<div class="drawing" role="group" aria-label="{}"></div>{}</figure>'
    ).format(identifier, Markup(" data-trials") if of_trials else "", height, words, data_script(drawn))


def data_script(values: Any) -> Markup:
    """Return values as JSON in a script that does not run, packed where they are large; page.js reads it."""
    text = json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    if len(text) > _MOST_PLAIN:
        packed = base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()
        return Markup('<script type="application/gzip">{}</script>').format(packed)
    # Whatever a name contains, it ends no script.
    return Markup('<script type="application/json">{}</script>').format(Markup(text.replace("<", "\\u003c")))


@functools.cache
def packed_plotly() -> str:
    """Return plotly.js for figures with two axes, gzip in base64; page.js brings it to life."""
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
    templates.filters["quoted"] = lambda path: shlex.quote(str(path))  # for a shell
    templates.tests |= {"finite": math.isfinite, "within": within}
    templates.globals |= {
        "parts_against_total": parts_against_total,
        "search_against_confirmation": search_against_confirmation,
        "ratio": format_interval,
        "packed_plotly": packed_plotly,
        "verdict_symbols": VERDICT_SYMBOLS,
    }
    return templates


@jinja2.pass_eval_context
def _typeset(context: jinja2.nodes.EvalContext, value: object) -> object:
    """Write powers as powers, keep numbers with their signs, and turn words in backticks into code.

    HTML and code, which is escaped already, stay; so does an attribute that must not change, with the filter ``e``.
    """
    if isinstance(value, Markup):
        return value
    if not context.autoescape:
        return _in_markdown(value)
    text = re.sub(r"(?<=\d) (?=%|x\b)", "\u00a0", superscripted(str(value)))
    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # escaped before


def _in_markdown(value: object) -> object:
    """Return a text that Markdown does not turn into HTML: a viewer would show, or run, what a file's author wrote."""
    return printable(value.replace("<", "&lt;")) if isinstance(value, str) else value


def within(policy: Mapping[str, Any]) -> bool:
    """Return whether a loss-scale policy that was trained overflowed within its predicted range."""
    return bool(policy["overflows_low"] <= policy["observed"] <= policy["overflows_high"])


def _drawn(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)
