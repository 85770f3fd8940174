"""Step-time breakdown: forward, backward, update, data, recording, and the unaccounted rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from workbench.figures import frames
from workbench.figures.drawing import Drawing
from workbench.figures.frames import StepTable
from workbench.figures.labels import compact, counted, plain
from workbench.figures.theme import COLORWAY, GREY, Theme

_QUESTION = "Where does the time of a step go?"
_PREFIX = "time."
_USUAL_ORDER = ("data", "forward", "backward", "update", "recording")


@dataclass(frozen=True, slots=True)
class StepTimeNumbers:
    """Numbers behind the breakdown of one run: mean times per step, milliseconds, without warm-up."""

    parts: Mapping[str, float]  # "other" is what the parts leave of the step
    step_ms: float
    n_steps: int  # averaged over


def step_time_numbers(steps: StepTable) -> StepTimeNumbers:
    """Average a run's ``time.*`` columns; arguments as for ``step_time_figure``."""
    kept = frames.without_warm_up(frames.steps_frame(steps))
    weights = frames.stands_for(kept)
    whole = frames.mean_known(frames.column(kept, "step_ms"), weights)
    found = sorted(str(name).removeprefix(_PREFIX) for name in kept.columns if str(name).startswith(_PREFIX))
    means = {
        part: frames.mean_known(frames.column(kept, _PREFIX + part), weights)
        for part in dict.fromkeys((*_USUAL_ORDER, *found))
    }
    parts = {part: mean for part, mean in means.items() if np.isfinite(mean)}
    if parts and np.isfinite(whole):
        parts["other"] = max(0.0, whole - sum(parts.values()))
    return StepTimeNumbers(parts, whole, int(weights.sum()))


def step_time_drawing(runs: Mapping[str, StepTable], *, theme: Theme = "auto") -> Drawing:
    """Draw one stacked bar per run.

    The first ten steps (allocation, compilation, caches) are left out where a run is longer than twice that.
    """
    numbers = {label: step_time_numbers(steps) for label, steps in runs.items()}
    timed = {plain(label): n for label, n in numbers.items() if n.parts}
    if not timed:
        return Drawing.empty(_QUESTION, "No run has recorded the parts of its steps (columns time.*).", theme=theme)
    subtitle = f"mean per step without the first {counted(frames.WARM_UP_STEPS, 'step')}"
    drawing = Drawing(_answer(timed), subtitle, theme=theme, height=210 + 46 * len(timed))
    parts = [*dict.fromkeys(part for n in timed.values() for part in n.parts if part != "other"), "other"]
    for index, part in enumerate(parts):
        values = [n.parts.get(part, 0.0) for n in timed.values()]
        drawing.bars(
            (values, list(timed)),
            GREY if part == "other" else COLORWAY[index % len(COLORWAY)],
            "In %{y}, " + plain(part) + " takes %{x:.3g} ms per step.",
            name=plain(part),
            text=[f"{plain(part)}<br>{compact(value)}" for value in values],
            textposition="inside",  # each part says its name, so that colour is not needed to tell them apart
            insidetextanchor="middle",
            textangle=0,
        )
    drawing.set_x("Time per step (ms)", rangemode="tozero")
    drawing.set_y("", type="category", autorange="reversed", showgrid=False)
    # What does not fit into a bar stands in legend and hover text.
    drawing.set(uniformtext={"minsize": 11, "mode": "hide"}, legend={"traceorder": "normal"})
    drawing.set(barmode="stack", bargap=0.35)
    drawing.show_legend()
    return drawing


def _answer(timed: Mapping[str, StepTimeNumbers]) -> str:
    if len(timed) != 1:
        known = {label: numbers.step_ms for label, numbers in timed.items() if numbers.step_ms > 0}
        if len(known) < 2:
            return _QUESTION
        short, long = min(known, key=lambda label: known[label]), max(known, key=lambda label: known[label])
        return f"A step of {short} takes {compact(known[short])} ms, one of {long} {compact(known[long])} ms"
    (numbers,) = timed.values()
    largest = max(numbers.parts, key=lambda part: numbers.parts[part])
    return f"Most of a step's {compact(numbers.step_ms)} ms goes to {largest}"
