"""How panels look: one style sheet, and small pieces of HTML that all of them use.

Colours come from JupyterLab's variables, with fallbacks for hosts that have none, so a panel follows the theme of its
page. A panel with a theme of its own sets those variables for itself. No meaning is carried by a colour alone.

Two things the page knows and the kernel does not: the ink of a figure's words, which plotly has as a grey for both
themes, and the arrow of a list, which ipywidgets has as a black picture.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Final

from workbench.panels.placed_widgets import PLACES
from workbench.panels.state import PanelState

__all__ = ["FITTING", "STYLE", "badge", "error_html", "faint", "note_html", "table", "words"]

_SYMBOLS: Final = {
    PanelState.IDLE: "○",
    PanelState.RUNNING: "▶",
    PanelState.PAUSED: "❚❚",
    PanelState.STOPPING: "◼",
    PanelState.DONE: "✓",
    PanelState.FAILED: "✕",
}

_LIGHT: Final = {
    "layout-color0": "#ffffff",
    "layout-color1": "#ffffff",
    "layout-color2": "#f1f3f5",
    "layout-color3": "#dfe3e8",
    "ui-font-color0": "#111111",
    "ui-font-color1": "#24292f",
    "ui-font-color2": "#57606a",
    "content-font-color1": "#24292f",
    "content-font-color2": "#57606a",
    "border-color1": "#c4cad1",
    "border-color2": "#dde1e6",
    "brand-color1": "#0067a8",
    "error-color1": "#b3261e",
    "success-color1": "#1a7f4b",
    "warn-color1": "#9a5b00",
    "widgets-color": "#24292f",
    "widgets-label-color": "#24292f",
    "widgets-readout-color": "#24292f",
    "widgets-input-color": "#24292f",
    "widgets-input-background-color": "#ffffff",
    "widgets-input-border-color": "#c4cad1",
}
_DARK: Final = {
    "layout-color0": "#0f1318",
    "layout-color1": "#14191f",
    "layout-color2": "#232a33",
    "layout-color3": "#343d48",
    "ui-font-color0": "#ffffff",
    "ui-font-color1": "#d8dde4",
    "ui-font-color2": "#9aa4b0",
    "content-font-color1": "#d8dde4",
    "content-font-color2": "#9aa4b0",
    "border-color1": "#46505c",
    "border-color2": "#323b45",
    "brand-color1": "#56b4e9",
    "error-color1": "#ff8a80",
    "success-color1": "#5bd197",
    "warn-color1": "#f0b35a",
    "widgets-color": "#d8dde4",
    "widgets-label-color": "#d8dde4",
    "widgets-readout-color": "#d8dde4",
    "widgets-input-color": "#d8dde4",
    "widgets-input-background-color": "#1b2129",
    "widgets-input-border-color": "#46505c",
}


def _variables(values: dict[str, str]) -> str:
    return "".join(f"--jp-{name}:{value};" for name, value in values.items())


STYLE: Final = (
    "<style>"
    f".wb-light{{{_variables(_LIGHT)}background:var(--jp-layout-color1)}}"
    f".wb-dark{{{_variables(_DARK)}background:var(--jp-layout-color1)}}"
    + """
