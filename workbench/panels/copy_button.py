"""A button that copies the JSON of its panel; only a page can reach the clipboard."""

from __future__ import annotations

import html
from typing import Final

import ipywidgets as widgets

from workbench.panels.panel import text_of

__all__ = ["WHOLE_WORDS", "copy_button"]

_COPY: Final = (
    "const t=this.closest('.wb-panel').querySelector('.wb-json textarea');const b=this;"
    "const told=()=>{b.textContent='Copied';setTimeout(()=>{b.textContent='Copy'},1500)};"
    "if(navigator.clipboard){navigator.clipboard.writeText(t.value).then(told)}"
    "else{t.select();document.execCommand('copy');told()}"
)
# Text that is only shown is as legible as any other.
_LEGIBLE: Final = (
    "<style>.wb-json textarea:disabled{opacity:1;color:var(--jp-content-font-color1,#24292f);"
    "-webkit-text-fill-color:currentcolor}</style>"
)
WHOLE_WORDS: Final = "<style>.wb-table th,.wb-table td:first-child{white-space:nowrap}</style>"
"""Keeps titles and names of a table in one piece where the page is narrow."""


def copy_button() -> widgets.HTML:
    """Return a button that copies the text area inside the part of class ``wb-json``."""
    return text_of(
        f'{_LEGIBLE}<button type="button" class="wb-plain-button" title="Copy the JSON" onclick="{html.escape(_COPY)}">'
        "Copy</button>"
    )
