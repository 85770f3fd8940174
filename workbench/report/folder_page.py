"""The page of a folder: the studies and runs in it, and its runs over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.report.page import render
from workbench.report.served import Served


def folder_page_html(
    title: str,
    *,
    studies: Sequence[Mapping[str, Any]] = (),
    runs: Sequence[Mapping[str, Any]] = (),
    n_runs: int = 0,
    note: str = "",
    served: Served | None = None,
) -> str:
    """Return the page.

    Args:
        title: Name of the folder.
        studies: Rows with name, address, task, trials, objective and state.
        runs: Rows as from ``runs.list_runs``, each with its address.
        n_runs: Number of runs there are, listed or not.
        note: Sentence for a folder with nothing in it; empty explains how studies and runs come to be.
        served: The server that shows it.
    """
    values: dict[str, Any] = {"studies": studies, "runs": runs, "n_runs": n_runs, "note": note, "served": served}
    return render("folder_page.html.j2", title=title, **values)
