"""Still pictures: dots where the numbers say, on axes with round ticks, as valid XML."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from workbench.report.svg_chart import Panel, Point, chart

SVG = "{http://www.w3.org/2000/svg}"


def _circles(panel: Panel) -> list[tuple[float, float]]:
    root = ElementTree.fromstring(chart([panel]))
    return [(float(one.attrib["cx"]), float(one.attrib["cy"])) for one in root.iter(f"{SVG}circle")]


def test_larger_is_right_and_up() -> None:
    (x1, y1), (x2, y2) = _circles(Panel("t", "x", "y", [Point(1, 10), Point(2, 20)]))
    assert x1 < x2
    assert y1 > y2


def test_equal_ratios_are_equally_far_on_a_logarithmic_axis() -> None:
    xs = [x for x, _ in _circles(Panel("t", "x", "y", [Point(v, 0) for v in (1, 10, 100)], log_x=True))]
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.2)


@pytest.mark.parametrize(
    "point", [Point(math.nan, 1), Point(1, math.inf), Point(1, 1, (1, math.inf)), Point(-1, 1)], ids=str
)
def test_what_cannot_stand_on_the_axes_is_left_out(point: Point) -> None:
    assert len(_circles(Panel("t", "x", "y", [point, Point(1, 1), Point(2, 2)], log_x=True))) == 2


def test_texts_are_escaped_one_point_has_axes_and_none_is_said() -> None:
    assert "nothing to show" in chart([Panel("t", "x", "y", [])])
    text = chart([Panel("a < b", "x & y", "y", [Point(3, 3, text="<script>")])])
    ElementTree.fromstring(text)
    assert "<script>" not in text


def test_ticks_are_round_numbers_within_the_axis() -> None:
    text = chart([Panel("t", "x", "y", [Point(0.123, 1), Point(0.987, 4)])])
    ticks = [float(tick) for tick in re.findall(r'text-anchor="middle">(0\.\d+)<', text)]
    assert ticks == [0.2, 0.4, 0.6, 0.8, 1.0][: len(ticks)]
    assert len(ticks) >= 4
