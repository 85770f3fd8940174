"""The look of a report page, and how text and figures get into it.

A page is one file: styles and plotly.js are inlined, nothing is fetched, and nothing but plotly.js runs. Every text
that comes from a user passes through ``text()``; the other functions here take HTML.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from typing import Any

import plotly.graph_objects as go
from plotly import io as plotly_io
from plotly.offline import get_plotlyjs

from workbench.figures.labels import superscripted
from workbench.figures.theme import FIGURE_CONFIG

__all__ = [
    "card",
    "code",
    "details",
    "document",
    "embed",
    "missing",
    "pretty_json",
    "section",
    "table",
    "text",
    "word_list",
]


def text(value: object) -> str:
    """Escape anything for use as HTML text or as an attribute's value; numbers stay with their signs."""
    return re.sub(r"(?<=\d) (?=[%×])", "\u00a0", html.escape(superscripted(str(value)), quote=True))


def code(content: str) -> str:
    """Return a block of code; one click selects all of it, since a page without scripts cannot copy."""
    return f'<pre class="code"><code>{html.escape(content)}</code></pre>'


def details(summary: str, content: str, *, is_open: bool = False) -> str:
    """Return HTML that is folded under a one-line summary (both HTML)."""
    return f"<details{' open' if is_open else ''}><summary>{summary}</summary>{content}</details>"


def missing(reason: str) -> str:
    """Return the sentence that stands where something is missing, so that no hole is left."""
    return f'<p class="missing">{text(reason)}</p>'


def card(label: str, value: str, note: str = "") -> str:
    """Return one key figure: label above, value large, note below (plain texts)."""
    below = f'<span class="note">{text(note)}</span>' if note else ""
    above = f'<span class="label">{text(label)}</span>'
    return f'<div class="card">{above}<span class="value">{text(value)}</span>{below}</div>'


def word_list(items: Mapping[str, Any]) -> str:
    """Return a mapping as a two-column list of terms; nested mappings become nested lists."""
    rows = "".join(
        f"<dt>{text(key)}</dt><dd>{word_list(value) if isinstance(value, Mapping) else text(value)}</dd>"
        for key, value in items.items()
    )
    return f"<dl>{rows}</dl>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = (), label: str = "") -> str:
    """Return a table.

    Args:
        head: Column titles (plain texts).
        rows: Cells (HTML).
        numeric: Columns aligned to the right.
        label: What the table shows, for screen readers (plain text).
    """
    classes = ['class="number"' if i in set(numeric) else "" for i in range(len(head))]
    titles = "".join(f'<th scope="col" {classes[i]}>{text(title)}</th>' for i, title in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td {classes[i]}>{cell}</td>" for i, cell in enumerate(row)) + "</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table aria-label="{text(label)}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def section(anchor: str, title: str, content: str, lead: str = "") -> str:
    """Return one section.

    Args:
        anchor: Its id on the page.
        title: Heading (plain text).
        content: HTML.
        lead: A sentence or two that say what to look for (plain text).
    """
    opening = f'<p class="lead">{text(lead)}</p>' if lead else ""
    return f'<section id="{text(anchor)}"><h2>{text(title)}</h2>{opening}{content}</section>'


def embed(figure: go.Figure, identifier: str) -> str:
    """Return a figure as HTML for a page that has plotly.js already; an empty one as its sentence.

    Args:
        figure: The figure; its height is kept, its width follows the page.
        identifier: The div's id, unique on the page.
    """
    if not figure.data:  # an empty state needs no 5 MB of script to be read
        reasons = " ".join(str(note.text) for note in figure.layout.annotations)
        return missing(html.unescape(f"{figure.layout.title.text} {reasons}"))
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
    return f'<figure class="plot" style="min-height:{height}px">{content}</figure>'


def document(title: str, body: str, *, with_plotly: bool = True) -> str:
    """Return the whole page.

    Args:
        title: Title of the browser tab (plain text).
        body: HTML.
        with_plotly: Whether to inline plotly.js (about 5 MB); without figures it is not needed.
    """
    style = resources.files("workbench.report").joinpath("page.css").read_text(encoding="utf-8")
    script = f'<script type="text/javascript">{get_plotlyjs()}</script>' if with_plotly else ""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        # The page may run its own scripts and nothing else: no request leaves it, whatever a name contains.
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
        "font-src data:; connect-src 'none'\">\n"
        f"<title>{text(title)}</title>\n<style>{style}</style>\n{script}\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def pretty_json(value: object) -> str:
    """Return JSON as it is written to a file: two spaces, keys in their own order, text unescaped."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)
