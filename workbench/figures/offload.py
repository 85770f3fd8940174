"""AdamOffload: what the host does per step, how long gradients travel, and how much of both nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from workbench.figures.drawing import Drawing
from workbench.figures.frames import StepTable, column, steps_frame
from workbench.figures.labels import compact, counted, percent
from workbench.figures.theme import (
    BLUE,
    GREEN,
    ORANGE,
    Theme,
)
from workbench.figures.thinning import MAXIMUM_POINTS, thin_indices

__all__ = ["OffloadNumbers", "offload_drawing", "offload_figure", "offload_numbers"]

_QUESTION = "How much of the offloaded work is hidden?"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OffloadNumbers:
    """Numbers behind the picture of a run with AdamOffload; means and lines without warm-up.

    Args:
        host_steps: Steps of the host's line ``[m]``, thinned.
        host_ms: Time Adam took on the host there, milliseconds.
        transfer_steps: Steps of the transfers' line, thinned; empty where nothing travels.
        transfer_ms: Time gradients travelled to the host there, milliseconds.
        hidden_steps: Steps of the share's line, thinned; empty where nothing travels.
        hidden: Share of both that the step did not wait for, in [0, 1].
        mean_host_ms: Mean of all steps; NaN without any.
        mean_transfer_ms: Mean of all steps; NaN where nothing travels.
        hidden_share: Of all the time for both, the share that was hidden; NaN where nothing travels.
        waited_share: Share of the steps' own time that was spent waiting for both, in [0, 1]; NaN when unknown.
        n_steps: Steps averaged over.
    """

    host_steps: Floats
    host_ms: Floats
    transfer_steps: Floats
    transfer_ms: Floats
    hidden_steps: Floats
    hidden: Floats
    mean_host_ms: float
    mean_transfer_ms: float
    hidden_share: float
    waited_share: float
    n_steps: int


def offload_numbers(steps: StepTable, *, warmup_steps: int = 10, limit: int = MAXIMUM_POINTS) -> OffloadNumbers:
    """Reduce a run to the times of its offloaded updates.

    Args:
        steps: Step table or records with the columns ``offload.*``.
        warmup_steps: First steps left out (moments are made, pages are touched for the first time); none are when the
            run is no longer than twice that.
        limit: Most points of a line.
    """
    frame = steps_frame(steps)
    kept = frame.iloc[warmup_steps if len(frame) > 2 * warmup_steps else 0 :]
    step, host = column(kept, "step"), column(kept, "offload.host_ms")
    transfer, share = column(kept, "offload.transfer_ms"), column(kept, "offload.hidden_share")
    whole = column(kept, "step_ms")
    updated, travelled = np.isfinite(host), np.isfinite(transfer) & np.isfinite(host) & np.isfinite(share)
    work = np.where(travelled, transfer, 0.0) + host
    waited = work * (1.0 - np.where(travelled, share, 0.0))
    timed = updated & np.isfinite(whole)
    drawn = [thin_indices(step, values, limit) for values in (host, transfer, share)]
    both, total = float(work[travelled].sum()), float(whole[timed].sum())
    return OffloadNumbers(
        host_steps=step[drawn[0]],
        host_ms=host[drawn[0]],
        transfer_steps=step[drawn[1]],
        transfer_ms=transfer[drawn[1]],
        hidden_steps=step[drawn[2]],
        hidden=share[drawn[2]],
        mean_host_ms=float(host[updated].mean()) if updated.any() else float("nan"),
        mean_transfer_ms=float(transfer[travelled].mean()) if travelled.any() else float("nan"),
        hidden_share=1.0 - float(waited[travelled].sum()) / both if both > 0 else float("nan"),
        waited_share=float(waited[timed].sum()) / total if total > 0 else float("nan"),
        n_steps=int(updated.sum()),
    )


def offload_figure(steps: StepTable, *, warmup_steps: int = 10, theme: Theme = "auto", height: int = 480) -> go.Figure:
    """Return ``offload_drawing`` as a figure of plotly's.

    Args:
        steps: See ``offload_numbers``.
        warmup_steps: See ``offload_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height with both rows, pixels.
    """
    return offload_drawing(steps, warmup_steps=warmup_steps, theme=theme, height=height).figure()


def offload_drawing(
    steps: StepTable,
    *,
    warmup_steps: int = 10,
    limit: int = MAXIMUM_POINTS,
    theme: Theme = "auto",
    height: int = 480,
) -> Drawing:
    """Draw host and transfer times per step and, where gradients travel, the share that is hidden.

    Args:
        steps: See ``offload_numbers``.
        warmup_steps: See ``offload_numbers``.
        limit: See ``offload_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height with both rows, pixels.
    """
    numbers = offload_numbers(steps, warmup_steps=warmup_steps, limit=limit)
    if not numbers.n_steps:
        return Drawing.empty(
            _QUESTION, "No update was offloaded; set optimizer.name to adam_offload to have Adam on the host.",
            theme=theme,
        )  # fmt: skip
    travels = bool(numbers.transfer_steps.size)
    drawing = Drawing(
        _answer(numbers),
        _details(numbers),
        theme=theme,
        height=height if travels else height * 3 // 4,
        row_heights=(0.6, 0.4) if travels else (1.0,),
        row_spacing=0.07,
    )
    _add_line(
        drawing, 1, (numbers.host_steps, numbers.host_ms), ("Adam on the host", BLUE, "solid"),
        "In step %{x:,} Adam took %{y:.3g} ms on the host.",
    )  # fmt: skip
    if travels:
        _add_line(
            drawing, 1, (numbers.transfer_steps, numbers.transfer_ms), ("gradients on their way", ORANGE, "dash"),
            "In step %{x:,} gradients travelled for %{y:.3g} ms.",
        )  # fmt: skip
        _add_line(
            drawing, 2, (numbers.hidden_steps, 100.0 * numbers.hidden), ("hidden share", GREEN, "dot"),
            "In step %{x:,} the step did not wait for %{y:.3g} % of both.",
        )  # fmt: skip
        drawing.set_y("Hidden (%)", row=2, range=[-4, 104])
    drawing.set(showlegend=travels, margin={"b": 92})
    drawing.set_y("Time per step (ms)", rangemode="tozero")
    drawing.set_x("Step (micro-batches)", tickformat=",d")
    return drawing


def _add_line(
    drawing: Drawing, row: int, points: tuple[Floats, Floats], look: tuple[str, str, str], sentence: str
) -> None:
    name, colour, dash = look
    drawing.add_scatter(
        x=points[0],
        y=points[1],
        mode="lines",
        line={"color": colour, "width": 2, "dash": dash},
        name=name,
        hovertemplate=f"{sentence}<extra></extra>",
        row=row,
    )


def _answer(numbers: OffloadNumbers) -> str:
    if np.isfinite(numbers.hidden_share):
        return f"{percent(numbers.hidden_share)} of transfers and host updates is hidden behind other work"
    return f"Adam takes {compact(numbers.mean_host_ms)} ms per step on the host, and nothing has to travel"


def _details(numbers: OffloadNumbers) -> str:
    parts = []
    if np.isfinite(numbers.mean_transfer_ms):
        parts.append(
            f"{compact(numbers.mean_transfer_ms)} ms of transfer and {compact(numbers.mean_host_ms)} ms of Adam per "
            f"step"
        )
    if np.isfinite(numbers.waited_share):
        parts.append(f"steps wait for it {percent(numbers.waited_share)} of their time")
    parts.append(f"means over {counted(numbers.n_steps, 'step')}")
    return "; ".join(parts)
