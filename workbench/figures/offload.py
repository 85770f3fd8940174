"""AdamOffload: what the host does per step, how long gradients travel, and how much of both overlaps other work."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.figures.drawing import Drawing, Stroke
from workbench.figures.frames import StepTable, column, mean_known, stands_for, steps_frame, without_warm_up
from workbench.figures.labels import compact, counted, percent
from workbench.figures.theme import BLUE, GREEN, ORANGE, Theme
from workbench.figures.thinning import MAXIMUM_POINTS, Line, thin_line

_QUESTION = "How much of the offloaded work is hidden?"


@dataclass(frozen=True, eq=False)
class OffloadNumbers:
    """Numbers behind the picture of a run with AdamOffload; means and lines, which are thinned, without warm-up.

    Where nothing travels, ``transfer`` and ``hidden`` are empty, and the shares and means of them NaN.
    """

    host: Line  # time Adam took on the host, milliseconds
    transfer: Line  # time gradients travelled to the host, milliseconds
    hidden: Line  # share of both that the step did not wait for, in [0, 1]
    mean_host_ms: float
    mean_transfer_ms: float
    hidden_share: float  # of all the time for both
    waited_share: float  # of the steps' own time that was spent waiting for both
    n_steps: int  # averaged over


def offload_numbers(steps: StepTable, *, limit: int = MAXIMUM_POINTS) -> OffloadNumbers:
    """Reduce a run to the times of its offloaded updates; arguments as for ``offload_figure``."""
    kept = without_warm_up(steps_frame(steps))
    step, host = column(kept, "step"), column(kept, "offload.host_ms")
    transfer, share = column(kept, "offload.transfer_ms"), column(kept, "offload.hidden_share")
    whole = column(kept, "step_ms")
    travelled = np.isfinite(transfer) & np.isfinite(host) & np.isfinite(share)
    work = np.where(travelled, transfer, 0.0) + host
    waited = work * (1.0 - np.where(travelled, share, 0.0))
    timed = np.isfinite(host) & np.isfinite(whole)
    both, total = float(work[travelled].sum()), float(whole[timed].sum())
    return OffloadNumbers(
        host=thin_line(step, host, limit),
        transfer=thin_line(step, transfer, limit),
        hidden=thin_line(step, share, limit),
        mean_host_ms=mean_known(host),
        mean_transfer_ms=mean_known(transfer[travelled]),
        hidden_share=1.0 - float(waited[travelled].sum()) / both if both > 0 else float("nan"),
        waited_share=float(waited[timed].sum()) / total if total > 0 else float("nan"),
        n_steps=int(stands_for(kept)[np.isfinite(host)].sum()),
    )


def offload_drawing(
    steps: StepTable, *, limit: int = MAXIMUM_POINTS, theme: Theme = "auto", height: int = 480
) -> Drawing:
    """Draw host and transfer times per step and, where gradients travel, the share that is hidden.

    ``steps`` have the columns ``offload.*``. The first ten, in which moments are made and pages touched for the first
    time, are left out where the run is longer than twice that.
    """
    numbers = offload_numbers(steps, limit=limit)
    if not numbers.n_steps:
        reason = "No update was offloaded; set optimizer.name to adam_offload to have Adam on the host."
        return Drawing.empty(_QUESTION, reason, theme=theme)
    travels = bool(numbers.transfer.x.size)
    height, rows = (height, (0.6, 0.4)) if travels else (height * 3 // 4, (1.0,))
    drawing = Drawing(_answer(numbers), _details(numbers), theme=theme, height=height, rows=rows)
    hover = "In step %{x:,} Adam took %{y:.3g} ms on the host."
    drawing.line(numbers.host, Stroke(BLUE), hover, name="Adam on the host")
    if travels:
        hover, stroke = "In step %{x:,} the gradients were in transit for %{y:.3g} ms.", Stroke(ORANGE, dash="dash")
        drawing.line(numbers.transfer, stroke, hover, name="gradients in transit")
        hover, stroke = "Step %{x:,} did not wait for %{y:.3g} % of both.", Stroke(GREEN, dash="dot")
        drawing.line((numbers.hidden.x, 100.0 * numbers.hidden.y), stroke, hover, name="hidden share", row=2)
        drawing.set_y("Hidden (%)", row=2, range=[-4, 104])
    drawing.set(showlegend=travels, margin={"b": 92})
    drawing.set_y("Time per step (ms)", rangemode="tozero")
    drawing.set_steps()
    return drawing


def _answer(numbers: OffloadNumbers) -> str:
    if np.isfinite(numbers.hidden_share):
        return f"{percent(numbers.hidden_share)} of transfers and host updates is hidden behind other work"
    return f"Adam takes {compact(numbers.mean_host_ms)} ms per step on the host, and nothing has to be transferred"


def _details(numbers: OffloadNumbers) -> str:
    parts = []
    if np.isfinite(numbers.mean_transfer_ms):
        transfer, host = compact(numbers.mean_transfer_ms), compact(numbers.mean_host_ms)
        parts.append(f"{transfer} ms of transfer and {host} ms of Adam per step")
    if np.isfinite(numbers.waited_share):
        parts.append(f"steps wait for it {percent(numbers.waited_share)} of their time")
    parts.append(f"means over {counted(numbers.n_steps, 'step')}")
    return "; ".join(parts)
