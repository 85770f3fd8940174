"""Replayed loss-scale policies: what each would have wasted, and what it would have lost to underflow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd
import plotly.graph_objects as go

from workbench.figures.frames import column, flags
from workbench.figures.labels import (
    compact,
    counted,
    percent,
    plain,
)
from workbench.figures.theme import (
    BLUE,
    GREEN,
    ORANGE,
    Theme,
    empty_figure,
    new_figure,
)

__all__ = ["ReplayPoliciesNumbers", "policy_names", "replay_policies_figure", "replay_policies_numbers"]

_QUESTION = "Which loss-scale policy would have wasted least?"


@dataclass(frozen=True, eq=False)
class ReplayPoliciesNumbers:
    """Numbers behind the scatter, one entry per policy.

    Args:
        names: Policy names.
        rows: Position of each policy in the table it came from, as ``iloc`` counts.
        wasted_share: Share of steps whose update would have been skipped ``[policies]``.
        underflow_share: Share of gradient elements that would have become zero ``[policies]``.
        recorded: Index of the policy that was really run; None when the table does not say.
        chosen: Index of the policy that was chosen; None when there is none.
        n_left_out: Policies without both numbers.
        overflows: Overflows and the ends of their range per policy ``[policies, 3]``; NaN where the table has none.
    """

    names: tuple[str, ...]
    rows: tuple[int, ...]
    wasted_share: npt.NDArray[np.float64]
    underflow_share: npt.NDArray[np.float64]
    recorded: int | None
    chosen: int | None
    n_left_out: int
    overflows: npt.NDArray[np.float64]


def replay_policies_numbers(policies: pd.DataFrame, chosen: str | None = None) -> ReplayPoliciesNumbers:
    """Read a table of replayed policies, as ``experiments.replay`` returns it.

    Args:
        policies: One row per policy with ``wasted_share`` and ``underflow_share`` in [0, 1]; ``policy`` (its name)
            and ``recorded`` (bool) when known. Without a name it is made from init, factor and window.
        chosen: Name of the policy that was chosen, as in ``policy_names``.
    """
    names = policy_names(policies)
    wasted, lost = column(policies, "wasted_share"), column(policies, "underflow_share")
    keep = np.flatnonzero(np.isfinite(wasted) & np.isfinite(lost))
    kept_names = tuple(names[i] for i in keep)
    recorded = np.flatnonzero(flags(policies, "recorded")[keep])
    return ReplayPoliciesNumbers(
        names=kept_names,
        rows=tuple(keep.tolist()),
        wasted_share=wasted[keep],
        underflow_share=lost[keep],
        recorded=int(recorded[0]) if recorded.size else None,
        chosen=kept_names.index(chosen) if chosen in kept_names else None,
        n_left_out=len(names) - keep.size,
        overflows=np.stack([column(policies, n)[keep] for n in ("overflows", "overflows_low", "overflows_high")], 1),
    )


def policy_names(policies: pd.DataFrame) -> list[str]:
    """Return one name per row: its ``policy``, else a name made from init, factor and window, else its row label.

    Args:
        policies: Table of replayed policies.
    """
    if "policy" in policies.columns:
        return [str(name) for name in policies["policy"]]
    if not {"init", "factor", "window"} <= set(policies.columns):
        return [str(name) for name in policies.index]
    kinds = policies["kind"] if "kind" in policies.columns else ["dynamic"] * len(policies)
    rows = zip(kinds, policies["init"], policies["factor"], policies["window"], strict=True)
    return [
        f"fixed at {_power(init)}" if kind == "fixed" else f"init {_power(init)}, factor {factor:g}, window {window:g}"
        for kind, init, factor, window in rows
    ]


def _power(value: float) -> str:
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.0f}" if math.isfinite(exponent) and exponent.is_integer() else compact(value)


def replay_policies_figure(
    policies: pd.DataFrame, chosen: str | None = None, *, theme: Theme = "auto", height: int = 400
) -> go.Figure:
    """Draw wasted steps against underflow for every replayed policy.

    ``customdata[0]`` of a point is the policy's row in the table.

    Args:
        policies: See ``replay_policies_numbers``.
        chosen: Name of the policy that was chosen.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        height: Height, pixels.
    """
    numbers = replay_policies_numbers(policies, chosen)
    if not numbers.names:
        return empty_figure(_QUESTION, "No loss-scale policy has been replayed yet.", theme=theme)
    figure = new_figure(_answer(numbers), _detail(numbers), theme=theme, height=height)
    special = {numbers.recorded, numbers.chosen} - {None}
    rest = [i for i in range(len(numbers.names)) if i not in special]
    groups: list[tuple[str, list[int], str, str, int]] = [("replayed policy", rest, "circle", BLUE, 9)]
    if numbers.recorded is not None and numbers.recorded != numbers.chosen:
        groups.append(("recorded policy", [numbers.recorded], "star", ORANGE, 15))
    if numbers.chosen is not None:
        same = " (the recorded one)" if numbers.recorded == numbers.chosen else ""
        groups.append((f"chosen policy{same}", [numbers.chosen], "diamond", GREEN, 14))
    for name, indices, symbol, colour, size in groups:
        if not indices:
            continue
        one = name != "replayed policy"
        figure.add_scatter(
            x=100 * numbers.wasted_share[indices],
            y=100 * numbers.underflow_share[indices],
            mode="markers+text" if one else "markers",
            text=[name.split()[0]] if one else None,
            textposition=_beside(numbers, indices[0]),
            marker={"symbol": symbol, "size": size, "color": colour, "opacity": 1.0 if one else 0.7},
            name=name,
            customdata=[[numbers.rows[i], plain(numbers.names[i]), _overflows(numbers.overflows[i])] for i in indices],
            hovertemplate="%{customdata[1]} would have wasted %{x:.3g} % of the steps%{customdata[2]} and lost "
            "%{y:.3g} % of the gradient to underflow.<extra></extra>",
        )
    figure.update_xaxes(title_text="Wasted steps (%)", range=_padded(100 * numbers.wasted_share))
    figure.update_yaxes(title_text="Gradient lost to underflow (%)", range=_padded(100 * numbers.underflow_share))
    figure.update_layout(showlegend=True, margin={"b": 92})
    return figure


def _beside(numbers: ReplayPoliciesNumbers, index: int) -> str:
    """Return where the word of a policy goes: to the right, as most lie at the left edge, and off the other's word."""
    recorded, chosen = numbers.recorded, numbers.chosen
    if recorded is None or chosen is None or recorded == chosen:
        return "top right"
    upper = chosen if numbers.underflow_share[chosen] >= numbers.underflow_share[recorded] else recorded
    return "top right" if index == upper else "bottom right"


