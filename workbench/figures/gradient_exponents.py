"""Gradient exponent map: where the gradients lie, and which part of them float16 can hold.

Each column is a histogram of floor(log2 |g|) of the *unscaled* gradient. What the backward pass really sees is
g * S, so float16's limits, divided by the scale S in force, are drawn as lines in the units of the unscaled
gradient: above 65504 / S it overflows, below 2**-14 / S it loses bits, below 2**-24 / S it is zero.

Reference:
    IEEE 754-2019, binary16: largest number 65504, smallest normal 2**-14, smallest subnormal 2**-24.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from workbench.core.records import ExponentCounts
from workbench.figures.drawing import OVERFLOW, Drawing, Stroke
from workbench.figures.frames import StepTable, column, filled_rows, flags, log2_known, steps_frame
from workbench.figures.labels import counted, percent, plain, power_ticks
from workbench.figures.theme import DENSITY_SCALE, GREY, ORANGE, VERMILLION, Theme
from workbench.figures.thinning import Floats, Line, bin_edges, thin_marks

ALL_GROUPS: Final = "all groups"

_MAXIMUM_LOG2, _NORMAL_LOG2, _SUBNORMAL_LOG2 = math.log2(65504.0), -14.0, -24.0  # float16's largest, smallest numbers
_MAXIMUM_COLUMNS = 400
_MAXIMUM_CELLS = 120_000  # of all maps together: about a megabyte on the page
_FEWEST_COLUMNS = 40
_MAXIMUM_RECORDS = 2000  # several per column even at most columns
_QUESTION = "Do the gradients fit into float16 at this loss scale?"

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class GradientExponentNumbers:
    """Numbers behind the exponent map; the limits at the scale in force are log2 of a gradient ``[columns]``."""

    steps: Floats  # middle step of each column
    exponents: Ints  # e of each row ``[rows]``, which holds elements with 2**e <= abs(g) < 2**(e+1)
    # Group -> share of its elements per cell ``[rows, columns]``, NaN where empty; zeros and non-finite elements belong
    # to the whole. The first entry, ALL_GROUPS, sums over groups.
    shares: Mapping[str, Floats]
    upper: Floats  # largest one that float16 holds
    normal: Floats  # smallest one held at full precision
    lower: Floats  # smallest one that is not zero
    overflow: Line  # `upper` at the steps that overflowed, drawn as marks
    below_share: float  # of all finite non-zero elements, below `lower`
    subnormal_share: float  # of them, between `lower` and `normal`
    n_records: int  # whose histograms were read: all of them, or an even choice of a long run


def gradient_exponents_numbers(steps: StepTable, *, limit: int = _MAXIMUM_COLUMNS) -> GradientExponentNumbers:
    """Stack a run's exponent histograms into one map per group, adding up neighbours beyond ``limit`` columns.

    Many groups share a budget of cells, so each map then has fewer columns.
    """
    frame = steps_frame(steps)
    step, log2_scale = column(frame, "step"), log2_known(column(frame, "loss_scale", 1.0))
    cells: list[Any] = frame["grad_exponents"].tolist() if "grad_exponents" in frame.columns else []
    # A run of a million steps holds a hundred thousand histograms: an even choice of records is read.
    rows = thin_marks(np.array(filled_rows(cells), dtype=np.int64), _MAXIMUM_RECORDS)
    scale_at = log2_scale[rows]
    given = [(record, cell) for record, row in enumerate(rows.tolist()) for cell in cells[row]]
    # A cell holds records, or dictionaries as read from Parquet or JSON.
    found = [(record, asdict(one) if isinstance(one, ExponentCounts) else one) for record, one in given]
    spans = [(entry["lowest"], entry["lowest"] + len(entry["counts"])) for _, entry in found if len(entry["counts"])]
    groups = list(dict.fromkeys(str(entry["group"]) for _, entry in found))
    shares: dict[str, Floats] = {}
    exponents, middle, mean_scale = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
    by_record = np.zeros((0, rows.size))  # elements of all groups [exponents, records]
    if spans:
        exponents = np.arange(min(low for low, _ in spans), max(high for _, high in spans))
        affordable = max(_FEWEST_COLUMNS, _MAXIMUM_CELLS // (exponents.size * (len(groups) + 1)))
        edges = bin_edges(rows.size, min(limit, affordable))
        column_of = np.searchsorted(edges, np.arange(rows.size), side="right") - 1
        by_record = np.zeros((exponents.size, rows.size))
        count = np.zeros((len(groups), exponents.size, edges.size - 1))
        total = np.zeros((len(groups), 1, edges.size - 1))  # zeros and non-finite elements included
        for record, entry in found:
            counts = np.asarray(entry["counts"], dtype=np.float64)
            group, at, first = groups.index(str(entry["group"])), column_of[record], entry["lowest"] - exponents[0]
            by_record[first : first + counts.size, record] += counts
            count[group, first : first + counts.size, at] += counts
            total[group, 0, at] += counts.sum() + entry.get("zeros", 0) + entry.get("nonfinite", 0)
        shares[ALL_GROUPS] = _share(count.sum(axis=0), total.sum(axis=0))
        if len(groups) > 1:
            shares |= {group: _share(count[g], total[g]) for g, group in enumerate(groups)}
        middle = (edges[:-1] + edges[1:] - 1) // 2
        mean_scale = np.asarray(pd.Series(scale_at).groupby(column_of).mean(), dtype=np.float64)
    overflowed = thin_marks(np.flatnonzero(flags(frame, "overflow") & np.isfinite(log2_scale)))
    below, subnormal = _shares_outside(by_record, exponents, scale_at)
    return GradientExponentNumbers(
        steps=step[rows][middle],
        exponents=exponents,
        shares=shares,
        upper=_MAXIMUM_LOG2 - mean_scale,
        normal=_NORMAL_LOG2 - mean_scale,
        lower=_SUBNORMAL_LOG2 - mean_scale,
        overflow=Line(step[overflowed], _MAXIMUM_LOG2 - log2_scale[overflowed]),
        below_share=below,
        subnormal_share=subnormal,
        n_records=rows.size,
    )


def gradient_exponents_drawing(steps: StepTable, *, theme: Theme = "auto", height: int = 480) -> Drawing:
    """Draw log2 of the gradients' magnitude over time, with the band float16 can hold.

    With several groups a menu chooses which one is shown; all groups together come first.
    """
    numbers = gradient_exponents_numbers(steps)
    if not numbers.shares:
        reason = "No gradient exponents were recorded; record them with exponents_every."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    drawing = Drawing(_answer(numbers), _detail(numbers), theme=theme, height=height)
    for index, (group, share) in enumerate(numbers.shares.items()):
        drawing.add(
            "heatmap",
            "Around step %{x:,}, %{customdata:.3g} % of the elements have a magnitude near "
            "2<sup>%{y:.0f}</sup>.<extra>" + plain(group) + "</extra>",
            x=numbers.steps,
            y=numbers.exponents + 0.5,  # the cell spans [e, e + 1)
            z=np.log10(share).round(3),  # as text on the page
            visible=index == 0,
            name=plain(group),
            coloraxis="coloraxis",  # one for all maps: the colour bars of hidden ones would take room
            customdata=_percentages(share),
            hoverongaps=False,
        )
    ticks = ["1 in 10<sup>6</sup>", "1 in 10<sup>4</sup>", "1 in 100", "all"]
    bar = {"title": {"text": "Share of elements"}, "tickvals": [-6, -4, -2, 0], "ticktext": ticks}
    scale = [list(stop) for stop in DENSITY_SCALE]
    drawing.set(coloraxis={"cmin": -6, "cmax": 0, "colorscale": scale, "colorbar": bar})
    _add_limits(drawing, numbers)
    low = min(float(numbers.exponents[0]), float(np.nanmin(numbers.lower, initial=np.inf)))
    high = max(float(numbers.exponents[-1]) + 1, float(np.nanmax(numbers.upper, initial=-np.inf)))
    positions, texts = power_ticks(low, high, most=10)
    drawing.set_steps(showgrid=False)
    drawing.set_y(
        "Unscaled |gradient| (log2)", tickvals=positions, ticktext=texts, range=[low - 1, high + 1], showgrid=False
    )
    drawing.show_legend()
    if len(numbers.shares) > 1:
        _add_menu(drawing, list(numbers.shares))
    return drawing


def _percentages(share: Floats) -> Floats:
    """Return shares in percent, to three digits; empty cells are not hovered over, and have 0."""
    known = np.nan_to_num(100 * share)
    digit = 10.0 ** np.floor(np.log10(known, out=np.zeros_like(known), where=known > 0) - 2)
    rounded: Floats = np.round(known / digit) * digit
    return rounded


def _answer(numbers: GradientExponentNumbers) -> str:
    if numbers.below_share >= 1e-4:
        return f"At the scale in force, {percent(numbers.below_share)} of the gradient would be zero in float16"
    if numbers.overflow.x.size:
        return "Nothing is lost to underflow, but the scale was at times too high"
    return "The gradients fit into float16 at the scale in force"


def _detail(numbers: GradientExponentNumbers) -> str:
    overflows = counted(numbers.overflow.x.size, "step") if numbers.overflow.x.size else "no step"
    return f"{percent(numbers.subnormal_share)} of the gradient would lose bits; {overflows} overflowed"


def _share(count: Floats, total: Floats) -> Floats:
    return np.divide(count, total, out=np.full_like(count, np.nan), where=count > 0)


def _shares_outside(counts: Floats, exponents: Ints, log2_scale: Floats) -> tuple[float, float]:
    """Return the shares of non-zero elements below float16's smallest number, and between it and full precision.

    ``counts`` are ``[exponents, records]``. A bin counts as below a limit when its upper end 2**(e+1) does not exceed
    it. With scales that are powers of two the limits fall on bin ends, so nothing is split.
    """
    known = np.isfinite(log2_scale)
    kept, scaled_end = counts[:, known], exponents[:, None] + 1 + log2_scale[None, known]
    everything = kept.sum()
    if everything == 0:
        return float("nan"), float("nan")
    below = kept[scaled_end <= _SUBNORMAL_LOG2].sum()
    subnormal = kept[scaled_end <= _NORMAL_LOG2].sum() - below
    return float(below / everything), float(subnormal / everything)


def _add_limits(drawing: Drawing, numbers: GradientExponentNumbers) -> None:
    for name, values, dash, colour, fate in (
        ("overflows above (65504 / scale)", numbers.upper, "solid", VERMILLION, "overflows"),
        ("loses bits below (2<sup>−14</sup> / scale)", numbers.normal, "dash", GREY, "loses bits"),
        ("is zero below (2<sup>−24</sup> / scale)", numbers.lower, "solid", ORANGE, "is zero"),
    ):
        hover = f"At step %{{x:,}} the limit beyond which a gradient {fate} was 2<sup>%{{y:.1f}}</sup>."
        drawing.line((numbers.steps, values), Stroke(colour, dash=dash, shape="hv"), hover, name=name)
    hover = "Step %{x:,} overflowed: some gradient exceeded 2<sup>%{y:.1f}</sup>."
    drawing.marks(numbers.overflow, OVERFLOW, hover, name="overflow")


def _add_menu(drawing: Drawing, groups: Sequence[str]) -> None:
    lines = [True] * (len(drawing.traces) - len(groups))
    shown = {group: {"visible": [other == group for other in groups] + lines} for group in groups}
    buttons = [{"label": plain(name), "method": "restyle", "args": [args]} for name, args in shown.items()]
    room = drawing.layout["margin"]["t"] + 28  # a row of its own: titles are long
    drawing.set(margin={"t": room}, updatemenus=[{"buttons": buttons}])
