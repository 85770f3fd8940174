from __future__ import annotations

import math

import pytest

from workbench.core.text import first_line, format_duration, format_interval, format_number, printable


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.2, "1 s"),
        (40, "40 s"),
        (90, "1.5 min"),
        (720, "12 min"),
        (12600, "3.5 h"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
    ],
)
def test_durations_are_said_as_a_person_would(seconds: float, said: str) -> None:
    assert format_duration(seconds) == said


def test_what_is_not_known_is_a_word_and_no_interval_is_made_of_it() -> None:
    assert [format_number(value) for value in (0.12345, math.nan, math.inf, None)] == ["0.1235", *["unknown"] * 3]
    assert format_interval(1.2, 1.1, 1.3, " x") == "1.20 x (1.10 to 1.30)"
    assert format_interval(1.2, 0.0, math.inf, " x") == "1.20 x"
    assert format_interval(None, 1.0, 2.0) == format_interval(math.nan, 1.0, 2.0) == "unknown"


def test_an_error_without_words_is_named_by_its_class() -> None:
    assert first_line(ValueError("\nno such file.\nin detail")) == "no such file"
    assert first_line(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert len(first_line(ValueError("long " * 100))) == 300


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with a tab\tand\na line", "plain, with a tab\tand\na line"),
        ("é → 2× 百", "é → 2× 百"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J\r", "\\x9b2J\\r"),
        ("txt.\u202egpj", "txt.\\u202egpj"),
        ("lone \ud800", "lone \\ud800"),
    ],
)
def test_what_would_steer_a_terminal_is_spelled_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown
    printable(text).encode()
