"""The style sheet of the panels, their scripts, and small pieces of HTML that all of them use."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Final

from workbench.config import BoostConfig
from workbench.config.errors import shown
from workbench.figures.labels import superscripted

_FEWEST_BITS: Final = 8


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


STYLE: Final = f"<style>{_file('style.css')}</style>"

NAMING: Final = (
    '<img alt="" style="display:none" src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==" '
    f'onload="{html.escape(_file("name_parts.js"))}">'
)
"""An invisible image that names the parts of its panel for screen readers."""


def words(text: str) -> str:
    """Make text safe in HTML; words in backticks become code."""
    parts = html.escape(text, quote=False).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    # A config path may be broken between its words, which have no spaces.
    paths = (re.sub(r"(?<=[._])(?=\w)", "<wbr>", part) for part in parts[1::2])
    parts[1::2] = [f"<code>{path}</code>" for path in paths]
    return "".join(parts)


def faint(text: str) -> str:
    """Write a line of help."""
    return f'<span class="wb-faint">{words(text)}</span>'


def note_html(text: str) -> str:
    """Write a sentence that screen readers read out when it changes."""
    return f'<div role="status" aria-live="polite">{words(text)}</div>' if text else ""


def error_html(sentence: str, trace: str = "") -> str:
    """Write an error: one sentence, with the traceback folded beneath."""
    folded = f"<details><summary>Traceback</summary><pre>{html.escape(trace)}</pre></details>" if trace else ""
    return f'<div role="alert"><span class="wb-error">✕ {words(sentence)}</span>{folded}</div>'


def label_html(title: str, tip: str, unit: str = "") -> str:
    """Write the name of a field, with its help as a tooltip and its unit at the right."""
    at_right = f'<span class="wb-faint wb-unit">{words(unit)}</span>' if unit else ""
    return f'<span class="wb-label" title="{html.escape(tip)}">{html.escape(title)}</span>{at_right}'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, css: str = "") -> str:
    """Write a small table of plain text; without titles it has no head."""
    titles = "".join(f'<th scope="col">{words(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{words(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="wb-table {css}">{titles and f"<tr>{titles}</tr>"}{body}</table>'


def bullets(sentences: Iterable[str], *, css: str = "") -> str:
    """Write sentences below each other, each with a dot; without any it is empty."""
    items = "".join(f"<li>{words(sentence)}</li>" for sentence in sentences)
    return items and f'<ul class="{css}">{items}</ul>'


def power_text(value: Any) -> str:
    """Write a float that is a power of two, 2^8 or more, as ``2^16``; empty for anything else."""
    mantissa, exponent = math.frexp(value) if isinstance(value, float) and math.isfinite(value) else (0.0, 0)
    return f"2^{exponent - 1}" if mantissa == 0.5 and exponent > _FEWEST_BITS else ""


def value_text(value: Any) -> str:
    """Write a value of a configuration as a file has it, None as unset, and a power of two as one."""
    return superscripted(power_text(value)) or ("unset" if value is None else shown(value))


def difference_html(config: BoostConfig) -> str:
    """Return the parameters in which a configuration differs from the default."""
    rows = [
        (f"`{path}`", value_text(here), value_text(there))
        for path, (here, there) in config.diff(BoostConfig()).items()
        if path != "provenance"
    ]
    return table(("Parameter", "Here", "Default"), rows) if rows else faint("nothing")


def file_link(path: Path, text: str) -> str:
    """Write a link to a file that JupyterLab serves; only the page knows its address."""
    absolute = path.resolve()
    short = f"~/{absolute.relative_to(Path.home()).as_posix()}" if absolute.is_relative_to(Path.home()) else absolute
    names = f'data-absolute="{html.escape(absolute.as_posix())}" data-short="{html.escape(str(short))}"'
    return f'<a href="#" class="wb-link" {names} onclick="{html.escape(_file("open_file.js"))}">{html.escape(text)}</a>'


def copy_button_html() -> str:
    """Write a button that copies the JSON of its panel."""
    script = html.escape(_file("copy_json.js"))
    return f'<button type="button" class="wb-plain-button" title="Copy the JSON" onclick="{script}">Copy</button>'
