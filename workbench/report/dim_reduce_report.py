"""A page about DimReduce against the runs that made its snapshots, from the recorded runs alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from workbench.core.files import write_text_atomically
from workbench.figures import SubspacePair, dim_reduce_figure, dim_reduce_numbers
from workbench.report.page import embed, render
from workbench.runs import Run, read_run


def read_pairs(folder: str | Path) -> list[SubspacePair]:
    """Read the runs ``warm-up-SEED`` and ``dim-reduce-SEED`` of ``train_in_subspace``; a ValueError without a pair."""
    seeds = sorted(int(path.name.removeprefix("dim-reduce-")) for path in Path(folder).glob("dim-reduce-*"))
    pairs = []
    for seed in seeds:
        first, second = (read_run(Path(folder) / f"{name}-{seed}") for name in ("warm-up", "dim-reduce"))
        pairs.append(SubspacePair(f"seed {seed}", _curve(first), _curve(second), second.steps, second.events))
    if not pairs:
        raise ValueError(f"`folder` must hold runs warm-up-<seed> and dim-reduce-<seed>, {folder} holds none")
    return pairs


def write_dim_reduce_report(path: str | Path, settings: Mapping[str, str | Path]) -> Path:
    """Write one self-contained page, and return its path: per setting a figure and a table of all seeds.

    ``settings`` are the title of each -> the folder of its runs, see `read_pairs`.
    """
    shown = []
    for index, (title, folder) in enumerate(settings.items()):
        pairs = read_pairs(folder)
        figure = embed(dim_reduce_figure(pairs, loss_name="Training loss"), f"dim-reduce-{index}")
        shown.append({"title": title, "figure": figure, "rows": [_row(pair) for pair in pairs]})
    title = "DimReduce from recorded snapshots"
    page = render("dim_reduce_report.html.j2", title=title, settings=shown)
    write_text_atomically(path, page)
    return Path(path)


def _row(pair: SubspacePair) -> dict[str, str]:
    numbers = dim_reduce_numbers(pair)
    end = numbers.loss[-1] if numbers.loss.size else float("nan")
    return {
        "run": numbers.label,
        "warm-up steps": f"{numbers.warm_up_steps:.0f}",
        "its end loss": f"{numbers.target:.3g}",
        "DimReduce there after": f"{numbers.reached:.0f}" if np.isfinite(numbers.reached) else "never",
        "DimReduce's end loss": f"{end:.3g}",
        "share of the warm-up's": f"{end / numbers.target:.3g}",
        "failed searches": f"{numbers.n_failed} of {numbers.n_steps}",
        "explained variance": f"{numbers.explained_variance:.4f}",
    }


def _curve(run: Run) -> list[tuple[int, float]]:
    return [(int(step), float(value)) for step, value in run.summary.get("curve", [])]