.wb-panel{color:var(--jp-ui-font-color1,#24292f);max-width:100%;padding:4px 8px;box-sizing:border-box}
.wb-panel .widget-html-content,.wb-panel .jupyter-widgets.widget-html>div{line-height:1.4;font-size:13px}
.wb-panel .wb-title{font-size:17px;font-weight:600;white-space:nowrap}
.wb-panel .wb-badge{display:inline-block;padding:1px 9px;border-radius:10px;border:1px solid currentColor;
 font-size:12px;white-space:nowrap}
.wb-panel .wb-running,.wb-panel .wb-paused,.wb-panel .wb-stopping{color:var(--jp-brand-color1,#0067a8)}
.wb-panel .wb-done{color:var(--jp-success-color1,#1a7f4b)}
.wb-panel .wb-failed,.wb-panel .wb-error{color:var(--jp-error-color1,#b3261e)}
.wb-panel .wb-faint{color:var(--jp-ui-font-color2,#57606a);font-size:12px}
.wb-panel .wb-label{border-bottom:1px dotted var(--jp-border-color1,#c4cad1);cursor:help}
.wb-panel .wb-off{color:var(--jp-ui-font-color2,#57606a)}
.wb-panel pre{white-space:pre-wrap;overflow-wrap:anywhere;max-height:260px;overflow:auto;font-size:12px;margin:4px 0;
 color:var(--jp-content-font-color1,#24292f);background:var(--jp-layout-color2,#f1f3f5);padding:6px 8px}
.wb-panel summary{cursor:pointer}
.wb-panel table.wb-table{border-collapse:collapse;font-size:12px;color:var(--jp-content-font-color1,#24292f)}
.wb-panel .wb-table th,.wb-panel .wb-table td{text-align:left;padding:2px 12px 2px 0;vertical-align:top;
 border-top:1px solid var(--jp-border-color2,#dde1e6);overflow-wrap:anywhere}
.wb-panel .wb-table th{color:var(--jp-ui-font-color2,#57606a);font-weight:600;border-top:none}
.wb-panel code{font-size:12px;overflow-wrap:anywhere;white-space:normal;
 background:var(--jp-layout-color2,#f1f3f5);padding:0 3px;border-radius:3px}
.wb-panel textarea{font-family:var(--jp-code-font-family,monospace);font-size:12px}
.wb-panel h3,.wb-panel h4{margin:10px 0 4px;font-size:13px;font-weight:600}
.wb-panel p{margin:4px 0}
.wb-panel .wb-footer{border-top:1px solid var(--jp-border-color2,#dde1e6);padding-top:4px}
.wb-panel .wb-plain-button{height:28px;padding:0 10px;border:none;cursor:pointer;font-size:13px;
 color:var(--jp-ui-font-color1,#24292f);background:var(--jp-layout-color2,#eee)}
.wb-panel .wb-plain-button:hover{background:var(--jp-layout-color3,#ddd)}
.wb-panel .wb-plain-button:focus-visible{outline:2px solid var(--jp-brand-color1,#0067a8)}
.wb-panel .widget-tab>.widget-tab-contents{padding:6px 4px}
.wb-panel .wb-panel{padding:4px 2px}
.wb-panel .widget-dropdown>select{background-repeat:no-repeat;background-size:5px 5px;padding-right:22px;
 background-image:linear-gradient(45deg,transparent 50%,currentColor 50%),
  linear-gradient(135deg,currentColor 50%,transparent 50%);
 background-position:right 12px center,right 7px center}
.wb-panel .main-svg :is(.gtitle-subtitle,[class*=tick]>text,.legendtext,.infolayer [class$=title]){
 fill:var(--jp-ui-font-color2,#57606a)!important}
.wb-panel .main-svg .infolayer text.gtitle{fill:var(--jp-ui-font-color1,#24292f)!important}
"""
    + PLACES
    + "</style>"
)


# Plotly's widget draws itself before it stands on the page, knows no width then, and is not told of its tab being
# opened. Its figures do listen to the window, so the window is told when a whole drawing and its place differ: a few
# times for every width, or a figure of a fixed width would ask for ever. The image stays where it is: what a widget
# has put on the page is the widget's to remove.
_FIT: Final = (
    "const root=this.closest('.wb-panel');this.onload=null;if(root){let timer;const watched=new WeakSet();"
    "const look=()=>{clearTimeout(timer);timer=setTimeout(fit,60)};"
    "const places=new ResizeObserver(look);"
    "const fit=()=>{let differs=false,later=false;"
    "for(const plot of root.querySelectorAll('.js-plotly-plot')){"
    "if(!watched.has(plot)){watched.add(plot);places.observe(plot)}"
    "const width=plot.clientWidth,drawn=plot._fullLayout;if(!width)continue;"
    "if(!drawn||drawn._replotting||!plot.calcdata||!plot.querySelector('.main-svg')){later=true;continue}"
    "if(Math.abs(drawn.width-width)<1)continue;"
    "const data=plot.dataset;if(data.wbWidth!=width){data.wbWidth=width;data.wbTold=0}"
    "if(data.wbTold<3){data.wbTold++;differs=later=true}}"
    "if(differs)window.dispatchEvent(new Event('resize'));if(later&&root.isConnected)timer=setTimeout(fit,400)};"
    "places.observe(root);new MutationObserver(look).observe(root,{childList:true,subtree:true});look()}"
)
FITTING: Final = (
    '<img alt="" style="display:none" src="data:image/gif;base64,R0lGODlhAQABAAAAACH5BAEKAAEALAAAAAABAAEAAAICTAEAOw==" '
    f'onload="{html.escape(_FIT)}">'
)
"""An invisible image that keeps the figures of its panel as wide as their places."""


def words(text: str) -> str:
    """Make text safe in HTML; what stands in backticks becomes code."""
    parts = html.escape(text, quote=False).split("`")
    if len(parts) % 2 == 0:
        return "`".join(parts)
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))


def faint(text: str) -> str:
    """Write a line of help."""
    return f'<span class="wb-faint">{words(text)}</span>'


def note_html(text: str) -> str:
    """Write a sentence that screen readers tell when it changes."""
    return f'<div role="status" aria-live="polite">{words(text)}</div>' if text else ""


def error_html(sentence: str, trace: str = "") -> str:
    """Write an error: one sentence, with the traceback folded beneath.

    Args:
        sentence: What went wrong.
        trace: Traceback; empty for none.
    """
    folded = f"<details><summary>Traceback</summary><pre>{html.escape(trace)}</pre></details>" if trace else ""
    return f'<div role="alert"><span class="wb-error">✕ {words(sentence)}</span>{folded}</div>'


def badge(state: PanelState) -> str:
    """Write a state as a symbol and a word."""
    return f'<span class="wb-badge wb-{state}" role="status">{_SYMBOLS[state]} {state}</span>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a small table.

    Args:
        head: Column titles, plain text.
        rows: Cells, plain text.
    """
    titles = "".join(f"<th>{words(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{words(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<table class="wb-table"><tr>{titles}</tr>{body}</table>'
