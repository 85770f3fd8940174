"""Gradient exponent map: where the gradients lie, and which part of them float16 can hold.

Each column is a histogram of floor(log2 |g|) of the *unscaled* gradient. What the backward pass really sees is
g * S, so float16's limits, divided by the scale S in force, are drawn as lines in the units of the unscaled
gradient: above 65504 / S it overflows, below 2**-14 / S it loses bits, below 2**-24 / S it is zero.

Reference:
    IEEE 754-2019, binary16: largest number 65504, smallest normal 2**-14, smallest subnormal 2**-24.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from workbench.core.records import ExponentCounts
from workbench.figures.frames import (
    StepTable,
    column,
    flags,
    steps_frame,
)
from workbench.figures.labels import (
    counted,
    percent,
    plain,
    power_ticks,
)
from workbench.figures.theme import (
    DENSITY_SCALE,
    GREY,
    ORANGE,
    VERMILLION,
    Theme,
    empty_figure,
    new_figure,
)
from workbench.figures.thinning import bin_edges, thin_marks

__all__ = [
    "ALL_GROUPS",
    "FLOAT16_MAXIMUM_LOG2",
    "FLOAT16_NORMAL_LOG2",
    "FLOAT16_SUBNORMAL_LOG2",
    "GradientExponentNumbers",
    "gradient_exponents_figure",
    "gradient_exponents_numbers",
]

FLOAT16_MAXIMUM_LOG2: Final = float(np.log2(65504.0))
FLOAT16_NORMAL_LOG2: Final = -14.0
FLOAT16_SUBNORMAL_LOG2: Final = -24.0
ALL_GROUPS: Final = "all groups"

_MAXIMUM_COLUMNS = 400
_MAXIMUM_CELLS = 120_000  # of all maps together: about a megabyte on the page
_FEWEST_COLUMNS = 40
_MAXIMUM_RECORDS = 2000  # several per column even at most columns
_QUESTION = "Do the gradients fit into float16 at this loss scale?"


@dataclass(frozen=True, eq=False)
class GradientExponentNumbers:
    """Numbers behind the exponent map.

    Args:
        steps: Middle step of each column ``[columns]``.
        exponents: Exponent e of each row ``[rows]``; the row holds elements with 2**e <= abs(g) < 2**(e+1).
        shares: Group name -> share of the group's elements per cell ``[rows, columns]``, NaN where empty; the
            first entry, ``ALL_GROUPS``, sums over groups. Zeros and non-finite elements belong to the whole.
        log2_scale: log2 of the scale in force per column (mean over the column) ``[columns]``.
        upper: log2 of the largest gradient float16 holds, ``log2(65504) - log2_scale`` ``[columns]``.
        normal: log2 of the smallest one held at full precision ``[columns]``.
        lower: log2 of the smallest one that is not zero ``[columns]``.
        overflow_steps: Steps that overflowed, drawn as marks at the upper limit.
        overflow_limits: ``upper`` at those steps.
        below_share: Share of all finite non-zero elements below ``lower``.
        subnormal_share: Share of them between ``lower`` and ``normal``.
        n_records: Records whose histograms were read: all of them, or an even choice of a long run.
    """

    steps: npt.NDArray[np.float64]
    exponents: npt.NDArray[np.int64]
    shares: Mapping[str, npt.NDArray[np.float64]]
    log2_scale: npt.NDArray[np.float64]
    upper: npt.NDArray[np.float64]
    normal: npt.NDArray[np.float64]
    lower: npt.NDArray[np.float64]
    overflow_steps: npt.NDArray[np.float64]
    overflow_limits: npt.NDArray[np.float64]
    below_share: float
    subnormal_share: float
    n_records: int


def gradient_exponents_numbers(steps: StepTable, *, limit: int = _MAXIMUM_COLUMNS) -> GradientExponentNumbers:
    """Stack a run's exponent histograms into one map per group.

    Args:
        steps: Step table or records; rows without histograms only count for the overflow marks.
        limit: Most columns; neighbouring records are added up when there are more. Many groups share a budget of
            cells, so each map then has fewer columns.
    """
    frame = steps_frame(steps)
    step, scale = column(frame, "step"), column(frame, "loss_scale", 1.0)
    log2_scale = np.log2(scale, out=np.full_like(scale, np.nan), where=np.isfinite(scale) & (scale > 0))
    cells: list[Any] = frame["grad_exponents"].tolist() if "grad_exponents" in frame.columns else []
    table = _read_cells(cells)
    overflowed = thin_marks(np.flatnonzero(flags(frame, "overflow") & np.isfinite(log2_scale)))
    overflow = (step[overflowed], FLOAT16_MAXIMUM_LOG2 - log2_scale[overflowed])
    if not table.counts.size:
        nothing = np.empty(0)
        return GradientExponentNumbers(
            nothing, np.empty(0, np.int64), {}, nothing, nothing, nothing, nothing, *overflow, float("nan"),
            float("nan"), table.rows.size
        )  # fmt: skip
    exponents = np.arange(table.exponent.min(), table.exponent.max() + 1)
    n_groups, n_records = len(table.groups), table.rows.size
    edges = bin_edges(n_records, min(limit, max(_FEWEST_COLUMNS, _MAXIMUM_CELLS // (exponents.size * (n_groups + 1)))))
    column_of = np.searchsorted(edges, np.arange(n_records), side="right") - 1
    shape = (n_groups, exponents.size, edges.size - 1)
    cell_index = np.ravel_multi_index((table.group, table.exponent - exponents[0], column_of[table.record]), shape)
    count = np.bincount(cell_index, weights=table.counts, minlength=math.prod(shape)).reshape(shape)
    total_index = table.total_group * shape[2] + column_of[table.total_record]
    total = np.bincount(total_index, weights=table.total, minlength=shape[0] * shape[2]).reshape(shape[0], shape[2])

    scale_at = log2_scale[table.rows]
    below, subnormal = _shares_outside(table.counts, table.exponent, scale_at[table.record])
    middle = (edges[:-1] + edges[1:] - 1) // 2
    mean_scale = _nan_mean_by_bin(scale_at, edges)
    shares = {ALL_GROUPS: _share(count.sum(axis=0), total.sum(axis=0))}
    if n_groups > 1:
        shares |= {group: _share(count[g], total[g]) for g, group in enumerate(table.groups)}
    return GradientExponentNumbers(
        steps=step[table.rows][middle],
        exponents=exponents,
        shares=shares,
        log2_scale=mean_scale,
        upper=FLOAT16_MAXIMUM_LOG2 - mean_scale,
        normal=FLOAT16_NORMAL_LOG2 - mean_scale,
        lower=FLOAT16_SUBNORMAL_LOG2 - mean_scale,
        overflow_steps=overflow[0],
        overflow_limits=overflow[1],
        below_share=below,
        subnormal_share=subnormal,
        n_records=n_records,
    )


def gradient_exponents_figure(steps: StepTable, *, theme: Theme = "auto", height: int = 480) -> go.Figure:
    """Draw log2 of the gradients' magnitude over time, with the band float16 can hold.

    With several groups a menu chooses which one is shown; all groups together come first.

    Args:
        steps: Step table or records with ``grad_exponents`` on some of them.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = gradient_exponents_numbers(steps)
    if not numbers.shares:
        return empty_figure(
            _QUESTION, "No gradient exponents were recorded; record them with exponents_every.", theme=theme
        )
    figure = new_figure(_answer(numbers), _detail(numbers), theme=theme, height=height)
    for index, (group, share) in enumerate(numbers.shares.items()):
        figure.add_heatmap(
            x=numbers.steps,
            y=numbers.exponents + 0.5,  # the cell spans [e, e + 1)
            z=np.log10(share).round(3),  # as text on the page
            visible=index == 0,
            name=plain(group),
            coloraxis="coloraxis",  # one for all maps: the colour bars of hidden ones would take room
            customdata=_percentages(share),
            hovertemplate="Around step %{x:,}, %{customdata:.3g} % of the elements have a magnitude near "
            "2<sup>%{y:.0f}</sup>.<extra>" + plain(group) + "</extra>",
            hoverongaps=False,
        )
    figure.update_layout(
        coloraxis={
            "cmin": -6,
            "cmax": 0,
            "colorscale": [list(stop) for stop in DENSITY_SCALE],
            "colorbar": {
                "title": {"text": "Share of elements", "side": "right", "font": {"size": 12}},
                "tickfont": {"size": 11},
                "tickvals": [-6, -4, -2, 0],
                "ticktext": ["1 in 10<sup>6</sup>", "1 in 10<sup>4</sup>", "1 in 100", "all"],
                "thickness": 12,
                "outlinewidth": 0,
                "len": 0.9,
            },
        }
    )
    _add_limits(figure, numbers)
    _lay_out(figure, numbers)
    return figure


