"""How numbers are written."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize(
    ("share", "written"),
    [
        (0.0, "0 %"),
        (0.3, "30 %"),
        (0.14, "14 %"),
        (0.1384, "13.8 %"),
        (0.0036, "0.36 %"),
        (0.028, "2.8 %"),
        (1.0, "100 %"),
        (1e-6, "less than 0.01 %"),
        (math.nan, "unknown"),
    ],
)
def test_a_share_is_written_in_percent(share: float, written: str) -> None:
    assert percent(share) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [(166.24, "166.2"), (1234567.0, "1.23e+06"), (0.0001234, "0.000123"), (math.inf, "infinite"), (0, "0")],
)
def test_a_number_is_written_with_four_digits(value: float, written: str) -> None:
    assert compact(value) == written


def test_thousands_are_separated_by_a_narrow_space() -> None:
    assert compact(65536.0) == "65\u202f536"
    assert counted(1_000_000, "step") == "1\u202f000\u202f000 steps"
    assert counted(1, "step") == "1 step"
    assert counted(3, "policy", "policies") == "3 policies"


def test_powers_of_two_become_superscripts() -> None:
    assert power_of_two(-24.0) == "2<sup>−24</sup>"
    assert superscripted("init 2^13, factor 2") == "init 2¹³, factor 2"
    assert superscripted("file.12^3") == "file.12^3"


def test_ticks_are_multiples_of_the_stride_and_cover_the_range() -> None:
    positions, texts = power_ticks(3.2, 15.9)
    assert positions == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]
    assert texts[0] == "2<sup>2</sup>"
    assert power_ticks(math.nan, 1.0) == ([], [])


def test_plotly_text_cannot_be_broken_by_a_name() -> None:
    assert plain("<b>%{x}</b> & 2^10") == "&lt;b&gt;%&#123;x}&lt;/b&gt; &amp; 2¹⁰"


def test_an_accuracy_is_shown_in_percent_and_differs_by_points() -> None:
    accuracy = MetricScale("accuracy")
    assert accuracy.value_text(0.9711) == "97.11 %"
    assert accuracy.difference_text(0.001) == "0.1 points"
    assert accuracy.difference_text(0.01) == "1 point"
    assert accuracy.difference_text(-1e-9) == "0 points"
    assert accuracy.title == "Accuracy (%)"


def test_another_metric_keeps_its_own_unit() -> None:
    bits = MetricScale("bits per byte", "bit", higher_is_better=False)
    assert bits.value_text(1.8234) == "1.823 bit"
    assert bits.difference_text(0.02) == "0.02 bit"
    assert bits.factor == 1.0
    assert MetricScale("accuracy", "%").value_text(97.1) == "97.10 %"
    assert MetricScale("accuracy", "%").factor == 1.0
    assert MetricScale("loss").value_text(math.nan) == "unknown"


def test_long_text_is_broken_at_spaces_by_what_is_seen_of_it() -> None:
    assert wrapped("one two three four", 9) == ["one two", "three", "four"]
    assert wrapped("2<sup>19</sup> is it", 7) == ["2<sup>19</sup> is", "it"]
    assert wrapped("unbreakable", 3) == ["unbreakable"]
    assert wrapped("", 3) == [""]


def test_plotly_text_can_be_read_as_plain_text() -> None:
    assert unmarked("at 2<sup>−19</sup>,<br>a &lt; b <b>now</b>") == "at 2^-19, a < b now"
