"""The notebooks as pages: the copies that tests have executed, with figures that a browser draws.

``pytest -m notebook tests/notebooks`` keeps executed copies in the folder that ``WORKBENCH_EXECUTED_NOTEBOOKS`` names;
where the copy of a notebook is not there, or of another text, its page says that the results are missing.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXECUTED = Path(os.environ.get("WORKBENCH_EXECUTED_NOTEBOOKS", ROOT / "build" / "notebooks"))
FIGURE, WIDGET = "application/vnd.plotly.v1+json", "application/vnd.jupyter.widget-view+json"

_MISSING = (
    "```{note}\nThis page was built without results: figures are missing. "
    "`WORKBENCH_EXECUTED_NOTEBOOKS=build/notebooks pytest -m notebook tests/notebooks` makes them; the next build of "
    "the documentation shows them.\n```"
)
_PANEL = (
    '<p class="wb-live">Here the notebook shows the live panel; open it with <code>workbench lab {name}</code>.</p>'
)


def pages() -> dict[str, str]:
    """Return every notebook as a page, and the gallery: path below ``docs`` -> text."""
    sources = sorted((ROOT / "notebooks").glob("*.ipynb"))
    found = {f"tutorials/{path.name}": json.dumps(_page(path), indent=1, ensure_ascii=False) for path in sources}
    return {**found, "tutorials/index.md": _gallery(sources)}


def _page(path: Path) -> dict[str, Any]:
    """Return a notebook with its results where there are any, else with a note."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    executed = EXECUTED / path.name
    if executed.is_file():
        copy = json.loads(executed.read_text(encoding="utf-8"))
        if [_text(cell) for cell in copy["cells"]] == [_text(cell) for cell in notebook["cells"]]:
            copy["metadata"].pop("widgets", None)  # a page has no kernel to talk to
            for cell in copy["cells"]:
                cell["outputs"] = [_shown(one, path.stem[:2]) for one in cell.get("outputs", [])]
                if cell["cell_type"] != "code":
                    del cell["outputs"]
            return copy
    first = notebook["cells"][0]
    title, _, rest = _text(first).partition("\n")
    first["source"] = f"{title}\n\n{_MISSING}\n{rest}"
    return notebook


def _shown(output: dict[str, Any], number: str) -> dict[str, Any]:
    """Return an output as a page shows it: figures as data for the browser, panels as a sentence."""
    data = output.get("data", {})
    if FIGURE in data:
        figure = json.dumps(data[FIGURE]).replace("<", "\\u003c")
        data = {"text/html": f'<div class="wb-figure"><script type="application/json">{figure}</script></div>'}
    elif WIDGET in data:
        data = {"text/html": _PANEL.format(name=number)}
    else:
        return output
    return {**output, "data": data, "metadata": {}}


def _gallery(sources: list[Path]) -> str:
    cards = []
    for path in sources:
        first = _text(json.loads(path.read_text(encoding="utf-8"))["cells"][0])
        title = first.partition("\n")[0].removeprefix("# ")
        question = re.search(r"\*\*Question\.\*\* (.*?)(?:\n\n|\Z)", first, re.DOTALL)
        words = " ".join(question.group(1).split()) if question else ""
        cards.append(f":::{{grid-item-card}} {title}\n:link: {path.stem}\n:link-type: doc\n\n{words}\n:::")
    names = "\n".join(path.stem for path in sources)
    return (
        "# Tutorials\n\nNotebooks, each with one question and real runs; `workbench lab` opens them in JupyterLab.\n\n"
        "::::{grid} 1 1 2 2\n:gutter: 3\n\n"
        + "\n\n".join(cards)
        + f"\n::::\n\n```{{toctree}}\n:hidden:\n\n{names}\n```\n"
    )


def _text(cell: dict[str, Any]) -> str:
    source = cell["source"]
    return source if isinstance(source, str) else "".join(source)


def write_plotly(app: Any) -> None:
    """Write plotly's script beside the built pages."""
    from plotly.offline import get_plotlyjs

    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")


def load_plotly(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Load plotly on a page that has figures, and on no other: it is large."""
    if "wb-figure" in context.get("body", ""):
        app.add_js_file("plotly.min.js")
        app.add_js_file("figures.js")
