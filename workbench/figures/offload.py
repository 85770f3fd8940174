"""AdamOffload: what the host does per step, how long gradients travel, and how much of both nobody waits for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.figures.frames import StepTable, column, steps_frame
from workbench.figures.labels import compact, counted, percent
from workbench.figures.theme import BLUE, GREEN, ORANGE, Theme, bare_figure, empty_figure, set_title
from workbench.figures.thinning import MAXIMUM_POINTS, thin_indices

__all__ = ["OffloadNumbers", "offload_figure", "offload_numbers"]

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
    """Draw host and transfer times per step and, where gradients travel, the share that is hidden.

    Args:
        steps: See ``offload_numbers``.
        warmup_steps: See ``offload_numbers``.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height with both rows, pixels.
    """
    numbers = offload_numbers(steps, warmup_steps=warmup_steps)
    if not numbers.n_steps:
        return empty_figure(
            _QUESTION, "No update was offloaded; set optimizer.name to adam_offload to have Adam on the host.",
            theme=theme,
        )  # fmt: skip
    travels = bool(numbers.transfer_steps.size)
    n_rows = 1 + travels
    figure = make_subplots(
        rows=n_rows, cols=1, shared_xaxes=True, row_heights=[0.6, 0.4][:n_rows], vertical_spacing=0.07,
        figure=bare_figure(theme),
    )  # fmt: skip
    _add_line(
        figure, 1, (numbers.host_steps, numbers.host_ms), ("Adam on the host", BLUE, "solid"),
        "In step %{x:,} Adam took %{y:.3g} ms on the host.",
    )  # fmt: skip
    if travels:
        _add_line(
            figure, 1, (numbers.transfer_steps, numbers.transfer_ms), ("gradients on their way", ORANGE, "dash"),
            "In step %{x:,} gradients travelled for %{y:.3g} ms.",
        )  # fmt: skip
        _add_line(
            figure, 2, (numbers.hidden_steps, 100.0 * numbers.hidden), ("hidden share", GREEN, "dot"),
            "In step %{x:,} the step did not wait for %{y:.3g} % of both.",
        )  # fmt: skip
        figure.update_yaxes(title_text="Hidden (%)", range=[-4, 104], row=2, col=1)
    figure.update_layout(height=height if travels else height * 3 // 4, showlegend=travels, margin={"b": 92})
    set_title(figure, _answer(numbers), _details(numbers))
    figure.update_yaxes(title_text="Time per step (ms)", rangemode="tozero", row=1, col=1)
    figure.update_xaxes(title_text="Step (micro-batches)", tickformat=",d", row=n_rows, col=1)
    return figure


def _add_line(
    figure: go.Figure, row: int, points: tuple[Floats, Floats], look: tuple[str, str, str], sentence: str
) -> None:
    name, colour, dash = look
    figure.add_scatter(
        x=points[0],
        y=points[1],
        mode="lines",
        line={"color": colour, "width": 2, "dash": dash},
        name=name,
        hovertemplate=f"{sentence}<extra></extra>",
        row=row,
        col=1,
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
