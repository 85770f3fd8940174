"""How numbers are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from workbench.figures.labels import (
    MetricScale,
    compact,
    counted,
    percent,
    plain,
    power_of_two,
    power_ticks,
    superscripted,
    unmarked,
    wrapped,
)

ACCURACY = MetricScale("accuracy")
OF_ITS_OWN_UNIT = MetricScale("accuracy", "%")
BITS = MetricScale("bits per byte", "bit", higher_is_better=False)


@pytest.mark.parametrize(
    ("write", "value", "written"),
    [
        (percent, 0.0, "0 %"),
        (percent, 0.3, "30 %"),
        (percent, 0.14, "14 %"),
        (percent, 0.1384, "13.8 %"),
        (percent, 0.0036, "0.36 %"),
        (percent, 0.028, "2.8 %"),
        (percent, 1.0, "100 %"),
        (percent, 1e-6, "less than 0.01 %"),
        (percent, math.nan, "unknown"),
        (compact, 166.24, "166.2"),
        (compact, 1234567.0, "1.23e+06"),
        (compact, 0.0001234, "0.000123"),
        (compact, math.inf, "infinite"),
        (compact, 0, "0"),
        (compact, 65536.0, "65\u202f536"),
        (power_of_two, -24.0, "2<sup>−24</sup>"),
        (superscripted, "init 2^13, factor 2", "init 2¹³, factor 2"),
        (superscripted, "file.12^3", "file.12^3"),
        (plain, "<b>%{x}</b> & 2^10", "&lt;b&gt;%&#123;x}&lt;/b&gt; &amp; 2¹⁰"),
        (unmarked, "at 2<sup>−19</sup>,<br>a &lt; b <b>now</b>", "at 2^-19, a < b now"),
        (ACCURACY.value_text, 0.9711, "97.11 %"),
        (ACCURACY.difference_text, 0.001, "0.1 points"),
        (ACCURACY.difference_text, 0.01, "1 point"),
        (ACCURACY.difference_text, -1e-9, "0 points"),
        (BITS.value_text, 1.8234, "1.823 bit"),
        (BITS.difference_text, 0.02, "0.02 bit"),
        (OF_ITS_OWN_UNIT.value_text, 97.1, "97.10 %"),
        (MetricScale("loss").value_text, math.nan, "unknown"),
    ],
)
def test_a_value_is_written(write: Callable[[Any], str], value: Any, written: str) -> None:
    assert write(value) == written


def test_a_metric_of_another_unit_than_accuracy_keeps_its_numbers() -> None:
    assert ACCURACY.title == "Accuracy (%)"
    assert BITS.factor == OF_ITS_OWN_UNIT.factor == 1.0


def test_a_count_has_its_noun_in_the_right_number_and_thousands_apart() -> None:
    assert counted(1_000_000, "step") == "1\u202f000\u202f000 steps"
    assert counted(1, "step") == "1 step"
    assert counted(3, "policy", "policies") == "3 policies"


def test_ticks_are_multiples_of_the_stride_and_cover_the_range() -> None:
    positions, texts = power_ticks(3.2, 15.9)
    assert positions == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]
    assert texts[0] == "2<sup>2</sup>"
    assert power_ticks(math.nan, 1.0) == ([], [])


def test_long_text_is_broken_at_spaces_by_what_is_seen_of_it() -> None:
    assert wrapped("one two three four", 9) == ["one two", "three", "four"]
    assert wrapped("2<sup>19</sup> is it", 7) == ["2<sup>19</sup> is", "it"]
    assert wrapped("unbreakable", 3) == ["unbreakable"]
    assert wrapped("", 3) == [""]