def _overflows(overflows: npt.NDArray[np.float64]) -> str:
    middle, low, high = overflows.tolist()
    if not math.isfinite(middle):
        return ""
    text = f" ({counted(int(middle), 'overflow')}"
    return text + (f", likely {low:.0f} to {high:.0f})" if math.isfinite(low) and math.isfinite(high) else ")")


def _padded(values: npt.NDArray[np.float64]) -> list[float]:
    """Return an axis range that begins a little below 0: the best policies lie on 0 and must not be cut in half."""
    top = max(float(values.max()), 1.0)  # per cent: less would blow up rounding
    return [-0.06 * top, 1.12 * top]


def _answer(numbers: ReplayPoliciesNumbers) -> str:
    if numbers.chosen is None:
        return _QUESTION
    wasted = percent(float(numbers.wasted_share[numbers.chosen]))
    if numbers.recorded is None or numbers.recorded == numbers.chosen:
        return f"The chosen policy wastes {wasted} of the steps"
    before = percent(float(numbers.wasted_share[numbers.recorded]))
    return f"The chosen policy wastes {wasted} of the steps, the recorded one {before}"


def _detail(numbers: ReplayPoliciesNumbers) -> str:
    n_replayed = len(numbers.names) - (numbers.recorded is not None)
    text = f"{counted(n_replayed, 'policy', 'policies')} replayed on one recording, assuming it had run alike"
    return text + (f"; {numbers.n_left_out} without numbers left out" if numbers.n_left_out else "")
