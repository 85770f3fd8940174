"""What was measured, as a page of lines that a user would understand, which says what the files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.bench import Benchmark, Estimate, Finding, Request, benchmarks, result_page, run_benchmark
from workbench.bench.result_page import page, read_answers

ROOT = Path(__file__).parents[2]


def answer() -> dict[str, object]:
    def measure(request: Request) -> list[Finding]:
        return [
            Finding("a / b | c", "x", Estimate(0.5, 0.4, 0.61, request.rounds), 0.6, "quiet | busy"),
            Finding("a trial", "s", Estimate(0.02, 0.01, 0.03, request.rounds), 0.05),
            Finding("c / b", "x", None, None, "not installed", "absent"),
            Finding("d / b", "x", None, 1.0, "weights differ", "differs"),
            Finding("e adds", "s", Estimate(4.1e-6, -1e-6, 6e-6, request.rounds), 8e-6),
        ]

    return run_benchmark(Benchmark("toy", "Is it?", measure, 3)).to_dict()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Benchmark:
    """Add a benchmark whose lines are for users but for one."""
    found = Benchmark("toy", "Is it?", lambda _: [], 3, shown=("a /", "a trial", "d", "e"))
    monkeypatch.setattr(result_page, "benchmarks", lambda: {"toy": found})
    return found


def test_the_page_has_the_lines_that_a_user_would_understand(toy: Benchmark) -> None:
    lines = page([answer()]).splitlines()
    assert [line for line in lines if line.startswith("| ")][1:] == [
        "| --- | --- | --- | --- | --- | --- |",
        "| a / b \\| c | 0.5 x | 0.4 to 0.61 | <= 0.6 x | unclear | `toy` |",
        "| a trial | 20 ms | 10 to 30 | <= 50 ms | met | `toy` |",
        "| d / b | - | - | 1 | differs | `toy` |",
        "| e adds | 4.1 us | -1 to 6 | <= 8 us | met | `toy` |",
    ]
    assert lines[-1].startswith("* `workbench bench toy --rounds 3`: ")


def test_the_page_says_what_the_files_say_in_forty_lines() -> None:
    folder = ROOT / "studies" / "bench" / "result"
    written = (folder / "results.md").read_text(encoding="utf-8")
    assert written == page(read_answers(folder)), "write it again: see workbench/bench/result_page.py"
    assert 20 <= sum(line.startswith("| ") for line in written.splitlines()) - 2 <= 40


def test_a_benchmark_that_shows_lines_finds_lines_of_that_beginning() -> None:
    for one in read_answers(ROOT / "studies" / "bench" / "result"):
        whats = [finding["what"] for finding in one["findings"]]
        for begin in benchmarks()[one["name"]].shown:
            assert any(what.startswith(begin) for what in whats), (one["name"], begin)