def _percentages(share: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return shares in percent, to three digits; empty cells are not hovered over, and have 0."""
    known = np.nan_to_num(100 * share)
    digit = 10.0 ** np.floor(np.log10(known, out=np.zeros_like(known), where=known > 0) - 2)
    rounded: npt.NDArray[np.float64] = np.round(known / digit) * digit
    return rounded


def _answer(numbers: GradientExponentNumbers) -> str:
    if numbers.below_share >= 1e-4:
        return f"At the scale in force, {percent(numbers.below_share)} of the gradient would be zero in float16"
    if numbers.overflow_steps.size:
        return "Nothing is lost to underflow, but the scale was at times too high"
    return "The gradients fit into float16 at the scale in force"


def _detail(numbers: GradientExponentNumbers) -> str:
    overflows = counted(numbers.overflow_steps.size, "step") if numbers.overflow_steps.size else "no step"
    return f"{percent(numbers.subnormal_share)} of the gradient would lose bits; {overflows} overflowed"


@dataclass(frozen=True, eq=False)
class _Histograms:
    """All histograms of a run as flat arrays: one entry per bin, and one total per histogram."""

    rows: npt.NDArray[np.int64]  # [records] row of the step table
    groups: list[str]
    counts: npt.NDArray[np.float64]  # [bins], with exponent, group and record of each
    exponent: npt.NDArray[np.int64]
    group: npt.NDArray[np.int64]
    record: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]  # [histograms] all elements, zeros and non-finite ones included
    total_group: npt.NDArray[np.int64]
    total_record: npt.NDArray[np.int64]


def _read_cells(cells: Sequence[Any]) -> _Histograms:
    """Read the grad_exponents column; a cell holds records, dictionaries read from Parquet or JSON, or nothing.

    A run of a million steps holds a hundred thousand histograms: an even choice of records is read, its numbers are
    gathered once, and everything else is done on whole arrays.
    """
    groups: dict[str, int] = {}
    group, record, lowest, length, rest = [], [], [], [], []
    parts: list[Iterable[int]] = []
    # pandas writes a missing list as NaN
    filled = [r for r, cell in enumerate(cells) if cell is not None and not isinstance(cell, float) and len(cell)]
    rows = thin_marks(np.array(filled, dtype=np.int64), _MAXIMUM_RECORDS)
    for place, row in enumerate(rows.tolist()):
        for entry in cells[row]:
            entry = asdict(entry) if isinstance(entry, ExponentCounts) else entry
            group.append(groups.setdefault(str(entry["group"]), len(groups)))
            record.append(place)
            lowest.append(entry["lowest"])
            length.append(len(entry["counts"]))
            rest.append(entry.get("zeros", 0) + entry.get("nonfinite", 0))
            parts.append(entry["counts"])
    lengths = np.array(length, dtype=np.int64)
    flat = np.fromiter(chain.from_iterable(parts), dtype=np.float64, count=int(lengths.sum()))
    owner = np.repeat(np.arange(lengths.size), lengths)
    start = np.concatenate([[0], np.cumsum(lengths)[:-1]]) if lengths.size else lengths
    groups_of, records_of = np.array(group, dtype=np.int64), np.array(record, dtype=np.int64)
    return _Histograms(
        rows=rows,
        groups=list(groups),
        counts=flat,
        exponent=np.array(lowest, dtype=np.int64)[owner] + np.arange(flat.size) - start[owner],
        group=groups_of[owner],
        record=records_of[owner],
        total=np.array(rest, dtype=np.float64) + np.bincount(owner, weights=flat, minlength=lengths.size),
        total_group=groups_of,
        total_record=records_of,
    )


def _share(count: npt.NDArray[np.float64], total: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.divide(count, total, out=np.full_like(count, np.nan), where=count > 0)


def _shares_outside(
    counts: npt.NDArray[np.float64], exponent: npt.NDArray[np.int64], log2_scale: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Return the shares of non-zero elements below float16's smallest number, and between it and full precision.

    A bin counts as below a limit when its upper end 2**(e+1) does not exceed it. With scales that are powers of two
    the limits fall on bin ends, so nothing is split. Arguments: one entry per bin ``[bins]``.
    """
    known = np.isfinite(log2_scale)
    kept, scaled_end = counts[known], exponent[known] + 1 + log2_scale[known]
    everything = kept.sum()
    if everything == 0:
        return float("nan"), float("nan")
    below = kept[scaled_end <= FLOAT16_SUBNORMAL_LOG2].sum()
    subnormal = kept[scaled_end <= FLOAT16_NORMAL_LOG2].sum() - below
    return float(below / everything), float(subnormal / everything)


def _nan_mean_by_bin(values: npt.NDArray[np.float64], edges: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    good = np.isfinite(values)
    total = np.add.reduceat(np.where(good, values, 0.0), edges[:-1])
    n = np.add.reduceat(good.astype(np.float64), edges[:-1])
    return np.divide(total, n, out=np.full_like(total, np.nan), where=n > 0)


def _add_limits(figure: go.Figure, numbers: GradientExponentNumbers) -> None:
    limits = (
        ("overflows above (65504 / scale)", numbers.upper, "solid", VERMILLION, "overflows"),
        ("loses bits below (2<sup>−14</sup> / scale)", numbers.normal, "dash", GREY, "loses bits"),
        ("is zero below (2<sup>−24</sup> / scale)", numbers.lower, "solid", ORANGE, "is zero"),
    )
    for name, values, dash, colour, fate in limits:
        figure.add_scatter(
            x=numbers.steps,
            y=values,
            mode="lines",
            line={"shape": "hv", "width": 2, "dash": dash, "color": colour},
            name=name,
            hovertemplate=f"At step %{{x:,}} the limit beyond which a gradient {fate} was 2<sup>%{{y:.1f}}</sup>."
            "<extra></extra>",
        )
    if numbers.overflow_steps.size:
        figure.add_scatter(
            x=numbers.overflow_steps,
            y=numbers.overflow_limits,
            mode="markers",
            marker={"symbol": "x", "size": 9, "color": VERMILLION},
            name="overflow",
            hovertemplate="Step %{x:,} overflowed: some gradient exceeded 2<sup>%{y:.1f}</sup>.<extra></extra>",
        )


def _lay_out(figure: go.Figure, numbers: GradientExponentNumbers) -> None:
    low = min(float(numbers.exponents[0]), float(np.nanmin(numbers.lower, initial=np.inf)))
    high = max(float(numbers.exponents[-1]) + 1, float(np.nanmax(numbers.upper, initial=-np.inf)))
    positions, texts = power_ticks(low, high, most=10)
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d", showgrid=False)
    figure.update_yaxes(
        title_text="Unscaled |gradient| (log2)",
        tickvals=positions,
        ticktext=texts,
        range=[low - 1, high + 1],
        showgrid=False,
    )
    figure.update_layout(showlegend=True, margin={"b": 92})
    if len(numbers.shares) > 1:
        n_maps, n_rest = len(numbers.shares), len(figure.data) - len(numbers.shares)
        buttons = [
            {
                "label": plain(group),
                "method": "restyle",
                "args": [{"visible": [j == i for j in range(n_maps)] + [True] * n_rest}],
            }
            for i, group in enumerate(numbers.shares)
        ]
        figure.update_layout(
            margin={"t": figure.layout.margin.t + 28},  # a row of its own: titles are long
            updatemenus=[
                {
                    "buttons": buttons,
                    "x": 1.0,
                    "xanchor": "right",
                    "y": 1.0,
                    "yanchor": "bottom",
                    "pad": {"b": 6},
                    "bgcolor": "rgba(128,136,148,0.15)",
                    "bordercolor": "rgba(128,136,148,0.4)",
                    "font": {"size": 12},
                    "showactive": True,
                }
            ],
        )
