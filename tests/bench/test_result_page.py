"""What was measured, as a page and as the table of the bench's own page, which says what the files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.bench import (
    Benchmark,
    Estimate,
    Finding,
    Request,
    run_benchmark,
)
from workbench.bench.result_page import (
    goals_table,
    page,
    read_answers,
    with_table,
)

ROOT = Path(__file__).parents[2]


def answer() -> dict[str, object]:
    def measure(request: Request) -> list[Finding]:
        return [
            Finding("a / b", "x", Estimate(0.5, 0.4, 0.61, request.rounds), 0.6, "quiet | busy"),
            Finding("a trial", "s", Estimate(0.02, 0.01, 0.03, request.rounds), 0.05),
            Finding("c / b", "x", None, None, "not installed", "absent"),
            Finding("d / b", "x", None, 1.0, "weights differ", "differs"),
        ]

    return run_benchmark(Benchmark("toy", "Is it?", measure, 3)).to_dict()


def test_the_page_has_every_finding_and_the_table_those_with_a_goal() -> None:
    text = page([answer()])
    assert "## toy: Is it?\n\n`workbench bench toy --rounds 3` (" in text
    assert "| a / b | 0.5 x | 0.4 to 0.61 | <= 0.6 x | unclear | quiet \\| busy |" in text
    assert "| c / b | - | - | - | absent | not installed |" in text
    assert goals_table([answer()]).splitlines()[2:] == [
        "| `toy` | a / b | 0.5 x | 0.4 to 0.61 | <= 0.6 x | unclear |",
        "| `toy` | a trial | 20 ms | 10 to 30 | <= 50 ms | met |",
        "| `toy` | d / b | - | - | 1 | differs |",
    ]


def test_the_pages_say_what_the_files_say() -> None:
    bench = ROOT / "studies" / "bench"
    answers, text = read_answers(bench / "result"), (bench / "README.md").read_text(encoding="utf-8")
    assert with_table(text, goals_table(answers)) == text, "write it again: see workbench/bench/result_page.py"
    assert (bench / "result" / "results.md").read_text(encoding="utf-8") == page(answers)


def test_a_text_without_a_place_for_it_is_refused() -> None:
    with pytest.raises(ValueError, match="the text has no"):
        with_table("# Title", "|")
