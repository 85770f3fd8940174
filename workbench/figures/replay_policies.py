"""Replayed loss-scale policies: what each would have wasted, and what it would have lost to underflow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd

from workbench.figures.drawing import Drawing, Mark
from workbench.figures.frames import column, flags
from workbench.figures.labels import compact, counted, percent, plain
from workbench.figures.theme import BLUE, GREEN, ORANGE, Theme, translucent
from workbench.figures.thinning import Floats

_QUESTION = "Which loss-scale policy would have wasted least?"


@dataclass(frozen=True, eq=False)
class ReplayPoliciesNumbers:
    """Numbers behind the scatter, one entry per policy that has both of them."""

    names: tuple[str, ...]
    rows: tuple[int, ...]  # position of each in the table it came from, as `iloc` counts
    wasted_share: Floats  # of the steps, whose update would have been skipped
    underflow_share: Floats  # of gradient elements, which would have become zero
    recorded: int | None  # index of the policy that was really run; None when the table does not say
    chosen: int | None
    n_left_out: int
    overflows: Floats  # with the ends of their range ``[policies, 3]``; NaN where the table has none


def replay_policies_numbers(policies: pd.DataFrame, chosen: str | None = None) -> ReplayPoliciesNumbers:
    """Read a table of replayed policies; arguments as for ``replay_policies_figure``."""
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
    """Return one name per row: its ``policy``, else one of init, factor and window, else its row label."""
    if "policy" in policies.columns:
        return [str(name) for name in policies["policy"]]
    if not {"init", "factor", "window"} <= set(policies.columns):
        return [str(name) for name in policies.index]
    kinds = policies["kind"] if "kind" in policies.columns else ["dynamic"] * len(policies)
    return list(map(policy_name, policies["init"], policies["factor"], policies["window"], kinds))


def policy_name(init: float, factor: float, window: float, kind: str = "dynamic") -> str:
    """Return a policy's name by what it is."""
    if kind == "fixed":
        return f"fixed at {_power(init)}"
    return f"init {_power(init)}, factor {factor:g}, window {window:g}"


def _power(value: float) -> str:
    exponent = math.log2(value) if value > 0 else math.nan
    return f"2^{exponent:.0f}" if math.isfinite(exponent) and exponent.is_integer() else compact(value)


def replay_policies_drawing(
    policies: pd.DataFrame, chosen: str | None = None, *, theme: Theme = "auto", height: int = 400
) -> Drawing:
    """Draw wasted steps against underflow for every replayed policy.

    ``policies`` is the table of ``workbench.replay``, one row per policy: ``wasted_share`` and ``underflow_share``
    in [0, 1]; ``policy`` (its name) and ``recorded`` (bool) when known. ``chosen`` is a name as in
    ``policy_names``. ``customdata[0]`` of a point is the policy's row in the table.
    """
    numbers = replay_policies_numbers(policies, chosen)
    if not numbers.names:
        return Drawing.empty(_QUESTION, "No loss-scale policy has been replayed yet.", theme=theme)
    drawing = Drawing(_answer(numbers), _detail(numbers), theme=theme, height=height)
    special = {numbers.recorded, numbers.chosen} - {None}
    rest = [i for i in range(len(numbers.names)) if i not in special]
    groups = [("replayed policy", rest, Mark("circle", 9, translucent(BLUE, 0.7)))]
    if numbers.recorded is not None and numbers.recorded != numbers.chosen:
        groups.append(("recorded policy", [numbers.recorded], Mark("star", 15, ORANGE)))
    if numbers.chosen is not None:
        same = " (the recorded one)" if numbers.recorded == numbers.chosen else ""
        groups.append((f"chosen policy{same}", [numbers.chosen], Mark("diamond", 14, GREEN)))
    for name, indices, mark in groups:
        drawing.marks(
            (100 * numbers.wasted_share[indices], 100 * numbers.underflow_share[indices]),
            mark,
            "%{customdata[1]} would have wasted %{x:.3g} % of the steps%{customdata[2]} and lost "
            "%{y:.3g} % of the gradient to underflow.",
            name=name,
            customdata=[[numbers.rows[i], plain(numbers.names[i]), _overflows(numbers.overflows[i])] for i in indices],
        )
    drawing.set_x("Wasted steps (%)", range=_padded(100 * numbers.wasted_share))
    drawing.set_y("Gradient lost to underflow (%)", range=_padded(100 * numbers.underflow_share))
    drawing.show_legend()
    return drawing


def _overflows(overflows: Floats) -> str:
    middle, low, high = overflows.tolist()
    if not math.isfinite(middle):
        return ""
    text = f" ({counted(int(middle), 'overflow')}"
    return text + (f", likely {low:.0f} to {high:.0f})" if math.isfinite(low) and math.isfinite(high) else ")")


def _padded(values: Floats) -> list[float]:
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
    text = f"{counted(n_replayed, 'policy', 'policies')} replayed on one recording, as if it had gone the same way"
    return text + (f"; {numbers.n_left_out} without numbers left out" if numbers.n_left_out else "")
